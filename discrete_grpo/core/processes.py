"""Which of the processes of a run this one is, before they communicate."""

from __future__ import annotations

import os

__all__ = ["is_first"]


def is_first() -> bool:
    """Whether this process writes the files and prints; true where a launcher has set no ``RANK``."""
    return int(os.environ.get("RANK", "0")) == 0
