"""The file of an oracle ledger with its log, each of which restores the other's rows after damage."""

from __future__ import annotations

import math
import os
import sqlite3
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from discrete_grpo.core.scoring import RewardError
from discrete_grpo.rewards.ledger_log import LedgerLog
from discrete_grpo.rewards.ledger_rows import (
    ADDED,
    FUNCTIONS,
    TABLES,
    Call,
    Score,
    all_calls,
    all_scores,
    calls_until,
    forget_damaged,
    sound,
    write_calls,
    write_scores,
)
from discrete_grpo.runs.database import Database, check_file, chunked

__all__ = ["LedgerFile", "calls_of", "check_ledger_file", "scores_of"]

T = TypeVar("T")


def check_ledger_file(path: str | os.PathLike[str]) -> None:
    """Refuse a file that is not a ledger, and leave it unchanged; a file with the log of a ledger beside it is accepted.

    Raises:
        ValueError: as :func:`~discrete_grpo.runs.database.check_file`.
    """
    if next(LedgerLog(Path(f"{os.fspath(path)}.log")).read(), None) is None:
        check_file("path", path, TABLES, "expected the file of a ledger, or a new name")


class LedgerFile:
    """An SQLite file of calls and scores that several processes share, and a log of what was added to it.

    Damaged rows are dropped with a warning when the file is opened.

    Attributes:
        database: the SQLite file.
        log: the log beside it, ``PATH.log``; None in memory.

    Args:
        path: the file; None: in memory.

    Raises:
        OSError: if the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.database = Database(path, TABLES, added=ADDED, functions=FUNCTIONS)
        self.log = None if path is None else LedgerLog(Path(f"{os.fspath(path)}.log"))
        damaged = 0 if self._is_sound() else self.run(forget_damaged)
        if damaged:
            warnings.warn(f"{path}: {damaged} damaged rows were left out", RuntimeWarning, stacklevel=3)

    def _is_sound(self) -> bool:
        """Whether no row is damaged; a file that cannot be read to its end is moved aside first."""
        try:
            return self.database.read(sound)
        except OSError:
            self.database.reopen()
            return self.read(sound)

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call ``work`` within one writing transaction.

        Raises:
            RewardError: if the file cannot be written, as a sample that cannot be counted must not be scored.
        """
        try:
            return self.database.run(work)
        except OSError as error:
            raise RewardError(f"ledger: {error}") from error

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call ``work``, which only reads, on one state of the file.

        Raises:
            RewardError: if the file cannot be read.
        """
        try:
            return self.database.read(work)
        except OSError as error:
            raise RewardError(f"ledger: {error}") from error

    def calls(self, turn: int) -> int:
        """Number of calls up to a turn."""
        return self.read(lambda connection: calls_until(connection, turn))

    def scores(self) -> int:
        """Number of scores, of calls of any turn."""
        return int(self.read(lambda connection: connection.execute("SELECT COUNT(*) FROM scores").fetchone())[0])

    def add(self, calls: Sequence[Call] = (), scores: Sequence[Score] = ()) -> None:
        """Write rows, see :meth:`write`, in a transaction of their own."""
        self.run(lambda connection: self.write(connection, calls, scores))

    def write(self, connection: sqlite3.Connection, calls: Sequence[Call] = (), scores: Sequence[Score] = ()) -> None:
        """Write rows into the file within a transaction, and into the log what is new of them."""
        empty = calls_until(connection) == 0
        added: tuple[Sequence[Call], Sequence[Score]] = write_calls(connection, calls), write_scores(connection, scores)
        if self.log is None or not any(added):
            return
        if empty:  # an existing log belongs to a ledger that was removed
            self.log.clear()
        elif not self.log.exists():  # of a file of an older version
            added = all_calls(connection), all_scores(connection)
        for part in chunked(added[0], 10_000):
            self.log.add("calls", part)
        for rows in chunked(added[1], 10_000):
            self.log.add("scores", rows)

    def restore(self) -> None:
        """Restore the rows of the log in the file."""

        def work(connection: sqlite3.Connection) -> None:
            for kind, rows in () if self.log is None else self.log.read():
                if kind == "calls":
                    write_calls(connection, [(key, turn, rank, place, source) for key, turn, rank, place, source in rows])
                else:
                    write_scores(connection, [(name, key, value) for name, key, value in rows])

        self.run(work)

    def content(self, turn: int) -> dict[str, Any]:
        """The calls up to ``turn``, in order, and what each reward gave, as tensors and plain values."""
        rows, given = self.read(lambda connection: (all_calls(connection, turn), all_scores(connection)))
        number = {row[0]: k for k, row in enumerate(rows)}
        scores: dict[str, list[float]] = {}
        asked: dict[str, list[bool]] = {}
        for name, key, value in given:
            if name not in scores:
                scores[name], asked[name] = [math.nan] * len(rows), [False] * len(rows)
            if key in number:
                scores[name][number[key]] = math.nan if value is None else value
                asked[name][number[key]] = True
        return {
            "turn": turn,
            "keys": [row[0] for row in rows],
            "when": torch.tensor([row[1:4] for row in rows], dtype=torch.int64).reshape(-1, 3),
            "sources": [row[4] for row in rows],
            "scores": {name: torch.tensor(values, dtype=torch.float64) for name, values in scores.items()},
            "asked": {name: torch.tensor(values) for name, values in asked.items()},
        }

    def close(self) -> None:
        """Close the file."""
        self.database.close()


def calls_of(content: Mapping[str, Any]) -> list[Call]:
    """The calls in a result of :meth:`LedgerFile.content`."""
    keys = list(content["keys"])
    sources = content.get("sources", [""] * len(keys))  # checkpoints of older versions have none
    return [(key, *when, source) for key, when, source in zip(keys, content["when"].tolist(), sources, strict=True)]


def scores_of(content: Mapping[str, Any]) -> list[Score]:
    """The scores in a result of :meth:`LedgerFile.content`."""
    found: list[Score] = []
    for name, values in content["scores"].items():
        asked = content["asked"][name].tolist()
        rows = zip(content["keys"], values.tolist(), asked, strict=True)
        found += [(name, key, None if math.isnan(value) else value) for key, value, was in rows if was]
    return found
