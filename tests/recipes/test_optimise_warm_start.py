"""``optimise`` from a file of known molecules: they are scored first, shown, and lines that are none are named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.cli import main
from discrete_grpo.recipes.grpo_memory import fill_memory
from discrete_grpo.rewards.ledger import Ledger, molecule_key
from discrete_grpo.training.memory import ScoredMemory
from tests.recipes.optimise_parts import run


def test_a_file_is_scored_first(tmp_path: Path) -> None:
    (tmp_path / "known.smi").write_text("OCOCO\nOO\nOCO\n")
    found = run(tmp_path / "run", budget=30, warm_start=str(tmp_path / "known.smi"), warm_start_calls=2)
    assert found.sources["file"] == 2
    assert found.calls == 30


def test_lines_of_a_warm_start_that_are_no_molecules_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known, none = tmp_path / "known.smi", tmp_path / "none.smi"
    known.write_text("OCOCO\nO(\nOO\nnope\n")
    none.write_text("O(\nnope\n")
    run(tmp_path / "run", budget=30, warm_start=str(known))
    assert "warm_start: 2 lines are no molecules, such as 'O(' (line 2)" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"^warm_start: '.*none.smi' holds no molecule, expected at least one SMILES string$"):
        run(tmp_path / "other", budget=30, warm_start=str(none))
    assert not (tmp_path / "other").exists()


def test_the_report_shows_the_molecules_of_a_warm_start_and_speaks_of_rounds(tmp_path: Path) -> None:
    (tmp_path / "known.smi").write_text("OOOOOOOOOOOO\n")
    found = run(tmp_path / "run", budget=30, warm_start=str(tmp_path / "known.smi"))
    assert found.best[0].source == "file"
    page = (tmp_path / "run" / "report.html").read_text()
    samples = page[page.index('id="samples"') :]
    assert re.search(r"<b>1\.5\d*</b>file", samples)
    assert "</b>round 1" in samples
    assert "update" not in re.sub(r"<[^>]*>", "", page[: page.index('id="samples"')]).lower()


def test_a_run_whose_warm_start_used_the_budget_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "known.smi").write_text("OOOO\nOCO\nOO\n")
    run(tmp_path / "run", budget=3, warm_start=str(tmp_path / "known.smi"))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    (tmp_path / "run" / "report.html").unlink()
    assert main(["report", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_repeated_molecule_takes_no_place_among_the_first_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "start.smi"
    file.write_text("CCO\nOCC\nCCO\nCC\nC\n")

    def size(samples: list[str], **columns: Any) -> list[float]:
        return [float(len(sample)) for sample in samples]

    ledger, memory = Ledger(key=molecule_key), ScoredMemory()
    assert fill_memory(size, ledger, memory, str(file), calls=2) == []
    assert [entry.sample for entry in memory.kept] == ["CCO", "CC"]
    assert ledger.calls == 2
