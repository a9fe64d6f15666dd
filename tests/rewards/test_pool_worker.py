"""The program of a worker process, where it can be seen without a pool."""

from __future__ import annotations

import pickle
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.rewards import pool_worker
from discrete_grpo.rewards.pool import RewardPool
from discrete_grpo.rewards.pool_backends import _dumps
from tests import pool_rewards

SLOW_END = f"""
import atexit, os, runpy, signal, threading
killpg, os.killpg = os.killpg, lambda *given: None  # the pool is gone, and would end this process at once
atexit.register(lambda: os.kill(os.getpid(), signal.SIGTERM))
runpy.run_path({str(Path(pool_worker.__file__))!r}, run_name="__main__")
"""


def test_a_worker_that_is_ended_while_python_ends_prints_nothing() -> None:
    own, other = socket.socketpair()
    command = [sys.executable, "-c", SLOW_END, str(other.fileno())]
    with other:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, pass_fds=(other.fileno(),), text=True)
    connection = Connection(own.detach())
    connection.send_bytes(pickle.dumps((sys.path, pickle.dumps(("builtins.len", None)))))
    assert connection.recv() == ("ready",)
    connection.close()
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (-signal.SIGTERM, "")


MOVING = """
import os, sys
class Moving:
    def __init__(self):
        os.chdir("/")
    def __call__(self, samples):
        return [float(any(m.partition(".")[0] in ("numpy", "torch", "rdkit", "pathlib") for m in sys.modules)) for s in samples]
"""


def test_a_worker_imports_no_library_and_nothing_from_the_folder_that_its_reward_moves_to(tmp_path: Path) -> None:
    (tmp_path / "moving_reward.py").write_text(MOVING)
    package = Path(pool_worker.__file__).parents[2]
    own, other = socket.socketpair()
    command = [sys.executable, "-S", pool_worker.__file__, str(other.fileno())]  # -S: no path to the package but that below
    with other:
        process = subprocess.Popen(command, pass_fds=(other.fileno(),), start_new_session=True, cwd=package)
    path = ["", *(place for place in sys.path if place and not Path(place, "discrete_grpo").exists()), str(tmp_path)]
    connection = Connection(own.detach())
    connection.send_bytes(pickle.dumps((path, pickle.dumps(("moving_reward.Moving", None)))))
    assert connection.recv() == ("ready",)
    connection.send((["a"], {}))
    assert connection.recv() == ("done", [(0.0, None)])
    connection.close()
    process.wait(timeout=60)


def test_tensors_are_sent_by_value() -> None:
    batch = GraphBatch(
        torch.ones(64, 5, dtype=torch.long), torch.zeros(64, 5, 5, dtype=torch.long), torch.ones(64, 5, dtype=torch.bool)
    )
    rows = [batch.index(slice(b, b + 1)) for b in range(3)]
    with RewardPool(pool_rewards.sum_of_nodes, workers=1, retries=0, chunk_size=3) as pool:
        assert pool(rows, add=list(torch.arange(3.0))) == [5.0, 6.0, 7.0]
        assert pool.take_failures() == []
    whole = len(_dumps(batch))
    assert len(_dumps(rows)) < whole / 4  # and not the batch with each of its rows
    assert all(torch.equal(a.edges, b.edges) for a, b in zip(pickle.loads(_dumps(rows)), rows, strict=True))


def test_a_process_that_a_reward_forks_does_not_serve_in_its_place() -> None:
    letters = list("abcdefgh")
    with RewardPool(pool_rewards.forks_and_returns, workers=1, retries=0) as pool:
        for _ in range(2):
            assert pool(letters) == [float(ord(s)) for s in letters]
            time.sleep(0.3)  # the child is back meanwhile
        assert pool.take_failures() == []


def test_the_working_folder_is_that_of_the_start_in_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.txt").write_text("5")
    with RewardPool(pool_rewards.moves, workers=1, retries=0) as pool:
        assert pool(["a", "b", "c"]) == [5.0, 5.0, 5.0]


@pytest.mark.parametrize("resource", ["memory", "files"])
@pytest.mark.parametrize("size", [1, 3])
def test_a_worker_without_memory_or_files_is_replaced_and_loses_nothing(resource: str, size: int) -> None:
    with RewardPool(pool_rewards.used_up, workers=1, chunk_size=size) as pool:
        first = pool(["a"])
        found = pool([resource, "b", "c", "d", "e", "f"])
        assert None not in found
        assert pool.take_failures() == []
        assert pool(["g"]) != first


def test_a_sample_that_cannot_be_scored_leaves_its_worker_alone() -> None:
    with RewardPool(pool_rewards.used_up, workers=1) as pool:
        (pid,) = pool(["a"])
        assert pool(["bad", "bad", "b", "bad"]) == [None, None, pid, None]
