"""The first Ctrl-C asks a run to stop and says so, the second stops it at once; SIGTERM asks without a word."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from discrete_grpo.core.interrupt import STOPPING, Interrupt, Interrupted, interruptible


def test_the_first_sets_the_flag_and_says_so_and_the_second_raises(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGINT)
        assert stop
        assert capfd.readouterr().err == STOPPING.decode()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert not capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_a_request_to_terminate_sets_the_flag(capfd: pytest.CaptureFixture[str]) -> None:
    with interruptible() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop
    assert not capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_work_that_can_be_done_again_ends_at_once(number: int) -> None:
    reached = []

    def work() -> None:
        reached.append("its begin")
        signal.raise_signal(number)
        reached.append("its end")

    with interruptible() as stop:
        with pytest.raises(Interrupted), stop.cutting():
            work()
        with pytest.raises(Interrupted), stop.cutting():
            work()
        assert stop
    assert reached == ["its begin"]


def test_work_that_catches_the_interrupt_is_no_good_either() -> None:
    with interruptible() as stop, pytest.raises(Interrupted), stop.cutting(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_outside_of_such_work_the_first_still_waits_and_an_interrupt_of_the_work_itself_is_its_own() -> None:
    with interruptible() as stop:
        with stop.cutting():
            pass
        with pytest.raises(KeyboardInterrupt), stop.cutting():
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)
        assert stop
    with Interrupt().cutting():
        pass


def test_it_passes_except_exception_as_a_loop_over_runs_has_it() -> None:
    assert not issubclass(Interrupted, Exception)

    def inside() -> None:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise Interrupted("of the run inside")

    with interruptible() as stop, pytest.raises(Interrupted, match="of the run inside"), stop.cutting():
        inside()


def test_a_handler_that_was_not_installed_from_python_is_left_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = signal.signal
    found = {signal.SIGINT: None, signal.SIGTERM: signal.getsignal(signal.SIGTERM)}  # None: from C, as Python tells it
    changed = []

    def install(number: int, handler: Any) -> Any:
        changed.append(number)
        return installed(number, handler)

    monkeypatch.setattr(signal, "getsignal", found.get)
    monkeypatch.setattr(signal, "signal", install)
    with interruptible() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop
    assert changed == [signal.SIGTERM] * 2
