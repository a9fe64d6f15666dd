"""Reading of SMILES files, and the cache of parsed files."""

from __future__ import annotations

import csv
import hashlib
import os
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from rdkit.rdBase import rdkitVersion

from discrete_grpo.core.atomic import atomic_write
from discrete_grpo.core.checks import check_range
from discrete_grpo.core.digests import add_file
from discrete_grpo.datasets.downloads import default_cache
from discrete_grpo.datasets.tables import HEAD, Layout, find_layout
from discrete_grpo.datasets.text_files import MAX_BYTES, suffix_of, text_lines
from discrete_grpo.domains.smiles import parse_smiles

__all__ = [
    "AUTO",
    "BLOCK",
    "PARALLEL_ROWS",
    "SHOWN",
    "SUFFIXES",
    "NoMoleculesError",
    "SmilesFile",
    "array_lines",
    "broken_array",
    "broken_lines",
    "cache_file",
    "check_broken",
    "check_cache_dir",
    "check_file",
    "check_writable",
    "content_key",
    "from_cache",
    "keep_parsed",
    "read_smiles",
    "smiles_rows",
    "table_body",
    "table_rows",
    "text_array",
    "write_arrays",
]

SHOWN = 100
"""Largest number of characters of a bad line in a message."""
AUTO = "auto"
"""Value in place of a folder path that stands for the cache folder of the user."""
BLOCK = 2_000
"""Number of lines that a process parses at a time."""
LINES_PER_CELL = 3
"""Most lines of a cell of SMILES that is a row without a molecule: one of more, or with a delimiter in it, is a quote left open."""
PARALLEL_ROWS = 20_000
"""Number of lines above which processes are started to parse them, which takes each of them some seconds."""


_T = TypeVar("_T")
SUFFIXES = (".smi", ".smiles", ".txt", ".csv", ".tsv")


