"""Processing of blocks of lines by several processes, with results in the order of the blocks.

The workers are fresh interpreters that import only the function to run and not the user's script, so a script needs no
``if __name__ == "__main__"``. They end with the process that started them, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from queue import SimpleQueue
from typing import Any, BinaryIO, TypeVar

from discrete_grpo.core.checks import check_range
from discrete_grpo.core.processes import usable_cores

__all__ = ["blocks", "map_blocks", "map_in_processes", "serve"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_START = """import sys
sys.path[:] = [folder for folder in sys.path if folder]  # a file of the working folder must not stand for a module
import pickle
sys.path[:] = pickle.load(sys.stdin.buffer)
from discrete_grpo.datasets.parallel import serve
serve()"""


def blocks(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Cut items into lists of ``size``; the last one may be shorter.

    >>> list(blocks("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    left = iter(items)
    while block := list(islice(left, size)):
        yield block


def map_blocks(
    function: Callable[[_Item], _Result], items: Iterable[_Item], jobs: int | None = None, *, alone: int = 0
) -> Iterator[_Result]:
    """Yield ``function`` of each item in their order, computed by ``jobs`` processes of one thread each.

    Items are read a few ahead of the results, so that memory does not grow with their number. An error of the function is raised
    here, that of the first item first.

    Args:
        function: a function of an importable module, or a :func:`functools.partial` of one; it and its results can be pickled.
        items: arguments that can be pickled.
        jobs: number of processes, at least 1; None means the number of usable cores. With 1 everything runs in this process.
        alone: processes are only started if there are more items than this.

    Raises:
        RuntimeError: if a worker dies.
    """
    jobs = usable_cores() if jobs is None else jobs
    check_range("jobs", jobs, least=1)
    left = iter(items)
    first = list(islice(left, alone + 1))
    if jobs == 1 or len(first) <= alone:
        yield from map(function, chain(first, left))
        return
    yield from map_in_processes(function, chain(first, left), jobs)


def map_in_processes(function: Callable[[_Item], _Result], items: Iterable[_Item], jobs: int) -> Iterator[_Result]:
    """Yield ``function`` of each item in their order, computed by ``jobs`` other processes, even if that is one.

    For a function that must not run in this process, such as RDKit's embedding, which catches Ctrl-C.

    Raises:
        RuntimeError: if a worker dies.
    """
    idle: SimpleQueue[_Worker] = SimpleQueue()
    workers: list[_Worker] = []

    def work(item: _Item) -> _Result:
        worker = idle.get()
        try:
            return worker.call(function, item)
        finally:
            idle.put(worker)

    threads = ThreadPoolExecutor(jobs)
    waiting: deque[Future[_Result]] = deque()
    try:
        for item in items:
            if len(workers) < jobs:  # no more workers than items
                workers.append(_Worker())
                idle.put(workers[-1])
            waiting.append(threads.submit(work, item))
            if len(waiting) > jobs:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
        for worker in workers:
            worker.end()
        threads.shutdown()


class _Worker:
    """A fresh interpreter with one thread, in a session of its own, so that Ctrl-C does not reach it."""

    def __init__(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to: BinaryIO = self._process.stdin  # type: ignore[assignment]  # buffered streams of bytes
        self._from: BinaryIO = self._process.stdout  # type: ignore[assignment]
        self._begun = False

    def call(self, function: Callable[[Any], Any], item: Any) -> Any:
        try:
            if not self._begun:
                pickle.dump(sys.path, self._to)
                self._begun = True
            pickle.dump((function, item), self._to)
            self._to.flush()
            good, found = pickle.load(self._from)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            code = self._process.wait()
            raise RuntimeError(f"a process that reads data died ({_how(code)}); memory may be short: lower jobs") from None
        if good:
            return found
        raise found

    def end(self) -> None:
        """Kill the worker; its files are written atomically."""
        self._process.kill()
        self._process.wait()
        self._from.close()
        with contextlib.suppress(BrokenPipeError):  # part of a message was not sent yet
            self._to.close()


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"status {code}"


def serve() -> None:
    """Answer calls from standard input on standard output until it ends; the loop of a worker process."""
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    while True:
        try:
            function, item = pickle.load(source)
        except EOFError:
            return
        try:
            answer = (True, function(item))
        except Exception as error:
            answer = (False, error)
        try:
            answers.write(_pickled(answer))
            answers.flush()
        except BrokenPipeError:
            return


def _pickled(answer: tuple[bool, Any]) -> bytes:
    """The bytes of an answer, or of an error with the reason if it cannot be pickled."""
    try:
        return pickle.dumps(answer)
    except Exception as error:  # a result can raise anything when it is pickled
        told = f"{type(answer[1]).__name__} cannot be sent to the other process ({error})"
        return pickle.dumps((False, TypeError(told)))
