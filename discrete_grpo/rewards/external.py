"""An external program as a reward: JSON lines to its stdin, JSON lines from its stdout.

The program reads one line per sample and writes one, in order, and keeps running for the next sample::

    {"id": 0, "sample": "CCO", "logP": 2.0}        # columns stand beside the sample
    {"id": 0, "reward": 0.41}                      # null: unknown

In Python that is a loop ``for line in sys.stdin`` with ``print(json.dumps(...), flush=True)``: without the flush the answer
stays in the program. Other lines on stdout are ignored; stderr is shown when a sample fails.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from discrete_grpo.core.checks import check_columns, check_range, check_samples
from discrete_grpo.core.scoring import Failure, Failures, finite_number, shown_value

__all__ = ["ExternalReward"]


class _Failed(Exception):
    """The program gave no number for a sample, for the reason in the text, and must be restarted."""


class _Refused(_Failed):
    """The program gave no number for a sample, but keeps running."""


class _Program:
    """A running program, with threads that transfer its lines so that no call here blocks on a pipe."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            list(command), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, env=os.environ | dict(environment)
        )
        self.answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.questions: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.errors: deque[str] = deque(maxlen=5)
        self.asides: deque[str] = deque(maxlen=1)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        work = ((self._write, self.process.stdin), (self._read, self.process.stdout), (self._listen, self.process.stderr))
        self.threads = [threading.Thread(target=target, args=(pipe,), daemon=True) for target, pipe in work]
        for thread in self.threads:
            thread.start()

    def _write(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError), pipe:
            while (question := self.questions.get()) is not None:
                pipe.write(question)
                pipe.flush()

    def _read(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError), pipe:
            for line in pipe:
                if (found := _answer(line)) is None:  # not queued: a program may print faster than it is read
                    self.asides.append(_shortened(line))
                else:
                    self.answers.put(found)
        self.answers.put(None)

    def _listen(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError), pipe:
            for line in pipe:
                self.errors.append(line.decode("utf-8", "replace").strip())

    def answer(self, number: int, deadline: float) -> Any:
        """Return the reward of the line with this id.

        Raises:
            queue.Empty: after the deadline.
            EOFError: if the program ends.
        """
        while (patience := deadline - time.monotonic()) > 0:
            found = self.answers.get(timeout=patience)
            if found is None:
                raise EOFError
            if found["id"] == number:
                return found["reward"]
            self.asides.append(_shortened(json.dumps(found).encode()))
        raise queue.Empty

    def stop(self, patience: float = 1.0) -> None:
        """Close its stdin, wait a moment, then end it and all processes it has started."""
        self.questions.put(None)
        for name in (None, "SIGTERM", "SIGKILL"):
            if name is not None:
                self._signal(name)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=None if name == "SIGKILL" else patience)
                break
        self._signal("SIGKILL")  # its children
        for thread in self.threads:
            thread.join(timeout=1.0)

    def _signal(self, name: str) -> None:
        """Send a signal to the program and its children; where there are no groups of processes (Windows), end the program."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, getattr(signal, name))
            else:
                self.process.kill()


def _answer(line: bytes) -> dict[str, Any] | None:
    """Parse an answer of the program; None for another line, such as one that reports progress."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and {"id", "reward"} <= found.keys() else None


def _checked(environment: Any) -> dict[str, str]:
    """The variables, all of them texts as the system takes them."""
    if environment is not None and not isinstance(environment, Mapping):
        raise ValueError(f"environment: {environment!r}, expected a mapping, such as {{'OMP_NUM_THREADS': '1'}}")
    found = dict(environment or {})
    for name, value in found.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise ValueError(f"environment: {name!r}, expected the name of a variable as a text, without =")
        if not isinstance(value, str) or "\0" in value:
            raise ValueError(f"environment.{name}: {value!r}, expected a text, such as '1'")
    return found


def _shortened(line: bytes) -> str:
    return line.decode("utf-8", "replace").strip()[:200]


