"""Lines of plain or gzipped text files, with bounds on their sizes."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from discrete_grpo.core.checks import check_range
from discrete_grpo.core.csv_cells import cells_of_any_length

__all__ = ["MAX_BYTES", "MAX_LINE", "column_of", "filled_cells", "header_cells", "suffix_of", "table_rows", "text_lines"]

MAX_BYTES = 4 << 30
"""Default of the largest unpacked size of a gzipped file, 4 GiB."""
MAX_LINE = 16 << 20
"""Largest number of bytes of a line."""
_LONE_RETURN = re.compile(r"(?<=\r)(?!\n)")  # a lone carriage return as a line end


def suffix_of(path: Path) -> str:
    """Return the suffix of a file name in lower case, without ``.gz``.

    >>> suffix_of(Path("a.csv.gz")), suffix_of(Path("a.SMI"))
    ('.csv', '.smi')
    """
    return Path(path.stem).suffix.lower() if path.suffix == ".gz" else path.suffix.lower()


def text_lines(path: Path, max_bytes: int = MAX_BYTES, *, argument: str = "path") -> Iterator[str]:
    """Yield every line of a UTF-8 file with its line end, unpacked if the name ends in ``.gz``, without a byte order mark.

    Args:
        path: the file.
        max_bytes: largest unpacked size of a gzipped file. No more than that, and one line at a time, is held in memory.
        argument: name of the path in errors.

    Raises:
        ValueError: if the file is not text, has a line of more than ``MAX_LINE`` bytes or unpacks to more than ``max_bytes``.
    """
    check_range("max_bytes", max_bytes, least=1)
    packed, name = path.suffix == ".gz", f"{argument}: {str(path)!r}"
    total, encoding, number = 0, "utf-8-sig", 0
    try:
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            while line := file.readline(min(MAX_LINE, max_bytes if packed else MAX_LINE) + 1):
                total, number = total + len(line), number + 1
                if packed and total > max_bytes:
                    raise ValueError(f"{name} unpacks to more than max_bytes, {max_bytes:,} bytes; raise max_bytes")
                if len(line) > MAX_LINE:
                    raise ValueError(f"{name} has a line of more than {MAX_LINE:,} bytes, expected lines of text")
                text, encoding = line.decode(encoding), "utf-8"
                yield from _LONE_RETURN.split(text) if "\r" in text.removesuffix("\n")[:-1] else (text,)
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        where = f"line {number}: " if isinstance(error, UnicodeDecodeError) else ""
        raise ValueError(f"{name} cannot be read as text, expected UTF-8, gzipped only if it ends in .gz: {where}{error}") from None


def column_of(names: Sequence[str], *wanted: str) -> str | None:
    """The first of the wanted columns that a table has; None if it has none of them.

    >>> column_of(["step", "sample"], "graph", "sample")
    'sample'
    """
    return next((name for name in wanted if name in names), None)


def table_rows(lines: Iterable[str], *wanted: str) -> tuple[str | None, list[dict[str, str]]]:
    r"""The first of the wanted columns that a csv table has, and its rows; None for the column if it has none of them, or no row.

    >>> table_rows(["step,sample\n", "0,CCO\n"], "text", "sample")
    ('sample', [{'step': '0', 'sample': 'CCO'}])
    """
    with cells_of_any_length():
        rows = list(csv.DictReader(lines))
    return column_of(list(rows[0]) if rows else (), *wanted), rows


def header_cells(line: str) -> list[str]:
    """The names in the first line of a csv file, with or without quotes.

    >>> header_cells('"step","graph"')
    ['step', 'graph']
    """
    try:
        with cells_of_any_length():
            return [name.strip() for name in next(csv.reader([line]), list[str]())]
    except csv.Error:  # no table
        return []


def filled_cells(path: Path, column: str, most: int) -> list[str]:
    """The first cells of a column of a csv file that are not empty, at most ``most``, up to the first unreadable row."""
    found: list[str] = []
    with cells_of_any_length(), suppress(OSError, ValueError, csv.Error):
        for row in csv.DictReader(text_lines(path)):
            found += [row[column]] if row.get(column) else []
            if len(found) == most:
                break
    return found
