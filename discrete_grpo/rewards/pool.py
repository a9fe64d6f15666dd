"""A reward in worker processes: a sample on which it hangs, crashes or raises is unknown, and the run goes on.

Each worker has one chunk at a time, so the chunk that ended a worker is always known. Results carry the index of their sample, so
the order in which they arrive does not matter.
"""

from __future__ import annotations

import os
import pickle
import re
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from discrete_grpo.core.checks import check_columns, check_range, check_samples, check_whole
from discrete_grpo.core.importable import InMainScript, dumps_importable
from discrete_grpo.core.processes import usable_cores
from discrete_grpo.core.reward_arguments import check_forgets, reward_name
from discrete_grpo.core.scoring import Failure, Failures, RewardError
from discrete_grpo.rewards.pool_backends import LocalProcesses, RayActors, Worker, Workers
from discrete_grpo.rewards.pool_worker import find, resolve

__all__ = ["RewardPool"]

USED_UP = re.compile(r"raised (\w*MemoryError|OSError):")
"""Failures that every later sample of the worker would share: no memory, or no open files. Subclasses of OSError do not match."""


@dataclass(frozen=True)
class _Task:
    """Some samples of a call, by their indices, the number of earlier tries, and whether a worker died before it had read them."""

    indices: tuple[int, ...]
    tries: int = 0
    unread: bool = False


@dataclass
class _Seat:
    """A worker and its task."""

    worker: Worker
    deadline: float
    ready: bool = False
    task: _Task | None = None


@dataclass
class _Job:
    """A call of the pool."""

    samples: list[Any]
    columns: Mapping[str, Sequence[Any]]
    values: list[float | None]
    todo: deque[_Task] = field(default_factory=deque)
    left: int = 0


