"""Rows of the file of an oracle ledger: calls, how many there are up to each turn, and what the rewards gave for them.

Calls and scores have a checksum each, so that a damaged row is found when a file is opened. It is a CRC-32 that SQLite computes
while it scans the file: a million calls take about a second. Files of older versions hold a BLAKE2b digest instead and are given
the other one when they are opened.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from discrete_grpo.runs.database import chunked

__all__ = [
    "ADDED",
    "FUNCTIONS",
    "TABLES",
    "all_calls",
    "all_scores",
    "calls_until",
    "forget_damaged",
    "known_calls",
    "row_checksum",
    "sound",
    "write_calls",
    "write_scores",
]

Call: TypeAlias = tuple[str, int, int, int, str]
"""Key, turn, rank, position and source of a call."""
Score: TypeAlias = tuple[str, str, float | None]
"""Name of a reward, key of a call, and what the reward gave for it; None where it is unknown."""

TABLES = {
    "calls": "key TEXT PRIMARY KEY, turn INTEGER, rank INTEGER, position INTEGER, checksum BLOB, source TEXT",
    "scores": "reward TEXT, key TEXT, value REAL, checksum BLOB, PRIMARY KEY (reward, key)",
    "counts": "turn INTEGER PRIMARY KEY, calls INTEGER",
}
"""Tables of the file: name -> columns, as SQL. A row of ``counts`` has the number of calls up to a turn with new calls."""
ADDED = {"calls": "source TEXT"}
"""The last column of a table that older files do not have."""
FUNCTIONS: dict[str, Callable[..., Any]] = {"crc32": zlib.crc32, "hash": hash}
"""Functions of the queries below. The hash of a float is the same everywhere, see *Hashing of numeric types* in Python's docs."""

_PRIME = 4294967291
_CALL_SUM = "crc32(CAST(key || '\n' || COALESCE(source, '') AS BLOB), turn * 1000003 + rank * 10007 + position)"
_CALL_TYPES = "typeof(key) = 'text' AND typeof(turn) = 'integer' AND typeof(rank) = 'integer' AND typeof(position) = 'integer'"
_CALL_FITS = f"(CASE WHEN {_CALL_TYPES} THEN checksum IS {_CALL_SUM} ELSE 0 END)"
_VALUE_SUM = f"CASE WHEN value IS NULL THEN -1 ELSE hash(value) % {_PRIME} END"
_SCORE_SUM = f"crc32(CAST(reward || '\n' || key AS BLOB), {_VALUE_SUM})"
_SCORE_TYPES = "typeof(key) = 'text' AND (value IS NULL OR typeof(value) = 'real')"
_SCORE_FITS = f"(CASE WHEN {_SCORE_TYPES} THEN checksum IS {_SCORE_SUM} ELSE 0 END)"


# -- checksums


def row_checksum(*values: str | int | float) -> bytes:
    """The checksum of a row in files of older versions, eight bytes."""
    digest = hashlib.blake2b(digest_size=8)
    for value in values:
        part = struct.pack("<d", value) if isinstance(value, float) else str(value).encode("utf-8", "surrogatepass")
        digest.update(struct.pack("<q", len(part)) + part)
    return digest.digest()


def sound(connection: sqlite3.Connection) -> bool:
    """Whether no row is damaged, all checksums are of this version, and the counts match the calls."""
    calls, turns, fit = connection.execute(f"SELECT COUNT(*), TOTAL(turn), TOTAL({_CALL_FITS}) FROM calls").fetchone()
    if fit != calls or connection.execute(f"SELECT COUNT(*) FROM scores WHERE NOT {_SCORE_FITS}").fetchone()[0]:
        return False
    each = "SELECT turn, calls - LAG(calls, 1, 0) OVER (ORDER BY turn) AS new FROM counts"
    counted, turn_sum = connection.execute(f"SELECT TOTAL(new), TOTAL(turn * new) FROM ({each})").fetchone()
    return bool(counted == calls and turn_sum == turns)


def forget_damaged(connection: sqlite3.Connection) -> int:
    """Delete damaged rows, recount the calls, and give rows of older versions the checksum of this version.

    Returns:
        The number of deleted rows.
    """
    calls = connection.execute(
        f"SELECT key, turn, rank, position, COALESCE(source, ''), checksum FROM calls WHERE NOT {_CALL_FITS}"
    ).fetchall()
    kinds = (str, int, int, int, str)
    wrong = [row[0] for row in calls if not _older(row[:5] if row[4] else row[:4], row[5], kinds[: 5 if row[4] else 4])]
    scores = connection.execute(f"SELECT reward, key, value, checksum FROM scores WHERE NOT {_SCORE_FITS}").fetchall()
    filled = [(name, key, math.nan if value is None else value, checksum) for name, key, value, checksum in scores]
    bad = [row[:2] for row in filled if not _older(row[:3], row[3], (str, str, float))]
    connection.executemany("DELETE FROM calls WHERE key = ?", [(key,) for key in wrong])
    connection.executemany("DELETE FROM scores WHERE reward = ? AND key = ?", bad)
    connection.execute(f"UPDATE calls SET checksum = {_CALL_SUM} WHERE typeof(checksum) = 'blob'")
    connection.execute(f"UPDATE scores SET checksum = {_SCORE_SUM} WHERE typeof(checksum) = 'blob'")
    _count_anew(connection)
    return len(wrong) + len(bad)


