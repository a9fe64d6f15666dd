"""The program of a worker process of a benchmark, which runs one job and ends with its parent.

The parent writes the search path of modules and the pickled job into standard input and keeps it open; when it is gone, the worker
and all its children end at once. The job itself finds an empty standard input. The other side is
:mod:`discrete_grpo.benchmarking.processes`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import struct
import sys
import threading
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def _taken_input() -> int:
    """Move the pipe of standard input to a handle that no child inherits, so that whoever reads standard input finds its end."""
    pipe, empty = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return pipe


def _read(pipe: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        block = os.read(pipe, count - len(data))
        if not block:
            _end()
        data += block
    return data


def _end() -> None:
    """End this process and its children now."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _end_with_parent(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    _end()


def _import_own_package() -> None:
    """Import the package of this file, which is that of the parent, even if the search path has another copy first."""
    folder = Path(__file__).resolve().parents[1]
    spec = spec_from_file_location(folder.name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} is no package")
    sys.modules[folder.name] = package = module_from_spec(spec)
    spec.loader.exec_module(package)


def main() -> None:
    """Run the job that the parent sends."""
    pipe = _taken_input()
    (size,) = struct.unpack("<q", _read(pipe, 8))
    sys.path[:], payload = pickle.loads(_read(pipe, size))  # from the parent process, through a pipe of its own
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    _import_own_package()
    import torch

    torch.set_num_threads(1)
    from discrete_grpo.benchmarking.jobs import run_sent_job

    run_sent_job(pickle.loads(payload))


if __name__ == "__main__":
    main()
