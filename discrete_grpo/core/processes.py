"""The rank of this process before the processes of a run communicate, and the CPU cores that it may use."""

from __future__ import annotations

import os

__all__ = ["check_one_process", "is_first", "started_processes", "usable_cores"]


def is_first() -> bool:
    """Whether this process writes the files and prints; true if no launcher has set ``RANK``."""
    return int(os.environ.get("RANK", "0")) == 0


def started_processes() -> int:
    """Number of processes that a launcher such as torchrun has started for this run; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def check_one_process(command: str) -> None:
    """Raise ``ValueError`` if a launcher such as torchrun has started several processes for work that runs in one."""
    if (started := started_processes()) > 1:
        raise ValueError(f"processes: {started}, expected 1; {command} runs in one process")


def usable_cores() -> int:
    """Number of processor cores that may be used, divided by ``LOCAL_WORLD_SIZE``, the processes of a run on this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
