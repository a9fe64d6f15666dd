"""Tables with cells of any content and length, such as the graph6 line of a graph of some thousand nodes."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

__all__ = ["cells_of_any_length", "csv_text"]

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


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    r"""Return rows as csv, with lines that end in a line feed.

    Cells with a carriage return are quoted too, which :func:`csv.writer` leaves open with such lines, so that readers split them.

    >>> csv_text([("sample", "score"), ("a\rb", 1.0)])
    'sample,score\n"a\rb",1.0\n'
    """
    lines = _Lines()
    csv.writer(lines, lineterminator="\r\n").writerows(rows)
    return "".join(lines)


class _Lines(list[str]):
    """A file of which each call of ``write`` adds one line, as :func:`csv.writer` calls it."""

    def write(self, line: str) -> None:
        self.append(line.removesuffix("\r\n") + "\n")
