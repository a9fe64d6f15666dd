"""Cache of scores in memory and, by option, in an SQLite file that runs and processes share.

Only numbers are stored, each with a checksum, under a digest of reward, sample and conditions. Nothing is unpickled or
executed. A row whose checksum does not match is scored again.
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
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from discrete_grpo.core.checks import check_whole, plain_scalar
from discrete_grpo.runs.database import Database, check_file, chunked

__all__ = ["SCORES", "ScoreCache", "check_cache_file"]

T = TypeVar("T")
SCORES = {"scores": "id BLOB PRIMARY KEY, value REAL, checksum BLOB"}
"""The tables of the file, as a mapping of name to columns in SQL."""


def check_cache_file(path: str | os.PathLike[str], argument: str = "reward_cache") -> None:
    """Refuse a file that is not a cache, and leave it unchanged.

    Args:
        path: the file.
        argument: name of the argument in the error.

    Raises:
        ValueError: as :func:`~discrete_grpo.runs.database.check_file`.
    """
    check_file(argument, path, SCORES, "expected a file of scores, or a new name")


class ScoreCache:
    """Scores by reward, sample and conditions.

    Args:
        path: SQLite file shared with other runs and processes of this machine; None keeps scores in memory only.
        most: number of newest scores that are held in memory besides the file, at least 1.

    Raises:
        ValueError: for a file of another kind, which is left unchanged; a damaged database is moved aside.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, most: int = 65536) -> None:
        check_whole("most", most, least=1)
        self.most = most
        self._scores: dict[bytes, float] = {}
        if path is not None:
            check_cache_file(path, "path")
        self._file = None if path is None else Database(path, SCORES)
        self._unwritten: dict[bytes, float] = {}  # scores that the file lacks, since it could not be written
        self.damaged = 0

    @property
    def path(self) -> Path | None:
        """The file; None in memory."""
        return None if self._file is None else self._file.path

    @staticmethod
    def key(identity: str | None, sample: str, columns: Mapping[str, Any]) -> bytes | None:
        """Compute the key of a score; None if the reward or a condition cannot be identified."""
        if identity is None:
            return None
        try:
            plain = {name: plain_scalar(value) for name, value in columns.items()}
            text = json.dumps([identity, sample, plain], sort_keys=True)
        except (TypeError, ValueError):
            return None
        return hashlib.blake2b(text.encode("utf-8"), digest_size=16).digest()

    def get(self, keys: Sequence[bytes]) -> dict[bytes, float]:
        """Look up the known scores. Rows whose checksum does not match are removed and counted in ``damaged``."""
        held = {key: self._scores[key] for key in keys if key in self._scores}
        missing = [key for key in dict.fromkeys(keys) if key not in held]
        if self._file is not None and missing:
            before = self.damaged
            found = self._try(functools.partial(self._read, missing)) or {}
            self._hold(found)
            held |= found
            if self.damaged > before:
                told = f"{self._file.path}: {self.damaged - before} damaged rows were left out"
                warnings.warn(f"{told}; their samples are scored again", RuntimeWarning, stacklevel=2)
        return {key: held[key] for key in keys if key in held}

    def _hold(self, scores: Mapping[bytes, float]) -> None:
        """Keep scores in memory; with a file only the newest, so that memory does not grow with the length of a run."""
        self._scores.update(scores)
        if self._file is not None and not self._unwritten:
            for key in list(self._scores)[: max(0, len(self._scores) - self.most)]:
                del self._scores[key]

    def _read(self, keys: Sequence[bytes], connection: sqlite3.Connection) -> dict[bytes, float]:
        found = {}
        for part in chunked(keys):
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
        """Store scores. If the file cannot be written, a warning is issued, the run continues, and the next call tries again."""
        if self._file is not None and scores:
            self._unwritten |= {key: float(value) for key, value in scores.items()}
            rows = [(key, value, _checksum(key, value)) for key, value in self._unwritten.items()]
            query = "INSERT OR REPLACE INTO scores VALUES (?, ?, ?)"
            if self._try(lambda connection: connection.executemany(query, rows)) is not None:
                self._unwritten = {}
        self._hold(scores)

    def _try(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Run ``work`` on the file; an error becomes a warning, and a damaged file is replaced by a new one."""
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
        """The scores for a checkpoint, without those that a file keeps."""
        kept = self._unwritten if self._file is not None else self._scores
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
