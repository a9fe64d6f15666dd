"""Reading of tables of samples with measured scores: one sample per row, a column of scores and optionally one of groups."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from discrete_grpo.core.checks import did_you_mean
from discrete_grpo.datasets.reading import table_rows
from discrete_grpo.datasets.tables import HEAD, USUAL
from discrete_grpo.datasets.text_files import MAX_BYTES, text_lines

__all__ = ["ScoredTable", "cell_number", "read_scored"]

UNKNOWN = frozenset({"", "nan", "na", "n/a", "none", "null"})
"""Cells of the score column that stand for a missing score, in lower case."""
LARGEST = 1e30
"""Largest accepted size of a number, whose square float64 still holds by far."""
NAMES = ("sample", "graph", "text")
"""Names of sample columns, beside those of SMILES."""


@dataclass(frozen=True)
class ScoredTable:
    """The rows of a table whose score is known.

    Attributes:
        samples: text of the sample of each row.
        scores: its score, finite.
        groups: its group; None if no column of groups is read.
        lines: number of its line in the file, from 1.
        unscored: number of rows that were left out, as their score is empty or NaN.
    """

    samples: tuple[str, ...]
    scores: tuple[float, ...]
    groups: tuple[str, ...] | None
    lines: tuple[int, ...]
    unscored: int = 0


@dataclass(frozen=True)
class _Columns:
    """Indices of the columns that are read; None means that there are no groups."""

    sample: int
    score: int
    group: int | None


def read_scored(
    path: str | Path,
    score_column: str,
    *,
    sample_column: str | None = None,
    group_column: str | None = None,
    max_bytes: int = MAX_BYTES,
) -> ScoredTable:
    """Read the samples and scores of a csv or tsv file with a header, optionally ``.gz``.

    Cells are delimited by commas, semicolons or tabs. Names of columns are compared exactly, then without regard to case. A score
    that is empty, NaN, NA, None or null is unknown; its row is left out and counted.

    Args:
        path: the file.
        score_column: name of the column of scores; higher is better.
        sample_column: name of the column of samples; None takes the one with a usual name (``smiles``, ``sample``, ``graph``,
            ``text``, ...).
        group_column: name of the column of groups; None reads none.
        max_bytes: largest size that a gzipped file may unpack to.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file has no rows, no such column or no known score, or for a score that is not a finite number or has no
            group, naming its line.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"data: {str(path)!r} is no file, expected a .csv or .tsv of samples with scores")
    lines = text_lines(path, max_bytes, argument="data")
    head = list(islice(lines, HEAD))
    if not any(line.strip() for line in head):
        raise ValueError(f"data: {str(path)!r} is empty, expected a header and rows")
    delimiter, header = _header(head, (score_column, sample_column, group_column))
    columns = _columns(path, header, score_column, sample_column, group_column)
    try:
        return _table(path, _rows(chain(head, lines), delimiter), columns, header)
    except csv.Error as error:
        raise ValueError(f"data: {str(path)!r} cannot be read as a table: {error}") from None


def _header(head: Sequence[str], wanted: Sequence[str | None]) -> tuple[str, list[str]]:
    """The delimiter under which the first row has the most of the wanted names, then the most cells; and that row."""
    first = next(line for line in head if line.strip())
    found = {d: [cell.strip() for cell in next(csv.reader([first], delimiter=d), [])] for d in (",", ";", "\t")}
    best = max(found, key=lambda d: (sum(_place(found[d], name) is not None for name in wanted if name), len(found[d])))
    return best, found[best]


def _place(header: Sequence[str], name: str) -> int | None:
    """Index of the column of that name, exactly or without regard to case; None if there is none."""
    if name.strip() in header:
        return header.index(name.strip())
    folded = [cell.casefold() for cell in header]
    wanted = name.strip().casefold()
    return folded.index(wanted) if folded.count(wanted) == 1 else None


