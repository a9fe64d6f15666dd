"""Scoring beside drawing gives the same bits as one after the other, and loses nothing when a reward fails or hangs."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.core.scoring import RewardError
from discrete_grpo.rewards.cache import ScoreCache
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.rewards.pool import RewardPool
from discrete_grpo.runs.recorder import read_samples
from discrete_grpo.training.background import Job
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.sampler import check_shards, scores_while_drawing
from discrete_grpo.training.trainer import GRPOTrainer
from tests.process_worker import SMALL, trainer
from tests.toys import share_of_class_two, tiny_policy
from tests.training.test_distributed import lines, weights

ROOT = Path(__file__).parents[2]


def assert_same(run: Path, other: Path) -> None:
    assert (run / "samples.csv.gz").read_bytes() == (other / "samples.csv.gz").read_bytes()
    assert str(lines(run)) == str(lines(other))
    torch.testing.assert_close(weights(run), weights(other), rtol=0, atol=0)
    if (run / "ledger.sqlite").exists():
        found = []
        for folder in (run, other):
            with closing(sqlite3.connect(folder / "ledger.sqlite")) as file:
                found.append([file.execute(f"SELECT * FROM {table}").fetchall() for table in ("calls", "scores", "counts")])
        assert found[0] == found[1]


@pytest.mark.parametrize("case", ["reuse", "resample", "refine", "replay", "budget"])
def test_the_same_bits_as_one_after_the_other(case: str, tmp_path: Path) -> None:
    changed: dict[str, Any] = {"refine_fraction": 1.0} if case == "refine" else {}  # one group per shard
    for on in (True, False):
        trainer(case, tmp_path / str(on), generation_shards=4, score_while_drawing=on, **changed).train()
    assert_same(tmp_path / "True", tmp_path / "False")


def counted(folder: Path, reward: Callable[..., Any], *, resume: bool = False, **changed: Any) -> GRPOTrainer:
    """A run with a ledger whose groups are scored in two halves."""
    folder.mkdir(exist_ok=True)
    reward.cached_as = "share"  # type: ignore[attr-defined]
    reward.name = "share"  # type: ignore[attr-defined]
    config = GRPOConfig(**SMALL | {"generation_shards": 2, "score_while_drawing": True, "save_steps": 1} | changed)
    ledger = Ledger(folder / "ledger.sqlite", cache=ScoreCache())
    return GRPOTrainer(tiny_policy().double(), reward, config, run=folder, resume=resume, ledger=ledger)


def test_the_second_half_is_drawn_while_the_first_is_scored(tmp_path: Path) -> None:
    drawn, seen = threading.Semaphore(0), list[bool]()

    def waits(samples: Sequence[Any], **columns: Any) -> list[float]:
        seen.append(len(seen) % 2 == 1 or drawn.acquire(timeout=20))
        return share_of_class_two(samples)

    made = counted(tmp_path, waits, max_steps=2)
    sample, count = made.policy.sample, [0]

    def told(*given: Any, **named: Any) -> Any:
        found = sample(*given, **named)
        count[0] += 1
        if count[0] % 2 == 0:
            drawn.release()
        return found

    object.__setattr__(made.policy, "sample", told)
    made.train()
    assert seen == [True] * 4


@pytest.mark.parametrize("half", [0, 1])
def test_a_reward_that_fails_in_one_half_loses_nothing(tmp_path: Path, half: int) -> None:
    calls = [0]

    def fails(samples: Sequence[Any], **columns: Any) -> list[float]:
        calls[0] += 1
        if calls[0] == 3 + half:
            raise OSError("once")
        return share_of_class_two(samples)

    def fine(samples: Sequence[Any], **columns: Any) -> list[float]:
        return share_of_class_two(samples)

    counted(tmp_path / "whole", fine, score_while_drawing=False).train()
    with pytest.raises(RewardError, match="reward share: raised OSError: once"):
        counted(tmp_path / "run", fails).train()
    assert calls[0] == 3 + half  # nothing is scored after it
    counted(tmp_path / "run", fine, resume=True).train()
    assert_same(tmp_path / "run", tmp_path / "whole")


HANGS = """
import sys, time
from pathlib import Path
from tests.training.test_score_while_drawing import counted
from tests.toys import share_of_class_two
calls = [0]
def hangs(samples, **columns):
    calls[0] += 1
    if calls[0] == 3:
        (Path(sys.argv[1]) / "hangs").touch()
        time.sleep(600)
    return share_of_class_two(samples)
