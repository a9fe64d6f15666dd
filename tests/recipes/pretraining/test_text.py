"""Text policies and judges from data to reward: recipes, prompts, filling, evaluation, the bundled pair."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import discrete_grpo as dg
from discrete_grpo.datasets.text import is_sentence, sentences, text_dataset
from discrete_grpo.domains.smiles import canonical_samples
from discrete_grpo.metrics.text import diversity, evaluate, ranking_quality, recovered, sample_metrics
from discrete_grpo.recipes.filling import evaluate_fills, fill_in_prompts, fill_texts, load_text_policy
from discrete_grpo.recipes.pretraining.judge import JudgeRecipe, run_judge, text_judge
from discrete_grpo.recipes.pretraining.text import (
    EncoderSizes,
    PretrainTextRecipe,
    run_pretrain_text,
    split_lines,
    text_policy,
)
from discrete_grpo.recipes.reward_kinds import check_judges
from discrete_grpo.rewards.judge import Judge
from discrete_grpo.runs.checkpoint import CheckpointError, load_metadata, save
from discrete_grpo.training.config import GRPOConfig, PretrainConfig
from discrete_grpo.training.trainer import GRPOTrainer

TINY = EncoderSizes(layers=1, heads=2, width=16)
SHORT = PretrainConfig(max_steps=6, batch_size=8, warmup_steps=1, save_steps=3, log_steps=3)


def lengths(samples: Sequence[str], **columns: Any) -> list[float]:
    return [float(len(s)) for s in samples]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Folders of a policy and a judge of sentences, hardly trained."""
    folder = tmp_path_factory.mktemp("runs")
    common: dict[str, Any] = {"num_lines": 40, "network": TINY, "pretrain": SHORT}
    recipe = PretrainTextRecipe(output_dir=str(folder / "fill"), rounds=2, evaluation_samples=6, block_size=40, **common)
    policy = run_pretrain_text(recipe)
    judge = run_judge(
        JudgeRecipe(output_dir=str(folder / "judge"), policy=str(folder / "fill"), evaluation_samples=5, block_size=40, **common)
    )
    return str(policy), str(judge)


# ---------------------------------------------------------------- training


def test_pretraining_and_judge_leave_usable_checkpoints_with_their_data_named(pair: tuple[str, str]) -> None:
    for folder, kind in zip(pair, ("text", "judge"), strict=True):
        found = load_metadata(folder)
        assert found["kind"] == kind
        assert found["data"]["name"] == "sentences"
        assert found["data"]["lines"] == 40
        assert "grammar" in found["data"]["licence"]
        assert {"date", "seed", "pretraining_steps"} <= set(found)
    assert load_metadata(pair[1])["corrupted_lines"] >= 60
    lines = [json.loads(x) for x in (Path(pair[0]).parent / "metrics.jsonl").read_text().splitlines()]
    assert {"eval/recovered", "eval/sentences", "eval/distinct_fills"} <= set().union(*lines)
    lines = [json.loads(x) for x in (Path(pair[1]).parent / "metrics.jsonl").read_text().splitlines()]
    assert {"eval/real", "eval/other", "eval/ranking_quality"} <= set().union(*lines)
    assert load_text_policy(pair[0]).rounds == 2


def test_a_run_leaves_prompts_of_seen_and_of_unseen_lines(pair: tuple[str, str]) -> None:
    found = {}
    for name in ("prompts", "prompts-held-out"):
        text = (Path(pair[0]).parent / f"{name}.jsonl").read_text()
        found[name] = [json.loads(line) for line in text.splitlines()]
    assert [len(some) for some in found.values()] == [40, 6]
    assert not {p["original"] for p in found["prompts"]} & {p["original"] for p in found["prompts-held-out"]}
    policy = load_text_policy(pair[0])
    for prompt in (*found["prompts"], *found["prompts-held-out"]):
        policy.check_condition(prompt)
        assert prompt["masked"].count("_") == round(0.4 * len(prompt["original"]))
    with pytest.raises(ValueError, match="masked: None, expected a text with at least one blank"):
        policy.check_condition({})


def test_a_resumed_run_ends_where_a_whole_one_does(tmp_path: Path) -> None:
    recipe = PretrainTextRecipe(
        output_dir=str(tmp_path / "a"), num_lines=40, network=TINY, pretrain=SHORT, evaluation_samples=0, block_size=40
    )
    whole = load_text_policy(run_pretrain_text(recipe))
    shutil_step = tmp_path / "a" / "checkpoints" / "step-00000006"
    for file in shutil_step.iterdir():
        file.unlink()
    shutil_step.rmdir()
    again = load_text_policy(run_pretrain_text(recipe, resume=True))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))


