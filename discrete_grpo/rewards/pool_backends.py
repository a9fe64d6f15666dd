"""Backends of a reward pool: workers as processes of this machine, or as actors of a ray cluster."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from discrete_grpo.rewards import pool_worker

__all__ = ["LocalProcesses", "Process", "RayActors", "Worker", "Workers"]


@runtime_checkable
class Worker(Protocol):
    """One place where a reward runs, which does one thing at a time.

    Its first message, without being asked, is ``("ready",)`` or ``("broken", text)``; then it answers each
    ``(samples, columns)`` by ``("done", values)``.
    """

    def send(self, samples: Sequence[Any], columns: dict[str, Sequence[Any]]) -> None:
        """Ask. Raises ``OSError`` if it died while idle."""
        ...

    def receive(self) -> tuple[Any, ...]:
        """The message that has arrived.

        Raises:
            EOFError: if it died instead, saying how.
            ConnectionResetError: if it died before it had read what it was asked, where that can be known.
        """
        ...

    def kill(self) -> None:
        """End it now, whatever it does, and leave nothing behind."""
        ...


@runtime_checkable
class Workers(Protocol):
    """Starts workers and waits for them."""

    def start(self, payload: bytes) -> Worker:
        """A new worker; ``payload`` is the pickled reward."""
        ...

    def wait(self, workers: Sequence[Any], timeout: float | None) -> list[Any]:
        """Those that sent a message or died, at the latest after ``timeout`` seconds."""
        ...


# -- processes


class _Compact(pickle.Pickler):
    """Pickles tensors by value, as workers share no memory with this process; a row of a batch goes without the rest of it."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor or value.layout != torch.strided:
            return NotImplemented
        return value.clone().__reduce_ex__(4) if value.untyped_storage().nbytes() > value.nbytes else NotImplemented


def _dumps(value: Any) -> bytes:
    buffer = io.BytesIO()
    _Compact(buffer, protocol=4).dump(value)
    return buffer.getvalue()


class Process:
    """A fresh interpreter in a session of its own, so that Ctrl-C does not reach it and its children die with it."""

    def __init__(self, payload: bytes) -> None:
        if os.name != "posix":
            raise OSError("reward pool: worker processes need Linux or macOS")
        own, other = socket.socketpair()
        command = [sys.executable, str(Path(pool_worker.__file__)), str(other.fileno())]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with other:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=(other.fileno(),), start_new_session=True, env=environment
            )
        self.connection = Connection(own.detach())
        with contextlib.suppress(OSError):  # it died at once; receive raises the error
            self.connection.send_bytes(pickle.dumps((sys.path, payload)))

    def send(self, samples: Sequence[Any], columns: dict[str, Sequence[Any]]) -> None:
        """Send a request."""
        self.connection.send_bytes(_dumps((samples, columns)))

    def receive(self) -> tuple[Any, ...]:
        """The message that has arrived."""
        try:
            return tuple(self.connection.recv())
        except ConnectionResetError:  # Linux: its end was closed with something unread
            raise ConnectionResetError(self._how_it_died()) from None
        except (EOFError, OSError):
            raise EOFError(self._how_it_died()) from None

    def _how_it_died(self) -> str:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "its worker closed its connection"
        if code >= 0:
            return f"its worker exited with status {code}"
        with contextlib.suppress(ValueError):
            return f"its worker was killed by {signal.Signals(-code).name}"
        return f"its worker was killed by signal {-code}"

    def kill(self) -> None:
        """SIGTERM to the whole session, then SIGKILL."""
        self.connection.close()
        for number, patience in ((signal.SIGTERM, 0.3), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=patience)


class LocalProcesses:
    """Worker processes on this machine."""

    def start(self, payload: bytes) -> Process:
        """A new process."""
        return Process(payload)

    def wait(self, workers: Sequence[Process], timeout: float | None) -> list[Process]:
        """Those that sent a message or died."""
        ready = wait([worker.connection for worker in workers], timeout)
        return [worker for worker in workers if worker.connection in ready]


# -- ray


class _Served:
    """The actor: a reward on some machine of the cluster."""

    def __init__(self, payload: bytes) -> None:
        self.reward = pool_worker.load_reward(payload)

    def ready(self) -> tuple[Any, ...]:
        return ("ready",)

    def answer(self, samples: Sequence[Any], columns: dict[str, Sequence[Any]]) -> tuple[Any, ...]:
        return ("done", pool_worker.answer(self.reward, samples, columns))


class _Actor:
    """A handle of an actor and of what it was last asked."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self.answer = actor.ready.remote()
        self._started = False

    def send(self, samples: Sequence[Any], columns: dict[str, Sequence[Any]]) -> None:
        self.answer = self._actor.answer.remote(samples, columns)

    def receive(self) -> tuple[Any, ...]:
        try:
            message = tuple(self._ray.get(self.answer))
        except self._ray.exceptions.RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            if not self._started:
                return ("broken", lines[-1])  # of a traceback
            raise EOFError(f"its actor died: {lines[0]}") from None
        self._started = True
        return message

    def kill(self) -> None:
        self._ray.kill(self._actor, no_restart=True)


class RayActors:
    """Actors of a `ray <https://docs.ray.io>`_ cluster: the one this process is connected to, else one that is found or started.

    Args:
        cpus: processor cores that each actor reserves.

    Raises:
        ImportError: if ray is not installed.
    """

    def __init__(self, cpus: float = 1.0) -> None:
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError:
            raise ImportError("backend: ray, which is not installed; pip install ray") from None
        self.cpus = cpus

    def start(self, payload: bytes) -> _Actor:
        """A new actor."""
        if not self._ray.is_initialized():
            self._ray.init(log_to_driver=False)
        made = self._ray.remote(num_cpus=self.cpus, max_restarts=0)(_Served)
        return _Actor(self._ray, made.remote(payload))

    def wait(self, workers: Sequence[_Actor], timeout: float | None) -> list[_Actor]:
        """Those that answered or died."""
        if not workers:
            time.sleep(timeout or 0.0)
            return []
        ready, _ = self._ray.wait([worker.answer for worker in workers], num_returns=1, timeout=timeout)
        return [worker for worker in workers if worker.answer in ready]