counted(Path(sys.argv[1]), hangs).train()
"""


@pytest.mark.slow
def test_a_run_whose_reward_hangs_can_be_stopped_and_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen([sys.executable, "-c", HANGS, str(run)], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 120
        while not (run / "hangs").exists() and child.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.5)  # it waits for the reward now
        for _ in range(2):  # the first one asks it to stop after the update
            child.send_signal(signal.SIGINT)
            time.sleep(0.3)
        _, said = child.communicate(timeout=60)
    finally:
        child.kill()
    assert "KeyboardInterrupt" in said

    def fine(samples: Sequence[Any], **columns: Any) -> list[float]:
        return share_of_class_two(samples)

    counted(tmp_path / "whole", fine).train()
    counted(run, fine, resume=True).train()
    assert_same(run, tmp_path / "whole")


def test_auto_means_rewards_in_pools_and_several_shards() -> None:
    pool, auto = RewardPool("tests.pool_rewards.length", workers=1), GRPOConfig()
    assert scores_while_drawing(auto, [pool, pool], 2)
    assert not scores_while_drawing(auto, [pool, share_of_class_two], 2)
    assert not scores_while_drawing(auto, [pool], 1)
    assert not scores_while_drawing(GRPOConfig(score_while_drawing=False), [pool], 2)
    assert scores_while_drawing(GRPOConfig(score_while_drawing=True), [share_of_class_two], 2)


def test_what_it_needs_is_said_in_one_line() -> None:
    with pytest.raises(ValueError, match="score_while_drawing: True, expected generation_shards of at least 2 per process"):
        check_shards(2, GRPOConfig(score_while_drawing=True), 2)
    with pytest.raises(ValueError, match="score_while_drawing: 'yes', expected True, False or 'auto'"):
        GRPOConfig(score_while_drawing="yes")  # type: ignore[arg-type]


def test_a_job_raises_where_its_result_is_asked_for() -> None:
    def work() -> int:
        raise ArithmeticError("within")

    job = Job(work, torch.device("cpu"))
    job.wait()
    with pytest.raises(ArithmeticError, match="within"):
        job.result()
    assert Job(lambda: 3, torch.device("cpu")).result() == 3


@pytest.mark.parametrize("changed", [{}, {"generation_shards": 2}, {"generation_shards": 2, "score_while_drawing": True}])
def test_what_the_budget_paid_for_is_trained_on_whichever_shard_spent_it(changed: dict[str, Any], tmp_path: Path) -> None:
    ledger = Ledger(max_oracle_calls=30)
    config = GRPOConfig(max_steps=50, num_generations=8, generation_batch_size=64, **changed)
    policy = tiny_policy(sizes=(0.0,) * 8 + (1.0,))
    assert len(GRPOTrainer(policy, share_of_class_two, config, run=tmp_path, ledger=ledger).train()) == 1
    assert ledger.calls == 30
    assert set(ledger.history().keys) <= set(read_samples(tmp_path / "samples.csv.gz")["sample"])


def test_a_budget_that_ends_while_groups_are_replaced_keeps_the_generation() -> None:
    ledger = Ledger(max_oracle_calls=12)
    config = GRPOConfig(
        max_steps=50, num_generations=2, generation_batch_size=8, zero_std_groups="resample", max_resampling_rounds=9
    )
    trainer = GRPOTrainer(tiny_policy(), lambda samples, **_: [1.0] * len(samples), config, ledger=ledger)
    trainer.train()
    assert trainer.history[-1]["oracle/calls"] == ledger.calls == 12
    steps = trainer.step
    assert trainer.update() is None  # nothing can be scored
    assert trainer.step == steps
