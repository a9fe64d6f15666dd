"""Handling of Ctrl-C and SIGTERM: a run stops at a point where no work is lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from discrete_grpo.core.processes import is_first

__all__ = ["Interrupt", "Interrupted", "interruptible", "sigterm_as_ctrl_c", "watched"]


STOPPING = b"\nstopping where nothing is lost; press Ctrl-C again to stop at once\n"


class Interrupted(KeyboardInterrupt):
    """Raised when a run was stopped, after a checkpoint of its last update was written.

    Like any ``KeyboardInterrupt`` it passes ``except Exception``, so that a script that goes on after errors ends here.
    """


class Interrupt:
    """Flag that is true after a stop was requested; training loops check it between updates."""

    def __init__(self) -> None:
        self.asked = False
        self.cuts = False

    def __bool__(self) -> bool:
        return self.asked

    @contextmanager
    def cutting(self) -> Iterator[None]:
        """Make a stop request, also an earlier one, end the work of the block at once; the work must be repeatable.

        Raises:
            Interrupted: if a stop was requested, even where code of the block has caught the ``KeyboardInterrupt`` that ends it.
        """
        self.cuts = True
        try:
            if not self.asked:
                yield
        except Interrupted:
            raise
        except KeyboardInterrupt:
            if not self.asked:
                raise
        finally:
            self.cuts = False
        if self.asked:
            raise Interrupted("stopped")


@contextmanager
def interruptible(told: bytes = STOPPING) -> Iterator[Interrupt]:
    """Make the first Ctrl-C or SIGTERM inside the block only set the flag and print a line; a second Ctrl-C raises as usual.

    Within :meth:`Interrupt.cutting` the first one also ends the work at once. Outside the main thread, where Python allows no
    handlers, the flag simply stays unset, and so it does for a signal whose handler was not installed from Python.

    Args:
        told: line that the first Ctrl-C writes to standard error, in the first process.
    """
    flag = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        if flag.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        flag.asked = True
        if number == signal.SIGINT and is_first():
            with suppress(OSError):  # written at once: a stream may be in use where the signal came
                os.write(2, told)
        if flag.cuts:
            raise KeyboardInterrupt

    ours = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not None]
    before = {number: signal.signal(number, on_signal) for number in ours}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Make SIGTERM raise ``KeyboardInterrupt`` inside the block; processes that the block forks end at once.

    A handler that is there already stays, and outside the main thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    own = os.getpid()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:
            os._exit(128 + number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def watched() -> Iterator[Interrupt]:
    """Distinguish a Ctrl-C of the user, or a SIGTERM that acts like one, from a ``KeyboardInterrupt`` that the block raises.

    A signal sets the flag and then calls the previous handler. Outside the main thread, which alone receives signals, the flag
    stays unset. If the previous handler of Ctrl-C was not installed from Python, the flag is set from the start.
    """
    flag = Interrupt()
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if threading.current_thread() is not threading.main_thread() or not callable(found[signal.SIGINT]):
        flag.asked = found[signal.SIGINT] is None
        yield flag
        return
    before = {int(number): handler for number, handler in found.items() if callable(handler)}

    def on_signal(number: int, frame: FrameType | None) -> None:
        flag.asked = True
        before[number](number, frame)

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield flag
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is on_signal:  # otherwise the block installed a handler of its own
                signal.signal(number, handler)
