"""Atomic and durable writes of single files."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, Literal, overload

__all__ = ["atomic_write", "sync_folder"]


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make renames and new names in ``folder`` durable; on systems without such a call nothing happens."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse to sync a folder
            os.fsync(handle)
    finally:
        os.close(handle)


@overload
def atomic_write(path: str | os.PathLike[str], mode: Literal["wb"] = "wb") -> AbstractContextManager[IO[bytes]]: ...
@overload
def atomic_write(path: str | os.PathLike[str], mode: Literal["w"]) -> AbstractContextManager[IO[str]]: ...
def atomic_write(path: str | os.PathLike[str], mode: Literal["wb", "w"] = "wb") -> AbstractContextManager[IO[Any]]:
    r"""Open a file that atomically replaces ``path`` when the block ends.

    The file is written beside ``path`` under another name. If the block raises, it is removed and ``path`` does not change.

    Args:
        path: the file to make or replace; its folder must exist.
        mode: ``"wb"`` for bytes, ``"w"`` for UTF-8 text with ``\n`` line ends on every system.

    Raises:
        ValueError: for any other ``mode``.
    """
    if mode not in ("wb", "w"):
        raise ValueError(f"mode: {mode!r}, expected 'wb' or 'w'")
    return _replacing(Path(path), mode)


@contextmanager
def _replacing(path: Path, mode: str) -> Iterator[IO[Any]]:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    # tempfile would make a private file (0600); this one gets the permissions of any new file.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    text = {"encoding": "utf-8", "newline": "\n"} if mode == "w" else {}
    try:
        with open(handle, mode, **text) as file:  # type: ignore[call-overload]  # noqa: PTH123
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)  # noqa: PTH105
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
