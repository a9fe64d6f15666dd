"""Provenance stamp, atomic output and timing of the benchmarks."""

from __future__ import annotations

import itertools
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.freshness import ROOT, code_hash
from discrete_grpo.core.atomic import atomic_write
from discrete_grpo.core.checks import check_range

__all__ = ["ROOT", "Clock", "Timing", "interleaved", "paired_ratio", "peak_allocated", "stamp", "write_result"]

# -- who measured what, where


def stamp(seed: int, *, device: str = "cpu", sources: Sequence[str] = ()) -> dict[str, Any]:
    """Command, seed, machine, commit, date and load: the head of every result file.

    Args:
        seed: of the run.
        device: a torch device.
        sources: files under the repository root whose hash (of their code) pins what was measured, also in a dirty tree.
    """
    return {
        "command": command(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seed": seed,
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain")),
        "sources": {name: code_hash(ROOT / name) for name in sources},
        "machine": machine(device),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(("OMP_", "MKL_", "MALLOC_"))},
        "load_average": [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else None,
    }


def command() -> str:
    """Return the command that started this process, as given at the repository root."""
    script = Path(sys.argv[0])
    inside = script.suffix == ".py" and script.resolve().is_relative_to(ROOT)
    name = ["-m", ".".join(script.resolve().relative_to(ROOT).with_suffix("").parts)] if inside else [script.name]
    return shlex.join(["python", *name, *sys.argv[1:]])


def machine(device: str = "cpu") -> dict[str, Any]:
    """Processor, threads, accelerator and versions."""
    cuda = torch.device(device).type == "cuda"
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name(device) if cuda else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        fields = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
        known = {name.strip(): value.strip() for name, value in fields.items()}
        return f"{known.get('model name', platform.machine())} (family {known.get('cpu family')}, model {known.get('model')})"
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    """Return what git prints; None without git, without a repository or without a commit."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def write_result(path: str | Path, result: Mapping[str, Any]) -> None:
    """The result as indented JSON: either the old file or the whole new one, never half of it."""
    text = json.dumps(result, indent=1, allow_nan=False) + "\n"
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, "w") as file:
        file.write(text)


# -- memory and clocks


def peak_allocated(job: Callable[[], object]) -> int:
    """Most bytes of CPU tensors that ``job`` has alive at once, above those alive before it: exact, from torch's own account."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        job()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]" and e["args"]["Device Type"] == 0)
    return max(itertools.accumulate((size for _, size in changes), initial=0))


Clock = Literal["wall", "cpu"]


@dataclass(frozen=True)
class Timing:
    """Seconds of every repeat, by the wall clock and by this process's processor time."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    def by(self, clock: Clock) -> tuple[float, ...]:
        """Seconds by one clock. Processor time leaves out the spells in which another process had the core."""
        return self.wall if clock == "wall" else self.cpu


def interleaved(jobs: Sequence[Callable[[], object]], repeats: int, *, device: str = "cpu", warmup: int = 1) -> list[Timing]:
    """Each job ``repeats`` times, turn by turn, so that a slow spell of the machine falls on all of them.

    Raises:
        ValueError: if ``repeats`` is less than 1.
    """
    check_range("repeats", repeats, least=1)
    for _ in range(warmup):
        for job in jobs:
            job()
    taken: list[list[tuple[float, float]]] = [[] for _ in jobs]
    for _ in range(repeats):
        for job, times in zip(jobs, taken, strict=True):
            _wait(device)
            wall, cpu = time.perf_counter(), time.process_time()
            job()
            _wait(device)
            times.append((time.perf_counter() - wall, time.process_time() - cpu))
    return [Timing(tuple(w for w, _ in times), tuple(c for _, c in times)) for times in taken]


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def paired_ratio(ours: Sequence[float], baseline: Sequence[float]) -> tuple[float, float, float]:
    """Return how many times faster ours is: the median, least and largest ratio over pairs measured one after the other.

    >>> paired_ratio([1.0, 2.0, 1.0], [3.0, 4.0, 5.0])
    (3.0, 2.0, 5.0)
    """
    ratios = [b / o for o, b in zip(ours, baseline, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)
