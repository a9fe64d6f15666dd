"""The evaluations before and after training: the same memory of rewards, nothing lost by a resume, failures that are logged."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rdkit import Chem

from discrete_grpo import train
from discrete_grpo.core.checks import LAST_SEED
from discrete_grpo.core.scoring import Failure, RewardError, take_failures
from discrete_grpo.domains.molecule_properties import crippen_logp
from discrete_grpo.recipes.evaluations import Evaluations
from discrete_grpo.recipes.loading import load
from discrete_grpo.recipes.reward_memories import RewardMemories
from discrete_grpo.recipes.train import TrainRecipe, run_train
from discrete_grpo.rewards.combine import WeightedSum
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.rewards.molecules import molecular_weight, qed
from discrete_grpo.runs.folder import MEMORIES
from discrete_grpo.runs.recorder import read_evaluation, read_metrics, read_samples
from discrete_grpo.runs.serialization import CheckpointError
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.trainer import GRPOTrainer
from tests.toys import share_of_class_two, tiny_policy

SMALL = GRPOConfig(max_steps=3, num_generations=4, generation_batch_size=16, save_steps=10, learning_rate=1e-3)


@pytest.fixture(scope="module")
def short_run(small_molecules: str) -> TrainRecipe:
    return TrainRecipe(small_molecules, qed, num_steps=6, evaluation_samples=12, grpo=SMALL)


class Once:
    """Pays for each molecule once, and a little for luck."""

    name = "once"
    cached_as = None

    def __init__(self, fails_at: int | None = None, noise: float = 0.0, *, by_length: bool = False) -> None:
        self.seen: set[str] = set()
        self.by_length = by_length
        self.times, self.fails_at, self.noise = 0, fails_at, noise

    def __call__(self, samples: Sequence[str | None], **columns: Any) -> list[float]:
        self.times += 1
        if self.times == self.fails_at:
            raise OSError("away")
        paid = []
        for sample in samples:
            key = str(len(sample or "")) if self.by_length else str(sample)
            paid.append(float(sample is not None and key not in self.seen) + self.noise * random.random())
            self.seen.add(key)
        return paid

    def state_dict(self) -> dict[str, Any]:
        return {"seen": sorted(self.seen)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seen = set(state["seen"])


def test_both_evaluations_score_from_the_memory_that_the_run_began_with(short_run: TrainRecipe, tmp_path: Path) -> None:
    reward = Once()
    reward.seen = {"given before"}
    run_train(replace(short_run, reward=reward, output_dir=str(tmp_path)))
    for when in ("before", "after"):
        table = read_samples(tmp_path / f"evaluation_{when}.csv.gz")
        first = {s: k for k, s in reversed(list(enumerate(table["sample"])))}
        assert [float(x) for x in table["reward"]] == [float(bool(s) and first[s] == k) for k, s in enumerate(table["sample"])]
    trained = set(read_samples(tmp_path / "samples.csv.gz")["sample"])
    assert {s for s in reward.seen if s != "None"} == trained - {""} | {"given before"}  # nothing of the evaluations


def _scores_and_fails(reward: Once) -> None:
    assert reward(["C", "CC"]) == [1.0, 1.0]
    reward(3)  # type: ignore[arg-type]


def test_the_largest_seed_has_evaluations(short_run: TrainRecipe, tmp_path: Path) -> None:
    grpo = replace(SMALL, max_steps=1, seed=LAST_SEED)
    run_train(replace(short_run, output_dir=str(tmp_path / "run"), grpo=grpo, evaluation_samples=2))
    assert set(read_evaluation(tmp_path / "run")) == {"before", "after"}


def test_memories_are_put_back_also_after_an_error() -> None:
    reward = Once()
    memories = RewardMemories([reward, qed])
    reward(["C"])
    with pytest.raises(TypeError), memories.put_back():
        _scores_and_fails(reward)
    assert reward.seen == {"C"}
    with memories.put_back():
        assert reward(["C", "CC"]) == [1.0, 1.0]


def test_a_run_that_goes_on_in_the_same_program_scores_from_the_same_memory(short_run: TrainRecipe, tmp_path: Path) -> None:
    whole, reward = replace(short_run, reward=Once(by_length=True), output_dir=str(tmp_path / "whole")), Once(by_length=True)
    run_train(whole)
    part = replace(short_run, reward=reward, output_dir=str(tmp_path / "part"))
    run_train(replace(part, grpo=replace(SMALL, max_steps=2)))
    run_train(part, resume=True)
    for name in ("evaluation_before.csv.gz", "evaluation_after.csv.gz", "samples.csv.gz"):
        assert (tmp_path / "part" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_reward_of_somebody_else_may_have_an_attribute_called_inner() -> None:
    reward = Once()
    reward.inner = qed  # type: ignore[attr-defined]
    assert take_failures([reward]) == {}


@pytest.fixture(scope="module")
def lucky_run(short_run: TrainRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run with luck that did not fail, from the random state of seed 5."""
    folder, before = tmp_path_factory.mktemp("lucky") / "whole", random.getstate()
    try:
        random.seed(5)
        run_train(replace(short_run, reward=Once(noise=0.1), output_dir=str(folder)))
    finally:
        random.setstate(before)
    return folder