def test_any_text_file_and_smiles_are_trained_on(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("".join(f"line {k} of the notes, with numbers\n" for k in range(30)))
    recipe = PretrainTextRecipe(
        data=str(text), output_dir=str(tmp_path / "a"), network=TINY, pretrain=SHORT, evaluation_samples=9, data_licence="ours"
    )
    found = load_metadata(run_pretrain_text(recipe))["data"]
    assert found == {"name": "notes.txt", "lines": 27, "held_out_lines": 3, "licence": "ours"}
    with pytest.raises(ValueError, match=r"line 1 has 33 tokens, expected 1 to 10 \(block_size\); long_lines 'split' cuts it"):
        run_pretrain_text(replace(recipe, block_size=10))
    split = replace(recipe, output_dir=str(tmp_path / "b"), block_size=10, long_lines="split")
    assert load_text_policy(run_pretrain_text(split)).block_size == 10
    smiles = tmp_path / "a.smi"
    smiles.write_text("CCl\nC[nH]C\nCCO\nBrCC\n" * 5)
    policy = run_pretrain_text(replace(recipe, data=str(smiles), tokens="smiles", output_dir=str(tmp_path / "c")))
    assert load_text_policy(policy).tokenizer.tokens == ("Br", "C", "Cl", "O", "[nH]")
    prompts = [json.loads(line) for line in (tmp_path / "c/prompts.jsonl").read_text().splitlines()]
    assert {p["original"] for p in prompts} == {"CCl", "C[nH]C", "CCO", "BrCC"}
    samples = dg.sample(policy, 40, columns=prompts)
    assert samples == canonical_samples([s or "" for s in samples])  # fills that are no molecules are None
    assert None in samples
    judge = JudgeRecipe(data=str(smiles), tokens="smiles", output_dir=str(tmp_path / "d"), network=TINY, pretrain=SHORT)
    assert 0 < Judge(str(run_judge(judge)))(["CCO"])[0] < 1


def test_fills_of_smiles_are_measured_as_molecules(tmp_path: Path) -> None:
    smiles = tmp_path / "a.smi"
    smiles.write_text("".join(f"C{'C' * k}1OC1\nN{'C' * k}=O\n" for k in range(20)))
    loop = replace(SHORT, max_steps=1)
    recipe = PretrainTextRecipe(data=str(smiles), tokens="smiles", output_dir=str(tmp_path / "a"), network=TINY, pretrain=loop)
    run_pretrain_text(replace(recipe, evaluation_samples=4, num_prompts=10))
    valid = json.loads((tmp_path / "a/evaluation.json").read_text())["after"]["valid"]
    texts = fill_texts(load_text_policy(tmp_path / "a"), held_out(tmp_path / "a"), 1)
    assert valid == sum(s is not None for s in canonical_samples(texts)) / len(texts) < 1


def held_out(run: Path) -> list[str]:
    return [json.loads(line)["masked"] for line in (run / "prompts-held-out.jsonl").read_text().splitlines()]


def test_prompts_are_lines_from_the_whole_file(tmp_path: Path) -> None:
    text = tmp_path / "sorted.txt"
    text.write_text("".join(f"{animal} {k}\n" for animal in ("ape", "bee", "cat", "dog") for k in range(100, 140)))
    recipe = PretrainTextRecipe(data=str(text), output_dir=str(tmp_path / "a"), network=TINY, pretrain=replace(SHORT, max_steps=1))
    run_pretrain_text(replace(recipe, evaluation_samples=0, num_prompts=16))
    lines = [json.loads(line)["original"] for line in (tmp_path / "a/prompts.jsonl").read_text().splitlines()]
    assert len(set(lines)) == 16
    assert len({line[:3] for line in lines}) >= 3


def test_a_judge_of_a_policys_fills_takes_the_policys_alphabet(pair: tuple[str, str], tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("the baker\nan uncle\n" * 5)
    recipe = JudgeRecipe(data=str(text), output_dir=str(tmp_path / "a"), policy=pair[0], network=TINY, pretrain=SHORT)
    judge = Judge(str(run_judge(recipe)))
    check_judges(load_text_policy(pair[0]), [judge])
    text.write_text("the baker\nthe QUEEN\n")
    with pytest.raises(ValueError, match=r"a\.txt' line 2: 'the QUEEN' has the token 'Q'"):
        run_judge(recipe)


def test_a_resumed_judge_tells_that_the_policy_fills_otherwise_now(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(pair[0], tmp_path / "policy")

    def go(steps: int, *, resume: bool) -> str:
        common: dict[str, Any] = {"network": TINY, "pretrain": replace(SHORT, max_steps=steps), "num_lines": 20}
        run_judge(JudgeRecipe(output_dir=str(tmp_path / "judge"), policy=str(tmp_path / "policy"), **common), resume=resume)
        return capsys.readouterr().err

    go(2, resume=False)
    assert "fills" not in go(4, resume=True)
    other = load_text_policy(tmp_path / "policy")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.neg_()
    save(tmp_path / "policy", other, metadata=load_metadata(tmp_path / "policy"))
    assert re.search("digest of the corrupted lines and fills: was .* in the run so far, is .* from here on", go(6, resume=True))


def test_text_that_cannot_be_corrupted_trains_no_judge(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("aaa\naa\n")
    with pytest.raises(ValueError, match=r"a\.txt' has no line that can be corrupted"):
        run_judge(JudgeRecipe(data=str(text), output_dir=str(tmp_path / "a"), network=TINY, pretrain=SHORT))


def test_no_real_line_is_a_corrupted_one_for_the_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ["".join(letters) for letters in itertools.product("ab", repeat=6)][:60]  # 4 words are left to be corrupted ones
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in real))
    seen: dict[str, Any] = {}

    def keep(scorer: Any, data: Any, recipe: Any, *, evaluate: Any, **more: Any) -> Path:
        seen.update(data=data, evaluate=evaluate)
        return tmp_path

    def scores(texts: Sequence[str]) -> list[float]:
        seen.setdefault("judged", []).append(set(texts))
        return [0.0] * len(texts)

    monkeypatch.setattr("discrete_grpo.recipes.pretraining.judge.fit", keep)
    monkeypatch.setattr("discrete_grpo.recipes.pretraining.judge.ModuleReward", lambda scorer: scores)
    run_judge(JudgeRecipe(data=str(tmp_path / "a.txt"), corruptions=40, evaluation_samples=6, network=TINY, pretrain=SHORT))
    seen["evaluate"](None)
    of_training = set(seen["data"].texts.lines[60 - 6 :])
    held_out, corrupted = seen["judged"]
    assert len(held_out) == 6
    assert held_out <= set(real)
    assert of_training
    assert corrupted
    assert not (of_training | corrupted) & set(real)


@pytest.mark.parametrize("recipe", [PretrainTextRecipe(evaluation_samples=9), JudgeRecipe(evaluation_samples=9)])
def test_a_line_of_a_file_counts_once_and_is_seen_or_held_out(recipe: PretrainTextRecipe | JudgeRecipe, tmp_path: Path) -> None:
    text, lines = tmp_path / "a.txt", [f"line {k:02}" for k in range(50)]
    text.write_text("".join(f"{line}\n" for line in [*lines[::-1], *lines, *lines]))
    data, held = split_lines(replace(recipe, data=str(text)), recipe.evaluation_samples)
    assert (len(data), len(held)) == (45, 5)
    assert [line for line in lines[::-1] if line not in held] == list(data.lines)  # the order of the first ones
    assert sorted([*data.lines, *held]) == lines
    assert [data.tokenizer.decode(row[row > 0].tolist()) for row in data.tokens] == list(data.lines)
    pieces, out = split_lines(replace(recipe, data=str(text), block_size=5, long_lines="split"), recipe.evaluation_samples)
    assert sorted([*pieces.lines, *out]) == sorted(["line ", *(f"{k:02}" for k in range(50))])


def test_too_few_lines_to_hold_any_out_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "a.txt"
    text.write_text("abc\nabd\n")
    recipe = PretrainTextRecipe(data=str(text), output_dir=str(tmp_path / "a"), network=TINY, pretrain=replace(SHORT, max_steps=1))
    run_pretrain_text(recipe)
    assert "2 different lines are too few to hold any out" in capsys.readouterr().err
    run_pretrain_text(replace(recipe, output_dir=str(tmp_path / "b"), evaluation_samples=0))
    assert "too few" not in capsys.readouterr().err


@pytest.mark.parametrize("recipe", [PretrainTextRecipe(), JudgeRecipe()])
def test_the_sentences_of_the_bundled_pair_stay_as_they_are_made(recipe: PretrainTextRecipe | JudgeRecipe) -> None:
    data, held = split_lines(replace(recipe, num_lines=2000), recipe.evaluation_samples)
    made = sentences(2000, recipe.pretrain.seed)
    assert (list(data.lines), held) == (made, sentences(recipe.evaluation_samples, recipe.pretrain.seed, held_out=True))


def test_recipes_check_their_values() -> None:
    with pytest.raises(ValueError, match=r"^fill_rounds: \(\), expected at least one value where a policy's fills are shown$"):
        JudgeRecipe(policy="fill-in", fill_rounds=())
    with pytest.raises(ValueError, match=r"fill_temperatures: \(\), expected at least one value"):
        JudgeRecipe(policy="fill-in", fill_temperatures=())
    JudgeRecipe(fill_rounds=())  # no fills to make
    with pytest.raises(ValueError, match="evaluation_samples: -1, expected at least 0"):
        PretrainTextRecipe(evaluation_samples=-1)
    with pytest.raises(ValueError, match="fills: -2, expected at least 0"):
        JudgeRecipe(fills=-2)
    with pytest.raises(ValueError, match="corruptions: 0 without fills of a policy"):
        JudgeRecipe(corruptions=0)


# ---------------------------------------------------------------- filling


def test_loading_takes_rounds_and_truncation_anew(pair: tuple[str, str]) -> None:
    policy = load_text_policy(pair[0], rounds=5, temperature=0.5, top_k=3, top_p=0.9)
    assert (policy.rounds, policy.truncation.temperature, policy.truncation.top_k, policy.truncation.top_p) == (5, 0.5, 3, 0.9)
    assert policy.encode.__self__ is policy, "not the method of the policy that was loaded"  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match="holds a TextScorer, expected a policy that fills blanks in text"):
        load_text_policy(pair[1])
    with pytest.raises(ValueError, match="top_p: 2, expected more than 0 and at most 1"):
        load_text_policy(pair[0], top_p=2)


def test_fills_of_a_prompt_stand_together(pair: tuple[str, str]) -> None:
    policy, masked = load_text_policy(pair[0]), ["the b____", "a __"]
    samples = fill_texts(policy, masked, 3, seed=4)
    assert [s[:2] for s in samples] == ["th"] * 3 + ["a "] * 3
    assert samples == fill_texts(policy, masked, 3, seed=4)
    with pytest.raises(ValueError, match="count: 0, expected at least 1"):
        fill_texts(policy, masked, 0)


def test_prompts_are_held_out_sentences_with_blanks() -> None:
    held, train = fill_in_prompts(50, 3, held_out=True), fill_in_prompts(50, 3)
    assert not {p["original"] for p in held} & {p["original"] for p in train}
    for prompt in held:
        assert is_sentence(prompt["original"])
        assert prompt["masked"].count("_") == round(0.4 * len(prompt["original"]))
    assert {p["original"] for p in held} <= set(sentences(50, 3, held_out=True))
    assert fill_in_prompts(5, 3) == fill_in_prompts(5, 3) != fill_in_prompts(5, 4)


def test_evaluation_counts_what_it_says(pair: tuple[str, str]) -> None:
    policy, judge = load_text_policy(pair[0]), Judge(pair[1])
    prompts = fill_in_prompts(10, 3)
    found = evaluate_fills(policy, prompts, 2, judge=judge)
    masked = [p["masked"] for p in prompts]
    samples = fill_texts(policy, masked, 2)
    originals = [p["original"] for p in prompts for _ in range(2)]
    blanks = [(m, s, o) for m, s, o in zip([m for m in masked for _ in range(2)], samples, originals, strict=True)]
    places = [(s[k], o[k]) for m, s, o in blanks for k in range(len(m)) if m[k] == "_"]
    assert found["recovered"] == pytest.approx(sum(a == b for a, b in places) / len(places))
    assert found["sentences"] == sum(map(is_sentence, samples)) / 20
    assert found["judge"] == pytest.approx(sum(judge(samples)) / 20)
    assert found["judge_original"] == pytest.approx(sum(judge(originals)) / 20)
    assert found["num_samples"] == 20
    assert found["distinct_fills"] == sum(len({*samples[2 * k : 2 * k + 2]}) / 2 for k in range(10)) / 10
    assert "recovered" not in evaluate_fills(policy, [{"masked": "a __"}])


def test_a_judge_of_another_alphabet_is_refused_before_the_run(pair: tuple[str, str], tmp_path: Path) -> None:
    other = save(tmp_path / "judge", text_judge(text_dataset(["abc"]), TINY), metadata={})
    policy = load_text_policy(pair[0])
    check_judges(policy, [Judge(pair[1]), lengths])  # other rewards are left alone
    with pytest.raises(ValueError, match="has no ' ' in its alphabet, expected one of the policy's text"):
        check_judges(policy, [Judge(str(other))])


def test_a_policy_has_the_weights_of_its_seed_and_touches_no_other() -> None:
    data, state = text_dataset(["abc", "cab"]), torch.random.get_rng_state()
    a, b, c = (text_policy(data, TINY, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    same = [torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True)]
    assert all(same)
    assert not all(torch.equal(p, q) for p, q in zip(a.parameters(), c.parameters(), strict=True))


# ---------------------------------------------------------------- metrics


def test_metrics_of_nothing_are_zero_or_unknown() -> None:
    assert sample_metrics([]) == {"valid": 0.0, "unique": 0.0}
    assert sample_metrics([None, None]) == {"valid": 0.0, "unique": 0.0}
    assert diversity([None], ["a_"]) == 0.0
    assert recovered([None, "ab"], ["a_", "a_"], ["ab", "ab"]) == 0.5
    assert ranking_quality([], [1.0]) != ranking_quality([], [1.0])
    assert ranking_quality([0.1, 0.2], [0.3]) == 0.0
    assert ranking_quality([0.2, 0.3], [0.2, 0.1]) == 0.875  # a tie is half
    with pytest.raises(ValueError, match=r"^real: a score that is None or NaN, expected numbers"):
        ranking_quality([0.5, float("nan")], [0.1])
    found = evaluate(["aba", "aba", None], {"aba"})
    assert found == pytest.approx(
        {"num_samples": 3.0, "valid": 2 / 3, "unique": 0.5, "novel": 0.0, "length": 3.0, "distinct_2": 0.5}
    )
    assert evaluate([None])["length"] != evaluate([None])["length"]
    assert evaluate(["ab", "ab", "", "b"], {"ab"})["novel"] == 2 / 3  # a text counts once
    assert evaluate(["ab", "", "b"])["distinct_2"] == 1.0  # texts without a pair count for nothing
    assert diversity(["ab", "ab", "ac", "b"], ["a_", "a_", "a_", "_"]) == pytest.approx((2 / 3 + 1) / 2)
    assert recovered(["a"], ["a_"], ["ab"]) == 0.0  # a text that ends too early
    assert ranking_quality([0.9, 0.5, 0.4], [0.5]) == pytest.approx((1 + 1 / 2 + 0) / 3)


# ---------------------------------------------------------------- the bundled pair


def test_the_bundled_pair_is_small_and_says_where_it_is_from() -> None:
    root = Path(__file__).parents[3] / "discrete_grpo" / "bundled"
    for name, limit in (("fill-in", 2_000_000), ("fill-in-judge", 1_000_000)):
        assert sum(p.stat().st_size for p in (root / name).iterdir()) < limit
        found = load_metadata(root / name)
        assert {"name", "lines", "licence"} <= set(found["data"])
        assert {"date", "seed"} <= set(found)


def test_no_prompts_are_one_line() -> None:
    with pytest.raises(ValueError, match="prompts: none given, expected at least one"):
        evaluate_fills(load_text_policy("fill-in"), [])


def test_the_bundled_judge_tells_sentences_from_fills_and_leaves_room() -> None:
    policy, judge = load_text_policy("fill-in"), Judge("fill-in-judge")
    check_judges(policy, [judge])
    found = evaluate_fills(policy, fill_in_prompts(60, 11, held_out=True), 2, judge=judge)
    assert found["judge_original"] > 0.8
    assert found["judge"] < found["judge_original"] - 0.3
    assert 0.02 < found["sentences"] < 0.6


@pytest.mark.slow
def test_grpo_raises_the_bundled_judge_and_the_truth_with_it() -> None:
    """On a few prompts, seen often; the preset does it on prompts it never saw, which takes minutes."""
    policy, judge = load_text_policy("fill-in"), Judge("fill-in-judge")
    prompts = fill_in_prompts(2, 11, held_out=True)
    before = evaluate_fills(policy, prompts, 32, judge=judge)
    config = GRPOConfig(
        max_steps=30, num_generations=16, generation_batch_size=32, per_device_batch_size=32, learning_rate=3e-4, bf16="auto"
    )
    GRPOTrainer(policy, judge, config, columns=prompts).train()
    after = evaluate_fills(policy, prompts, 32, judge=judge)
    assert after["judge"] > before["judge"] + 0.3 * (before["judge_original"] - before["judge"])
    assert after["sentences"] > before["sentences"] + 0.05


def test_fills_of_one_prompt_are_compared_wherever_they_stand() -> None:
    fills, prompts = ["a cat", "a dog", "a cat", "a fox"], ["a c__", "a ___", "a c__", "a ___"]
    assert diversity(fills, prompts) == (0.5 + 1.0) / 2
