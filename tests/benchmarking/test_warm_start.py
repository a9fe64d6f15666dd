"""Methods that begin with molecules of a file: each is a call, and a row says so."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.benchmarking import runner
from discrete_grpo.benchmarking.methods import METHODS
from discrete_grpo.benchmarking.methods.trained import in_rounds
from discrete_grpo.benchmarking.plan import Request, make_plan
from discrete_grpo.benchmarking.runner import benchmark
from discrete_grpo.cli import main
from discrete_grpo.core.scoring import BudgetExhausted
from discrete_grpo.recipes.grpo_memory import fill_memory
from discrete_grpo.rewards.ledger import Ledger, molecule_key
from discrete_grpo.training.memory import ScoredMemory
from discrete_grpo.training.objectives import Likelihood
from discrete_grpo.training.rounds import Rounds
from tests.benchmarking.parts import CARBONS, OXYGENS, WALK
from tests.benchmarking.test_checks import GRAPHS
from tests.benchmarking.test_methods import chains, policy_for

LINES = "OO\nnot a molecule\nOCO\nC(O)O\nOCOCO\nO\n"  # the third and the fourth are the same molecule
WARM = sorted(name for name, method in METHODS.items() if method.warm)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "known.smi"
    path.write_text(LINES)
    return str(path)


class Seen:
    """A screen that notes what it is shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def observe(self, samples: Any, scores: Any) -> None:
        self.shown += samples

    def forget(self) -> None: ...

    def merit(self, samples: Any) -> None: ...


def test_the_first_different_valid_molecules_are_scored_and_counted(file: str) -> None:
    memory, ledger = ScoredMemory(size=2), Ledger(key=molecule_key)
    rest = fill_memory(OXYGENS, ledger, memory, file, 3)
    assert ledger.history().keys == ("OO", "OCO", "OCOCO")
    assert ledger.sources() == {"file": 3}
    assert [(entry.sample, entry.score, entry.source) for entry in memory.kept] == [("OCOCO", 0.15, "file"), ("OO", 0.1, "file")]
    assert [(entry.sample, entry.score, entry.source) for entry in rest] == [("OCO", 0.1, "file")]


def test_a_screen_sees_every_molecule_of_the_file_once(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[Rounds] = []
    monkeypatch.setattr(Rounds, "run", lambda self: loops.append(self))
    screen = Seen()
    settings: dict[str, Any] = {"memory": ScoredMemory(size=2), "screen": screen, "warm_start": file}
    in_rounds(OXYGENS, policy_for("tb-ga"), Ledger(key=molecule_key), 0, Likelihood(), **settings)
    assert sorted(screen.shown) == ["O", "OCO", "OCOCO", "OO"]
    assert {entry.key for entry in loops[0].everything.kept} == {"O", "OCO", "OCOCO", "OO"}  # none of them is proposed again
    assert len(loops[0].memory) == 2


def test_it_ends_with_the_file_or_the_budget(file: str) -> None:
    whole, short = Ledger(key=molecule_key), Ledger(key=molecule_key, max_oracle_calls=2)
    memory = ScoredMemory()
    fill_memory(OXYGENS, whole, ScoredMemory(), file)
    fill_memory(OXYGENS, short, memory, file)
    assert (whole.calls, short.calls, len(memory)) == (4, 2, 2)


def test_the_methods_with_a_memory_take_it() -> None:
    assert {"grpo-memory", "tb-ga", "dap", "augmented-memory", "hill-climb", "graph-ga", "smiles-ga", "random-reward"} <= set(WARM)
    assert not {"grpo", "best-of-prior", "random", "local-search"} & set(WARM)


@pytest.mark.parametrize("name", WARM)
def test_each_begins_with_the_file(name: str, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Rounds] = []
    monkeypatch.setattr(Rounds, "run", lambda self: made.append(self))
    method = METHODS[name]
    warm = replace(method, settings={**method.settings, "warm_start": file, "warm_start_calls": 3})
    ledger = Ledger(key=molecule_key, max_oracle_calls=8)
    with contextlib.suppress(BudgetExhausted):
        warm(OXYGENS, policy_for(name), ledger, 0)
    assert ledger.history().keys[:3] == ("OO", "OCO", "OCOCO")
    assert ledger.sources()["file"] == 3
    for loop in made:
        assert {entry.key for entry in loop.memory.kept} == {entry.key for entry in loop.everything.kept} == {"OO", "OCO", "OCOCO"}
        assert {entry.source for entry in loop.memory.kept} == {"file"}


def test_a_row_depends_on_it(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "portable", lambda job: "a test")
    asked: dict[str, Any] = {"methods": ["graph-ga", "best-of-prior"], "policy": chains(), "seeds": [0]}
    asked |= {"budget": 125, "output_dir": tmp_path / "out", "warm_start": file, "warm_start_calls": 3}
    rows = {row["method"]: row for row in benchmark([OXYGENS], **asked).rows}
    assert (rows["graph-ga"]["calls"], rows["graph-ga"]["sources"]["file"]) == (125, 3)
    assert rows["best-of-prior"]["sources"] == {"policy": 125}
    assert rows["graph-ga"]["conditions"]["settings"]["warm_start_calls"] == 3
    assert len(rows["graph-ga"]["conditions"]["warm_start_sha256"]) == 16
    assert "warm_start_sha256" not in rows["best-of-prior"]["conditions"]
    Path(file).write_text("CO\n")
    with pytest.raises(ValueError, match=r"row of oxygens, graph-ga, seed 0 was made otherwise .warm_start_sha256 was"):
        benchmark([OXYGENS], **asked)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"warm_start": "none.smi"}, "warm_start: 'none.smi' does not exist, expected a SMILES file"),
        (
            {"warm_start": __file__, "methods": ["best-of-prior"]},
            "expected a method with a memory that it can fill, one of grpo-memory",
        ),
        ({"warm_start": __file__, "suite": [GRAPHS], "methods": ["dap"]}, "a SMILES file starts no search for graphs"),
        ({"warm_start": "none.txt"}, "warm_start: 'none.txt' holds no molecule, expected at least one SMILES string"),
        ({"warm_start_calls": 5}, "warm_start_calls: 5, expected none without a file to score (warm_start)"),
        ({"warm_start": __file__, "warm_start_calls": 0}, "warm_start_calls: 0, expected at least 1"),
        (
            {"warm_start": "known.smi", "warm_start_calls": 50, "budget": 150},
            "budget: 150, expected at least 170, the first population of graph-ga after a warm start of 50 calls",
        ),
    ],
)
def test_bad_input_is_one_line(request_: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("known.smi").write_text("CO\n")
    Path("none.txt").write_text("nope\nC(\n")
    given: dict[str, Any] = {"suite": [CARBONS], "methods": ["graph-ga", WALK], "budget": 1000, "output_dir": "nowhere"}
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make_plan(Request(**(given | request_)))
    assert said in str(caught.value)


def test_the_command_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "pmo", "--tasks=qed", "--methods=graph-ga", "--warm_start=none.smi", "--warm_start_calls=5"]) == 2
    assert capsys.readouterr().err == ("discrete-grpo: error: warm_start: 'none.smi' does not exist, expected a SMILES file\n")