def stopped(run: TrainRecipe, folder: Path, fails_at: int) -> None:
    with pytest.raises(RewardError, match="away"):
        run_train(replace(run, reward=Once(fails_at, noise=0.1), output_dir=str(folder)))


@pytest.mark.parametrize("fails_at", [2, 3])  # in the first generation and in the second: one checkpoint, of step 0 or 1
def test_a_run_that_failed_early_ends_as_one_that_did_not(
    short_run: TrainRecipe, lucky_run: Path, fails_at: int, tmp_path: Path
) -> None:
    whole, part, before = lucky_run, tmp_path / "part", random.getstate()
    try:
        random.seed(5)
        stopped(short_run, part, fails_at)
        random.seed(77)
        run_train(replace(short_run, reward=Once(noise=0.1), output_dir=str(part)), resume=True)
    finally:
        random.setstate(before)
    assert [line["reward"] for line in read_metrics(part)] == [line["reward"] for line in read_metrics(whole)]
    for name in ("samples.csv.gz", "evaluation_before.csv.gz", "evaluation_after.csv.gz", "evaluation.json"):
        assert (part / name).read_bytes() == (whole / name).read_bytes()


def test_a_policy_that_has_begun_to_learn_is_not_measured_as_the_one_before(short_run: TrainRecipe, tmp_path: Path) -> None:
    run_train(replace(short_run, evaluation_samples=0, output_dir=str(tmp_path), grpo=replace(SMALL, save_steps=1)))
    more = replace(short_run, output_dir=str(tmp_path), grpo=replace(SMALL, save_steps=1, max_steps=4))
    assert set(run_train(more, resume=True)) == {"after"}
    assert set(read_evaluation(tmp_path)) == {"after"}


@pytest.mark.parametrize("offline", [False, True])
def test_a_damaged_evaluation_is_refused_before_the_policy_is_taken_back(
    short_run: TrainRecipe, tmp_path: Path, offline: bool
) -> None:
    table = tmp_path / "scored.csv"
    table.write_text("smiles,y\n" + "".join(f"{'C' * k},{k}\n" for k in (1, 2, 3, 4)))
    run = replace(short_run, output_dir=str(tmp_path / "run"), evaluation_samples=4, grpo=replace(SMALL, max_steps=1))
    longer = replace(run, grpo=SMALL)
    if offline:
        run = replace(run, data=str(table), score_column="y", reward=[], offline_steps=1)
        longer = replace(run, offline_steps=2)
    run_train(run)
    evaluation, policy = tmp_path / "run/evaluation.json", tmp_path / "run/policy/model.safetensors"
    whole, before = evaluation.read_bytes(), policy.read_bytes()
    evaluation.write_bytes(whole[:20])
    with pytest.raises(ValueError, match=r"evaluation\.json: no JSON"):
        run_train(longer, resume=True)
    assert policy.read_bytes() == before


