"""Workers of a reward pool: how they start and end, and that no answer of an interrupted call is kept."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest

from discrete_grpo.rewards.pool import RewardPool
from tests import pool_rewards
from tests.rewards.test_pool import alive, wait_until


def workers_of(pool: RewardPool, count: int = 2) -> set[int]:
    found: set[int] = set()
    while len(found) < count:
        found |= {int(pid) for pid in pool([0] * 64) if pid is not None}
    return found


def test_workers_start_with_the_first_call_and_stay() -> None:
    with RewardPool(pool_rewards.who, workers=2) as pool:
        assert pool._seats == []
        pids = workers_of(pool)
        assert workers_of(pool) == pids
        assert os.getpid() not in pids
    assert not any(map(alive, pids))
    assert len(set(pool([0, 0]))) >= 1  # it may be used again
    pool.close()
    pool.close()


def test_a_pool_that_is_forgotten_stops_its_workers() -> None:
    pool = RewardPool(pool_rewards.who, workers=2)
    pids = workers_of(pool)
    del pool
    gc.collect()
    wait_until(lambda: not any(map(alive, pids)))


def test_one_worker_is_not_hired_for_nothing() -> None:
    with RewardPool(pool_rewards.who, workers=8) as pool:
        pool(["a"])
        assert len(pool._seats) == 1


@pytest.mark.slow
def test_a_hung_worker_takes_its_children_along(tmp_path: Path) -> None:
    mark = str(tmp_path / "pids")
    with RewardPool(pool_rewards.with_child, workers=1, timeout=20.0, retries=0) as pool:
        thread = threading.Thread(target=pool, args=([mark],), daemon=True)
        pool.timeout = 3.0
        thread.start()
        wait_until(Path(mark).exists)
        pids = json.loads(Path(mark).read_text())
        thread.join(30)
        wait_until(lambda: not any(map(alive, pids)))


def hire_and_hang(mark: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pool = RewardPool(pool_rewards.with_child, workers=1, timeout=None)
    try:
        pool([mark])
    except KeyboardInterrupt:
        os._exit(7)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 7), (signal.SIGKILL, -signal.SIGKILL)])
def test_workers_end_with_the_process_that_hired_them(tmp_path: Path, number: signal.Signals, code: int) -> None:
    mark = tmp_path / "pids"
    parent = multiprocessing.get_context("fork").Process(target=hire_and_hang, args=(str(mark),))
    parent.start()
    wait_until(mark.exists)
    pids = json.loads(mark.read_text())
    assert all(map(alive, pids))
    assert parent.pid is not None
    os.kill(parent.pid, number)
    parent.join(30)
    assert parent.exitcode == code
    wait_until(lambda: not any(map(alive, pids)))


def test_ctrl_c_in_a_terminal_does_not_reach_the_workers() -> None:
    with RewardPool(pool_rewards.who, workers=1) as pool:
        (pid,) = pool(["a"])
        assert os.getsid(int(pid or 0)) != os.getsid(0)


def test_an_interrupted_call_leaves_no_answers_for_the_next() -> None:
    with RewardPool(pool_rewards.slow_first, workers=2) as pool:
        pool([0.0] * 4)
        before = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(KeyboardInterrupt):
                pool([0.5] * 4)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
        assert pool([0.0, 0.01, 0.0]) == [0.0, 0.01, 0.0]


def test_an_interrupt_before_an_answer_is_read_leaves_no_answer_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with RewardPool(pool_rewards.slow_first, workers=1) as pool:
        pool([0.0])
        monkeypatch.setattr(pool._seats[0].worker, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool([0.01])
        monkeypatch.undo()
        assert pool([0.02, 0.03]) == [0.02, 0.03]
