"""The first Ctrl-C asks a run to stop and says so, the second stops it at once; SIGTERM asks without a word."""

from __future__ import annotations

import os
import signal

import pytest

from discrete_grpo.core.interrupt import STOPPING, interruptible


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
