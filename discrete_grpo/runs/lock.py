"""Locks of run folders, so that only one process at a time works in each."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from discrete_grpo.core.processes import is_first

__all__ = ["locked_folder"]

_HELD: dict[Path, tuple[int, int]] = {}
"""Folders that this process has locked, with the handles of the locks and the threads that hold them."""


def _forget() -> None:
    """Release the locks in a forked child, which may outlive the run of its parent."""
    for handle, _ in _HELD.values():
        with suppress(OSError):
            os.close(handle)
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@contextmanager
def locked_folder(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Refuse a folder in which another process works; the lock ends with this process, however it ends, and leaves no file.

    The folder is created, and removed with the parents that were created if it is empty at the end. Blocks may be nested. With
    several processes, the first one holds the lock. On Windows and file systems without locks, nothing is refused.

    Raises:
        ValueError: if another process works there, or another thread of this one.
    """
    path = Path(folder).absolute()
    held = _HELD.get(path)
    if held is not None and held[1] != threading.get_ident():
        raise ValueError(f"output_dir: another thread is working in {path}, expected one at a time")
    if sys.platform == "win32" or not is_first() or held is not None:
        yield
        return
    made = [parent for parent in (path, *path.parents) if not parent.exists()]
    with suppress(OSError):  # the run itself reports what it cannot write
        path.mkdir(parents=True, exist_ok=True)
    handle = _locked(path)
    try:
        yield
    finally:
        if handle is not None and _HELD.pop(path, None) is not None:
            _release(handle)
        with suppress(OSError):  # of the first that is not empty
            for empty in made:
                with suppress(FileNotFoundError):  # a failed run has removed it
                    empty.rmdir()


def _locked(path: Path) -> int | None:
    """The handle of a new lock; None where there can be none."""
    import fcntl

    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            raise ValueError(f"output_dir: another process is working in {path}, expected one at a time") from error
        return None
    _HELD[path] = handle, threading.get_ident()
    return handle


def _release(handle: int) -> None:
    import fcntl

    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing alone leaves it to a child that was forked
    os.close(handle)
