"""Runs of the fault drill, and their disturbances."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from benchmarks.common import ROOT
from benchmarks.fault_rewards import FAULT, SAMPLE
from discrete_grpo import cli
from discrete_grpo.cli import commands
from discrete_grpo.domains import molecule_properties, smiles
from discrete_grpo.training.trainer import GRPOTrainer

__all__ = [
    "CASES", "Drill", "Ended", "Fault", "FileOperations", "FullDisk", "NaNGradient", "StopAfter", "children", "command", "faulty",
    "run", "started", "warm_up",
]  # fmt: skip

SMALL = {
    "policy": "qm9-small", "num_steps": 8, "evaluation_samples": 20, "grpo.num_generations": 4, "grpo.generation_batch_size": 16,
    "grpo.save_steps": 2,
}  # fmt: skip
REUSE = {"grpo.max_steps": 8, "grpo.steps_per_generation": 2, "grpo.num_iterations": 2, "grpo.refine_fraction": 0.5}
CASES: dict[str, dict[str, Any]] = {
    "fresh": {
        "grpo.max_steps": 6, "grpo.ema_decay": 0.9, "grpo.beta": 0.05, "grpo.sync_ref_model": True, "grpo.ref_model_sync_steps": 2,
        "grpo.replay_samples": 1,
    },
    "reuse": REUSE,
    "shards": REUSE | {"grpo.generation_shards": 2},
    "best": {"grpo.max_steps": 6, "grpo.metric_for_best_model": "reward", "grpo.load_best_model_at_end": True},
}  # fmt: skip
"""New samples and a replayed one in each group for every update, a moving average, a reference that follows; four updates on the
same samples, half of the groups from remembered ones; the same in two random streams; the policy of the best checkpoint."""

PATIENCE = 120.0
"""Seconds after which a run that should have ended is taken for one that hangs."""


# -- faults from within


class Fault(Protocol):
    """Something that goes wrong inside a run."""

    def arm(self) -> None:
        """Called in the process of the run before its command."""
        ...


@dataclass(frozen=True)
class StopAfter:
    """A signal to itself after an update: SIGKILL by default."""

    update: int
    number: int = signal.SIGKILL

    def arm(self) -> None:
        """Called in the process of the run."""
        _after_update(self.update, lambda: os.kill(os.getpid(), self.number))


@dataclass(frozen=True)
class FullDisk:
    """After an update the disk is full: a ballast file takes all that is left, or no file can grow beyond 0 bytes."""

    update: int
    ballast: Path | None

    def arm(self) -> None:
        """Called in the process of the run."""
        _after_update(self.update, self._fill)

    def _fill(self) -> None:
        if self.ballast is None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            return
        with self.ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                return


@dataclass(frozen=True)
class NaNGradient:
    """One gradient of the update after ``update`` is not a number."""

    update: int

    def arm(self) -> None:
        """Called in the process of the run."""
        clip, calls = nn.utils.clip_grad_norm_, [0]

        def poisoned(parameters: Any, *arguments: Any, **options: Any) -> Any:
            parameters = list(parameters)
            calls[0] += 1
            if calls[0] == self.update + 1:
                parameters[0].grad.view(-1)[0] = float("nan")
            return clip(parameters, *arguments, **options)

        nn.utils.clip_grad_norm_ = poisoned


@dataclass(frozen=True)
class FileOperations:
    """SIGKILL right before the file operation of that number: opening to write, renaming, removing, syncing. None only counts."""

    number: int | None = None
    count: Any = field(default_factory=lambda: multiprocessing.get_context("fork").Value("i", 0))

    def arm(self) -> None:
        """Called in the process of the run."""
        sync = os.fsync

        def fsync(handle: int) -> None:
            self._next()
            sync(handle)

        os.fsync = fsync  # type: ignore[assignment]
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"):
            self._next()

    def _next(self) -> None:
        self.count.value += 1
        if self.count.value == self.number:
            os.kill(os.getpid(), signal.SIGKILL)


def _after_update(number: int, then: Callable[[], None]) -> None:
    update = GRPOTrainer.update

    def watched(trainer: GRPOTrainer) -> dict[str, float] | None:
        line = update(trainer)
        if trainer.step == number:
            then()
        return line

    GRPOTrainer.update = watched  # type: ignore[assignment, method-assign]


# -- running a command


@dataclass(frozen=True)
class Ended:
    """Exit code of a run (minus the signal), and all that it printed."""

    code: int
    text: str
    seconds: float

    @property
    def lines(self) -> list[str]:
        """Return what the command itself printed; a traceback counts."""
        return [line for line in self.text.splitlines() if line.startswith(("discrete-grpo: ", "Traceback"))]


def command(case: str, folder: Path, reward: str = "qed") -> list[str]:
    """Arguments of ``discrete-grpo`` for a run of a case."""
    fields = SMALL | CASES[case] | {"reward": reward, "output_dir": folder}
    return ["train", *(f"--{name}={value}" for name, value in fields.items())]


def warm_up() -> None:
    """Load what a run needs, so that runs forked from here start at once; no tensor is computed with."""
    commands.recipe_of("train")
    __import__("torch._dynamo")
    methane = smiles.parse("C")
    assert methane is not None
    molecule_properties.sa_score(methane)


def run(
    arguments: Sequence[str],
    log: Path,
    fault: Fault | None = None,
    environment: Mapping[str, str] | None = None,
    meanwhile: Callable[[Any], None] | None = None,
) -> Ended:
    """Run a ``discrete-grpo`` command in a process forked from this one, which saves the seconds of a start.

    Args:
        arguments: of the command.
        log: file for what it prints.
        fault: what goes wrong inside.
        environment: variables it has beside ours.
        meanwhile: is handed the process (with ``pid``, ``kill`` and ``join``) while it runs.
    """
    start = time.perf_counter()
    process = multiprocessing.get_context("fork").Process(target=_inside, args=(arguments, log, fault, environment or {}))
    process.start()
    if meanwhile is not None:
        meanwhile(process)
    process.join(PATIENCE)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(f"{' '.join(arguments)}: no end within {PATIENCE:g} s; see {log}")
    seconds = time.perf_counter() - start
    return Ended(process.exitcode, log.read_text(errors="replace") if log.exists() else "", seconds)


def _inside(arguments: Sequence[str], log: Path, fault: Fault | None, environment: Mapping[str, str]) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.environ.update(environment)
    torch.set_num_threads(1)  # as torchrun does, and as is said to the commands that are started
    if fault is not None:
        fault.arm()
    sys.exit(cli.main(arguments))


def started(arguments: Sequence[str], log: Path, processes: int = 1) -> subprocess.Popen[bytes]:
    """The command in an interpreter of its own, or in several under ``torchrun``."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with log.open("wb") as file:
        line = [sys.executable, *launcher, "-m", "discrete_grpo.cli", *arguments]
        return subprocess.Popen(line, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def children(pid: int) -> list[int]:
    """Process ids of the children of a process, oldest first."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=", "-o", "ppid="], capture_output=True, text=True, check=True).stdout
    return sorted(int(own) for own, parent in map(str.split, listed.splitlines()) if int(parent) == pid)


# -- the runs of a drill


def faulty(bad: tuple[str, str] | None) -> dict[str, str]:
    """The environment in which the reward has this fault on this sample."""
    return {} if bad is None else {FAULT: bad[0], SAMPLE: bad[1]}


class Drill:
    """Runs in a scratch folder, with the undisturbed ones that they are compared with.

    Args:
        folder: scratch.
        seed: of the moments.
        kills: how many.
    """

    def __init__(self, folder: Path, seed: int, kills: int) -> None:
        self.folder, self.seed, self.kills = folder, seed, kills
        self._whole: dict[tuple[str, str], tuple[Path, Ended, int]] = {}
        self._numbers = itertools.count()

    def new(self, name: str) -> Path:
        """A folder name that no run has."""
        return self.folder / f"{name}-{next(self._numbers)}"

    def random(self, name: str) -> random.Random:
        """Numbers of a row, the same whichever other rows run."""
        return random.Random(f"{self.seed} {name}")

    def run(self, arguments: Sequence[str], fault: Fault | None = None, **options: Any) -> Ended:
        """A command in a forked process."""
        return run(arguments, self.new("log"), fault, **options)

    def whole(self, case: str, reward: str = "qed", bad: tuple[str, str] | None = None) -> tuple[Path, Ended, int]:
        """The undisturbed run of a case: its folder, how it ended, and how many file operations it made."""
        key = (case, f"{reward} {bad}")
        if key not in self._whole:
            folder, counter = self.new(f"whole-{case}"), FileOperations()
            ended = self.run(command(case, folder, reward), counter, environment=faulty(bad))
            if ended.code:
                raise RuntimeError(f"the undisturbed run failed: {ended.text}")
            self._whole[key] = (folder, ended, counter.count.value)
        return self._whole[key]

    @cached_property
    def halfway(self) -> Path:
        """A run that was killed after update 5 of 8, in the middle of a generation; checkpoints of 2 and 4 are there."""
        folder = self.new("halfway")
        self.run(command("reuse", folder), StopAfter(5))
        return folder

    def copy(self) -> Path:
        """A copy of the half run, to be damaged."""
        return Path(shutil.copytree(self.halfway, self.new("copy")))

    def go_on(self, folder: Path, first: Sequence[str]) -> Ended:
        """Continue a run; where nothing of it is left yet, the same command again."""
        return self.run(["resume", str(folder)] if (folder / "run.json").is_file() else first)
