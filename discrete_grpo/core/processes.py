"""Which of the processes of a run this one is, before they communicate."""

from __future__ import annotations

import os

__all__ = ["check_one_process", "is_first"]


def is_first() -> bool:
    """Whether this process writes the files and prints; true where a launcher has set no ``RANK``."""
    return int(os.environ.get("RANK", "0")) == 0


def check_one_process(command: str) -> None:
    """Raise ``ValueError`` if a launcher such as torchrun has started several processes for what runs in one."""
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started > 1:
        raise ValueError(f"processes: {started}, expected 1; {command} runs in one process")
