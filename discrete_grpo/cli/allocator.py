"""Settings of the memory allocator for programs that constantly allocate and free large tensors."""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["keep_freed_memory"]

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Names of the settings in glibc's ``mallopt``."""
KEPT, MAPPED = 2_000_000_000, 1 << 25
"""Bytes of freed memory that the process keeps, and the size from which an allocation is mapped by itself, glibc's largest."""


def keep_freed_memory() -> None:
    """Keep freed memory in the process and back large tensors by huge pages, on Linux with glibc; elsewhere nothing is done.

    glibc returns large blocks to the system when they are freed, and the next tensor of that size is faulted in page by page.
    Settings of the user by ``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_MMAP_THRESHOLD_`` or ``THP_MEM_ALLOC_ENABLE`` are kept. Call this
    before the first tensor is allocated, as torch reads the last variable then.
    """
    if sys.platform != "linux":
        return
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library
        return
    for name, number, value in (("TRIM", TRIM_THRESHOLD, KEPT), ("MMAP", MMAP_THRESHOLD, MAPPED)):
        if f"MALLOC_{name}_THRESHOLD_" not in os.environ:
            mallopt(number, value)
