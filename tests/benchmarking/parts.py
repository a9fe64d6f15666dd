"""Tasks, methods and a policy of the benchmark's tests; worker processes import them from here."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.rewards.task import Task


def carbons(mol: Any) -> float:
    return min(1.0, sum(atom.GetSymbol() == "C" for atom in mol.GetAtoms()) / 20)


def oxygens(mol: Any) -> float:
    return min(1.0, sum(atom.GetSymbol() == "O" for atom in mol.GetAtoms()) / 20)


def fragile(text: str) -> float:
    """Kills its process on one text."""
    if text == "CCC":
        os.kill(os.getpid(), signal.SIGKILL)
    return 0.5


def process(text: str) -> float:
    """A number that is the same for all samples of one process."""
    time.sleep(0.2)
    return os.getpid() % 9973 / 9973


CARBONS = Task("carbons", "toy", "share of 20 carbon atoms", "", carbons, optimum=1.0, published={"REINVENT": 0.5})
OXYGENS = Task("oxygens", "toy", "share of 20 oxygen atoms", "", oxygens)

TASKS = {
    "fragile": Task("fragile", "toy", "crashes", "", fragile, kind="text"),
    "process": Task("process", "toy", "where it runs", "", process, kind="text"),
}


def walk(task: Any, policy: Any, ledger: Any, seed: int, *, step: int = 1, pause: float = 0.0) -> None:
    """Chains of growing length and random ends, ten per turn."""
    generator = random.Random(seed)
    length = 1
    while not ledger.exhausted:
        time.sleep(pause)
        chains = ["C" * length + "".join(generator.choice("CNO") for _ in range(8)) for _ in range(10)]
        ledger.score([task], chains, source="first" if length == 1 else ["walk"] * len(chains))
        length += step


def crash(task: Any, policy: Any, ledger: Any, seed: int) -> None:
    """Raises after its first turn, for one seed only."""
    ledger.score([task], ["CC"])
    if seed == 0:
        raise KeyError("a bug in a method")


def hang(task: Any, policy: Any, ledger: Any, seed: int) -> None:
    ledger.score([task], ["CC"])
    while True:
        time.sleep(1)


def die(task: Any, policy: Any, ledger: Any, seed: int) -> None:
    """Is killed, unless a file says that it was killed before."""
    marker = Path(os.environ["TOY_MARKER"])
    ledger.score([task], ["CC", "CCC"])
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    walk(task, policy, ledger, seed)


WALK = Method(name="walk", about="chains", source="", run=walk, settings={"step": 1}, needs_policy=False, least_budget=10)
SLOW = Method(name="slow", about="slow chains", source="", run=walk, settings={"step": 2, "pause": 0.05}, needs_policy=False)
CRASH = Method(name="crash", about="a bug", source="", run=crash, needs_policy=False)
HANG = Method(name="hang", about="never ends", source="", run=hang, needs_policy=False)
DIE = Method(name="die", about="is killed", source="", run=die, needs_policy=False)
