"""What a run keeps account of: oracle calls in every part of it, budgets, failures, trackers, rewards that remember."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.core.scoring import Failure, RewardError
from discrete_grpo.recipes.search import SearchRecipe, run_search
from discrete_grpo.recipes.train import TrainRecipe, check_evaluation_budget, run_train
from discrete_grpo.rewards.ledger import Ledger, molecule_key, open_ledger, reserved, text_key
from discrete_grpo.rewards.molecules import qed
from discrete_grpo.runs.failures import FailureLog
from discrete_grpo.runs.recorder import read_metrics, read_samples
from discrete_grpo.runs.trackers import open_trackers
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.trainer import GRPOTrainer
from tests.toys import share_of_class_two, tiny_policy

SMALL = GRPOConfig(max_steps=4, num_generations=4, generation_batch_size=16, save_steps=2, learning_rate=1e-3)


@pytest.fixture
def short_run(small_molecules: str) -> TrainRecipe:
    return TrainRecipe(small_molecules, qed, num_steps=8, evaluation_samples=20, grpo=SMALL)


def distinct_molecules(run: Path) -> int:
    tables = [read_samples(run / f"{name}.csv.gz") for name in ("samples", "evaluation_before", "evaluation_after")]
    return len({molecule_key(s) for table in tables for s in table["sample"]} - {None})


def calls(run: Path) -> int:
    ledger = Ledger(run / "ledger.sqlite")
    ledger.catch_up()
    return ledger.calls


class Asked:
    """QED that counts what it computes, and fails once when it was asked ``fails_at`` times."""

    name = "qed"
    cached_as = "qed, counted"

    def __init__(self, fails_at: int | None = None) -> None:
        self.samples: list[Any] = []
        self.times, self.fails_at = 0, fails_at

    def __call__(self, samples: Sequence[str | None], **columns: Any) -> list[float]:
        self.times += 1
        if self.times == self.fails_at:
            raise OSError("no licence")
        self.samples += samples
        return qed(samples)


def test_the_count_is_that_of_distinct_molecules_of_training_and_evaluation_also_after_a_resume(
    short_run: TrainRecipe, tmp_path: Path
) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    asked = Asked()
    run_train(replace(short_run, reward=asked, output_dir=str(whole)))
    with pytest.raises(RewardError, match="no licence"):
        run_train(replace(short_run, reward=Asked(fails_at=4), output_dir=str(part)))
    assert calls(part) > 0
    again = Asked()
    run_train(replace(short_run, reward=again, output_dir=str(part)), resume=True)
    for run in (whole, part):
        assert calls(run) == distinct_molecules(run)
        assert read_metrics(run)[-1]["oracle/calls"] == calls(run) - len(
            new_in(run, "evaluation_after", ("samples", "evaluation_before"))
        )
    assert calls(whole) == calls(part)
    assert (whole / "samples.csv.gz").read_bytes() == (part / "samples.csv.gz").read_bytes()
    valid = [molecule_key(s) for s in asked.samples if molecule_key(s) is not None]
    assert len(valid) == len(set(valid)) == calls(whole)  # each was computed once


def new_in(run: Path, table: str, before: Sequence[str]) -> set[str]:
    found = {molecule_key(s) for s in read_samples(run / f"{table}.csv.gz")["sample"]}
    known = {molecule_key(s) for name in before for s in read_samples(run / f"{name}.csv.gz")["sample"]}
    return {key for key in found - known if key is not None}


def test_a_budget_ends_the_run_and_leaves_the_last_evaluation_its_share(short_run: TrainRecipe, tmp_path: Path) -> None:
    grpo = replace(SMALL, max_steps=500, learning_rate=1e-4)
    result = run_train(replace(short_run, output_dir=str(tmp_path), max_oracle_calls=90, grpo=grpo))
    assert len(read_metrics(tmp_path)) < 100
    assert calls(tmp_path) <= 90
    assert read_metrics(tmp_path)[-1]["oracle/left"] is not None
    table = read_samples(tmp_path / "evaluation_after.csv.gz")
    assert all(table["reward"])  # nothing of it is unknown
    assert result["after"]["num_samples"] == 20
    assert (tmp_path / "policy/model.safetensors").is_file()


def test_runs_share_a_cache_and_count_for_themselves(short_run: TrainRecipe, tmp_path: Path) -> None:
    first, second = Asked(), Asked()
    shared = str(tmp_path / "scores.sqlite")
    for reward, name in ((first, "a"), (second, "b")):
        run_train(replace(short_run, reward=reward, output_dir=str(tmp_path / name), reward_cache=shared))
    assert calls(tmp_path / "a") == calls(tmp_path / "b") > 0
    assert [s for s in second.samples if molecule_key(s) is not None] == []


@pytest.mark.parametrize(
    ("budget", "samples", "said"),
    [
        (0, 0, "max_oracle_calls: 0, expected at least 1 or none"),
        (100, 50, r"max_oracle_calls: 100, expected more than 100: evaluation_samples \(50\) are scored before and after"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_one_line(budget: int, samples: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_evaluation_budget(budget, samples)
    check_evaluation_budget(None, samples)
    check_evaluation_budget(101, 50)


def test_a_reserve_is_given_back(tmp_path: Path) -> None:
    with open_ledger(tmp_path, text_key, max_oracle_calls=10) as ledger:
        with reserved(ledger, 4):
            assert ledger.max_oracle_calls == 6
        assert ledger.max_oracle_calls == 10


def test_a_search_counts_and_ends_with_its_budget(small_molecules: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = SearchRecipe(
        small_molecules, qed, str(tmp_path), rounds=50, population=2, children=4, num_steps=8, max_oracle_calls=30
    )
    found = run_search(recipe)
    told = json.loads((tmp_path / "search.json").read_text())
    assert told["oracle_calls"] == calls(tmp_path) <= 30
    assert 1 < len(found.history) < 51
    assert all(reward == reward for reward in found.rewards)
    said = capsys.readouterr()
    assert said.err == "stopped: the budget of 30 calls is used up\n"
    assert f"{found.drawn} samples drawn, 30 calls" in " ".join(said.out.split())


class FailsOnOxygen:
    """Knows no molecule with oxygen, and keeps count of them."""

    name = "dry"

    def __init__(self) -> None:
        self.failed: list[Failure] = []
        self.wet: list[str] = []

    def __call__(self, samples: Sequence[str | None], **columns: Any) -> list[float | None]:
        self.wet += [s for s in samples if s is not None and "O" in s]
        self.failed += [Failure(s, "too wet") for s in samples if s is not None and "O" in s]
        return [None if s is not None and "O" in s else 0.5 for s in samples]

    def take_failures(self) -> list[Failure]:
        found, self.failed = self.failed, []
        return found


def test_a_search_lists_what_could_not_be_scored(small_molecules: str, tmp_path: Path) -> None:
    dry = FailsOnOxygen()
    recipe = SearchRecipe(small_molecules, dry, str(tmp_path / "run"), rounds=2, population=2, children=6, num_steps=8)
    for resume in (False, True):  # a resumed search makes its rounds again
        dry.wet.clear()
        run_search(recipe, resume=resume)
        told = [json.loads(line) for line in (tmp_path / "run/failures.jsonl").read_text().splitlines()]
        assert {(line["reward"], line["reason"]) for line in told} == {("dry", "too wet")}
        assert {line["step"] for line in told} <= {0, 1, 2}
        samples = [(line["step"], line["sample"]) for line in told]
        assert all("O" in sample for _, sample in samples)
        assert [sample for _, sample in samples] == dry.wet
        assert len(set(samples)) > 1


def test_a_search_with_a_policy_that_writes_smiles_is_pointed_to_optimise(tmp_path: Path) -> None:
    told = "^policy: smiles-zinc is a TokenPolicy, expected one that can start from a finished sample, as policies of graphs"
    with pytest.raises(ValueError, match=f"{told} .*; policies that write SMILES have the command optimise$"):
        run_search(SearchRecipe("smiles-zinc", qed, str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


def test_a_search_without_a_reward_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^reward: an empty list, expected at least one reward$"):
        run_search(SearchRecipe("no such policy", [], str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


# -- what a run tells


class Heard:
    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def start(self, step: int) -> None:
        self.said.append(("start", step))

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        self.said.append(("log", step, metrics["reward"]))

    def log_samples(self, step: int, samples: Sequence[str], captions: Sequence[str]) -> None:
        self.said.append(("samples", step, len(samples) == len(captions) > 0))

    def close(self) -> None:
        self.said.append(("close",))


def test_a_tracker_hears_every_update_and_of_samples_with_each_checkpoint(tmp_path: Path) -> None:
    heard = Heard()
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, SMALL, run=tmp_path, tracker=heard)
    rewards = [line["reward"] for line in trainer.train()]
    logs = [("log", k + 1, reward) for k, reward in enumerate(rewards)]
    samples = [("samples", step, True) for step in (1, 3)]
    assert heard.said == [("start", 0), samples[0], *logs[:2], samples[1], *logs[2:], ("close",)]
    again = Heard()
    GRPOTrainer(tiny_policy(), share_of_class_two, replace(SMALL, max_steps=5), run=tmp_path, tracker=again, resume=True).train()
    assert [said[:2] for said in again.said] == [("start", 4), ("samples", 5), ("log", 5), ("close",)]


def test_a_tracker_hears_the_updates_after_an_interruption_too(tmp_path: Path) -> None:
    heard, fails = Heard(), [True]

    def once(trainer: GRPOTrainer, line: Mapping[str, float]) -> None:
        if trainer.step == 2 and fails.pop():
            raise KeyError("column")

    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, SMALL, run=tmp_path, tracker=heard, on_update=once)
    with pytest.raises(KeyError):
        trainer.train()
    first = len(heard.said)
    trainer.train()
    assert heard.said[first - 1] == ("close",)
    assert [said[:2] for said in heard.said[first:]] == [("start", 2), ("samples", 3), ("log", 3), ("log", 4), ("close",)]


def test_an_unknown_tracker_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="report_to: 'mlflow', expected one of tensorboard, wandb"):
        open_trackers(tmp_path, ["mlflow"], {})  # type: ignore[list-item]
    assert open_trackers(tmp_path, [], {}) is None


class Fragile:
    """Knows nothing of samples with a node of class 0, and says so."""

    name = "fragile"

    def __init__(self) -> None:
        self.failed: list[Failure] = []

    def __call__(self, samples: Sequence[tuple[int, ...]], **columns: Any) -> list[float | None]:
        self.failed += [Failure(s, "class 0") for s in samples if 0 in s]
        return [None if 0 in s else s.count(2) / len(s) for s in samples]

    def take_failures(self) -> list[Failure]:
        taken, self.failed = self.failed, []
        return taken


def failures(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "failures.jsonl").read_text().splitlines()]


def test_what_a_reward_could_not_score_is_counted_and_named(tmp_path: Path) -> None:
    whole = GRPOTrainer(tiny_policy(), Fragile(), SMALL, run=tmp_path / "whole")
    whole.train()
    lines, told = read_metrics(tmp_path / "whole"), failures(tmp_path / "whole")
    table = read_samples(tmp_path / "whole/samples.csv.gz")
    for line in lines:
        rows = zip(table["sample"], table["reward"], table["step"], strict=True)
        unknown = [s for s, reward, step in rows if not reward and int(step) == line["step"]]
        assert line["rewards/fragile/failed"] == len(unknown)
        assert [row["sample"] for row in told if row["step"] == line["step"]] == unknown
    assert {row["reason"] for row in told} == {"class 0"}
    part = GRPOTrainer(tiny_policy(), Fragile(), SMALL, run=tmp_path / "part")
    part.save()
    for _ in range(3):
        part.generation()
        if part.step == 2:
            part.save()
    GRPOTrainer(tiny_policy(), Fragile(), SMALL, run=tmp_path / "part", resume=True).train()
    assert failures(tmp_path / "part") == told


def test_a_torn_line_of_failures_is_dropped(tmp_path: Path) -> None:
    log = FailureLog(tmp_path)
    log.add(1, {"x": [Failure(None, "no")]})
    log.path.write_text(log.path.read_text() + '{"step": 1, "rew')
    log.forget_after(1)
    assert failures(tmp_path) == [{"step": 1, "reward": "x", "sample": None, "reason": "no"}]
    log.forget_after(0)
    assert failures(tmp_path) == []


class Novelty:
    """Pays for each kind of sample once; draws from torch's global generator too."""

    name = "novelty"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, samples: Sequence[Any], **columns: Any) -> list[float]:
        paid = [0.0 if str(s) in self.seen else 1.0 + float(torch.rand(())) for s in samples]
        self.seen += [str(s) for s in samples]
        return paid

    def state_dict(self) -> dict[str, Any]:
        return {"seen": list(self.seen)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seen = list(state["seen"])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[float | None]:
    """The rewards of a run from the global state of seed 5 that was not stopped."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        GRPOTrainer(tiny_policy(), Novelty(), replace(SMALL, save_steps=1), run=folder).train()
    return [line["reward"] for line in read_metrics(folder)]


@pytest.mark.parametrize("stops_at", [1, 2, 3])
def test_what_a_reward_remembers_and_global_randomness_survive_a_resume(
    stops_at: int, uninterrupted: list[float | None], tmp_path: Path
) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        part = GRPOTrainer(tiny_policy(), Novelty(), replace(SMALL, save_steps=1), run=tmp_path / "part")
        for _ in range(stops_at):
            part.generation()
        part.save()
        part.generation()  # lost: killed before the next checkpoint
        torch.manual_seed(77)
        reward = Novelty()
        GRPOTrainer(tiny_policy(seed=3), reward, SMALL, run=tmp_path / "part", resume=True).train()
    assert [line["reward"] for line in read_metrics(tmp_path / "part")] == uninterrupted
    assert not any(x is None or math.isnan(x) for x in uninterrupted)
    assert len(reward.seen) == 16 * 4


def test_shared_steps_and_replay_do_not_go_together() -> None:
    with pytest.raises(ValueError, match="shared_steps: 3, expected 0 with replay_samples"):
        TrainRecipe(shared_steps=3, grpo=replace(SMALL, replay_samples=1))
