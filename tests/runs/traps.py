"""Traps for readers of files of strangers: each leaves a trace where what it holds is run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest


class Trap:
    """Makes the folder ``path`` when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.makedirs, (str(self.path), 0o777, True)


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert text
    assert "\n" not in text
    return text


def objects(path: Path, canary: Path, names: tuple[str, ...]) -> Path:
    """An npz file of arrays of Python objects, which NumPy stores as pickles."""
    trap = np.array([Trap(canary)], dtype=object)
    np.savez(path, **dict.fromkeys(names, trap))  # type: ignore[arg-type]
    return path
