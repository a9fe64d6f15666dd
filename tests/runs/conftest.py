"""What tests of files of strangers ask for: a path where nothing may be, and a command that must be refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.cli import main


@pytest.fixture
def canary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A path where nothing may be after the test, whatever it read."""
    path = tmp_path_factory.mktemp("canary") / "ran"
    yield path
    assert not path.exists(), "something in a file was executed"


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must be refused; its one line on the error output."""

    def run(*arguments: Any) -> str:
        capsys.readouterr()
        assert main([str(a) for a in arguments]) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("discrete-grpo: error: ")
        return lines[0]

    return run
