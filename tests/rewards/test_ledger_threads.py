"""The ledger in threads, which can score at the same time, and in forked processes, which cannot score."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.core.scoring import BudgetExhausted, RewardError
from discrete_grpo.rewards.cache import ScoreCache
from discrete_grpo.rewards.ledger import Ledger
from tests.rewards.test_ledger import Oracle, calls


def test_threads_score_at_the_same_time() -> None:
    ledger, oracle = Ledger(cache=ScoreCache(), max_oracle_calls=250), Oracle()
    every = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(start: int) -> None:
        for k in range(start, start + 50):
            with contextlib.suppress(BudgetExhausted):
                found = ledger.score([oracle], ["x" * (k + 1), "y" * (k + 1)])[:, 0]
                assert all(score == k + 1 or score != score for score in found.tolist())
            assert ledger.calls <= 250

    try:
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(work, (0, 50, 100)))
    finally:
        sys.setswitchinterval(every)
    assert ledger.calls == 250
    assert ledger.turn == 150
    when = [tuple(row) for row in ledger.state_dict()["when"].tolist()]
    assert len(set(when)) == 250  # each call has a turn and a place of its own
    assert not ledger.is_scoring(oracle)


def test_a_reward_can_score_by_the_same_ledger_in_threads_of_its_own() -> None:
    ledger, oracle = Ledger(), Oracle()

    def outer(samples: Sequence[str], **columns: Any) -> list[float]:
        assert ledger.is_scoring(outer)
        with ThreadPoolExecutor(2) as threads:
            return [float(found[0, 0]) for found in threads.map(lambda s: ledger.score([oracle], [s + "!"]), samples)]

    assert ledger.score([outer], ["a", "bb"])[:, 0].tolist() == [2.0, 3.0]
    assert not ledger.is_scoring(outer)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_is_refused(tmp_path: Path) -> None:
    """Its calls would be in the file, but not among those of this object, so that the budget and the curve would be wrong."""
    ledger = Ledger(tmp_path / "ledger.sqlite", cache=ScoreCache())
    ledger.score([Oracle()], ["one"])
    fork = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of later Pythons, where the parent has threads
        with fork.Pool(1, _take, (ledger,)) as pool:
            told = (
                rf"^ledger: opened in process {os.getpid()} and used in process \d+, whose calls it would not count; score in the"
            )
            with pytest.raises(RewardError, match=told):
                pool.apply(_score_taken)
    assert calls(ledger) == ("one",)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_lock_that_another_thread_held_at_a_fork_does_not_stop_the_child(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")

    def forked() -> int:
        if child := os.fork():
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        signal.alarm(20)  # ends the child where it hangs
        os._exit(ledger.calls)

    with warnings.catch_warnings(), ledger._file._lock, ThreadPoolExecutor(1) as threads:
        warnings.simplefilter("ignore", DeprecationWarning)
        assert threads.submit(forked).result() == 0


TAKEN: list[Ledger] = []


def _take(ledger: Ledger) -> None:
    TAKEN.append(ledger)


def _score_taken() -> None:
    TAKEN[-1].score([Oracle()], ["two"])


def test_the_end_of_the_budget_can_be_sent_between_processes() -> None:
    scores = torch.tensor([[1.0], [torch.nan]], dtype=torch.float64)
    found = pickle.loads(pickle.dumps(BudgetExhausted("all are used up", scores)))
    assert str(found) == "all are used up"
    torch.testing.assert_close(found.scores, scores, rtol=0, atol=0, equal_nan=True)
