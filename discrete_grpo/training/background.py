"""A job in a thread of its own, such as scoring while the next groups are drawn."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar, cast

import torch

__all__ = ["Job"]

T = TypeVar("T")


class Job(Generic[T]):
    """Runs a function in a daemon thread, which starts at once and does not keep the process alive.

    Args:
        work: the function to run.
        device: device of this process, which becomes the current CUDA device of the thread as well.
    """

    def __init__(self, work: Callable[[], T], device: torch.device) -> None:
        self._work, self._device = work, device
        self._error: BaseException | None = None
        self._found: T | None = None
        self._thread = threading.Thread(target=self._run, name="scoring", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)  # the current device of a new thread is the first one
            self._found = self._work()
        except BaseException as error:  # :meth:`result` raises it again
            self._error = error

    def wait(self) -> None:
        """Wait until the function has returned or raised."""
        self._thread.join()

    def result(self) -> T:
        """Wait, and return what the function returned.

        Raises:
            BaseException: the exception that the function raised.
        """
        self.wait()
        if self._error is not None:
            raise self._error
        return cast(T, self._found)