class NoMoleculesError(ValueError):
    """Raised if a file has lines, but none of them is a molecule.

    Attributes:
        broken: (number, text) of the lines, as :func:`check_broken` was given them.
    """

    def __init__(self, message: str, broken: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.broken = broken


@dataclass(frozen=True)
class SmilesFile:
    """The strings of a molecule file.

    Attributes:
        smiles: strings that parse, as written.
        broken: (line number from 1, text) of strings that do not parse.
    """

    smiles: tuple[str, ...]
    broken: tuple[tuple[int, str], ...]


def smiles_rows(path: Path, smiles_column: str | None = None, max_bytes: int = MAX_BYTES) -> Iterator[tuple[int, str]]:
    """Yield (line number, SMILES text) of every line that is not blank; see :func:`read_smiles` for the arguments."""
    try:
        layout, lines = _laid_out(path, smiles_column, max_bytes)
        yield from _column(lines, layout)
    except csv.Error as error:
        raise ValueError(f"path: {str(path)!r} cannot be read as a table: {error}") from None


def _laid_out(path: Path, smiles_column: str | None, max_bytes: int) -> tuple[Layout, Iterator[str]]:
    """The layout of a file of molecules, and all of its lines."""
    kind = suffix_of(path)
    if kind not in SUFFIXES:
        raise ValueError(f"path: {str(path)!r}, expected a file ending in {', '.join(SUFFIXES)}, or one of these with .gz")
    lines = text_lines(path, max_bytes)
    head = list(islice(lines, HEAD))
    layout = find_layout(head, table=kind in (".csv", ".tsv"), column=smiles_column, source=f"path: {str(path)!r}")
    return layout, chain(head, lines)


def table_body(path: Path, smiles_column: str | None, max_bytes: int) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Return the names of the columns of a file of molecules, and (line number, cells) of the rows that :func:`smiles_rows` reads.

    A file without a header has no names; the name of the column of SMILES is empty.

    Raises:
        csv.Error: in the rows, as :func:`table_rows`.
        ValueError: as :func:`smiles_rows`.
    """
    try:
        layout, lines = _laid_out(path, smiles_column, max_bytes)
        if layout.header and layout.delimiter is None:  # the first word of a line is the molecule, but other cells may be empty
            head = _up_to_header(lines)
            layout, lines = replace(layout, delimiter="\t" if "\t" in head[-1].strip() else None), chain(head, lines)
        rows = _filled(lines, layout)
        names = next(rows, (0, list[str]()))[1] if layout.header else []
    except csv.Error as error:
        raise ValueError(f"path: {str(path)!r} cannot be read as a table: {error}") from None
    return ["" if k == layout.column else name.strip() for k, name in enumerate(names)], rows


def _up_to_header(lines: Iterator[str]) -> list[str]:
    """Take the lines up to the first that is not blank."""
    head = [""]
    while not head[-1].strip() and (line := next(lines, None)) is not None:
        head.append(line)
    return head[1:] or head


def _filled(lines: Iterable[str], layout: Layout) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of the header, where there is one, and of the rows below it."""
    header = layout.header
    for number, row in _numbered(lines, layout.delimiter):
        if not any(cell.strip() for cell in row) and (header or (len(row) < 2 and row != [""])):
            continue  # a blank line; a row of empty cells, also of one that is quoted, is a molecule without SMILES
        yield number, row
        header = False


def _column(lines: Iterable[str], layout: Layout) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of the cells of one column below the header."""
    for number, row in islice(_filled(lines, layout), int(layout.header), None):
        cell = row[layout.column] if layout.column < len(row) else ""
        if (count := cell.strip().count("\n") + 1) > 1 and (count > LINES_PER_CELL or (layout.delimiter or "\n") in cell):
            raise csv.Error(f"line {number} ends a cell of {count} lines, expected one molecule; is a quote left open above?")
        yield number, " ".join(cell.split())


def _numbered(lines: Iterable[str], delimiter: str | None) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of every row, with the number of its last line."""
    if delimiter is None:
        yield from ((k, line.split()) for k, line in enumerate(lines, 1))
        return
    yield from table_rows(lines, delimiter)


def table_rows(lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of its last line, cells) of every row of a table, the header included.

    Raises:
        csv.Error: at the end, if the last row has a cell of several lines and the quotes of the table are no pairs, which is what a
            quote that is left open leads to: all lines below it are one cell.
    """
    quotes, row = 0, list[str]()

    def counted() -> Iterator[str]:
        nonlocal quotes
        for line in lines:
            quotes += line.count('"')
            yield line

    reader = csv.reader(counted(), delimiter=delimiter)
    for row in reader:
        yield reader.line_num, row
    if quotes % 2 and (most := max((cell.strip().count("\n") for cell in row), default=0)):
        raise csv.Error(f"line {reader.line_num} ends a cell of {most + 1} lines; is a quote left open above?")


def check_file(path: Path) -> None:
    """Raise FileNotFoundError unless ``path`` is a file."""
    if not path.is_file():
        raise FileNotFoundError(f"path: {str(path)!r} is no file, expected a .smi, .txt, .csv or .tsv of molecules")


def check_broken(
    path: Path,
    good: int,
    broken: Sequence[tuple[int, str]],
    max_broken: float,
    unit: str = "line",
    *,
    count: int | None = None,
) -> None:
    """Raise ValueError if there are no lines, or a larger share than ``max_broken`` of them fails to parse; it names such lines.

    Args:
        path: the file.
        good: number of lines that parse.
        broken: (number, text) of the other lines, or of the first of them.
        max_broken: largest share of lines that may fail to parse.
        unit: what is numbered.
        count: number of broken lines; None: all are in ``broken``.
    """
    check_range("max_broken", max_broken, least=0, most=1, note=" (a share of the lines)")
    bad = len(broken) if count is None else count
    if good + bad == 0:
        raise ValueError(f"path: {str(path)!r} holds no molecules")
    share = bad / (good + bad)
    first = "; ".join(f"{unit} {k}: {text[:SHOWN]!r}" for k, text in broken[:5])
    if not good and share <= max_broken:
        raise NoMoleculesError(f"path: {str(path)!r} has no molecule in {bad} {unit}s: {first}", broken)
    if share > max_broken:
        told = f"{bad} of {good + bad} {unit}s that are no molecule"
        raise ValueError(f"path: {str(path)!r} has {told} ({share:.1%}, max_broken {max_broken:.1%}): {first}")


def read_smiles(
    path: str | Path, max_broken: float = 0.05, *, smiles_column: str | None = None, max_bytes: int = MAX_BYTES
) -> SmilesFile:
    """Read the molecules of a ``.smi``, ``.txt``, ``.csv`` or ``.tsv`` file, each optionally ``.gz``.

    Cells of a csv or tsv file are delimited by commas, semicolons or tabs. The column of SMILES is the one with a usual name in any
    case (``smiles``, ``canonical_smiles``, ``structure``, ...) or, in a file without a header, the only column that parses as
    molecules. In other files it is the first word of each line, unless the first line names a column of SMILES.

    Args:
        path: the file.
        max_broken: largest share of lines that may fail to parse; they are listed in ``broken``.
        smiles_column: name of the column, or its number from 1 in a file without a header; None finds it.
        max_bytes: largest size that a gzipped file may unpack to.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the column is not certain or there is no such column, if the file holds no molecules, more broken lines
            than allowed, or unpacks to more than ``max_bytes``.
    """
    path = Path(path)
    check_file(path)
    good, broken = [], []
    for line, text in smiles_rows(path, smiles_column, max_bytes):
        if parse_smiles(text) is None:
            broken.append((line, text))
        else:
            good.append(text)
    check_broken(path, len(good), broken, max_broken)
    return SmilesFile(tuple(good), tuple(broken))


def content_key(path: Path, version: int | str) -> str:
    """Hash of the content, the ``version`` of the cache and the version of RDKit, on which canonical SMILES depend."""
    digest = hashlib.sha256(f"{version} {rdkitVersion} {''.join(path.suffixes)}\n".encode())
    return add_file(digest, path).hexdigest()[:32]


def cache_file(cache_dir: str | Path | None, name: str, path: Path, version: str) -> Path | None:
    """Return where the parsed form of the file ``path`` is kept, by its content and the ``version`` of the cache.

    Args:
        cache_dir: a folder; ``"auto"`` is ``parsed`` in :func:`~discrete_grpo.datasets.downloads.default_cache`; None: nowhere.
        name: beginning of the file's name.
        path: the file that is parsed.
        version: version of the format and all options that the parsed form depends on.
    """
    folder = _parsed_folder() if cache_dir == AUTO else None if cache_dir is None else Path(cache_dir)
    if folder is None:
        return None
    cached = folder / f"{name}-{content_key(path, version)}.npz"
    if cache_dir != AUTO:
        check_writable(cached)
    return cached


def _parsed_folder() -> Path | None:
    """The folder of parsed files in the cache of this user; None for a user without a home."""
    try:
        return default_cache() / "parsed"
    except RuntimeError:
        return None


def check_cache_dir(cache_dir: str | Path) -> None:
    """Make the folder of a cache where there is none.

    Raises:
        ValueError: if it cannot be made.
    """
    try:
        Path(cache_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(f"cache_dir: {cache_dir} cannot be made ({reason}), expected a folder to write in") from error


def check_writable(cached: Path) -> None:
    """Make the folder of a cached file where there is none, and raise ValueError if the file is not there and cannot be written."""
    check_cache_dir(cached.parent)
    if not cached.is_file() and not os.access(cached.parent, os.W_OK | os.X_OK):
        raise ValueError(f"cache_dir: {cached.parent} cannot be written in, expected a folder with write permission")


def keep_parsed(cached: Path | None, cache_dir: str | Path | None, lines: int, write: Callable[[Path], None]) -> None:
    """Write a parsed file into the cache; with ``"auto"``, only large files are written, and a failure only causes a warning.

    Args:
        cached: the file, see :func:`cache_file`; None writes nothing, which causes a warning too if it should be.
        cache_dir: as it was given to :func:`cache_file`.
        lines: number of lines that were parsed.
        write: writes the file.
    """
    if cache_dir is None or (cache_dir == AUTO and lines <= PARALLEL_ROWS):
        return
    if cached is None:
        told = "this user has no home directory, so parsed data is not kept for the next run; DISCRETE_GRPO_CACHE can name a folder"
        warnings.warn(told, RuntimeWarning, stacklevel=3)
        return
    try:
        write(cached)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        if cache_dir != AUTO:
            raise OSError(f"cache_dir: {cached} cannot be written ({reason})") from error
        warnings.warn(f"{cached}: the parsed data cannot be kept for the next run ({reason})", RuntimeWarning, stacklevel=3)


def text_array(lines: Sequence[str]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Encode lines as bytes, which ``np.savez`` stores without pickling."""
    return np.frombuffer("\n".join(lines).encode(), dtype=np.uint8)


def array_lines(array: np.ndarray[Any, np.dtype[np.uint8]]) -> tuple[str, ...]:
    """Inverse of :func:`text_array`."""
    text = array.tobytes().decode()
    return tuple(text.split("\n")) if text else ()


def broken_array(broken: Iterable[tuple[int, str]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Encode the numbers and texts of broken lines, as :func:`text_array` encodes texts."""
    return text_array([f"{line}\t{text}" for line, text in broken])


def broken_lines(array: np.ndarray[Any, np.dtype[np.uint8]]) -> tuple[tuple[int, str], ...]:
    """Inverse of :func:`broken_array`."""
    return tuple((int(line), text) for line, text in (row.split("\t", 1) for row in array_lines(array)))


def from_cache(path: Path, read: Callable[[BinaryIO], _T]) -> _T | None:
    """Return ``read`` of a cache file; None if there is none or, with a warning, if it is damaged."""
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
    """Write an ``.npz`` file atomically; nothing is written if the arrays exceed the limit of ``read_arrays``."""
    if sum(array.nbytes for array in arrays.values()) > MAX_BYTES:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # its stub reads a name as the flag allow_pickle