class RewardPool:
    """Another reward, computed by several worker processes.

    A sample whose worker dies or is late, or on which the reward raises, is tried again ``retries`` times. Then it is unknown
    (None) and stands in :meth:`take_failures` with the reason. A worker that dies or is late is replaced, and so is one whose
    reward raises a MemoryError or a plain OSError on a single sample, as it may have used up its memory or its open files.
    After any other error, such as a ValueError or a FileNotFoundError, the worker goes on. Workers start with the first call and
    stop with :meth:`close`, at the end of the ``with`` block, or with this process, however it ends.

    Args:
        reward: a function or an object of an importable module (not of the script itself, which a worker cannot import), or
            an import path. It may be a coroutine function.
        init_args: arguments of the class that an import path names; its object is then made in the workers only.
        workers: number of workers, at least 1; None: one per processor core that this process may use.
        timeout: seconds per sample, more than 0; a chunk has this time for each of its samples. None: no limit.
        retries: further tries of a sample that failed, at least 0.
        chunk_size: samples per call of the reward, at least 1, for rewards that are faster on several at once. A chunk that fails
            is halved until the failing sample is alone. A reward that compares samples sees only its chunk.
        start_timeout: seconds in which a worker must import and make the reward, more than 0.
        max_failures: this many failures in a row, without one success, end the run; None: never.
        backend: ``processes`` of this machine, or actors of a ``ray`` cluster.

    Raises:
        ValueError: for an argument out of its range, or a reward that cannot be sent to another process or remembers samples.
        ImportError: if the backend is not installed.

    Example::

        reward:
          class_path: discrete_grpo.rewards.pool.RewardPool
          init_args:
            reward: discrete_grpo.rewards.molecules.qed
            workers: 4
            timeout: 30
    """

    elsewhere = True

    def __init__(
        self,
        reward: str | Callable[..., Any],
        init_args: dict[str, Any] | None = None,
        *,
        workers: int | None = None,
        timeout: float | None = 60.0,
        retries: int = 1,
        chunk_size: int = 1,
        start_timeout: float = 120.0,
        max_failures: int | None = 32,
        backend: Literal["processes", "ray"] = "processes",
    ) -> None:
        for name, value, low in (("workers", workers, 1), ("retries", retries, 0), ("chunk_size", chunk_size, 1)):
            if value is not None or name != "workers":
                check_whole(name, cast(int, value), least=low)
        for name, seconds in (("timeout", timeout), ("start_timeout", start_timeout)):
            if seconds is not None or name != "timeout":
                check_range(name, cast(float, seconds), above=0)
        if backend not in ("processes", "ray"):
            raise ValueError(f"backend: {backend!r}, expected processes or ray")
        if callable(found := find(reward) if isinstance(reward, str) else reward):
            check_forgets(found)
        self.reward, self.init_args = reward, init_args
        self.name = reward.rpartition(".")[2] if isinstance(reward, str) else reward_name(reward)
        self._payload = _payload(reward, init_args)
        self.workers = workers or usable_cores()
        self.timeout, self.retries, self.chunk_size, self.start_timeout = timeout, retries, chunk_size, start_timeout
        self.failures = Failures(self.name, max_failures)
        self._backend: Workers = RayActors() if backend == "ray" else LocalProcesses()
        self._begin()

    def _begin(self) -> None:
        """Have no workers yet, in this process."""
        self._lock = threading.Lock()
        self._seats: list[_Seat] = []
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _dismiss, self._seats, self._owner)

    @property
    def cached_as(self) -> Any:
        """The reward itself, as which a cache treats the pool, since both give the same scores."""
        if not isinstance(self.reward, str):
            return self.reward
        found = find(self.reward)
        if not isinstance(found, type):
            return found
        # What it is kept as may depend on its values, so it is made here once, where it says so itself.
        return resolve(self.reward, self.init_args) if hasattr(found, "cached_as") else (found, self.init_args)

    def take_failures(self) -> list[Failure]:
        """Return the samples that could not be scored since the last call, each with the reason."""
        return self.failures.take()

    def close(self) -> None:
        """Stop the workers; a later call starts new ones."""
        _dismiss(self._seats, self._owner)

    def __enter__(self) -> RewardPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- a call

    def __call__(self, samples: Sequence[Any], **columns: Sequence[Any]) -> list[float | None]:
        """Score the samples in the workers.

        Returns:
            One number per sample, in order and in the range of the inner reward; None where it is unknown.

        Raises:
            RewardError: if a worker cannot start, or too many samples failed in a row.
        """
        check_samples(samples)
        check_columns(columns, len(samples))
        if self._owner != os.getpid():  # in a fork, which leaves the workers to its parent
            self._begin()
        with self._lock:
            job = _Job(list(samples), columns, [None] * len(samples), left=len(samples))
            size = self.chunk_size
            job.todo.extend(_Task(tuple(range(k, min(k + size, job.left)))) for k in range(0, job.left, size))
            try:
                while job.left:
                    self._hand_out(job)
                    self._collect(job)
                    self._look_at_clock(job)
            except BaseException:  # Ctrl-C too, between any two lines: a worker that counts as free may have an answer to this call
                for seat in list(self._seats):
                    self._remove(seat)
                raise
            return job.values

    def _hand_out(self, job: _Job) -> None:
        """Give a task to every free worker, and start as many workers as there is work for."""
        for seat in list(self._seats):
            if job.todo and seat.ready and seat.task is None:
                self._give(seat, job)
        starting = sum(not seat.ready for seat in self._seats)
        for _ in range(min(self.workers - len(self._seats), len(job.todo) - starting)):
            self._seats.append(_Seat(self._backend.start(self._payload), time.monotonic() + self.start_timeout))

    def _give(self, seat: _Seat, job: _Job) -> None:
        task = job.todo.popleft()
        picked = task.indices
        columns: dict[str, Sequence[Any]] = {name: [values[k] for k in picked] for name, values in job.columns.items()}
        try:
            seat.worker.send([job.samples[k] for k in picked], columns)
        except OSError:  # it died while it had nothing to do, so no sample caused it
            job.todo.appendleft(task)
            self._remove(seat)
            return
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise RewardError(f"reward {self.name}: samples or columns cannot be sent to a worker ({error})") from error
        seat.task = task
        seat.deadline = time.monotonic() + self.timeout * len(picked) if self.timeout is not None else float("inf")

    def _collect(self, job: _Job) -> None:
        """Wait for the next answers, at most until a deadline."""
        busy = [seat for seat in self._seats if seat.task is not None or not seat.ready]
        patience = min(seat.deadline for seat in busy) - time.monotonic() if busy else 0.0
        ready = self._backend.wait([seat.worker for seat in busy], min(max(patience, 0.0), 3600.0))
        for seat in busy:
            if seat.worker in ready:
                self._hear(seat, job)

    def _hear(self, seat: _Seat, job: _Job) -> None:
        task, seat.task = seat.task, None
        try:
            kind, *rest = seat.worker.receive()
        except (EOFError, ConnectionResetError) as death:
            self._remove(seat)
            if task is None:
                raise RewardError(f"reward {self.name}: a worker could not start: {death}") from None
            if isinstance(death, ConnectionResetError) and not task.unread:  # the samples did not cause it, unless it happens again
                job.todo.appendleft(replace(task, unread=True))
            else:
                self._failed(job, task, str(death))
            return
        if kind == "broken":
            self._remove(seat)
            raise RewardError(f"reward {self.name}: a worker could not start: {rest[0]}")
        if task is None:
            seat.ready = True
        elif isinstance(rest[0], str):
            if len(task.indices) == 1 and USED_UP.match(rest[0]):
                self._remove(seat)
            self._failed(job, task, rest[0])
        else:
            self._scored(job, task, rest[0])

    def _look_at_clock(self, job: _Job) -> None:
        """Replace the workers that are late."""
        now = time.monotonic()
        for seat in [seat for seat in self._seats if (seat.task is not None or not seat.ready) and seat.deadline <= now]:
            self._remove(seat)
            if seat.task is None:
                raise RewardError(f"reward {self.name}: a worker could not start: not ready after {self.start_timeout:g} s")
            self._failed(job, seat.task, f"no answer within {self.timeout:g} s per sample")

    def _scored(self, job: _Job, task: _Task, values: Sequence[tuple[float | None, str | None]]) -> None:
        for k, (value, reason) in zip(task.indices, values, strict=True):
            job.values[k] = value
            job.left -= 1
            if reason is None:
                self.failures.success()
            else:
                self.failures.add(job.samples[k], reason)

    def _failed(self, job: _Job, task: _Task, reason: str) -> None:
        """Halve a chunk, try a sample again, or give it up."""
        if len(task.indices) > 1:
            half = len(task.indices) // 2
            job.todo.extend((_Task(task.indices[:half]), _Task(task.indices[half:])))
        elif task.tries < self.retries:
            job.todo.append(_Task(task.indices, task.tries + 1))
        else:
            job.left -= 1
            self.failures.add(job.samples[task.indices[0]], reason)

    def _remove(self, seat: _Seat) -> None:
        self._seats.remove(seat)
        seat.worker.kill()

    # -- copies

    def __getstate__(self) -> dict[str, Any]:
        """The settings, since a copy has workers of its own."""
        names = ("reward", "init_args", "workers", "timeout", "retries", "chunk_size", "start_timeout")
        backend: str = "ray" if isinstance(self._backend, RayActors) else "processes"
        return {name: getattr(self, name) for name in names} | {"max_failures": self.failures.limit, "backend": backend}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def _payload(reward: Any, init_args: dict[str, Any] | None) -> bytes:
    if isinstance(reward, str):
        if not isinstance(find(reward), type) and init_args:  # a misspelt name is told now
            raise ValueError(f"init_args: {init_args}, expected none for {reward!r}, which is no class")
        return pickle.dumps((reward, init_args))
    if not callable(reward) or init_args is not None:
        wanted = "none beside an object" if callable(reward) else "a callable or an import path"
        raise ValueError(f"{'init_args' if callable(reward) else 'reward'}: {init_args or reward!r}, expected {wanted}")
    name = reward_name(reward)
    try:
        return dumps_importable((reward, None))
    except InMainScript as error:
        part = "" if error.name == name else f"holds {error.name}, which "
        raise ValueError(
            f"reward: {name} {part}stands in the script itself, which workers cannot import; put it into a module"
        ) from None
    except Exception as error:
        raise ValueError(f"reward: {name} cannot be sent to another process ({error}); put it into a module") from error


def _dismiss(seats: list[_Seat], owner: int) -> None:
    if os.getpid() != owner:  # a fork of the process that started them
        seats.clear()
        return
    while seats:
        seats.pop().worker.kill()
