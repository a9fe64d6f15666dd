"""Threads of a command sleep soon when they wait, unless the user has set how they wait."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from discrete_grpo.cli.threads import SPINS, limit_spinning


@pytest.mark.parametrize(
    ("given", "found"),
    [({}, SPINS), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_what_the_user_has_set_stays(given: dict[str, str], found: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "environ", dict(os.environ))  # nothing of this stays in the process
    limit_spinning()
    assert os.environ.get("GOMP_SPINCOUNT") == found


def test_it_is_set_before_torch_is_imported() -> None:
    code = """
import os, sys
from discrete_grpo.cli import threads
threads.limit_spinning = lambda: print("torch" in sys.modules)
from discrete_grpo.cli.__main__ import main
main(sys.argv[1:])
"""
    for command in (["train", "demo", "--print_config"], ["list", "tasks"]):
        told = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False).stdout
        assert told.startswith("False\n"), command
