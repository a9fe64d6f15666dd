"""One thread, here and in every process that a test starts: for speed on small tensors and the same bits everywhere."""

import gc
import os

import torch

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes that each import torch


def _not_synced(handle: int) -> None:
    """Stands for ``os.fsync`` in this process, for speed: only a power cut could lose what is written. Refuses closed files."""
    os.fstat(handle)


os.fsync = _not_synced  # type: ignore[assignment]


def pytest_collection_finish() -> None:
    """Leave imported modules and collected tests, which live until the end, out of garbage collections."""
    gc.collect()
    gc.freeze()
