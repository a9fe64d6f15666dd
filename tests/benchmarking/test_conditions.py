"""A job whose code, files or policy are no longer those of the plan has no row; what a method changes costs no other row."""

from __future__ import annotations

import csv
import gzip
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.benchmarking import runner
from discrete_grpo.benchmarking.conditions import check_files, check_policy_facts
from discrete_grpo.benchmarking.jobs import run_job
from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.plan import Request, make_plan
from discrete_grpo.benchmarking.runner import benchmark
from discrete_grpo.cli import main
from discrete_grpo.rewards.task import Task
from discrete_grpo.runs.checkpoint import save
from tests.benchmarking.parts import CARBONS, WALK, walk
from tests.letters import letters_policy

ROOT = Path(__file__).parents[2]
ASKED: dict[str, Any] = {"budget": 100, "seeds": [0]}
OWN = """
import random
from discrete_grpo import Task

SCALE = 1.0


def share(mol):
    return SCALE * min(1.0, mol.GetNumAtoms() / 20)


TASK = Task("share", "toy", "share of 20 atoms", "", share)


def chains(task, policy, ledger, seed):
    '''Chains.'''
    ledger.score([task], ["C" * (k + 1) for k in range(10)])
    edit()


def edit():
    '''Changes this file after the first job.'''
    text = open(__file__).read()
    open(__file__, "w").write(text.replace(CHANGE))
"""


@pytest.mark.parametrize(("change", "what"), [('"SCALE = 1.0", "SCALE = 0.5"', "task"), ('"range(10)", "range(9)"', "method")])
def test_an_edit_between_two_jobs_costs_the_second_its_row(change: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN.replace("CHANGE", change), encoding="utf-8")
    command = [sys.executable, "-m", "discrete_grpo.cli", "benchmark", "pmo", "--tasks=[own:TASK]", "--methods=[own:chains]"]
    command += ["--budget=50", "--seeds=[0,1]", "--output_dir=out"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode, done.stdout
    said = " ".join((done.stdout + done.stderr).split())
    assert "1/2 share, chains, seed 0: AUC top-10" in said
    assert f"2/2 share, chains, seed 1: failed: ValueError: {what}: changed while the benchmark ran ({what}_source was " in said


UNEDITED = """
from discrete_grpo import Task

KNOWN = list({"C", "N", "O", "S", "P", "F"})  # in another order in each process
MEMO = {}


def share(mol):
    assert mol is not None
    return MEMO.setdefault(mol.GetNumAtoms(), min(1.0, sum(a.GetSymbol() in KNOWN for a in mol.GetAtoms()) / 20))


def chains(task, policy, ledger, seed):
    'Chains.'
    ledger.score([task], ["C" * (k + 1) for k in range(10)])


TASK = Task("share", "toy", "share of 20 atoms", "", share)
TASK(["CC"])
"""


def test_code_that_looks_different_in_another_process_is_no_edit(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(UNEDITED, encoding="utf-8")
    command = [sys.executable, "-O", "-m", "discrete_grpo.cli", "benchmark", "pmo", "--tasks=[own:TASK]", "--methods=[own:chains]"]
    command += ["--budget=50", "--seeds=[0]", "--output_dir=out"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert not done.returncode, done.stdout + done.stderr


def _writes_its_file(task: Any, policy: Any, ledger: Any, seed: int, *, notes: str) -> None:
    walk(task, policy, ledger, seed)
    with Path(notes).open("a", encoding="utf-8") as file:
        file.write("more")


def test_a_file_that_changes_costs_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "portable", lambda job: "a test")
    file = tmp_path / "notes.txt"
    file.write_text("some", encoding="utf-8")
    method = Method("writes", "writes its file", "", _writes_its_file, settings={"notes": str(file)}, needs_policy=False)
    [failed] = benchmark([CARBONS], methods=[method], output_dir=tmp_path / "out", **ASKED).failed
    assert failed["error"].startswith("ValueError: notes: changed while the benchmark ran (notes_sha256 was ")
    planned = {"notes_sha256": "0123456789abcdef"}
    file.unlink()
    with pytest.raises(
        ValueError, match=r"^notes: changed while the benchmark ran \(notes_sha256 was 0123456789abcdef and is None"
    ):
        check_files(method, planned)


def test_a_policy_that_changes_costs_the_row(tmp_path: Path) -> None:
    folder = save(tmp_path / "policy", letters_policy(), metadata={"kind": "molecules"})
    asked = Request([CARBONS], methods=["best-of-prior"], policy=str(folder), output_dir=tmp_path / "out", **ASKED)
    [job] = make_plan(asked).jobs
    other = {**job.conditions, "policy_sha256": "0123456789abcdef"}
    with pytest.raises(ValueError, match=r"^policy: changed while the benchmark ran \(policy_sha256 was 0123456789abcdef and is "):
        run_job(replace(job, conditions=other))
    new = {"name": "my:make", "sha256": "1", "settings_sha256": "2"}
    check_policy_facts(new, {"policy_sha256": "3"})  # not compared
    with pytest.raises(ValueError, match=r"^policy: changed"):
        check_policy_facts({"name": "my:Class@runs/a", "sha256": "1", "settings_sha256": "2"}, {"policy_sha256": "3"})


def _leaves(task: Any, policy: Any, ledger: Any, seed: int) -> None:
    os.chdir("/")
    walk(task, policy, ledger, seed)


@pytest.mark.parametrize("here", [True, False])
def test_a_method_that_changes_the_working_folder_keeps_its_row(
    here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if here:
        monkeypatch.setattr(runner, "portable", lambda job: "a test")
    monkeypatch.chdir(tmp_path)
    leaves = Method("leaves", "changes the working folder", "", _leaves, needs_policy=False)
    found = benchmark([CARBONS], methods=[leaves, WALK], output_dir="out", **ASKED)
    assert not found.failed
    assert [row["calls"] for row in found.rows] == [100, 100]
    assert Path.cwd() == tmp_path


def _returns(task: Any, policy: Any, ledger: Any, seed: int) -> None:
    ledger.score([task], ["a\rb", "c\nd", 'e"f', "g,h"])


def test_texts_with_a_carriage_return_are_read_back(tmp_path: Path) -> None:
    lengths = Task("lengths", "toy", "length / 10", "", lambda text: len(text) / 10, kind="text")
    benchmark([lengths], methods=[Method("returns", "texts", "", _returns, needs_policy=False)], output_dir=tmp_path, **ASKED)
    [path] = tmp_path.glob("jobs/*/*/*/*/calls.csv.gz")
    with gzip.open(path, "rt", newline="") as file:
        assert [row[:3] for row in csv.reader(file)][1:] == [
            ["1", "a\rb", "0.3"], ["2", "c\nd", "0.3"], ["3", 'e"f', "0.3"], ["4", "g,h", "0.3"],
        ]  # fmt: skip


def test_the_report_of_a_folder_without_its_entries_says_how_to_restore_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark([CARBONS], methods=[WALK], output_dir=tmp_path, **ASKED)
    (tmp_path / "benchmark.json").rename(tmp_path / "elsewhere.json")
    assert main(["report", str(tmp_path)])
    assert "benchmark.json is missing; copy results.json, which has the same entries, to benchmark.json" in capsys.readouterr().err
