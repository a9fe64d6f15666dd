"""Hashes of files that may be larger than memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol, runtime_checkable

__all__ = ["Digest", "add_file"]

_BLOCK = 1 << 20


@runtime_checkable
class Digest(Protocol):
    """A hash of :mod:`hashlib`."""

    def update(self, data: bytes, /) -> None:
        """Add ``data`` to what is hashed."""

    def hexdigest(self) -> str:
        """Return the hash of all data so far in hexadecimal digits."""


def add_file(digest: Digest, path: str | os.PathLike[str]) -> Digest:
    """Add the content of a file to a hash, in blocks of 1 MiB, and return the hash.

    Raises:
        OSError: if the file cannot be read.
    """
    with Path(path).open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest
