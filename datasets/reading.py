"""Molecule files: reading SMILES lines, and the keys and byte forms of caches."""

from __future__ import annotations

import csv
import gzip
import hashlib
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from rdkit.rdBase import rdkitVersion

from discrete_grpo.atomic import atomic_write
from discrete_grpo.chemistry import parse_smiles

__all__ = [
    "SmilesFile",
    "array_lines",
    "check_broken",
    "check_file",
    "content_key",
    "from_cache",
    "read_smiles",
    "rows",
    "text_array",
    "write_arrays",
]


T = TypeVar("T")


@dataclass(frozen=True)
class SmilesFile:
    """The strings of a molecule file.

    Attributes:
        smiles: strings that parse, as written.
        broken: (line number from 1, text) of those that do not.
    """

    smiles: tuple[str, ...]
    broken: tuple[tuple[int, str], ...]


def rows(path: Path) -> Iterator[tuple[int, str]]:
    """(line number, SMILES text) of every line that is not blank."""
    try:
        yield from _read_rows(path)
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, csv.Error) as error:
        raise ValueError(
            f"path: {str(path)!r} cannot be read as text, expected UTF-8, gzipped only if it ends in .gz: {error}"
        ) from None


def _read_rows(path: Path) -> Iterator[tuple[int, str]]:
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if kind not in {".smi", ".smiles", ".txt", ".csv"}:
        raise ValueError(f"path: {str(path)!r}, expected a file ending in .smi, .smiles, .txt or .csv, or one of these with .gz")
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="") as file:
        if kind != ".csv":
            yield from ((k, line.split()[0]) for k, line in enumerate(file, 1) if line.strip())
            return
        reader = csv.reader(file)
        column: int | None = None
        for row in reader:
            if not any(cell.strip() for cell in row) and (column is None or len(row) < 2):
                continue  # a blank line; a row of empty cells is a molecule without SMILES
            if column is None:
                lower = [cell.strip().lower() for cell in row]
                column = lower.index("smiles") if "smiles" in lower else 0
                if "smiles" in lower or parse_smiles(row[0].strip()) is None:  # a header line
                    continue
            yield reader.line_num, " ".join(row[column].split()) if column < len(row) else ""


def check_file(path: Path) -> None:
    """Raise FileNotFoundError unless ``path`` is a file."""
    if not path.is_file():
        raise FileNotFoundError(f"path: {str(path)!r} is no file, expected a .smi, .txt or .csv of molecules")


def check_broken(path: Path, good: int, broken: Sequence[tuple[int, str]], max_broken: float) -> None:
    """Raise ValueError if there is nothing, or a larger share than ``max_broken`` is no molecule; broken lines are named."""
    if not 0 <= max_broken <= 1:
        raise ValueError(f"max_broken: {max_broken}, expected a share in 0..1")
    if good + len(broken) == 0:
        raise ValueError(f"path: {str(path)!r} holds no molecules")
    share = len(broken) / (good + len(broken))
    if share > max_broken or not good:
        first = "; ".join(f"line {k}: {text[:60]!r}" for k, text in broken[:5])
        count = f"{len(broken)} of {good + len(broken)} lines that are no molecule"
        raise ValueError(f"path: {str(path)!r} has {count} ({share:.1%}, max_broken {max_broken:.1%}): {first}")


def read_smiles(path: str | Path, max_broken: float = 0.05) -> SmilesFile:
    """The molecules of a ``.smi``, ``.txt`` or ``.csv`` file, each optionally ``.gz``.

    In a csv the column named ``smiles`` (any case) is read, or else the first. In the others the first word of a line.

    Args:
        path: the file.
        max_broken: largest share of lines that may fail to parse; they are listed in ``broken``.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it holds no molecules, or more broken lines than allowed.
    """
    path = Path(path)
    check_file(path)
    good, broken = [], []
    for line, text in rows(path):
        if parse_smiles(text) is None:
            broken.append((line, text))
        else:
            good.append(text)
    check_broken(path, len(good), broken, max_broken)
    return SmilesFile(tuple(good), tuple(broken))


def content_key(path: Path, version: int | str) -> str:
    """Hash of the content, the cache's ``version`` and RDKit's version (canonical SMILES change between versions)."""
    digest = hashlib.sha256(f"{version} {rdkitVersion} {''.join(path.suffixes)}\n".encode())
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()[:32]


def text_array(lines: Sequence[str]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Lines as bytes that ``np.savez`` stores without pickling."""
    return np.frombuffer("\n".join(lines).encode(), dtype=np.uint8)


def array_lines(array: np.ndarray[Any, np.dtype[np.uint8]]) -> tuple[str, ...]:
    """The lines of :func:`text_array`."""
    text = array.tobytes().decode()
    return tuple(text.split("\n")) if text else ()


def from_cache(path: Path, read: Callable[[BinaryIO], T]) -> T | None:
    """What ``read`` makes of a cache file; None where there is none, or, with a warning, where it is damaged."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            return read(file)
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(f"{path}: damaged, and made again; {said}", RuntimeWarning, stacklevel=3)
        return None


def write_arrays(path: Path, **arrays: np.ndarray[Any, np.dtype[Any]]) -> None:
    """An ``.npz`` file, written whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # its stub reads a name as the flag allow_pickle
