"""The program of a worker process, where it can be seen without a pool."""

from __future__ import annotations

import pickle
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

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
