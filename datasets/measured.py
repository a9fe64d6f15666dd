"""Measured properties of molecules, read from further columns of a SMILES table."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from discrete_grpo.core.checks import did_you_mean
from discrete_grpo.datasets.reading import check_file, table_body
from discrete_grpo.datasets.scored import cell_number
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.domains.molecule_properties import descriptor_names

__all__ = ["Cells", "Columns", "measured_names", "read_measured"]

MOST = 30
"""Largest number of columns that a message lists."""


class Cells(NamedTuple):
    """The cells of a row in the columns that are read.

    Attributes:
        too_many: number of all cells, if it is above that of the header, else 0.
        texts: one per column.
    """

    too_many: int
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Columns:
    """Columns of numbers of a SMILES table.

    Attributes:
        path: the file.
        header: names of all columns.
        names: names of those that are read.
    """

    path: str
    header: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def open(
        cls, path: str | Path, names: Sequence[str], smiles_column: str | None, max_bytes: int
    ) -> tuple[Columns, Iterator[tuple[int, list[str]]]]:
        """Columns of a file, and (line number, cells) of its rows; for the arguments see :func:`read_measured`."""
        header, body = table_body(Path(path), smiles_column, max_bytes)

        def rows() -> Iterator[tuple[int, list[str]]]:
            try:
                yield from body
            except csv.Error as error:
                raise ValueError(f"path: {str(path)!r} cannot be read as a table: {error}") from None

        return cls(str(path), tuple(header), tuple(names)), rows()

    def cells(self, row: Sequence[str]) -> Cells:
        """The cells of a row in the columns that are read, without blanks around them."""
        cells, width = [cell.strip() for cell in row] + [""] * (len(self.header) - len(row)), len(self.header)
        return Cells(len(cells) if any(cells[width:]) else 0, tuple(cells[self.header.index(name)] for name in self.names))

    def numbers(self, line: int, cells: Cells) -> list[float]:
        """The numbers in the cells of a line; NaN where one is unknown.

        Raises:
            ValueError: for a cell that holds something else, or a row with more cells than the header, naming the line.
        """
        if cells.too_many:
            told = f"path: line {line} of {self.path!r} has {cells.too_many} cells, expected {len(self.header)} as the header has"
            raise ValueError(f"{told}; a cell that holds the delimiter, such as a decimal comma, needs quotes")
        return [cell_number(text, "properties", self.path, line, name) for name, text in zip(self.names, cells.texts, strict=True)]


def measured_names(
    path: str | Path, names: Sequence[str], *, smiles_column: str | None = None, max_bytes: int = MAX_BYTES
) -> tuple[str, ...]:
    """Return those of ``names`` that are columns of a file of molecules, compared exactly; RDKit computes the others.

    Args:
        path: the file, see :func:`~discrete_grpo.datasets.reading.read_smiles`.
        names: names of conditions.
        smiles_column: name of the column of SMILES, which is not a column of numbers; None finds it.
        max_bytes: largest size that a gzipped file may unpack to.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: for a name that is neither a column nor a descriptor, or that several columns have; or as
            :func:`~discrete_grpo.datasets.reading.read_smiles`.
    """
    check_file(Path(path))
    header, _ = table_body(Path(path), smiles_column, max_bytes)
    columns = [name for name in header if name]
    for name in names:
        if columns.count(name) > 1:
            raise ValueError(f"properties: {name!r} is the name of several columns of {str(path)!r}, expected one of that name")
        if name not in columns:
            _check_descriptor(name, columns, path)
    return tuple(name for name in names if name in columns)


def _check_descriptor(name: str, columns: Sequence[str], path: str | Path) -> None:
    """Raise ``ValueError`` for a name that is no descriptor either."""
    known = descriptor_names()
    if name in known:
        return
    if not columns:
        near = did_you_mean(name, known, cutoff=0.4)
        told = f"{name!r} is no descriptor of RDKit, and {str(path)!r} has no header of columns"
        raise ValueError(f"properties: {told} (separated by a comma, a semicolon or a tab){near and '; '}{near}")
    near = did_you_mean(name, [*known, *columns], cutoff=0.4)
    more = f", and {len(columns) - MOST} more" if len(columns) > MOST else ""
    listed = f"(columns {', '.join(map(repr, columns[:MOST]))}{more}; {len(known)} descriptors such as MolLogP, TPSA and qed)"
    told = f"{name!r} is neither a column of {str(path)!r} nor a descriptor of RDKit"
    raise ValueError(f"properties: {told}; {near} {listed}" if near else f"properties: {told} {listed}")


def read_measured(
    path: str | Path,
    names: Sequence[str],
    lines: Sequence[int],
    *,
    smiles_column: str | None = None,
    max_bytes: int = MAX_BYTES,
) -> Float[Tensor, "line column"]:
    """Read columns of numbers in float64; a cell that is empty, NaN, NA, None or null is unknown, which is NaN.

    Args:
        path: the file, as for :func:`measured_names`.
        names: names of columns, as :func:`measured_names` gives them.
        lines: numbers of the lines that are read, in their order.
        smiles_column: as for :func:`measured_names`, as is ``max_bytes``.
        max_bytes: largest size that a gzipped file may unpack to.

    Raises:
        ValueError: for a line that is not there, a cell of these lines that holds something else, or a row with more cells than the
            header, naming the line.
    """
    columns, rows = Columns.open(path, names, smiles_column, max_bytes)
    wanted = set(lines)
    found = {line: columns.numbers(line, columns.cells(row)) for line, row in rows if line in wanted}
    if missing := wanted - found.keys():
        raise ValueError(f"lines: {min(missing)}, expected numbers of lines of {str(path)!r} below its header")
    return torch.tensor([found[line] for line in lines], dtype=torch.float64).reshape(len(lines), len(names))
