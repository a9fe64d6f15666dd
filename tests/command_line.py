"""Parts of the tests of the command line: rewards of a user, short commands, and what a run ends with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.cli import main
from discrete_grpo.runs.recorder import read_metrics

REWARDS = """
import math, pathlib
def length(samples, **columns): return [float(len(s or "")) for s in samples]
def nan(samples, **columns): return [math.nan] * len(samples)
def short(samples, **columns): return [1.0]
def infinite(samples, **columns): return [math.inf] * len(samples)
def raises(samples, **columns): raise KeyError("boom")
def flaky(samples, **columns):
    if pathlib.Path("broken").exists(): raise OSError("the docking server\\nis away")
    if len(samples) == 16 and pathlib.Path("count").exists():
        left = int(pathlib.Path("count").read_text()) - 1
        pathlib.Path("count").write_text(str(left))
        if not left: pathlib.Path("broken").touch()
    return length(samples)
flaky.cached_as = None  # asked for every sample every time
class Constant:
    def __init__(self, value: float = 1.0): self.value = value
    def __call__(self, samples, **columns): return [self.value] * len(samples)
class Plain: pass
def noargs(): return []
number = 3
"""
GRPO = ["--grpo.num_generations=4", "--grpo.generation_batch_size=16", "--grpo.max_steps=3", "--grpo.save_steps=1"]
NETWORK = ["--network.layers=1", "--network.heads=2", "--network.width=8", "--network.edge_width=4", "--network.global_width=4"]
PRETRAIN = [*NETWORK, "--network.walk_length=2", "--num_steps=3", "--max_atoms=4", "--pretrain.batch_size=8"]


def train(*more: str, out: str = "run", policy: str = "tiny") -> list[str]:
    small = ["--evaluation_samples=4", "--num_steps=3", *GRPO]
    return ["train", "demo", f"--policy={policy}", f"--output_dir={out}", *small, *more]


class Refuse:
    """Runs a command that must fail, and holds it to the promise: code 2, one error line at the end, no traceback."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: str) -> str:
        self.capsys.readouterr()
        assert main(arguments) == 2, arguments
        lines = self.capsys.readouterr().err.rstrip("\n").split("\n")
        assert lines[-1].startswith("discrete-grpo: error: ")
        assert sum("discrete-grpo: error:" in line for line in lines) == 1
        assert not any("Traceback" in line or 'File "' in line for line in lines)
        return lines[-1].removeprefix("discrete-grpo: error: ")


def outcome(folder: str) -> tuple[Any, ...]:
    """Everything a run ends with, but for the times."""
    run = Path(folder)
    lines = [{k: v for k, v in line.items() if k not in ("step_time", "samples_per_second")} for line in read_metrics(run)]
    files = [run / name for name in ("policy/model.safetensors", "policy/config.json", "samples.csv.gz", "evaluation.json")]
    return lines, [(p.name, p.read_bytes()) for p in files if p.exists()]


def lines(folder: str) -> int:
    path = Path(folder) / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
