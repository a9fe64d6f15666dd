"""Which files a reward names, from the working folder and from the folder of its module."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.rewards.identity import code_identity
from discrete_grpo.rewards.named_files import named_files
from discrete_grpo.rewards.sources import file_digest

MODULE = """
from pathlib import Path
TABLE = "table.csv"

def score(mol):
    return float((Path(__file__).parent / "data" / "w.txt").read_text()) + len(open(TABLE).read())
"""


def scored(mol: Any, file: str = "") -> float:
    return float(Path(file).read_text())


def test_files_in_the_state_of_a_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.txt").write_text("1")
    reward = functools.partial(scored, file="w.txt")
    assert named_files(reward) == {"w.txt": file_digest("w.txt")}
    assert named_files(functools.partial(scored, file="--weights=w.txt")) == {"w.txt": file_digest("w.txt")}
    assert named_files(functools.partial(scored, file="missing.txt")) == {}
    before = code_identity(reward)
    (tmp_path / "w.txt").write_text("2")
    assert code_identity(reward) == before is not None


def test_files_that_literals_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("code/data", "working"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "code" / "names_files.py").write_text(MODULE)
    (tmp_path / "code/data/w.txt").write_text("1")
    (tmp_path / "working/table.csv").write_text("a,b")
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path / "working")
    score = importlib.import_module("names_files").score
    found = named_files(score)
    assert list(found) == ["names_files: data", "table.csv"]
    (tmp_path / "code/data/w.txt").write_text("2")
    changed = named_files(score)
    assert {name for name in found if found[name] != changed[name]} == {"names_files: data"}
