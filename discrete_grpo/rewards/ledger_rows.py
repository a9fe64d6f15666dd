"""Rows of the file of an oracle ledger, each with a checksum: calls, and what the rewards gave for them."""

from __future__ import annotations

import hashlib
import math
import sqlite3
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from discrete_grpo.runs.database import chunked

__all__ = ["ADDED", "TABLES", "forget_damaged", "known_calls", "row_checksum", "write_calls", "write_scores"]

TABLES = {
    "calls": "key TEXT PRIMARY KEY, turn INTEGER, rank INTEGER, position INTEGER, checksum BLOB, source TEXT",
    "scores": "reward TEXT, key TEXT, value REAL, checksum BLOB, PRIMARY KEY (reward, key)",
}
"""Tables of the file: name -> columns, as SQL."""
ADDED = {"calls": "source TEXT"}
"""The last column of a table that older files do not have."""


def row_checksum(*values: str | int | float) -> bytes:
    """Eight bytes that a damaged row does not have."""
    digest = hashlib.blake2b(digest_size=8)
    for value in values:
        part = struct.pack("<d", value) if isinstance(value, float) else str(value).encode("utf-8", "surrogatepass")
        digest.update(struct.pack("<q", len(part)) + part)
    return digest.digest()


def known_calls(connection: sqlite3.Connection, keys: Sequence[str]) -> Iterable[str]:
    """Those of the keys that are calls already."""
    for part in chunked(keys):
        marks = ", ".join("?" * len(part))
        yield from (row[0] for row in connection.execute(f"SELECT key FROM calls WHERE key IN ({marks})", part).fetchall())


def write_calls(connection: sqlite3.Connection, calls: Iterable[tuple[str, int, int, int, str]]) -> None:
    """Add calls; one that is there keeps the earliest time and the source it had then."""
    connection.executemany(
        "INSERT INTO calls (key, turn, rank, position, source, checksum) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (key) DO UPDATE SET turn = excluded.turn, rank = excluded.rank, position = excluded.position, "
        "checksum = excluded.checksum, source = excluded.source "
        "WHERE (excluded.turn, excluded.rank, excluded.position) < (turn, rank, position)",
        [(*call, row_checksum(*_of_call(*call))) for call in calls],
    )


def _of_call(key: str, turn: int, rank: int, position: int, source: str) -> tuple[str | int, ...]:
    """What the checksum of a call covers: its source only where it has one, as in files without that column."""
    return (key, turn, rank, position, source) if source else (key, turn, rank, position)


def write_scores(connection: sqlite3.Connection, rows: Sequence[tuple[str, str, float | None, bytes]]) -> None:
    """Add what rewards gave; the first known value stands."""
    connection.executemany(
        "INSERT INTO scores VALUES (?, ?, ?, ?) ON CONFLICT (reward, key) DO UPDATE "
        "SET value = excluded.value, checksum = excluded.checksum WHERE value IS NULL",
        rows,
    )


def forget_damaged(connection: sqlite3.Connection) -> int:
    """Delete rows that are not what was written; how many there were."""
    calls = connection.execute("SELECT key, turn, rank, position, COALESCE(source, ''), checksum FROM calls").fetchall()
    wrong = [row[0] for row in calls if not _intact(_of_call(*row[:-1]), row[-1], (str, int, int, int, str)[: 5 if row[4] else 4])]
    scores = connection.execute("SELECT reward, key, value, checksum FROM scores").fetchall()
    filled = [(name, key, math.nan if value is None else value, checksum) for name, key, value, checksum in scores]
    bad = [row[:2] for row in filled if not _intact(row[:-1], row[-1], (str, str, float))]
    connection.executemany("DELETE FROM calls WHERE key = ?", [(key,) for key in wrong])
    connection.executemany("DELETE FROM scores WHERE reward = ? AND key = ?", bad)
    return len(wrong) + len(bad)


def _intact(values: Sequence[Any], checksum: Any, kinds: Sequence[type]) -> bool:
    return all(type(v) is kind for v, kind in zip(values, kinds, strict=True)) and checksum == row_checksum(*values)