class ExternalReward:
    """Scores of an external program that reads one JSON line per sample, kept running and restarted when it ends.

    A sample for which the program ends, is late or returns no number is unknown (None), and is listed by :meth:`take_failures`.
    For several processes or for retries, wrap it in a :class:`~discrete_grpo.rewards.pool.RewardPool`. The
    program is started without a shell: nothing in a sample or in ``command`` is expanded.

    Args:
        command: the program and its arguments.
        timeout: seconds per sample, more than 0; the first sample after a start has ``start_timeout`` more.
        start_timeout: seconds before the first answer, more than 0.
        max_failures: number of failures in a row, without one success, that ends the run; None sets no limit.
        environment: environment variables to set for the program.
        name: name in metrics and tables; None uses the file name of the script or program.
        version: version of the scores; change it when they change for a reason outside the files that ``command`` names, so that
            cached scores are not used.

    Raises:
        ValueError: for an argument out of its range.

    Example::

        reward:
          class_path: discrete_grpo.rewards.external.ExternalReward
          init_args: {command: [python, score.py], timeout: 10}
    """

    def __init__(
        self,
        command: list[str],
        *,
        timeout: float = 60.0,
        start_timeout: float = 60.0,
        max_failures: int | None = 32,
        environment: dict[str, str] | None = None,
        name: str | None = None,
        version: str = "",
    ) -> None:
        if isinstance(command, str) or not command or not all(isinstance(word, str) for word in command):
            raise ValueError(f"command: {command!r}, expected a list of words, such as ['python', 'score.py']")
        for label, seconds in (("timeout", timeout), ("start_timeout", start_timeout)):
            check_range(label, seconds, above=0)
        self.command, self.timeout, self.start_timeout = list(command), timeout, start_timeout
        self.environment, self.version = _checked(environment), version
        self.name = name or _name(self.command)
        self.failures = Failures(self.name, max_failures)
        self._asked = 0
        self._begin()

    def _begin(self) -> None:
        """Have no program yet, in this process."""
        self._running: list[_Program] = []
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _stop, self._running, self._owner)

    @property
    def cached_as(self) -> tuple[Any, ...]:
        """Arguments, variables and version; the contents of the program and of the files that its arguments name."""
        program = shutil.which(self.command[0])
        return (None if program is None else Path(program), self.command, _modules(self.command), self.environment, self.version)

    def __getstate__(self) -> dict[str, Any]:
        """Return only the settings, since a copy starts its own program."""
        names = ("command", "timeout", "start_timeout", "environment", "name", "version")
        return {name: getattr(self, name) for name in names} | {"max_failures": self.failures.limit}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def take_failures(self) -> list[Failure]:
        """Return the samples that could not be scored since the last call, each with the reason."""
        return self.failures.take()

    def close(self) -> None:
        """Stop the program; a later call starts it again."""
        _stop(self._running, self._owner)

    def __enter__(self) -> ExternalReward:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __call__(self, samples: Sequence[Any], **columns: Sequence[Any]) -> list[float | None]:
        """Send each sample to the program.

        Returns:
            One number per sample, in order and in the range of the program; None where it is unknown.

        Raises:
            RewardError: if too many samples failed in a row.
            ValueError: if a sample or a column cannot be written as JSON, or a column is named ``id`` or ``sample`` or is not as
                long as the samples.
        """
        check_samples(samples)
        check_columns(columns, len(samples))
        for name in ("id", "sample"):
            if name in columns:
                raise ValueError(
                    f"columns: {name!r}, expected another name, as the program reads the {name} of the sample under it"
                )
        if self._owner != os.getpid():  # in a forked process, which leaves the program to its parent
            self._begin()
        return [self._one(sample, {name: values[k] for name, values in columns.items()}) for k, sample in enumerate(samples)]

    def _one(self, sample: Any, columns: Mapping[str, Any]) -> float | None:
        number = self._asked
        self._asked += 1
        try:
            line = json.dumps({**columns, "id": number, "sample": sample}, allow_nan=False).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise ValueError(f"sample: {shown_value(sample)} or its columns cannot be written as JSON ({error})") from error
        try:
            value = self._ask(number, line)
        except _Failed as error:
            if not isinstance(error, _Refused):
                self.close()
            self.failures.add(sample, str(error))
            return None
        except BaseException:  # Ctrl-C: the pending answer would belong to no request
            self.close()
            raise
        self.failures.success()
        return None if math.isnan(value) else value

    def _ask(self, number: int, line: bytes) -> float:
        patience = self.timeout
        if not self._running:
            try:
                self._running.append(_Program(self.command, self.environment))
            except OSError as error:
                raise _Failed(f"cannot be started: {error}") from error
            patience += self.start_timeout
        program = self._running[0]
        program.questions.put(line)
        try:
            value = program.answer(number, time.monotonic() + patience)
        except queue.Empty:
            raise _Failed(f"no answer within {patience:g} s{_said(program)}") from None
        except EOFError:
            program.stop()
            raise _Failed(f"the program ended with status {program.process.returncode}{_said(program)}") from None
        try:
            return finite_number(value)
        except ValueError as error:
            raise _Refused(f"answered {shown_value(value)}, {error}") from None


def _name(command: Sequence[str]) -> str:
    """Return ``score`` for ``python score.py``, ``dock`` for ``bin/dock --fast``."""
    scripts = [word for word in command[1:] if Path(word).suffix and not word.startswith("-")]
    return Path((scripts or command)[0]).stem


def _modules(command: Sequence[str]) -> list[str]:
    """Return the file of ``python -m module``, where it lies in the working folder."""
    named = [command[k + 1].replace(".", "/") for k, word in enumerate(command[:-1]) if word == "-m"]
    return [path for name in named for path in (f"{name}.py", f"{name}/__main__.py") if Path(path).is_file()]


def _said(program: _Program) -> str:
    """Format the program's last lines on stderr and stdout."""
    parts = [("stderr", " / ".join(program.errors)), ("stdout", " ".join(program.asides))]
    return "".join(f"; {name}: {text}" for name, text in parts if text)


def _stop(running: list[_Program], owner: int) -> None:
    if os.getpid() != owner:
        running.clear()
    while running:
        running.pop().stop()