def _columns(path: Path, header: Sequence[str], score: str, sample: str | None, group: str | None) -> _Columns:
    named = {"score_column": score, "sample_column": sample, "group_column": group}
    found = {argument: _place(header, name) for argument, name in named.items() if name is not None}
    for argument, place in found.items():
        if place is None:
            name = str(named[argument])
            hint = f"; {did_you_mean(name, header, cutoff=0.5)}".removesuffix("; ")
            raise ValueError(f"{argument}: {name!r} is no column of {str(path)!r}{hint} {_listed(header)}")
        if header.count(header[place]) > 1:
            raise ValueError(
                f"{argument}: {header[place]!r} is the name of several columns of {str(path)!r}, expected one of that name"
            )
    at = found.get("sample_column")
    at = _usual(path, header) if at is None else at
    columns = _Columns(at, int(found["score_column"] or 0), found.get("group_column"))
    if len({columns.sample, columns.score, columns.group}) < 3:
        raise ValueError(f"score_column: {score!r}, expected different columns of samples, scores and groups in {str(path)!r}")
    return columns


def _usual(path: Path, header: Sequence[str]) -> int:
    """The column of samples by its name: one of SMILES, or else one of :data:`NAMES`."""
    plain = [re.sub(r"[\W_]+", "", name).lower() for name in header]
    for names in (("smiles",), USUAL, NAMES):
        found = [k for k, name in enumerate(plain) if name in names]
        if len(found) == 1:
            return found[0]
        if found:
            break
    said = "several columns have" if found else "no column has"
    raise ValueError(f"sample_column: None, expected a name, as {said} a usual name of samples in {str(path)!r} {_listed(header)}")


def _listed(header: Sequence[str], most: int = 30) -> str:
    more = f", and {len(header) - most} more" if len(header) > most else ""
    return f"(columns {', '.join(map(repr, header[:most]))}{more})"


def _rows(lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the last line, cells) of every row below the header that is not blank."""
    header = True
    for number, row in table_rows(lines, delimiter):
        if any(cell.strip() for cell in row):
            if not header:
                yield number, [cell.strip() for cell in row]
            header = False


def _table(path: Path, rows: Iterable[tuple[int, list[str]]], columns: _Columns, header: Sequence[str]) -> ScoredTable:
    samples, scores, groups, lines, unscored = [], [], [], [], 0
    for line, row in rows:
        cells = row + [""] * (len(header) - len(row))
        if any(cells[len(header) :]):
            told = f"line {line} of {str(path)!r} has {len(cells)} cells, expected {len(header)} as the header has"
            raise ValueError(f"data: {told}; a cell that holds the delimiter, such as a decimal comma, needs quotes")
        for argument, place in (("sample", columns.sample), ("score", columns.score)):
            if "\n" in cells[place]:
                told = f"line {line} of {str(path)!r} ends a {argument} of several lines"
                raise ValueError(f"data: {told}, expected one line; is a quote left open above?")
        score = cell_number(cells[columns.score], "score_column", path, line, header[columns.score])
        if math.isnan(score):
            unscored += 1
            continue
        if columns.group is not None and not cells[columns.group]:
            told = f"line {line} of {str(path)!r} has a score and no group in {header[columns.group]!r}"
            raise ValueError(f"group_column: {told}, expected one in each such row, as scores of a group are compared")
        samples.append(cells[columns.sample])
        scores.append(score)
        lines.append(line)
        groups.append("" if columns.group is None else cells[columns.group])
    if not scores:
        said = f"has no score in its {unscored} rows" if unscored else "has no rows below its header"
        raise ValueError(f"data: {str(path)!r} {said}, expected at least one sample with a score")
    return ScoredTable(tuple(samples), tuple(scores), None if columns.group is None else tuple(groups), tuple(lines), unscored)


def cell_number(text: str, argument: str, path: str | Path, line: int, column: str) -> float:
    """The number in a cell; NaN if it is unknown.

    Raises:
        ValueError: for a cell that holds something else, naming ``argument``, the line and the column.
    """
    if text.lower() in UNKNOWN:
        return math.nan
    try:
        value = float(text.replace("_", "x"))  # Python reads 1_000 as a number
    except ValueError:
        value = math.inf
    if abs(value) > LARGEST:
        wanted = "a number or nothing" if math.isinf(value) else f"a number of at most {LARGEST:g} in size"
        hint = "; decimals follow a point" if re.fullmatch(r"[-+]?\d+,\d+", text) else ""
        raise ValueError(f"{argument}: line {line} of {str(path)!r} holds {text!r} in {column!r}, expected {wanted}{hint}")
    return value
