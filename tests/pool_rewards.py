"""Rewards that misbehave, for workers to import: plain Python only, so that a worker starts in a moment."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def length(samples: list[str], **columns: Any) -> list[float]:
    return [float(len(s)) for s in samples]


def numbers(samples: list[Any], **columns: Any) -> list[Any]:
    """The samples themselves."""
    return list(samples)


def forks_and_returns(samples: list[str], **columns: Any) -> list[float]:
    """Forks a process that comes back from the call, as if it were the worker, by an error at ``b``."""
    if samples == ["b"] and os.fork() == 0:
        time.sleep(0.2)
        raise ValueError("of the child")
    return [float(ord(s)) for s in samples]


def moves(samples: list[str], **columns: Any) -> list[float]:
    """Reads a file of the working folder, and leaves the folder."""
    found = float(Path("table.txt").read_text())
    os.chdir("/")
    return [found] * len(samples)


def slow_first(samples: list[float], **columns: Any) -> list[float]:
    """Sleeps as long as each sample says."""
    for seconds in samples:
        time.sleep(seconds)
    return [float(s) for s in samples]


def plus_column(samples: list[float], *, add: list[float], **columns: Any) -> list[float]:
    return [s + a for s, a in zip(samples, add, strict=True)]


def sum_of_nodes(samples: list[Any], *, add: list[Any], **columns: Any) -> list[Any]:
    """Add the classes of all nodes of a graph to the number in its column; both numbers, and so the score, are tensors."""
    return [graph.nodes.sum() + number for graph, number in zip(samples, add, strict=True)]


async def later(samples: list[float], **columns: Any) -> list[float]:
    await asyncio.sleep(0.001)
    return [2.0 * s for s in samples]


def ends(sample: str) -> None:
    """Whatever can happen to a program instead of an answer."""
    if sample == "die":
        os._exit(3)
    if sample == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if sample == "hang":
        time.sleep(600)
    if sample == "hang in C":  # nothing in Python can run there, not even a signal handler
        deque(repeat(None), maxlen=0)
    raised: dict[str, BaseException] = {"exit": SystemExit(0), "interrupt": KeyboardInterrupt()}
    raised["raise"] = RuntimeError("two\nlines")
    raised["molecule"] = AttributeError("'str' object has no attribute 'GetAtoms'", name="GetAtoms", obj=sample)
    if sample in raised:
        raise raised[sample]


def moody(samples: list[str], **columns: Any) -> Any:
    """Does what the sample says."""
    for sample in samples:
        ends(sample)
    if "short" in samples:
        return [1.0] * (len(samples) - 1)
    whole: dict[str, Any] = {"generator": (1.0 for _ in samples), "dict": {"a": 1.0}, "set": {1.0}, "digits": "1"}
    whole["one"] = 0.5
    if samples and samples[0] in whole:
        return whole[samples[0]]
    special: dict[str, Any] = {"nan": float("nan"), "inf": float("inf"), "none": None, "text": "x"}
    special |= {"digit": "0.5", "complex": 1j, "huge": 10**400}
    return [special.get(s, 1.0) for s in samples]


def dies_once(samples: list[str], **columns: Any) -> list[float]:
    """A sample is the path of a file: dies if it is missing, and leaves it."""
    for sample in samples:
        if not Path(sample).exists():
            Path(sample).touch()
            os._exit(1)
    return [1.0] * len(samples)


def with_child(samples: list[str], **columns: Any) -> list[float]:
    """Starts a program that never ends, writes both process ids to the file named by the sample, and hangs."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(samples[0] + ".tmp").write_text(json.dumps([os.getpid(), child.pid]))
    Path(samples[0] + ".tmp").replace(samples[0])
    time.sleep(600)
    return [0.0]


USED_UP: list[Exception] = []
"""Errors of this process; the first one is raised for every further sample."""


def used_up(samples: list[str], **columns: Any) -> list[float]:
    """A sample that names an error leaves its process unable to score anything more; ``bad`` alone cannot be scored."""
    errors = {"memory": MemoryError(), "files": OSError(24, "Too many open files")}
    USED_UP.extend(errors[sample] for sample in samples if sample in errors)
    if "bad" in samples:
        raise FileNotFoundError("bad")
    if USED_UP and samples[0] not in errors:
        raise USED_UP[0]
    return [float(os.getpid())] * len(samples)


def who(samples: list[str], **columns: Any) -> list[float]:
    return [float(os.getpid())] * len(samples)


class Scaled:
    """The length times a factor, made in the worker."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def __call__(self, samples: list[str], **columns: Any) -> list[float]:
        return [self.factor * len(s) for s in samples]


class Picky:
    """Keeps a list of what it could not score."""

    def __init__(self) -> None:
        self.failed: list[Any] = []

    def take_failures(self) -> list[Any]:
        failed, self.failed = self.failed, []
        return failed

    def __call__(self, samples: list[str], **columns: Any) -> list[float | None]:
        self.failed += [SimpleNamespace(sample=s, reason="a reason of its own") for s in samples if s == "bad"]
        return [None if s in ("bad", "unknown") else 1.0 for s in samples]


class CannotBeMade:
    def __init__(self) -> None:
        raise FileNotFoundError("no receptor.pdbqt")

    def __call__(self, samples: list[str], **columns: Any) -> list[float]:
        return []


def moody_without_death(samples: list[str], **columns: Any) -> Any:
    """For workers that are no processes."""
    return moody([s for s in samples if s != "die"])
