"""A reward that misbehaves on one sample, for the fault drill. Plain Python, so that a worker starts in a moment.

Which sample and how are told by two environment variables, which worker processes inherit; the code, and with it what a
cache takes the reward for, is the same with and without a fault.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

__all__ = ["FAULT", "SAMPLE", "carbon_share"]

FAULT, SAMPLE = "DRILL_FAULT", "DRILL_SAMPLE"


def carbon_share(samples: Sequence[str | None], **columns: Any) -> list[float | None]:
    """The share of letters that are carbons; on one sample a fault: hang, exit, segfault, raise, nan, short or unknown."""
    values: list[float | None] = [0.0 if not text else text.upper().count("C") / len(text) for text in samples]
    fault, named = os.environ.get(FAULT), os.environ.get(SAMPLE)
    if fault is None or named not in samples:
        return values
    if fault == "hang":
        time.sleep(600)
    if fault == "exit":
        os._exit(3)
    if fault == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "raise":
        raise RuntimeError("two\nlines")
    if fault == "short":
        return values[:-1]
    bad = {"nan": float("nan"), "unknown": None}[fault]
    return [bad if text == named else value for text, value in zip(samples, values, strict=True)]
