"""The worker process of a job: what the job finds there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from discrete_grpo.benchmarking.runner import benchmark
from discrete_grpo.rewards.task import Task
from tests.benchmarking.parts import WALK


def reads(text: str) -> float:
    """Reads standard input, here and in a program."""
    return 0.5 + len(sys.stdin.read()) + len(subprocess.run(["cat"], capture_output=True, check=True).stdout)


READS = Task("reads", "toy", "reads standard input", "", reads, kind="text")


def test_the_standard_input_of_a_job_is_empty(tmp_path: Path) -> None:
    found = benchmark([READS], methods=[WALK], budget=100, seeds=[0], jobs=1, job_timeout=30.0, output_dir=tmp_path)
    assert not found.failed
    assert [row["top1"] for row in found.rows] == [0.5]
