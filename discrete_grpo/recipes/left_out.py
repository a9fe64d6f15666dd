"""Reports on standard error about the lines and molecules of a file that are left out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from discrete_grpo.core.processes import is_first
from discrete_grpo.datasets.reading import SHOWN

__all__ = ["report_broken", "report_kept"]

LISTED = 5
"""Number of lines that are listed."""


def report_broken(
    file: str | Path,
    broken: Sequence[tuple[int, str]],
    good: int,
    kind: str = "molecule",
    unit: str = "line",
    *,
    count: int | None = None,  # of all, where ``broken`` holds the first of them
) -> None:
    """Print on standard error how many lines (or other units) of a file are no ``kind``, and the first of them."""
    if not broken or not is_first():
        return
    bad = len(broken) if count is None else count
    listed = "; ".join(f"{unit} {number}: {text[:SHOWN]!r}" for number, text in broken[:LISTED])
    more = f"; and {bad - LISTED} more" if bad > LISTED else ""
    print(f"{file}: {bad} of {good + bad} {unit}s are no {kind}: {listed}{more}", file=sys.stderr)


def report_kept(file: str | Path, smiles: Sequence[str], dropped: int = 0) -> None:
    """Print on standard error how many molecules were left out for their size, and how many kept ones have several parts."""
    if not is_first():
        return
    if dropped:
        every = len(smiles) + dropped
        told = f"{dropped} of {every} molecules are left out for their number of heavy atoms, which is 0 or above max_atoms"
        print(f"{file}: {told}", file=sys.stderr)
    if parts := sum("." in text for text in smiles):
        told = f"{parts} of {len(smiles)} molecules have several parts, such as salts"
        print(f"{file}: {told}; samples of several parts count as invalid", file=sys.stderr)
