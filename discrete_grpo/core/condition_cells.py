"""Cells of the conditions in tables of samples."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

__all__ = ["condition_cells"]


def condition_cells(values: Iterable[Any]) -> list[str | int | float | None] | None:
    """Return one cell per value: texts, numbers and None as they are, lists and mappings as JSON; None for any other object.

    Tensors and arrays are taken for numbers and lists.

    >>> condition_cells(["CO", None, 2.5]), condition_cells([{"1": "C"}, [3, 4]]), condition_cells([object()])
    (['CO', None, 2.5], ['{"1": "C"}', '[3, 4]'], None)
    """
    cells: list[str | int | float | None] = []
    for given in values:
        value = given.tolist() if hasattr(given, "tolist") else given
        if value is None or isinstance(value, str | int | float):
            cells.append(value)
        elif isinstance(value, list | tuple | dict):
            try:
                cells.append(json.dumps(value, ensure_ascii=False))
            except (TypeError, ValueError):
                return None
        else:
            return None
    return cells