def _older(values: Sequence[Any], checksum: Any, kinds: Sequence[type]) -> bool:
    """Whether a row matches its checksum of an older version."""
    return all(type(v) is kind for v, kind in zip(values, kinds, strict=True)) and checksum == row_checksum(*values)


# -- calls


def calls_until(connection: sqlite3.Connection, turn: int | None = None) -> int:
    """Number of calls up to a turn; None: all."""
    where, values = ("", ()) if turn is None else ("WHERE turn <= ?", (turn,))
    row = connection.execute(f"SELECT calls FROM counts {where} ORDER BY turn DESC LIMIT 1", values).fetchone()
    return 0 if row is None else int(row[0])


def known_calls(connection: sqlite3.Connection, keys: Sequence[str]) -> dict[str, tuple[int, int, int]]:
    """Return the keys that are calls already, each with its turn, rank and position."""
    found: dict[str, tuple[int, int, int]] = {}
    for part in chunked(keys):
        marks = ", ".join("?" * len(part))
        rows = connection.execute(f"SELECT key, turn, rank, position FROM calls WHERE key IN ({marks})", part)
        found.update((key, (turn, rank, position)) for key, turn, rank, position in rows)
    return found


def write_calls(connection: sqlite3.Connection, calls: Iterable[Call]) -> list[Call]:
    """Add calls; an existing call keeps its earliest time and the source of that time.

    Returns:
        The calls that did not exist at an earlier or the same time.
    """
    first: dict[str, Call] = {}
    for call in calls:
        if call[0] not in first or call[1:4] < first[call[0]][1:4]:
            first[call[0]] = call
    known = known_calls(connection, list(first))
    changed = [call for key, call in first.items() if key not in known or call[1:4] < known[key]]
    connection.executemany("INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, ?, ?)", [_call_row(*call) for call in changed])
    new = Counter(call[1] for call in changed)
    new.subtract(known[call[0]][0] for call in changed if call[0] in known)
    _add_counts(connection, new)
    return changed


def _call_row(key: str, turn: int, rank: int, position: int, source: str) -> tuple[str, int, int, int, int, str]:
    place = turn * 1000003 + rank * 10007 + position
    return key, turn, rank, position, zlib.crc32(f"{key}\n{source}".encode(), place), source


def _add_counts(connection: sqlite3.Connection, new: Mapping[int, int]) -> None:
    """Count ``new[turn]`` more calls in each turn."""
    changes = {turn: count for turn, count in new.items() if count}
    if len(changes) > 1000:  # one pass over the calls is faster
        _count_anew(connection)
        return
    for turn, count in sorted(changes.items()):
        connection.execute("INSERT OR IGNORE INTO counts VALUES (?, ?)", (turn, calls_until(connection, turn)))
        connection.execute("UPDATE counts SET calls = calls + ? WHERE turn >= ?", (count, turn))


def _count_anew(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM counts")
    connection.execute("INSERT INTO counts SELECT turn, SUM(COUNT(*)) OVER (ORDER BY turn) FROM calls GROUP BY turn")


def all_calls(connection: sqlite3.Connection, turn: int | None = None) -> list[Call]:
    """The calls up to a turn in order; None: all."""
    where, values = ("", ()) if turn is None else ("WHERE turn <= ?", (turn,))
    query = f"SELECT key, turn, rank, position, COALESCE(source, '') FROM calls {where} ORDER BY turn, rank, position"
    return connection.execute(query, values).fetchall()


# -- scores


def write_scores(connection: sqlite3.Connection, scores: Iterable[Score]) -> list[Score]:
    """Add scores; the first known value is kept.

    Returns:
        The scores that did not exist.
    """
    first: dict[tuple[str, str], float | None] = {}
    for name, key, value in scores:
        if first.get((name, key)) is None:
            first[name, key] = value
    known: dict[tuple[str, str], float | None] = {}
    for name in dict.fromkeys(name for name, _ in first):
        for part in chunked([key for reward, key in first if reward == name]):
            marks = ", ".join("?" * len(part))
            rows = connection.execute(f"SELECT key, value FROM scores WHERE reward = ? AND key IN ({marks})", (name, *part))
            known.update(((name, key), value) for key, value in rows)
    changed = [(*pair, value) for pair, value in first.items() if pair not in known or (known[pair] is None and value is not None)]
    connection.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?)", [_score_row(*score) for score in changed])
    return changed


def _score_row(name: str, key: str, value: float | None) -> tuple[str, str, float | None, int]:
    number = -1 if value is None else hash(float(value))
    start = number % _PRIME if number >= 0 else -(-number % _PRIME)  # as SQL has it
    return name, key, value, zlib.crc32(f"{name}\n{key}".encode(), start)


def all_scores(connection: sqlite3.Connection) -> list[Score]:
    """Return all scores, by the names of the rewards."""
    return connection.execute("SELECT reward, key, value FROM scores ORDER BY reward").fetchall()
