"""Runs that go on with other settings than they began with: what is used from when on, and that nothing goes wrong silently."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import discrete_grpo as dg
from discrete_grpo.cli.runs import resume, start
from discrete_grpo.core.loss import unit_counts
from discrete_grpo.core.scoring import RewardError
from discrete_grpo.recipes.memory_methods import TOKENS
from discrete_grpo.recipes.optimise import OptimiseRecipe
from discrete_grpo.recipes.pretraining.preprocess import ShardOptions, preprocess
from discrete_grpo.recipes.train import TrainRecipe, run_train
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.rewards.molecules import qed
from discrete_grpo.rewards.sources import file_digest
from discrete_grpo.runs.checkpoint import load_metadata, save
from discrete_grpo.runs.checkpoint_names import find_checkpoint
from discrete_grpo.runs.recorder import read_metrics, read_samples
from discrete_grpo.runs.report.charts import Values, histogram
from discrete_grpo.runs.serialization import CheckpointError
from discrete_grpo.runs.weights import load_weights
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.lora import LoraOptions
from discrete_grpo.training.trainer import GRPOTrainer
from tests.toys import share_of_class_two, tiny_policy
from tests.training.trainer_options_parts import reference

FOUR = GRPOConfig(max_steps=1, num_generations=4, generation_batch_size=8, num_iterations=4, save_steps=100, learning_rate=1e-3)


def trained(folder: Path, config: GRPOConfig, *, resume: bool = False) -> GRPOTrainer:
    ledger = Ledger() if config.patience is not None else None
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, config, run=folder, resume=resume, ledger=ledger)
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    "changes",
    [
        {"num_iterations": 2},
        {"num_iterations": 1},
        {"per_device_batch_size": 3},
        {"timestep_chunk": 2},
        {"steps_per_generation": 2},
        {"patience": 3},
    ],
)
def test_a_generation_is_finished_as_it_was_cut(tmp_path: Path, changes: dict[str, Any]) -> None:
    plain, other = tmp_path / "plain", tmp_path / "other"
    trained(plain, FOUR)
    trained(other, FOUR)
    trained(plain, replace(FOUR, max_steps=4), resume=True)
    changed = trained(other, replace(FOUR, max_steps=9, **changes), resume=True)
    same = [[line["loss"] for line in read_metrics(folder)][:4] for folder in (plain, other)]
    assert same[0] == same[1]
    drawn = sorted({int(step) for step in read_samples(other / "samples.csv.gz")["step"]})
    each = changed.config.num_iterations * changed.config.steps_per_generation
    assert drawn == [1, *range(5, 10, each)]


def test_a_changed_cut_is_kept_through_a_second_stop(tmp_path: Path) -> None:
    plain, other = tmp_path / "plain", tmp_path / "other"
    trained(plain, replace(FOUR, max_steps=4))
    trained(other, FOUR)
    for last in (2, 3, 4):
        trained(other, replace(FOUR, max_steps=last, per_device_batch_size=3), resume=True)
    losses = [[line["loss"] for line in read_metrics(folder)] for folder in (plain, other)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(("before", "after"), [("token", "step"), ("step", "token"), ("token", "sequence"), ("token", "token")])
def test_weights_follow_a_changed_importance_sampling_level_within_a_generation(tmp_path: Path, before: Any, after: Any) -> None:
    """dapo: the weights of all units of a window sum to 1, and the units are those of the level that the loss has now."""
    config = replace(FOUR, num_iterations=1, steps_per_generation=2, importance_sampling_level=before)
    trained(tmp_path, config)
    changed = replace(config, importance_sampling_level=after, max_steps=2)
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, changed, run=tmp_path, resume=True)
    assert trainer.pending is not None
    micros, _ = trainer.pending.next()
    total = sum(float((m.weight * unit_counts(m.rollout.units.gather(1, m.steps), after).sum(-1)).sum()) for m in micros)
    assert total == pytest.approx(1.0)


@pytest.mark.parametrize("fractions", [(0.0, 0.5), (0.5, 0.0)])
def test_refinement_can_begin_and_end_with_a_resumed_run(tmp_path: Path, fractions: tuple[float, float]) -> None:
    config = replace(FOUR, num_iterations=1, max_steps=2)
    trained(tmp_path, replace(config, refine_fraction=fractions[0]))
    trained(tmp_path, replace(config, refine_fraction=fractions[1], max_steps=4), resume=True)
    table = read_samples(tmp_path / "samples.csv.gz")
    assert sorted(set(table["step"])) == ["1", "2", "3", "4"]
    assert ("refined" in table) == (fractions[0] > 0)


class Fails:
    name = "fails"

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, samples: list[str | None], **columns: Any) -> list[float]:
        self.after -= 1
        if self.after < 0:
            raise OSError("away")
        return [float(len(s or "")) for s in samples]


def test_a_run_that_goes_on_hands_out_its_newest_policy(tmp_path: Path) -> None:
    small = GRPOConfig(max_steps=1, num_generations=4, generation_batch_size=8, save_steps=1)
    recipe = TrainRecipe("qm9-small", Fails(9), str(tmp_path), num_steps=4, evaluation_samples=0, grpo=small)
    run_train(recipe)
    assert find_checkpoint(tmp_path) == tmp_path / "policy"
    with pytest.raises(RewardError):
        run_train(replace(recipe, reward=Fails(2), grpo=replace(small, max_steps=9)), resume=True)
    assert load_metadata(find_checkpoint(tmp_path))["grpo_steps"] == 3


def noted(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in ("settings.json", "rewards.json")]


def test_a_run_that_cannot_go_on_as_asked_keeps_what_it_noted(tmp_path: Path) -> None:
    small = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=2)
    sizes: dict[str, Any] = {"output_dir": tmp_path, "num_steps": 2, "evaluation_samples": 0}
    dg.train("qm9-small", qed, grpo=small, **sizes)
    before = noted(tmp_path)
    with pytest.raises(CheckpointError, match="names or shapes of its weights differ"):
        dg.train("qm9-small", qed, grpo=replace(small, max_steps=2), lora=LoraOptions(r=2), resume=True, **sizes)
    assert noted(tmp_path) == before


def test_a_command_that_cannot_go_on_as_asked_keeps_what_it_noted(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    small = ["--grpo.max_steps=1", "--grpo.num_generations=2", "--grpo.generation_batch_size=2", "--num_steps=2"]
    start("train", [f"--output_dir={folder}", "--reward=qed", "--policy=qm9-small", "--evaluation_samples=0", *small])
    before, file = noted(folder), folder / "config.yaml"
    file.write_text(file.read_text().replace("  r: 0", "  r: 2").replace("max_steps: 1", "max_steps: 2"))
    with pytest.raises(Exception, match="names or shapes of its weights differ"):
        resume(folder)
    assert noted(folder) == before


@pytest.mark.parametrize("command", [dg.optimise, None])
def test_what_runs_in_one_process_says_so(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from discrete_grpo.recipes.search import SearchRecipe, run_search

    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"^processes: 2, expected 1; (optimise|search) runs in one process$"):
        command("smiles-zinc", qed, output_dir=tmp_path / "o") if command else run_search(
            SearchRecipe(output_dir=str(tmp_path / "s"))
        )
    with pytest.raises(ValueError, match=r"^processes: 2, expected 1; benchmark runs in one process$"):
        dg.benchmark("pmo", tasks=["qed"], output_dir=tmp_path / "b")


def test_pretraining_says_that_it_goes_on_with_other_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["CCO", "CCN", "CCC", "OCC=O", "NCCO", "CC(C)O", "CCCN", "OCCO", "NCC", "CCCO"]
    recipe = dg.PretrainSmilesRecipe(output_dir=str(tmp_path / "run"), evaluation_samples=0, layers=1, heads=1, width=8)
    recipe = replace(recipe, pretrain=replace(recipe.pretrain, max_steps=2, batch_size=4, warmup_steps=0))
    dg.pretrain(recipe, data=lines)
    path = next((tmp_path / "run").glob("data.*"))
    path.write_text("\n".join(lines * 3) + "\n")
    dg.pretrain(replace(recipe, data=str(path), pretrain=replace(recipe.pretrain, max_steps=4)), resume=True)
    assert "samples of the data: was 10 in the run so far, is 30 from here on" in capsys.readouterr().err
    path.write_text("\n".join(reversed(lines * 3)) + "\n")  # as many samples, in another order
    dg.pretrain(replace(recipe, data=str(path), pretrain=replace(recipe.pretrain, max_steps=5)), resume=True)
    said = capsys.readouterr().err
    assert "digest of the data: was " in said
    assert "samples of the data" not in said
    dg.pretrain(replace(recipe, data=str(path), pretrain=replace(recipe.pretrain, max_steps=6)), resume=True)
    assert "of the data" not in capsys.readouterr().err
    path.write_text("CCC\nCCCC\n")  # without N and O the alphabet is smaller
    told = r"^policy: names or shapes of its weights differ .*; the data have 2 samples and had 30, and the alphabet and sizes"
    with pytest.raises(ValueError, match=told):
        dg.pretrain(replace(recipe, data=str(path), pretrain=replace(recipe.pretrain, max_steps=7)), resume=True)


def test_pretraining_knows_shards_by_their_manifest(tmp_path: Path) -> None:
    (tmp_path / "a.smi").write_text("CCO\nCCN\nCCC\nOCC=O\nNCCO\n")
    preprocess(tmp_path / "a.smi", tmp_path / "shards", ShardOptions())
    recipe = dg.PretrainSmilesRecipe(data=str(tmp_path / "shards"), evaluation_samples=0, layers=1, heads=1, width=8)
    short = replace(recipe.pretrain, max_steps=1, batch_size=2, warmup_steps=0)
    digests = []
    for name in ("a.smi", "shards"):
        run = tmp_path / f"run-{name}"
        dg.pretrain(replace(recipe, data=str(tmp_path / name), output_dir=str(run), pretrain=short))
        digests.append(json.loads((run / "settings.json").read_text())["digest of the data"])
    assert digests == [file_digest(tmp_path / "a.smi"), file_digest(tmp_path / "shards/manifest.json")]


def test_other_scored_data_are_not_used_and_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("first", "second"):
        (tmp_path / f"{name}.csv").write_text("smiles,score\nCCO,1\nCCN,0\nCCC,0.5\nCCF,0.2\n")
    recipe = TrainRecipe(
        "qm9-small",
        [],
        str(tmp_path / "run"),
        data=str(tmp_path / "first.csv"),
        score_column="score",
        offline_steps=1,
        evaluation_samples=0,
    )
    run_train(recipe)
    capsys.readouterr()
    run_train(replace(recipe, data=str(tmp_path / "second.csv"), offline_steps=2), resume=True)
    told = capsys.readouterr().err
    assert f"data: {tmp_path / 'second.csv'} is not used, the run goes on with {tmp_path / 'first.csv'}" in told
    before = recipe.grpo.max_steps
    with pytest.raises(ValueError, match=rf"^grpo.max_steps: 7, expected {before} as in the run .* those of offline_steps"):
        run_train(replace(recipe, offline_steps=2, grpo=replace(recipe.grpo, max_steps=7)), resume=True)


def test_runs_of_off_line_updates_are_runs(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("smiles,score\nCCO,1\nCCN,0\nCCC,0.5\nCCF,0.2\n")
    run = tmp_path / "run"
    given: dict[str, Any] = {"data": str(tmp_path / "t.csv"), "score_column": "score", "offline_steps": 2}
    run_train(TrainRecipe("qm9-small", [], str(run), evaluation_samples=0, **given))
    assert "No update has been recorded" not in (run / "report.html").read_text()
    for file in (run / "policy").iterdir():
        file.unlink()
    (run / "policy").rmdir()
    (run / "run.json").unlink(missing_ok=True)
    assert len(dg.sample(run, 2)) == 2
    from discrete_grpo.cli import main

    assert main(["report", str(run)]) == 0


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Embedding(5, 3)
        self.write = nn.Linear(3, 5, bias=False)
        self.write.weight = self.read.weight

    def init_args(self) -> dict[str, Any]:
        return {}


def test_tied_weights_are_kept_under_each_name(tmp_path: Path) -> None:
    first, second = Tied(), Tied()
    save(tmp_path / "policy", first, metadata={})
    load_weights(tmp_path / "policy", second)
    assert torch.equal(first.read.weight, second.write.weight)
    assert second.read.weight is second.write.weight


def test_large_equal_values_have_a_histogram() -> None:
    assert "<svg" in histogram([Values("before", [-1e18] * 4)], ident="h", title="reward", x_label="reward")


def made(kind: Any, **settings: Any) -> Any:
    return kind(**settings)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: made(GRPOConfig, torch_compile="false"), "torch_compile: 'false', expected True or False"),
        (lambda: made(GRPOConfig, reward_weights=2.0), "reward_weights: 2.0, expected a list of numbers"),
        (lambda: made(GRPOConfig, metric_for_best_model=3), "metric_for_best_model: a int, expected the name of a metric"),
        (lambda: made(LoraOptions, r=2.5), "lora.r: 2.5, expected a whole number"),
        (lambda: made(LoraOptions, r="2"), "lora.r: '2', expected a whole number"),
        (lambda: LoraOptions(lora_alpha=math.inf), "lora.lora_alpha: inf, expected a finite number"),
        (lambda: made(TrainRecipe, lora={"r": 2}), "lora: {'r': 2}, expected a LoraOptions"),
    ],
)
def test_values_of_other_types_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_a_setting_of_optimise_may_be_none_or_a_power_of_ten() -> None:
    recipe = OptimiseRecipe(settings={"plateau": None, "draws": 1e2})
    settings = TOKENS.changed(recipe.settings)
    config = TOKENS.rounds_config(settings)
    assert (config.plateau, config.draws) == (None, 100)
    with pytest.raises(ValueError, match="settings: draws"):
        OptimiseRecipe(settings={"draws": None})
    assert json.dumps(settings)


def test_samples_of_a_run_that_no_longer_refines_are_marked_as_drawn_from_noise(tmp_path: Path) -> None:
    config = replace(FOUR, num_iterations=1, max_steps=2)
    trained(tmp_path, replace(config, refine_fraction=0.5))
    trained(tmp_path, replace(config, max_steps=4), resume=True)
    table = read_samples(tmp_path / "samples.csv.gz")
    assert {mark for step, mark in zip(table["step"], table["refined"], strict=True) if int(step) > 2} == {"0"}


def test_a_reference_and_an_average_that_a_resume_adds_begin_with_its_weights(tmp_path: Path) -> None:
    config = replace(FOUR, max_steps=2, beta=0.0)
    trained(tmp_path, config)
    added = replace(config, max_steps=4, beta=0.1, ema_decay=0.9)
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, added, run=tmp_path, resume=True)
    assert trainer.average is not None
    now = trainer.module.state_dict()
    assert any(not torch.equal(value, now[name]) for name, value in tiny_policy().state_dict().items())
    for other in (reference(trainer), trainer.average.module):
        assert all(torch.equal(value, now[name]) for name, value in other.state_dict().items())
