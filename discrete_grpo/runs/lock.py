"""One process per run folder."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from discrete_grpo.core.processes import is_first

__all__ = ["alone"]


@contextmanager
def alone(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Refuse a folder in which another process works; the lock ends with this process, whatever ends it, and leaves no file.

    Of several processes of one run the first holds the lock. A folder that is not there yet, Windows and file systems without
    locks refuse nothing.

    Raises:
        ValueError: if another process works there.
    """
    if sys.platform == "win32" or not is_first() or not Path(folder).is_dir():
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
                said = f"another process is working in {os.fspath(folder)}, expected one at a time"
                raise ValueError(f"output_dir: {said}") from error
        yield
    finally:
        os.close(handle)
