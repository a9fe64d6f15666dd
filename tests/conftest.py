"""Settings of every test: one thread per process, for speed and equal bits, and the usual handling of Ctrl-C."""

import gc
import os
import signal

import torch

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes that each import torch
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell script starts commands in the background this way: make test &
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _not_synced(handle: int) -> None:
    """Stands for ``os.fsync`` in this process, for speed: only a power cut could lose what is written. Refuses closed files."""
    os.fstat(handle)


os.fsync = _not_synced  # type: ignore[assignment]


def pytest_collection_finish() -> None:
    """Leave imported modules and collected tests, which live until the end, out of garbage collections."""
    gc.collect()
    gc.freeze()
