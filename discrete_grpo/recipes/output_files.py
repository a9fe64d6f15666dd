"""Files of samples that commands write: their paths, and samples and columns as the text of a table."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from discrete_grpo.core.condition_cells import condition_cells
from discrete_grpo.core.csv_cells import csv_text
from discrete_grpo.domains.sample_text import sample_text

__all__ = ["as_text", "named_file", "output_path", "plain_columns", "table_text"]


def output_path(out: str) -> Path:
    """Return ``out`` as a path after checking that it can be written."""
    path = Path(out)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"out: folder {path.parent} does not exist")
    if path.is_dir():
        raise IsADirectoryError(f"out: {path} is a folder, expected a file")
    if path.exists() and not path.is_file():  # it would be replaced by a file
        raise ValueError(f"out: {path} is a device or a pipe, expected a file")
    folder = named_file(path).parent  # an older file is replaced, so that its own permissions do not matter
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"out: {path} cannot be written, expected a file in a folder with write permission")
    return path


def named_file(path: Path) -> Path:
    """Return the file that a link names, which is then replaced in place of the link; any other path is returned as it is.

    Raises:
        ValueError: for links that lead in a circle.
    """
    try:
        return path.resolve() if path.is_symlink() else path
    except (OSError, RuntimeError):  # by the version of Python
        raise ValueError(f"out: {path} is a link that leads back to itself, expected a file") from None


def as_text(samples: Sequence[Any]) -> list[str]:
    """Samples as the text of a table; empty for invalid ones."""
    return ["" if s is None else sample_text(s) for s in samples]


def plain_columns(columns: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """The cells of the condition columns that a table can hold."""
    return {name: cells for name, values in columns.items() if (cells := condition_cells(values)) is not None}


def table_text(columns: Mapping[str, Sequence[Any]]) -> str:
    """Columns of equal length as csv."""
    return csv_text([tuple(columns), *zip(*columns.values(), strict=True)])
