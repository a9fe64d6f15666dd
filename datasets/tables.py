"""Detection of the SMILES column of a molecule file: delimiters, header lines and usual column names.

A column is accepted only if it is certain: the caller names it, it has a usual name, or the file has no header and exactly one of
its columns parses as molecules. Any other file is refused with a list of its columns.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from discrete_grpo.core.checks import did_you_mean
from discrete_grpo.domains.smiles import parse_smiles

__all__ = ["HEAD", "Layout", "find_layout"]

HEAD = 50
"""Number of lines at the start of a file that determine its layout."""
USUAL = frozenset(
    {
        "smiles",
        "smi",
        "canonicalsmiles",
        "smilescanonical",
        "cansmiles",
        "cansmi",
        "isomericsmiles",
        "isosmiles",
        "smilesisomeric",
        "molsmiles",
        "moleculesmiles",
        "compoundsmiles",
        "rdkitsmiles",
        "smilesstring",
    }
)
"""Names of SMILES columns, in lower case, without blanks and punctuation."""
LIKELY = frozenset({"structure", "molecule", "mol", "sample"})
"""Names that other columns may have too: such a column is accepted only if most of its cells are molecules."""


@dataclass(frozen=True)
class Layout:
    """Layout of the lines of a file.

    Attributes:
        delimiter: delimiter of cells; None means any number of blanks and tabs.
        header: whether the first line that is not blank names the columns.
        column: index of the column of SMILES.
    """

    delimiter: str | None
    header: bool
    column: int


Table = list[list[str]]


def _cells(head: Sequence[str], delimiter: str | None) -> Table:
    """Split the lines of ``head`` that are not blank into stripped cells, with respect to quotes."""
    if delimiter is None:
        return [line.split() for line in head if line.strip()]
    rows = [[cell.strip() for cell in row] for row in csv.reader(head, delimiter=delimiter) if any(map(str.strip, row))]
    return rows[:-1] if len(head) >= HEAD and len(rows) > 2 else rows  # the last row may continue below


def find_layout(head: Sequence[str], *, table: bool, column: str | None, source: str) -> Layout:
    """Determine the layout of a file from its first lines.

    Args:
        head: the first lines, up to ``HEAD`` of them.
        table: whether the suffix of the file means delimited cells (``.csv``, ``.tsv``); else the first word of each line is the
            molecule, unless the first line names a column of SMILES.
        column: name of the column of SMILES (or its number from 1 where no header has that name); None finds it.
        source: beginning of error messages.

    Raises:
        ValueError: if the column is not certain; the message lists all columns with one cell of each.
    """
    delimiters = (",", ";", "\t") if table else (None, "\t", ",", ";")
    tables = {delimiter: _cells(head, delimiter) for delimiter in delimiters}
    if not any(tables.values()):
        return Layout(delimiters[0], False, 0)
    if column is not None:
        return _asked(tables, column, source)
    named = {d: rows for d, rows in tables.items() if _named(rows, USUAL)}
    if named:
        return _only({d: _by_name(rows, source) for d, rows in named.items()}, tables, source)
    if not table:
        return Layout(None, False, 0)
    likely = {d: k for d, rows in tables.items() if _even(rows) and len(k := _likely(rows)) == 1}
    if likely:
        return _only({d: (True, k[0]) for d, k in likely.items()}, tables, source)
    return _unnamed(tables, source)


def _asked(tables: dict[str | None, Table], column: str, source: str) -> Layout:
    """Find the column that the caller names: by its exact name, its name in another case, or its number."""
    if not isinstance(column, str):
        raise ValueError(f"smiles_column: {column!r}, expected text: the name of a column, or its number such as '1'")
    if not column.strip():
        raise ValueError(f"smiles_column: {column!r}, expected the name of a column")
    rules: tuple[Callable[[str], str], ...] = (str, str.casefold)
    for rule in rules:
        wanted = rule(column.strip())
        named = {d: rows for d, rows in tables.items() if not wanted.isdecimal() or _has_header(rows)}  # else it is a value
        found = {d: [k for k, name in enumerate(rows[0]) if rule(name) == wanted] for d, rows in named.items()}
        most = {d: k for d, k in found.items() if k}
        if most:
            if any(len(k) > 1 for k in most.values()):
                raise ValueError(f"{source} has {max(map(len, most.values()))} columns named {column!r}, expected one")
            return _only({d: (True, k[0]) for d, k in most.items()}, tables, source)
    best = _delimiter(tables)
    rows = tables[best]
    if column.isdecimal() and 1 <= int(column) <= len(rows[0]):
        return Layout(best, _has_header(rows), int(column) - 1)
    hint = f"; {did_you_mean(column, rows[0], cutoff=0.5)}".removesuffix("; ")
    raise ValueError(f"smiles_column: {column!r} is no column of {source.removeprefix('path: ')}{hint} {_listed(rows)}")


def _only(found: dict[str | None, tuple[bool, int]], tables: dict[str | None, Table], source: str) -> Layout:
    """Choose among the delimiters under which a column was found: the one with the most columns and rows of equal length."""
    if found.get(None, (True, 1))[1] == 0:
        return Layout(None, True, 0)  # the first word of a line, whatever follows it
    best = max(found, key=lambda d: (_even(tables[d]), len(tables[d][0])))
    if best is None and found[best][1] > 0 and not _even(tables[best]):
        raise _uncertain(tables[best], source, "the words of its lines differ in number")
    return Layout(best, *found[best])


def _by_name(rows: Table, source: str) -> tuple[bool, int]:
    """Return the column with a usual name; the one named ``smiles`` if there are several."""
    found = _named(rows, USUAL)
    for exact in (str, str.lower):
        plain = [k for k in found if exact(rows[0][k]) == "smiles"]
        if len(plain) == 1:
            return True, plain[0]
    if len(found) > 1:
        raise _uncertain(rows, source, "several columns have names of SMILES")
    return True, found[0]


def _named(rows: Table, names: frozenset[str]) -> list[int]:
    """Return the columns whose name in the first row is one of ``names``."""
    return [k for k, name in enumerate(rows[0]) if re.sub(r"[\W_]+", "", name).lower() in names]


def _likely(rows: Table) -> list[int]:
    return [k for k in _named(rows, LIKELY) if _molecules(rows[1:], k)]


def _molecules(rows: Table, column: int) -> bool:
    """Return whether most of the filled cells of a column are molecules."""
    filled = [row[column] for row in rows if column < len(row) and row[column]]
    return 2 * sum(parse_smiles(cell) is not None for cell in filled) > len(filled)


def _even(rows: Table) -> bool:
    """Return whether all rows have the same number of cells."""
    return len({len(row) for row in rows}) == 1


def _delimiter(tables: dict[str | None, Table]) -> str | None:
    """Return the delimiter that splits all rows into the most cells of equal number, or else the first row into the most cells."""
    return max(tables, key=lambda d: (_even(tables[d]) and len(tables[d][0]) > 1, len(tables[d][0])))


def _unnamed(tables: dict[str | None, Table], source: str) -> Layout:
    """Determine the layout of a table without usual names: a list of SMILES, or one column that parses as molecules."""
    if all(len(row) == 1 for rows in tables.values() for row in rows):
        return Layout(",", False, 0)
    best = _delimiter(tables)
    rows = tables[best]
    if _has_header(rows):
        raise _uncertain(rows, source, "no column has a usual name of SMILES")
    found = [k for k in range(max(map(len, rows))) if _molecules(rows, k)]
    if len(found) != 1 or all(len(row[found[0]]) < 2 for row in rows if found[0] < len(row)):
        many = "several columns parse as molecules" if len(found) > 1 else "no column parses as molecules"
        raise _uncertain(rows, source, f"there is no header, and {many}")
    return Layout(best, False, found[0])


def _has_header(rows: Table) -> bool:
    """Return whether the first row is a header: words above numbers, or a row without any molecule."""
    first, rest = rows[0], rows[1:]
    if _named(rows, USUAL) or not any(parse_smiles(cell) is not None for cell in first):
        return True
    for k, name in enumerate(first):
        below = [row[k] for row in rest if k < len(row) and row[k]]
        if name and below and not _number(name) and all(map(_number, below)):
            return True
    return False


def _number(text: str) -> bool:
    return re.fullmatch(r"[-+<>=~]*\d*[.,]?\d*(?:[eE][-+]?\d+)?|nan|NaN|NA", text) is not None


def _uncertain(rows: Table, source: str, why: str) -> ValueError:
    option = f"smiles_column={'NAME' if _has_header(rows) else 'NUMBER'}"
    return ValueError(f"{source} has no column that is certainly of SMILES: {why}; name it with {option} {_listed(rows)}")


def _listed(rows: Table, most: int = 30) -> str:
    """List the columns with the first filled cell of each, for an error message."""
    header = _has_header(rows)
    width = max(map(len, rows))
    names = [repr(n) for n in rows[0]] if header else [str(k + 1) for k in range(width)]
    examples = [next((cell for cell in column[header:] if cell), "") for column in zip_longest(*rows, fillvalue="")]
    told = [f"{name}: {text[:40]!r}" for name, text in zip(names, examples, strict=False)]
    more = f", and {len(told) - most} more" if len(told) > most else ""
    return f"(columns {', '.join(told[:most])}{more})"
