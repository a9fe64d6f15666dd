"""SQLite files of known tables that several processes share: a damaged or foreign file is moved aside and never executed."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["Database", "check_file", "chunked", "move_if_damaged"]

T = TypeVar("T")
WAIT = 60.0
"""Seconds to wait for another process that is writing."""
_HEADER = b"SQLite format 3\0"


def check_file(argument: str, path: str | os.PathLike[str], tables: Iterable[str], wanted: str) -> None:
    """Refuse a file that is not such a database, and leave it unchanged.

    A file that is missing, empty or a damaged database is accepted: :class:`Database` creates it, or moves it aside.

    Args:
        argument: name of the argument that gave the file.
        path: the file.
        tables: names of the tables that it may have.
        wanted: what is expected, for the error.

    Raises:
        ValueError: if the path is a folder, a file that is no database, or a database of other tables.
    """
    file = Path(path)
    if file.is_dir():
        raise ValueError(f"{argument}: {file} is a folder, {wanted}")
    if not file.is_file():
        return
    with file.open("rb") as opened:
        head = opened.read(len(_HEADER))
    if head.strip(b"\0") and head != _HEADER:
        raise ValueError(f"{argument}: {file} is no database, {wanted}")
    try:
        still = "" if file.with_name(f"{file.name}-wal").exists() else "&immutable=1"  # creates no further files
        with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro{still}", uri=True)) as connection:
            found = [str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    except sqlite3.Error:
        return
    if set(found) - set(tables):
        raise ValueError(f"{argument}: {file} is a database of {', '.join(sorted(found))}, {wanted}")


class Database:
    """An SQLite file of known tables that several processes write, or one in memory.

    A file that is damaged, or holds anything but these tables, is moved aside with a warning and replaced by a new one.

    Args:
        path: the file; None: in memory.
        tables: name -> columns, as SQL.
        added: table -> its last column, which files of older versions do not have; they are given it.
        functions: name -> function that queries may call, of values alone: the same result for the same values.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        tables: Mapping[str, str],
        *,
        added: Mapping[str, str] | None = None,
        functions: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self.path = None if path is None else Path(path)
        self.tables, self.added, self.functions = dict(tables), dict(added or {}), dict(functions or {})
        self._lock, self._process = threading.RLock(), os.getpid()  # a connection has one transaction at a time
        self._connection = self._open()

    def _open(self) -> sqlite3.Connection:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(3):
            seen = self._inode()
            try:
                return self._connect()
            except sqlite3.OperationalError as error:
                raise OSError(f"{self.path}: {error}") from error
            except (sqlite3.DatabaseError, _Foreign) as error:
                self._move_aside(error, seen)
        return self._connect()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            ":memory:" if self.path is None else self.path, timeout=WAIT, isolation_level=None, check_same_thread=False
        )
        connection.text_factory = _text
        for name, function in self.functions.items():
            connection.create_function(name, -1, function, deterministic=True)
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
                connection.execute(f"CREATE TABLE IF NOT EXISTS {_definition(name, columns)}")
            self._add_columns(connection)
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            return False
        return True

    def _add_columns(self, connection: sqlite3.Connection) -> None:
        """Add the columns that a file of an older version lacks; leave any other file unchanged."""
        older = {name: columns.removesuffix(f", {self.added.get(name)}") for name, columns in self.tables.items()}
        if older == self.tables or not _holds(connection, older):
            return
        connection.execute("BEGIN IMMEDIATE")
        if _holds(connection, older):  # another process may have added them already
            for name, column in self.added.items():
                connection.execute(f"ALTER TABLE {name} ADD COLUMN {column}")
        connection.execute("COMMIT")

    def _check(self, connection: sqlite3.Connection) -> None:
        """Refuse anything but the known tables, since a foreign view or trigger would be executed."""
        if not _holds(connection, self.tables):
            found = connection.execute("SELECT name FROM sqlite_master").fetchall()
            raise _Foreign(f"it holds {', '.join(str(row[0]) for row in found) or 'nothing'}")

    def _inode(self) -> int | None:
        """Number of the file on its disk; None where there is none."""
        try:
            return None if self.path is None else self.path.stat().st_ino
        except FileNotFoundError:
            return None

    def _move_aside(self, error: object, seen: int | None) -> None:
        """Move the damaged file aside, unless another process was faster and the file is no longer the one that was ``seen``."""
        assert self.path is not None
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
        with _one_at_a_time(self.path.with_name(f".{self.path.name}.lock")):
            if self._inode() != seen or seen is None:
                return
            for suffix in ("-wal", "-shm", ""):  # with its log the file can still be repaired by hand
                with contextlib.suppress(FileNotFoundError):
                    self.path.with_name(self.path.name + suffix).rename(aside.with_name(aside.name + suffix))
        warnings.warn(f"{self.path}: damaged ({error}); moved to {aside.name} and begun anew", RuntimeWarning, stacklevel=2)

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call ``work`` within one writing transaction and return its result.

        Raises:
            OSError: if the file cannot be read or written (damage, a full disk, a lock that is never released).
        """
        return self._transaction("BEGIN IMMEDIATE", work)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call ``work``, which only reads, on one snapshot of the file, concurrently with writers; return its result.

        Raises:
            OSError: as :meth:`run`.
        """
        return self._transaction("BEGIN", work)

    def reopen(self) -> None:
        """Close and open the file again; a damaged one is moved aside."""
        self._connection.close()
        connection, seen = self._open(), self._inode()
        try:
            sound = connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
        except sqlite3.DatabaseError:
            sound = False
        if not sound:
            connection.close()
            self._move_aside("its pages are damaged", seen)
            connection = self._open()
        self._connection = connection

    def _transaction(self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        if os.getpid() != self._process:  # a forked copy, in which nobody would release the lock of another thread
            self._lock, self._process = threading.RLock(), os.getpid()
        with self._lock:
            connection = self._connection
            try:
                connection.execute(begin)
                try:
                    result = work(connection)
                    connection.execute("COMMIT")
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                    raise
            except sqlite3.DatabaseError as error:
                raise OSError(f"{self.path}: {error}") from error
            return result

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def move_if_damaged(path: Path, tables: Mapping[str, str], added: Mapping[str, str] | None = None) -> None:
    """Move a damaged file aside as :class:`Database` does, also one without a header, which :func:`check_file` would refuse.

    Args:
        path: a file that this program chose itself, as those of a run folder.
        tables: as for :class:`Database`.
        added: likewise.
    """
    if path.exists():
        Database(path, tables, added=added).close()


class _Foreign(Exception):
    """A file with other tables."""


def _definition(name: str, columns: str) -> str:
    return f"{name} ({columns}) WITHOUT ROWID"


def _holds(connection: sqlite3.Connection, tables: Mapping[str, str]) -> bool:
    """Whether a file holds exactly these tables; a trigger may have a table's name, so its whole text counts."""
    found = connection.execute("SELECT name, sql FROM sqlite_master").fetchall()
    wanted = [(name, f"CREATE TABLE {_definition(name, columns)}") for name, columns in tables.items()]
    return sorted(found, key=repr) == sorted(wanted, key=repr)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


@contextlib.contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Hold a lock on a file beside the database, which is created and kept; no lock on systems without such locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released where the file is closed
        yield


def chunked(items: Sequence[T], size: int = 500) -> Iterable[Sequence[T]]:
    """Split a sequence into slices of at most ``size``, since SQLite limits the values of one statement."""
    return (items[k : k + size] for k in range(0, len(items), size))
