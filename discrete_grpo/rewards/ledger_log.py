"""The log of an oracle ledger: a second copy of its rows that only grows, so that checkpoints need not hold one.

Each line is a CRC-32 and one JSON object, ``{"calls": [...]}`` or ``{"scores": [...]}``: what one transaction added to the file of
the ledger. Lines that are torn or damaged are left out when the log is read.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from discrete_grpo.core.atomic import sync_folder

__all__ = ["LedgerLog"]

Kind = Literal["calls", "scores"]


class LedgerLog:
    """A file beside that of the ledger, written only by the process that holds the ledger's lock.

    Args:
        path: the file; it is made by the first :meth:`add`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        """Whether there is such a file."""
        return self.path.exists()

    def clear(self) -> None:
        """Delete the log, whose rows belong to a ledger that no longer exists."""
        self.path.unlink(missing_ok=True)

    def add(self, kind: Kind, rows: Sequence[Sequence[Any]]) -> None:
        """Append rows.

        Raises:
            OSError: if they cannot be written.
        """
        body = json.dumps({kind: rows}, allow_nan=False, separators=(",", ":")).encode()
        with self.path.open("ab", buffering=0) as file:  # a line begins with its end of line, so that a torn one is closed
            line = memoryview(b"\n%08x %b" % (zlib.crc32(body), body))
            while line:
                line = line[file.write(line) :]

    def sync(self) -> None:
        """Make the log durable, before a checkpoint relies on it."""
        if self.exists():
            with self.path.open("rb+") as file:
                os.fsync(file.fileno())
            sync_folder(self.path.parent)

    def read(self) -> Iterator[tuple[str, list[list[Any]]]]:
        """The kind and the rows of every sound line."""
        if not self.exists():
            return
        with self.path.open("rb") as file:
            for line in file:
                check, _, body = line.rstrip(b"\n").partition(b" ")
                if check == b"%08x" % zlib.crc32(body):
                    yield from json.loads(body).items()
