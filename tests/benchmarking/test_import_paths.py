"""Methods and tasks of the user's own in a benchmark of the command line, named by import path."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.benchmarking import runner
from discrete_grpo.benchmarking.jobs import by_name
from discrete_grpo.benchmarking.plan import Request, make_plan
from discrete_grpo.benchmarking.processes import portable
from discrete_grpo.cli import main
from discrete_grpo.rewards.task import Task
from tests.benchmarking.parts import CARBONS, WALK, carbons

SOURCE = """
from discrete_grpo import Task

def search(task, policy, ledger, seed):
    "Writes chains."
    for length in range(1, 100):
        ledger.score([task], ["C" * length])

def two(task, policy):
    pass

def share(mol):
    return mol.GetNumAtoms() / 30

solubility = Task("solubility", "mine", "atoms / 30", "", share)
again = Task("qed", "mine", "a taken name", "", share)
"""
NUMBER = itertools.count()


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user's in the working folder, under a name that no other test has imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / f"mine_{next(NUMBER)}.py"
    file.write_text(SOURCE)
    return file


@pytest.fixture
def refused(mine: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one line that a command is refused with; MINE in its words stands for the name of the module."""

    def run(*words: str) -> str:
        capsys.readouterr()
        assert main(["benchmark", "pmo", "--budget=10", *(word.replace("MINE", mine.stem) for word in words)]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        return line.removeprefix("discrete-grpo: error: ").replace(mine.stem, "MINE")

    return run


def row(folder: str) -> Any:
    return json.loads(Path("out", "jobs", folder, "0", "row.json").read_text())


def test_own_methods_and_tasks_stand_beside_those_of_a_suite(
    mine: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "portable", lambda job: "a test")
    lists = [f"--methods=[random,{mine.stem}:search]", f"--tasks=[qed,{mine.stem}:solubility]"]
    words = [*lists, "--seeds=[0]", "--output_dir=out"]
    assert main(["benchmark", "pmo", "--budget=10", *words]) == 0
    content = json.loads(Path("out/results.json").read_text())
    found = {(one["suite"], one["task"], one["method"]): one["calls"] for one in content["rows"]}
    methods = ("random", "search")
    assert found == {(suite, task, name): 10 for suite, task in (("pmo", "qed"), ("own", "solubility")) for name in methods}
    assert lists[0].replace("[", "'[").replace("]", "]'") in content["command"]
    assert row("own/solubility/search")["top1"] == pytest.approx(10 / 30)
    assert "method_source" in row("pmo/qed/search")["conditions"]
    assert "task_source" in row("own/solubility/random")["conditions"]
    capsys.readouterr()
    assert main(["benchmark", "pmo", "--budget=10", *words]) == 0
    assert "4 of 4 rows are there already" in "".join(capsys.readouterr())
    for before, after, name in (("/ 30", "/ 40", "task_source"), ('"C" * length', '"N" * length', "method_source")):
        mine.write_text(SOURCE.replace(before, after) + "# of another size\n" * len(name))
        sys.modules.pop(mine.stem)
        assert f"{name} was" in refused(*words)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (
            "--methods=[random,MINE:serch]",
            "methods: MINE:serch: module 'MINE' has no attribute 'serch' (FILE); did you mean 'search'?",
        ),
        ("--methods=no_mine:search", "methods: no_mine:search: No module named 'no_mine'; it is neither installed nor in FOLDER"),
        ("--methods=MINE:two", "methods: two(task, policy) (too many positional arguments), expected a function of (task, policy,"),
        (
            "--methods=MINE:SOURCE",
            "methods: MINE:SOURCE is a value of type str, expected a function (task, policy, ledger, seed) or",
        ),
        (
            "--methods=MINE:Task",
            "methods: MINE:Task is a class, expected a function (task, policy, ledger, seed) or a discrete_grpo.M",
        ),
        ("--methods=MINE.search", "methods: 'MINE.search', expected a name or an import path such as MINE:search"),
        ("--methods=MINE:search,MINE:search", "methods: two are named 'search', expected different names"),
        ("--methods=MINE:", "methods: 'MINE:', expected a name or an import path such as my_module:my_value"),
        ("--tasks=MINE:share", "tasks: MINE:share is a value of type function, expected a discrete_grpo.Task"),
        ("--tasks=MINE:again", "tasks: one of your own is named 'qed', as one of the suite is, expected another name"),
        ("--tasks=MINE:solubility,MINE:solubility", "tasks: two are named 'solubility', expected different names"),
        ("--tasks=MINE:solubility,qedd", "tasks: 'qedd' is unknown; did you mean 'qed'?"),
    ],
)
def test_what_an_import_path_does_not_name_is_one_line(refused: Callable[..., str], mine: Path, word: str, said: str) -> None:
    mine.write_text(f"{SOURCE}\nSOURCE = 'a text'\n")
    told = refused(word).replace(str(mine.with_name("MINE.py")), "FILE").replace(str(mine.parent), "FOLDER")
    assert told.startswith(said)
    assert not Path("runs").exists()


def test_a_module_that_fails_is_one_line(refused: Callable[..., str], mine: Path) -> None:
    mine.write_text("import json\njson.loads('')\n")
    assert refused("--methods=MINE:search").startswith("methods: MINE:search: Expecting value: line 1 column 1")


def test_tasks_of_a_suite_and_own_ones_in_python(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"methods": [WALK], "budget": 10, "seeds": [0], "output_dir": tmp_path}
    jobs = make_plan(Request("pmo", tasks=[CARBONS, "qed"], **asked)).jobs
    assert [(job.suite, job.task.name, "task_source" in job.conditions) for job in jobs] == [
        ("own", "carbons", True),
        ("pmo", "qed", False),
    ]
    assert [portable(by_name(job)) for job in jobs] == [None, None]
    assert by_name(jobs[0]).task is CARBONS
    unhashable = Task("unhashable", "mine", "", "", carbons, published=[])  # type: ignore[arg-type]
    assert len(make_plan(Request("pmo", tasks=[unhashable], **asked)).jobs) == 1
    one: Any = CARBONS
    with pytest.raises(ValueError, match=r"^tasks: Task\(name='carbons'.*expected a list of names and tasks"):
        make_plan(Request("pmo", tasks=one, **asked))


@pytest.mark.slow
def test_worker_processes_import_them_too(mine: Path) -> None:
    words = [f"--methods={mine.stem}:search", f"--tasks={mine.stem}:solubility", "--seeds=0", "--output_dir=out"]
    assert main(["benchmark", "pmo", "--budget=10", *words]) == 0
    assert row("own/solubility/search")["calls"] == 10