def test_a_resume_without_the_evaluation_before_says_so(
    short_run: TrainRecipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = replace(short_run, output_dir=str(tmp_path), evaluation_samples=4, grpo=replace(SMALL, max_steps=1))
    run_train(run)
    run_train(run, resume=True)
    assert "cannot be made again" not in capsys.readouterr().err
    (tmp_path / "evaluation.json").unlink()
    assert set(run_train(run, resume=True)) == {"after"}
    said = f"{tmp_path / 'evaluation.json'}: no evaluation before training, and it cannot be made again, as training has begun"
    assert [line for line in capsys.readouterr().err.splitlines() if "made again" in line] == [said]


class Fragile:
    """QED, but nothing of molecules with nitrogen."""

    name = "fragile"
    cached_as = None

    def __init__(self) -> None:
        self.failed: list[Failure] = []

    def __call__(self, samples: Sequence[str | None], **columns: Any) -> list[float | None]:
        bad = ["N" in (s or "") for s in samples]
        self.failed += [Failure(s, "nitrogen") for s, is_bad in zip(samples, bad, strict=True) if is_bad]
        return [None if is_bad else 1.0 for is_bad in bad]

    def take_failures(self) -> list[Failure]:
        taken, self.failed = self.failed, []
        return taken


@pytest.mark.filterwarnings("ignore:reward 1.fragile:RuntimeWarning")  # the sum cannot be cached
@pytest.mark.parametrize("inside", [False, True])
def test_failures_stand_at_the_step_of_their_evaluation_also_those_inside_a_sum(
    short_run: TrainRecipe, inside: bool, tmp_path: Path
) -> None:
    reward = WeightedSum((Fragile(), molecular_weight), (1.0, 0.0)) if inside else Fragile()
    run_train(replace(short_run, reward=reward, output_dir=str(tmp_path)))
    told = [json.loads(line) for line in (tmp_path / "failures.jsonl").read_text().splitlines()]
    training = read_samples(tmp_path / "samples.csv.gz")
    wanted = [s for step in ("1", "2", "3") for s, at in zip(training["sample"], training["step"], strict=True) if at == step]
    tables = {0: read_samples(tmp_path / "evaluation_before.csv.gz")["sample"]}
    tables |= {4: read_samples(tmp_path / "evaluation_after.csv.gz")["sample"]}
    for step, samples in tables.items():
        assert [row["sample"] for row in told if row["step"] == step] == [s for s in samples if "N" in s]
    assert [row["sample"] for row in told if 0 < row["step"] < 4] == [s for s in wanted if "N" in s]
    name = told[0]["reward"]
    for line in read_metrics(tmp_path):
        assert line[f"rewards/{name}/failed"] == sum(row["step"] == line["step"] for row in told)


def test_a_budget_that_ends_before_the_first_update_ends_the_run_with_its_files(short_run: TrainRecipe, tmp_path: Path) -> None:
    grpo = replace(SMALL, generation_shards=2)
    result = run_train(replace(short_run, evaluation_samples=0, max_oracle_calls=4, output_dir=str(tmp_path), grpo=grpo))
    assert result == {}
    assert (tmp_path / "policy/model.safetensors").is_file()
    assert (tmp_path / "report.html").is_file()


@pytest.mark.parametrize("option", [{"beta": 0.05}, {"ema_decay": 0.9}])
def test_a_resume_may_add_a_reference_or_an_average_which_begins_with_the_weights_there(
    option: dict[str, Any], tmp_path: Path
) -> None:
    config = replace(SMALL, beta=0.0, learning_rate=1e-2)
    trained = GRPOTrainer(tiny_policy(), share_of_class_two, config, run=tmp_path)
    trained.train()
    longer = replace(config, **{"max_steps": 4, **option})
    again = GRPOTrainer(tiny_policy(), share_of_class_two, longer, run=tmp_path, resume=True)
    new: Any = again.reference if "beta" in option else again.average.module  # type: ignore[union-attr]
    for ours, theirs in zip(new.parameters(), trained.module.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    again.train()
    assert read_metrics(tmp_path)[-1]["step"] == 4


def test_samples_are_drawn_on_the_device_of_the_training(
    short_run: TrainRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Policy:
        def to(self, device: torch.device) -> str:
            return f"on {device}"

    def drawn(policy: str, *arguments: Any, **options: Any) -> None:
        raise LookupError(policy)

    monkeypatch.setattr("discrete_grpo.recipes.evaluations.sample_policy", drawn)
    family, device = load("qm9-small").family, torch.device("meta")
    evaluations = Evaluations(short_run, family, tmp_path, None, Ledger(), RewardMemories([]), device)
    for measure in (lambda: evaluations.before(Policy()), lambda: evaluations.after(Policy(), 3)):
        with pytest.raises(LookupError, match="on meta"):
            measure()


@pytest.mark.parametrize("known", [True, False])
def test_a_reward_that_knows_nothing_is_told_at_first(
    short_run: TrainRecipe, known: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def some(samples: Sequence[str | None], **columns: Any) -> list[float | None]:
        return [0.5 if known and k == 0 else None for k in range(len(samples))]

    grpo = replace(SMALL, max_steps=1)
    found = run_train(replace(short_run, reward=some, output_dir=str(tmp_path), evaluation_samples=4, grpo=grpo))
    assert found["before"]["frac_reward_unknown"] == (0.75 if known else 1.0)  # the mean reward is of the others
    said = "reward some: unknown (None or NaN) for all of 4 samples before training; GRPO cannot learn while every"
    assert (said in " ".join(capsys.readouterr().err.split())) != known


@pytest.mark.parametrize("rate", [1e9, 1e-5])
def test_a_policy_without_valid_samples_at_the_end_is_told(
    short_run: TrainRecipe, rate: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grpo = replace(SMALL, max_steps=1, learning_rate=rate)
    result = run_train(replace(short_run, output_dir=str(tmp_path), evaluation_samples=16, grpo=grpo))
    assert result["before"]["valid"] > 0
    said = f"valid: none of 16 samples after training, {result['before']['valid']:.1%} before it; the policy has collapsed"
    assert (said in " ".join(capsys.readouterr().err.split())) == (rate == 1e9)


def test_a_property_stands_beside_a_condition_of_its_name(short_run: TrainRecipe, tmp_path: Path) -> None:
    def reward(samples: Any, logP: Any) -> list[float]:
        return [float(x) for x in logP]

    run_train(replace(short_run, reward=reward, columns=[{"logP": 2.0}], output_dir=str(tmp_path)))
    table = read_samples(tmp_path / "evaluation_after.csv.gz")
    assert set(table["logP"]) == {"2.0"}
    known = [(smiles, float(x)) for smiles, x in zip(table["sample"], table["measured_logP"], strict=True) if x]
    assert len(known) > 4
    assert [x for _, x in known] == pytest.approx([crippen_logp(Chem.MolFromSmiles(smiles)) for smiles, _ in known])
    page = (tmp_path / "report.html").read_text()
    assert "Distribution of measured_logP" in page
    assert "octanol–water partition" in page
    assert "Distribution of logP" not in page


def test_memories_that_do_not_fit_are_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / MEMORIES
    RewardMemories([Once()], file)
    with pytest.raises(CheckpointError, match="holds the memories of 1 rewards, expected those of 2 as given now"):
        RewardMemories([Once(), Once()], file, resume=True)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="is damaged, and the first memories of the rewards are lost with it"):
        RewardMemories([Once()], file, resume=True)


def test_memories_of_another_run_do_not_stay(tmp_path: Path) -> None:
    RewardMemories([Once()], tmp_path / MEMORIES)
    assert (tmp_path / MEMORIES).exists()
    RewardMemories([qed], tmp_path / MEMORIES, resume=False)
    assert not (tmp_path / MEMORIES).exists()


def test_an_evaluation_that_is_made_again_lists_its_failures_once(tmp_path: Path) -> None:
    class Fails:
        name = "fails"

        def __init__(self) -> None:
            self.found: list[Failure] = []

        def __call__(self, samples: Sequence[Any], **columns: Any) -> list[float | None]:
            self.found += [Failure(sample, "no answer") for sample in samples[:1]]
            return [None, *(float(k % 2) for k in range(1, len(samples)))]

        def take_failures(self) -> list[Failure]:
            taken, self.found = self.found, []
            return taken

    grpo = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=4)
    for resume in (False, True):
        train(tiny_policy(), Fails(), output_dir=tmp_path / "run", grpo=grpo, evaluation_samples=3, resume=resume)
    rows = [json.loads(line) for line in (tmp_path / "run" / "failures.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]


def test_evaluations_draw_from_a_seed_of_their_own(short_run: TrainRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that training does not begin with, so that its first samples are not measured."""

    def drawn(policy: Any, count: int, *, seed: int, columns: Any) -> None:
        raise LookupError(seed)

    monkeypatch.setattr("discrete_grpo.recipes.evaluations.sample_policy", drawn)
    family, recipe = (load("qm9-small").family, replace(short_run, grpo=replace(SMALL, seed=7)))
    evaluations = Evaluations(recipe, family, tmp_path, None, Ledger(), RewardMemories([]), torch.device("cpu"))
    for measure in (lambda: evaluations.before(tiny_policy()), lambda: evaluations.after(tiny_policy(), 3)):
        with pytest.raises(LookupError, match=r"^8$"):
            measure()


class Live(Once):
    """Gives out its memory itself, and keeps the one that it is given, or fills its own with it."""

    in_place = False

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.in_place:
            self.seen.clear()
            self.seen.update(state["seen"])
        else:
            self.seen = state["seen"]


@pytest.mark.parametrize("in_place", [False, True])
def test_memories_are_copies(in_place: bool) -> None:
    reward = Live()
    reward.in_place = in_place
    reward(["N"])
    memories = RewardMemories([reward])
    reward(["C"])
    for _ in range(2):
        with memories.put_back():
            assert reward(["N", "C", "O"]) == [0.0, 1.0, 1.0]
        assert reward.seen == {"N", "C"}
    for _ in range(2):
        memories.begin()
        assert reward(["N", "C"]) == [0.0, 1.0]


def test_a_condition_that_no_sample_of_an_evaluation_has_is_a_column_too(tmp_path: Path) -> None:
    asked: list[list[Any]] = []

    def reward(samples: Any, target: Any, **columns: Any) -> list[float]:
        asked.append(list(target))
        return [1.0] * len(samples)

    grpo = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=4)
    columns: list[dict[str, Any]] = [{"num_nodes": 3}, {"target": 2.0}]
    train(tiny_policy(), reward, output_dir=tmp_path / "run", grpo=grpo, columns=columns, evaluation_samples=1)
    assert asked[0] == [None]  # of the evaluation before training


def test_rewards_of_which_one_is_known_are_known(tmp_path: Path) -> None:
    """Each of several unknown rewards counts as 0; a sample is unknown where all of them are."""

    def some(samples: Any, **columns: Any) -> list[float | None]:
        return [None, None, 1.0, 1.0]

    def others(samples: Any, **columns: Any) -> list[float | None]:
        return [None, 2.0, 2.0, 2.0]

    recipe = TrainRecipe("qm9-small", [some, others])
    family = load("qm9-small").family
    evaluations = Evaluations(recipe, family, tmp_path, None, Ledger(), RewardMemories([]), torch.device("cpu"))
    table, means = evaluations._scored(["C", "N", "O", "F"], {}, 1)
    assert table["reward"][1:] == [2.0, 3.0, 3.0]
    assert means == {"reward": 8 / 3, "reward_some": 1.0, "reward_others": 2.0, "frac_reward_unknown": 0.25}
