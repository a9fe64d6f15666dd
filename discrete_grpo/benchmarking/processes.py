"""Jobs in worker processes: which jobs can run there, starting and waiting for them, and reports of dead workers."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from discrete_grpo.benchmarking import worker
from discrete_grpo.benchmarking.folder import FAILED, ROW
from discrete_grpo.benchmarking.jobs import Job, by_name, write_failure
from discrete_grpo.core.importable import dumps_importable
from discrete_grpo.core.interrupt import Interrupt, Interrupted
from discrete_grpo.core.json_files import read_json

__all__ = ["portable", "run_in_processes"]

POLL = 0.05
"""Seconds between two checks of the workers."""
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def portable(value: Any) -> str | None:
    """The reason why a value cannot be sent to a worker process, in a few words; None if it can."""
    try:
        dumps_importable(value)
    except Exception as error:  # a user's object may raise anything here
        return " ".join(str(error).split()) or type(error).__name__
    return None


class _Worker:
    """A fresh interpreter in a session of its own, so that Ctrl-C does not reach it and its children die with it."""

    def __init__(self, job: Job, time_limit: float | None) -> None:
        self.job = job
        self.time_limit = time_limit
        self.deadline = None if time_limit is None else time.monotonic() + time_limit
        payload = pickle.dumps((sys.path, dumps_importable(by_name(job))))
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        (job.folder / FAILED).unlink(missing_ok=True)  # of an earlier run
        self._said = job.folder.with_name(f"{job.folder.name}.log")  # beside the folder, which the job makes anew
        environment = os.environ | THREADS | {"PYTHONHASHSEED": "0"}
        command = [sys.executable, str(Path(worker.__file__))]
        with self._said.open("wb") as log:
            try:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, env=environment
                )
            except OSError as error:  # not one of the output folder
                raise RuntimeError(f"jobs: a worker process cannot be started ({error.strerror or error})") from error
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it died at once; its exit code is reported
            self.process.stdin.write(struct.pack("<q", len(payload)) + payload)
            self.process.stdin.flush()

    def kill(self) -> None:
        """End the worker and its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()

    def finished(self) -> bool:
        """Whether the job has ended, by itself or by its time limit; a failure is recorded."""
        code = self.process.poll()
        if code is None and (self.deadline is None or time.monotonic() < self.deadline):
            return False
        self.kill()
        if read_json(self.job.folder / ROW) is not None:
            (self.job.folder / FAILED).unlink(missing_ok=True)
        elif code is None:
            write_failure(self.job, f"it took longer than the time limit of {self.time_limit:g} s (job_timeout) and was ended")
        elif not (self.job.folder / FAILED).exists():
            write_failure(self.job, _how_it_died(code), self._said.read_text(encoding="utf-8", errors="replace")[-4000:])
        self._said.unlink(missing_ok=True)
        return True


def _how_it_died(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process ended with status {code} and no row"


def run_in_processes(jobs: Sequence[Job], *, limit: int, time_limit: float | None, stop: Interrupt) -> Iterator[Job]:
    """Run jobs in their order, ``limit`` of them at a time, and yield each when it is over.

    Raises:
        Interrupted: when ``stop`` is true; the jobs that run then are ended.
    """
    waiting, running = list(jobs), list[_Worker]()
    try:
        while waiting or running:
            if stop:
                raise Interrupted
            while waiting and len(running) < limit:
                running.append(_Worker(waiting.pop(0), time_limit))
            over = [one for one in running if one.finished()]
            running = [one for one in running if one not in over]
            for one in over:
                yield one.job
            if not over:
                time.sleep(POLL)
    finally:
        for one in running:
            one.kill()
            one.job.folder.with_name(f"{one.job.folder.name}.log").unlink(missing_ok=True)
