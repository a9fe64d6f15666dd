"""The files of a run: metrics as JSON lines, samples as compressed CSV; both stay readable if the run is killed at any moment.

Both files are append-only, with one line and one gzip member per update, and are synced to disk before the call
returns. A checkpoint stores :meth:`Recorder.position`; a resumed run truncates both files to it, so that it ends with
the same bytes as an uninterrupted run.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import math
import os
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from discrete_grpo.core import json_files
from discrete_grpo.core.atomic import atomic_write, sync_folder
from discrete_grpo.core.csv_cells import cells_of_any_length, csv_text
from discrete_grpo.runs.files import clear_files, clear_replaced, explained
from discrete_grpo.runs.folder import EVALUATION, METRICS, SAMPLES, SEARCH

__all__ = [
    "METRICS",
    "SAMPLES",
    "Recorder",
    "iter_samples",
    "read_evaluation",
    "read_metrics",
    "read_samples",
    "read_search",
    "shown_text",
    "text_of",
    "write_bytes",
    "write_json",
    "write_table",
    "write_text",
]

KEPT = "what was there is as it was"


class Recorder:
    """Appends the metrics and the samples of each update to the files of a run folder.

    A folder that already holds records is only written to after :meth:`restore`, so that runs are never mixed.

    Attributes:
        folder: the run folder; made if it does not exist.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._columns: list[str] | None = None
        self._sizes = {METRICS: 0, SAMPLES: 0}

    def record(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Append one line to metrics.jsonl; NaN, infinity and None become ``null``.

        Raises:
            ValueError: if ``metrics`` has an entry called "step".
            FileExistsError: if the file holds records that are not this recorder's.
        """
        if "step" in metrics:
            raise ValueError(f"metrics: an entry 'step' ({metrics['step']}) beside the argument step ({step}), expected none")
        line = json.dumps({"step": int(step), **{name: _number(value) for name, value in metrics.items()}}, allow_nan=False)
        self._append(METRICS, line.encode() + b"\n")

    def record_samples(self, step: int, columns: Mapping[str, Sequence[Any]]) -> None:
        """Append one row per sample to samples.csv.gz, ``step`` first; None, NaN and infinity become empty cells.

        Raises:
            ValueError: if the columns differ in length, or are not those of the first call.
            FileExistsError: if the file holds records that are not this recorder's.
        """
        names = ["step", *columns]
        if "step" in columns or (self._columns is not None and names != self._columns):
            raise ValueError(f"columns: {list(columns)}, expected {'no step' if self._columns is None else self._columns[1:]}")
        length = len(next(iter(columns.values()), ()))
        body = _csv({"step": [int(step)] * length, **columns}, header=self._columns is None)
        self._append(SAMPLES, _member(body))
        self._columns = names

    @property
    def columns(self) -> list[str] | None:
        """Names of the columns of samples.csv.gz after ``step``; None before the first row."""
        return None if self._columns is None else self._columns[1:]

    def position(self) -> dict[str, Any]:
        """Return the ends of both files as plain JSON, to be kept in a checkpoint and handed to :meth:`restore`."""
        return {**self._sizes, "columns": self._columns}

    def restore(self, position: Mapping[str, Any] | None) -> None:
        """Truncate both files to ``position``; None (no checkpoint yet) empties them.

        Leftovers of killed writes of other files and of checkpoints are removed.

        Raises:
            ValueError: if a file is shorter than the position says; nothing is cut then.
        """
        sizes = {name: int(position[name]) if position else 0 for name in (METRICS, SAMPLES)}
        for name, size in sizes.items():
            if (there := self._there(name)) < size:
                raise ValueError(
                    f"{self.folder / name}: {there} bytes, expected at least the {size} that the checkpoint has seen; "
                    "put the file back, or remove the checkpoints that are newer than it"
                )
        clear_files(self.folder)
        clear_replaced(self.folder / "checkpoints")
        for name, size in sizes.items():
            if self._there(name) > size:
                with (self.folder / name).open("r+b") as file:
                    file.truncate(size)
                    os.fsync(file.fileno())
        self._sizes = sizes
        self._columns = list(position["columns"]) if position and position["columns"] is not None else None

    def _there(self, name: str) -> int:
        path = self.folder / name
        return path.stat().st_size if path.exists() else 0

    def _append(self, name: str, data: bytes) -> None:
        expected, path = self._sizes[name], self.folder / name
        with path.open("ab") as file:
            if (there := file.tell()) != expected:
                raise FileExistsError(
                    f"{path}: {there} bytes, expected {expected}; call restore(position) to continue a run, "
                    "restore(None) to start it over, or choose another folder"
                )
        with explained(path, lambda: f"its first {expected} bytes are whole"):
            _append_whole(path, data)
        if expected == 0:
            sync_folder(self.folder)
        self._sizes[name] = expected + len(data)


def _append_whole(path: Path, data: bytes) -> None:
    """Append all of ``data`` to a file and sync it, or append nothing if it does not fit on the disk."""
    with path.open("ab", buffering=0) as file:
        start = file.tell()
        try:
            rest = memoryview(data)
            while rest:  # a full disk may accept only a part
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                file.truncate(start)
            raise


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, float | None]]:
    """The lines of metrics.jsonl in order; a torn line ends the reading with a warning.

    Raises:
        ValueError: if a whole line holds something else than numbers and ``null``, naming the line and the entry.
    """
    path = Path(folder) / METRICS
    records: list[dict[str, float | None]] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                record = _loads(line) if line.endswith(b"\n") else None
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict):
                warnings.warn(f"{path}: line {number} is torn; read the {number - 1} before it", RuntimeWarning, stacklevel=2)
                break
            _check_numbers(record, f"{path}: line {number}")
            records.append(record)
    return records


def _check_numbers(record: Mapping[str, Any], where: str) -> None:
    for name, value in record.items():
        if value is not None and not isinstance(value, int | float):
            raise ValueError(f"{where}: {name} is {_short(value)}, expected a number or null; the file was edited")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _loads(text: str | bytes) -> Any:
    """Parse JSON whose numbers are finite floats or integers of a usual size; others become None."""
    return json.loads(text, parse_constant=lambda _: None, parse_float=_number_of, parse_int=_whole_of)


def _number_of(text: str) -> float | None:
    return _number(float(text))


def _whole_of(text: str) -> float | int | None:
    return int(text) if len(text) < 19 else _number_of(text)


def read_evaluation(folder: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Read evaluation.json, the metrics of each stage by name; empty if there is no such file.

    Raises:
        ValueError: if it is not JSON or not of that form.
    """
    path = Path(folder) / EVALUATION
    if not path.is_file():
        return {}
    try:
        content = _loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: no JSON ({error}); the file is truncated or was edited") from error
    stages = content.items() if isinstance(content, dict) else [("the file", content)]
    if wrong := next((f"{stage} holds {_short(row)}" for stage, row in stages if not isinstance(row, dict)), None):
        raise ValueError(f"{path}: {wrong}, expected the numbers of each stage (before, after) by name; the file was edited")
    return content


def read_search(folder: str | os.PathLike[str]) -> list[dict[str, float | None]]:
    """Read the numbers of each round of a search.

    Raises:
        ValueError: if its file is no JSON or has no rounds.
    """
    path = Path(folder) / SEARCH
    try:
        return [dict(line) for line in _loads(path.read_bytes())["history"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: no rounds of a search ({error}); the file is truncated or was edited") from error


def iter_samples(path: str | os.PathLike[str]) -> Iterator[dict[str, str]]:
    """The rows of a compressed table, one at a time; a torn gzip member ends the reading with a warning."""
    names: list[str] | None = None
    with Path(path).open("rb") as file:
        for member in _members(file, path):
            for row in _rows(member.decode("utf-8")):
                if names is None:
                    names = row
                elif len(row) == len(names):
                    yield dict(zip(names, row, strict=True))
                else:
                    raise ValueError(f"{path}: a row of {len(row)} cells {row[:4]}, expected {len(names)}")


def _rows(text: str) -> list[list[str]]:
    """The rows of a text of csv, with cells of any length, such as the graph6 line of a large graph."""
    with cells_of_any_length():
        return list(csv.reader(io.StringIO(text, newline="")))


def read_samples(path: str | os.PathLike[str]) -> dict[str, list[str]]:
    """Read a compressed table as text columns; a torn gzip member ends the reading with a warning. Without rows, no columns."""
    columns: dict[str, list[str]] = {}
    for row in iter_samples(path):
        for name, cell in row.items():
            columns.setdefault(name, []).append(cell)
    return columns


def write_table(path: str | os.PathLike[str], columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns of equal length as csv.gz, atomically; None, NaN and infinity become empty cells.

    Raises:
        ValueError: if the columns differ in length.
    """
    write_bytes(path, _member(_csv(columns, header=True)))


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write JSON, atomically; NaN and infinity become ``null``."""
    with explained(Path(path), lambda: KEPT):
        json_files.write_json(path, content)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text, atomically."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file atomically."""
    with explained(Path(path), lambda: KEPT), atomic_write(path) as file:
        file.write(content)


def _number(value: float | None) -> float | None:
    """A JSON number: whole ones stay whole; None where it is not finite. Takes 0-d arrays and tensors too."""
    if value is None or isinstance(value, int):
        return value
    plain = float(value)
    return plain if math.isfinite(plain) else None


def text_of(value: Any) -> str:
    """The text of a value in a table; samples of any kind that differ have different texts.

    Raises:
        ValueError: for a sample that has none.
    """
    if isinstance(value, str | int):
        return str(value)
    from discrete_grpo.domains.sample_text import sample_text  # imports torch

    return sample_text(value)


def shown_text(value: Any) -> str:
    """Like :func:`text_of`, but a sample without such a text is shown as Python prints it."""
    try:
        return text_of(value)
    except ValueError:
        return str(value)


def _cell(value: Any) -> str:
    """The text of one CSV cell; empty for None and for numbers that are not finite."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a numpy or torch scalar
        value = value.item()
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return repr(float(value)) if isinstance(value, float) else shown_text(value)


def _csv(columns: Mapping[str, Sequence[Any]], *, header: bool) -> bytes:
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns: lengths {lengths}, expected all the same")
    rows = [[_cell(value) for value in row] for row in zip(*columns.values(), strict=True)]
    head = [[_cell(name) for name in columns]] if header else []
    return csv_text([*head, *rows]).encode("utf-8", "backslashreplace")


def _member(data: bytes) -> bytes:
    """One gzip member; the same bytes for the same data, whenever it is made."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=buffer, mtime=0) as file:
        file.write(data)
    return buffer.getvalue()


def _members(file: BinaryIO, path: str | os.PathLike[str]) -> Iterator[bytes]:
    """The gzip members of a file, each whole and checked; a torn one ends it with a warning."""
    chunk = file.read(1 << 16)
    count = 0
    while chunk:
        engine, parts = zlib.decompressobj(wbits=31), []
        try:
            while chunk and not engine.eof:
                parts.append(engine.decompress(chunk))
                chunk = engine.unused_data or file.read(1 << 16)
        except zlib.error:
            pass
        if not engine.eof:
            warnings.warn(f"{path}: gzip member {count + 1} is torn; read the {count} before it", RuntimeWarning, stacklevel=3)
            return
        count += 1
        yield b"".join(parts)
