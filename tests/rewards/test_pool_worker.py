"""The program of a worker process, where it can be seen without a pool."""

from __future__ import annotations

import pickle
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from discrete_grpo.rewards import pool_worker

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
