"""Bytes of objects for worker processes, which import functions and classes by name and so cannot have those of the main script."""

from __future__ import annotations

import io
import pickle
from functools import cached_property
from typing import Any

__all__ = ["InMainScript", "dumps_importable"]


class InMainScript(pickle.PicklingError):
    """A function or class is defined in the main script.

    Attributes:
        name: its qualified name.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is defined in the main script")
        self.name = name


class _ByImportPath(pickle.Pickler):
    """Refuses functions and classes of the main script, and so objects that hold one; leaves out what ``cached_property`` keeps."""

    def reducer_override(self, value: Any) -> Any:
        if getattr(value, "__module__", None) == "__main__" and hasattr(value, "__qualname__"):
            raise InMainScript(value.__qualname__)
        kept = [name for name in getattr(value, "__dict__", ()) if isinstance(getattr(type(value), name, None), cached_property)]
        reduced = value.__reduce_ex__(4) if kept else None
        if not isinstance(reduced, tuple) or len(reduced) < 3 or not isinstance(reduced[2], dict):
            return NotImplemented
        return *reduced[:2], {name: part for name, part in reduced[2].items() if name not in kept}, *reduced[3:]


def dumps_importable(value: Any) -> bytes:
    """Pickle a value that another process can load, without what ``cached_property`` keeps, which is made there again.

    Raises:
        InMainScript: for a function or class of the main script, also within another object.
        Exception: whatever else an object raises that cannot be pickled.
    """
    buffer = io.BytesIO()
    _ByImportPath(buffer, protocol=4).dump(value)
    return buffer.getvalue()
