"""Atomic writes of JSON files, and conversion of values to JSON types."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from discrete_grpo.core.atomic import atomic_write
from discrete_grpo.core.checks import plain_number

__all__ = ["plain", "read_json", "write_json"]


def plain(value: Any) -> Any:
    """Convert a value to what it is after it was written as JSON and read again.

    Numbers and booleans of other libraries, 0-d arrays and tensors become those of Python; numbers that are not finite become
    None. Values of types that JSON lacks become text, as does a number beyond the range of a float.

    >>> plain({1: (2.5, float("nan")), "folder": Path("runs")})
    {'1': [2.5, None], 'folder': 'runs'}
    """
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if getattr(value, "ndim", None) == 0:
        value = value.item()
    try:
        value = plain_number(value)
        if value is None or isinstance(value, bool | int | str):
            return value
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return str(value)
    return number if math.isfinite(number) else None


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write the :func:`plain` content as indented JSON, atomically."""
    with atomic_write(path) as file:
        text = json.dumps(plain(content), indent=1, allow_nan=False, ensure_ascii=False)
        file.write(f"{text}\n".encode("utf-8", "backslashreplace"))


def read_json(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Read the mapping in a JSON file; None if there is no such file, or it has other content."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
