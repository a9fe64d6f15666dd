"""Rewards of a run in worker processes: the same run, whoever scores; and a line where worker processes would save time."""

from __future__ import annotations

import gzip
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.core.reward_arguments import reward_name
from discrete_grpo.recipes import reward_workers
from discrete_grpo.recipes.optimise import OptimiseRecipe
from discrete_grpo.recipes.reward_workers import in_workers, tell_slow
from discrete_grpo.recipes.search import SearchRecipe
from discrete_grpo.recipes.train import TrainRecipe, run_train
from discrete_grpo.rewards.combine import WeightedSum
from discrete_grpo.rewards.diversity import DiversityFilter
from discrete_grpo.rewards.external import ExternalReward
from discrete_grpo.rewards.graph_views import GraphView
from discrete_grpo.rewards.molecules import logp, qed
from discrete_grpo.rewards.pool import RewardPool
from discrete_grpo.runs.recorder import read_metrics
from discrete_grpo.training.config import GRPOConfig
from tests.recipes.optimise_parts import files, oxygens, run

SMALL = GRPOConfig(max_steps=2, num_generations=4, generation_batch_size=8, save_steps=10, learning_rate=1e-3)


@pytest.fixture
def short_run(small_molecules: str) -> TrainRecipe:
    return TrainRecipe(small_molecules, qed, num_steps=4, evaluation_samples=6, grpo=SMALL)


def process_number(samples: Sequence[str | None], **columns: Any) -> list[float]:
    return [float(os.getpid())] * len(samples)


class Compares:
    """Scores a sample by its place in the call."""

    name, cached_as = "compares", None

    def __call__(self, samples: Sequence[Any], **columns: Any) -> list[float]:
        return [float(k) for k in range(len(samples))]


def outcome(folder: Path) -> dict[str, Any]:
    skipped = ("step_time", "rewards/qed/failed", "rewards/logp/failed")  # a pool counts its failures
    lines = [{name: value for name, value in line.items() if name not in skipped} for line in read_metrics(folder)]
    names = ("samples.csv.gz", "evaluation_before.csv.gz", "evaluation_after.csv.gz")
    return {"lines": str(lines), **{name: gzip.decompress((folder / name).read_bytes()) for name in names}}


@pytest.mark.slow
def test_a_run_is_the_same_whoever_scores(short_run: TrainRecipe, tmp_path: Path) -> None:
    both = [qed, logp]
    run_train(replace(short_run, reward=both, output_dir=str(tmp_path / "here")))
    run_train(replace(short_run, reward=both, output_dir=str(tmp_path / "workers"), reward_workers=1))  # one a reward
    assert outcome(tmp_path / "here") == outcome(tmp_path / "workers")


def test_the_workers_score_and_end_with_the_run(short_run: TrainRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[RewardPool] = []

    def make(*given: Any, **options: Any) -> RewardPool:
        made.append(RewardPool(*given, **options))
        return made[-1]

    monkeypatch.setattr(reward_workers, "RewardPool", make)
    found = run_train(replace(short_run, reward=process_number, output_dir=str(tmp_path), reward_workers=1))
    assert found["before"]["reward"] == found["after"]["reward"] != os.getpid()
    assert [pool._seats for pool in made] == [[]]


@pytest.mark.slow
def test_optimise_is_the_same_whoever_scores(tmp_path: Path) -> None:
    run(tmp_path / "here", budget=40)
    run(tmp_path / "workers", budget=40, reward_workers=2)
    assert files(tmp_path / "here") == files(tmp_path / "workers")


def test_what_stays_in_this_process_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    pool, memory = RewardPool(qed, workers=1), DiversityFilter(oxygens)
    with in_workers([pool, memory, qed], 2) as rewards:
        assert rewards[:2] == [pool, memory]
        assert isinstance(rewards[2], RewardPool)
        assert (reward_name(rewards[2]), rewards[2].workers) == ("qed", 2)
    told = capsys.readouterr().err
    assert f"reward_workers: {reward_name(memory)} stays in this process, as its scores depend on other samples" in told
    assert "qed" not in told
    for inside in (
        WeightedSum((Compares(), qed), (1.0, 1.0)),
        GraphView(Compares(), "networkx"),
        WeightedSum((pool, qed), (1.0, 1.0)),
    ):
        with in_workers([inside], 2) as rewards:
            assert rewards == [inside]
    assert capsys.readouterr().err.count("stays in this process") == 2
    with in_workers([qed, memory], 0) as rewards:
        assert rewards == [qed, memory]
    assert capsys.readouterr().err == ""


def test_external_programs_keep_their_limits() -> None:
    program = ExternalReward(["cat"], timeout=600.0, start_timeout=100.0, max_failures=None)
    with in_workers([program, WeightedSum((program, qed), (1.0, 1.0)), qed], 1) as rewards:
        found = [(reward.timeout, reward.failures.limit) for reward in rewards if isinstance(reward, RewardPool)]
    assert found == [(760.0, None), (760.0, 32), (60.0, 32)]


def test_what_cannot_be_sent_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"reward: .*lambda") as caught, in_workers([lambda samples: [0.0] * len(samples)], 1):
        pass
    assert "\n" not in str(caught.value)
    for recipe in (TrainRecipe, OptimiseRecipe, SearchRecipe):
        with pytest.raises(ValueError, match="reward_workers: -1, expected at least 0"):
            recipe(reward_workers=-1)


@pytest.mark.parametrize(
    ("seconds", "samples", "cores", "reward", "told"),
    [
        (30.0, 100, 4, qed, "rewards: 0.3 s per sample in this process; reward_workers=4 would score in 4\n"),
        (30.0, 1000, 4, qed, ""),  # 30 ms each
        (4.0, 10, 4, qed, ""),  # short in all
        (30.0, 100, 1, qed, ""),
        (30.0, 100, 4, RewardPool(qed, workers=1), ""),
        (30.0, 100, 4, DiversityFilter(qed), ""),
    ],
)
def test_a_slow_reward_is_told(
    seconds: float, samples: int, cores: int, reward: Any, told: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(reward_workers, "usable_cores", lambda: cores)
    tell_slow([reward], seconds, samples)
    assert capsys.readouterr().err == told
