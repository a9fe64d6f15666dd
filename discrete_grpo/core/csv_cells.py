"""Tables with cells of any length, such as the graph6 line of a graph of some thousand nodes."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["cells_of_any_length"]

_MOST = 2**31 - 1
"""The largest limit that every platform takes."""


@contextmanager
def cells_of_any_length() -> Iterator[None]:
    """Let :mod:`csv` read cells of more than 131,072 characters within the block.

    >>> with cells_of_any_length():
    ...     [row] = csv.reader(["x" * 200_000])
    >>> len(row[0])
    200000
    """
    before = csv.field_size_limit(_MOST)
    try:
        yield
    finally:
        csv.field_size_limit(before)
