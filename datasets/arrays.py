"""Arrays of npz files, with a check of their sizes before memory is allocated."""

from __future__ import annotations

import math
import tokenize
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipFile, ZipInfo

import numpy as np

from discrete_grpo.datasets.text_files import MAX_BYTES

__all__ = ["read_arrays"]


def read_arrays(file: Path | BinaryIO, max_bytes: int = MAX_BYTES) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """Read all arrays of an npz file by name, without unpickling.

    Args:
        file: path, or a binary file that is open for reading.
        max_bytes: largest size of all arrays together.

    Raises:
        ValueError: naming the array, if its header declares another size than the file holds, or if all arrays together are larger
            than ``max_bytes``.
        OSError, EOFError, zipfile.BadZipFile, zlib.error: if the file is damaged.
    """
    with ZipFile(file) as archive:
        total = 0
        for member in archive.infolist():
            total += _size(archive, member) if member.filename.endswith(".npy") else 0
            if total > max_bytes:
                raise ValueError(
                    f"{member.filename}: the arrays hold {total:,} bytes or more, expected at most {max_bytes:,} (max_bytes)"
                )
    if not isinstance(file, Path):
        file.seek(0)
    with np.load(file, allow_pickle=False) as stored:
        return {name.removesuffix(".npy"): stored[name] for name in stored.files}


def _size(archive: ZipFile, member: ZipInfo) -> int:
    """Return the bytes of an array as its header declares them, after a check against the size of the member."""
    name = member.filename
    try:
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            if version not in ((1, 0), (2, 0)):
                raise ValueError(f"{name}: version {version} of the npy format, expected 1.0 or 2.0")
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            held = member.file_size - file.tell()
    except (RuntimeError, NotImplementedError, tokenize.TokenError) as error:  # encrypted, another compression, a damaged header
        raise ValueError(f"{name}: {error}") from error
    promised = math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and (min(shape, default=0) < 0 or promised != held):
        raise ValueError(
            f"{name}: its header promises an array of shape {list(shape)} and {dtype}, but the file holds {held:,} bytes"
        )
    return held
