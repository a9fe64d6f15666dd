"""Scores that were paid for once: in memory, and by option in an SQLite file that runs and processes share.

Only numbers are stored, under a digest of what they belong to, each with a checksum. Nothing is ever unpickled or executed;
a row that is not what was written is scored again, and a file that is none of ours is moved aside.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import sqlite3
import struct
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

__all__ = ["Database", "ScoreCache", "batches"]

T = TypeVar("T")
WAIT = 60.0
"""Seconds to wait for another process that is writing."""


# -- the file


class Database:
    """An SQLite file of known tables that several processes write, or one in memory.

    A file that is damaged, or holds anything but these tables, is moved aside with a warning and begun anew.

    Args:
        path: the file; None: in memory.
        tables: name -> columns, as SQL.
    """

    def __init__(self, path: str | os.PathLike[str] | None, tables: Mapping[str, str]) -> None:
        self.path = None if path is None else Path(path)
        self.tables = dict(tables)
        self._connection = self._open()

    def _open(self) -> sqlite3.Connection:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(3):
            try:
                return self._connect()
            except sqlite3.OperationalError as error:
                raise OSError(f"{self.path}: {error}") from error
            except (sqlite3.DatabaseError, _Foreign) as error:
                self._move_aside(error)
        return self._connect()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            ":memory:" if self.path is None else self.path, timeout=WAIT, isolation_level=None, check_same_thread=False
        )
        connection.text_factory = _text
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            deadline = time.monotonic() + WAIT
            while not self._prepared(connection):  # changing to WAL does not wait by itself
                if time.monotonic() > deadline:
                    raise sqlite3.OperationalError(f"{self.path}: locked for {WAIT:g} s")
                time.sleep(0.02)
            self._check(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepared(self, connection: sqlite3.Connection) -> bool:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")  # a kill loses nothing, a power cut what no checkpoint knows
            for name, columns in self.tables.items():
                connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) WITHOUT ROWID")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            return False
        return True

    def _check(self, connection: sqlite3.Connection) -> None:
        """Nothing but our tables: a view or a trigger of a stranger would be run."""
        found = connection.execute("SELECT name, sql FROM sqlite_master").fetchall()  # a trigger may have a table's name
        wanted = [(name, f"CREATE TABLE {name} ({columns}) WITHOUT ROWID") for name, columns in self.tables.items()]
        if sorted(found, key=repr) != sorted(wanted, key=repr):
            raise _Foreign(f"it holds {', '.join(str(name) for name, _ in found) or 'nothing'}")

    def _move_aside(self, error: object) -> None:
        assert self.path is not None
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            self.path.rename(aside)
            warnings.warn(f"{self.path}: damaged ({error}); moved to {aside.name} and begun anew", RuntimeWarning, stacklevel=2)

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """``work`` in one transaction that writes.

        Raises:
            OSError: if the file cannot be read or written (damage, a full disk, another process that never ends).
        """
        try:
            return self._transaction(work)
        except sqlite3.DatabaseError as error:
            raise OSError(f"{self.path}: {error}") from error

    def reopen(self) -> None:
        """Open the file again; a damaged one is moved aside."""
        self._connection.close()
        connection = self._open()
        try:
            sound = connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
        except sqlite3.DatabaseError:
            sound = False
        if not sound:
            connection.close()
            self._move_aside("its pages are damaged")
            connection = self._open()
        self._connection = connection

    def _transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        return result

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


class _Foreign(Exception):
    """A file with other tables."""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def batches(items: Sequence[T], size: int = 500) -> Iterable[Sequence[T]]:
    """Slices of at most ``size``: SQLite takes only so many values in one statement."""
    return (items[k : k + size] for k in range(0, len(items), size))


# -- the cache


class ScoreCache:
    """Scores by reward, sample and conditions.

    Args:
        path: SQLite file shared with other runs and processes of this machine; None: in memory only.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._scores: dict[bytes, float] = {}
        columns = "id BLOB PRIMARY KEY, value REAL, checksum BLOB"
        self._file = None if path is None else Database(path, {"scores": columns})
        self.damaged = 0

    @property
    def path(self) -> Path | None:
        """The file; None in memory."""
        return None if self._file is None else self._file.path

    @staticmethod
    def key(identity: str | None, sample: str, columns: Mapping[str, Any]) -> bytes | None:
        """What a score is kept under; None if that cannot be said (a reward or a condition without plain values)."""
        if identity is None:
            return None
        try:
            text = json.dumps([identity, sample, columns], sort_keys=True)
        except (TypeError, ValueError):
            return None
        return hashlib.blake2b(text.encode("utf-8"), digest_size=16).digest()

    def get(self, keys: Sequence[bytes]) -> dict[bytes, float]:
        """The scores that are known. A row whose checksum does not fit is forgotten and counted in ``damaged``."""
        missing = [key for key in dict.fromkeys(keys) if key not in self._scores]
        if self._file is not None and missing:
            before = self.damaged
            self._scores |= self._try(functools.partial(self._read, missing)) or {}
            if self.damaged > before:
                told = f"{self._file.path}: {self.damaged - before} damaged rows were left out"
                warnings.warn(f"{told}; their samples are scored again", RuntimeWarning, stacklevel=2)
        return {key: self._scores[key] for key in keys if key in self._scores}

    def _read(self, keys: Sequence[bytes], connection: sqlite3.Connection) -> dict[bytes, float]:
        found = {}
        for part in batches(keys):
            marks = ", ".join("?" * len(part))
            rows = connection.execute(f"SELECT id, value, checksum FROM scores WHERE id IN ({marks})", part).fetchall()
            for key, value, checksum in rows:
                if type(value) is float and math.isfinite(value) and checksum == _checksum(key, value):
                    found[key] = value
                else:
                    self.damaged += 1
                    connection.execute("DELETE FROM scores WHERE id = ?", (key,))
        return found

    def put(self, scores: Mapping[bytes, float]) -> None:
        """Keep scores. A file that cannot be written costs a warning, not the run."""
        self._scores.update(scores)
        if self._file is not None and scores:
            rows = [(key, float(value), _checksum(key, float(value))) for key, value in scores.items()]
            self._try(lambda connection: connection.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?, ?)", rows))

    def _try(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Something with the file; what goes wrong costs a warning, and a damaged file is begun anew."""
        assert self._file is not None
        for attempt in range(2):
            try:
                return self._file.run(work)
            except OSError as error:
                if attempt:
                    warnings.warn(f"cache: {error}; scores are kept in memory only", RuntimeWarning, stacklevel=3)
            with contextlib.suppress(OSError):
                self._file.reopen()
        return None

    def state_dict(self) -> dict[str, Any]:
        """The scores, where no file keeps them; for a checkpoint."""
        kept = {} if self._file is not None else self._scores
        ids = torch.frombuffer(bytearray(b"".join(kept)), dtype=torch.uint8) if kept else torch.empty(0, dtype=torch.uint8)
        return {"ids": ids.reshape(-1, 16), "values": torch.tensor(list(kept.values()), dtype=torch.float64)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Add the scores of a checkpoint."""
        self.put({bytes(key.tolist()): value for key, value in zip(state["ids"], state["values"].tolist(), strict=True)})

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _checksum(key: bytes, value: float) -> bytes:
    return hashlib.blake2b(key + struct.pack("<d", value), digest_size=8).digest()
