"""Bytes of objects for worker processes, which import functions and classes by name and so cannot have those of the main script."""

from __future__ import annotations

import io
import pickle
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
    """Refuses functions and classes of the main script, and so objects that hold one."""

    def reducer_override(self, value: Any) -> Any:
        if getattr(value, "__module__", None) == "__main__" and hasattr(value, "__qualname__"):
            raise InMainScript(value.__qualname__)
        return NotImplemented


def dumps_importable(value: Any) -> bytes:
    """Pickle a value that another process can load.

    Raises:
        InMainScript: for a function or class of the main script, also within another object.
        Exception: whatever else an object raises that cannot be pickled.
    """
    buffer = io.BytesIO()
    _ByImportPath(buffer, protocol=4).dump(value)
    return buffer.getvalue()
