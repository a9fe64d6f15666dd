"""The table of a benchmark as Markdown."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.results_page import BLOCK, PAGE, with_tables
from discrete_grpo.benchmarking.markdown import markdown_table, write_markdown
from discrete_grpo.benchmarking.results import Results
from tests.benchmarking.test_page import about, row


def test_cells_sums_and_published_columns(tmp_path: Path) -> None:
    rows = (row("one", "m0", 0, 0.25), row("one", "m0", 1, 0.75), row("two", "m0", 0, 1.0), row("one", "m1", 0, 0.5))
    told = about() | {"budget": 10_000, "methods": {name: about()["methods"][name] for name in ("m0", "m1")}}
    results = Results(tmp_path, told, rows, ({**row("two", "m1", 0, 0.0), "error": "no"},))
    assert markdown_table(results).splitlines() == [
        "| task | m0 | m1 |",
        "| --- | --- | --- |",
        "| one | **0.500 ± 0.354** | **0.500 (1 of 2 seeds)** |",
        "| two | 1.000 (1 of 2 seeds) | failed |",
        "| sum (tasks) | 0.500 ± 0.354 (1) | – (0) |",
        "",
        "| task | m0 (here) | REINVENT | GenMol* |",
        "| --- | --- | --- | --- |",
        "| one | 0.500 ± 0.354 | 0.500 | 0.900 |",
        "| two | 1.000 (1 of 2 seeds) | – | – |",
        "| sum (tasks) | 0.500 ± 0.354 (1) | 0.500 (1) | 0.900 (1) |",
    ]
    head, said, table = write_markdown(results).read_text(encoding="utf-8").split("\n\n", 2)
    assert (head, table) == (f"# {told['suite']}", markdown_table(results))
    assert said.startswith("AUC top-10 within 10,000 calls, seeds 0, 1. ")
    assert "Those with * scored a data set" in said


def test_a_number_that_no_row_has_is_refused(tmp_path: Path) -> None:
    results = Results(tmp_path, about(), (row("one", "m0", 0, 0.25) | {"sources": {"policy": 3}, "guacamol_score": None},), ())
    assert results.table().cells["one", "m0"].mean == 0.25
    assert results.table("guacamol_score").cells["one", "m0"].mean is None
    with pytest.raises(ValueError, match=r"^number: 'auc_top_10' is no number of the rows; did you mean 'auc_top10'\? known: "):
        results.table("auc_top_10")
    with pytest.raises(ValueError, match=r"^number: 'sources' is no number of the rows; "):
        results.table("sources")


def test_the_largest_known_score_has_a_column(tmp_path: Path) -> None:
    told = about() | {"methods": {"m0": about()["methods"]["m0"]}}
    told["tasks"]["one"]["optimum"] = 0.6031
    assert markdown_table(Results(tmp_path, told, (row("one", "m0", 0, 0.25),), ())).splitlines() == [
        "| task | m0 | largest score |",
        "| --- | --- | --- |",
        "| one | 0.250 (1 of 2 seeds) | 0.603 |",
        "| two | missing | 1.000 |",
        "| sum (tasks) | – (0) | – |",
    ]


def test_rows_of_another_budget_stand_alone(tmp_path: Path) -> None:
    told = about() | {"budget": 50, "seeds": [0]}
    text = write_markdown(Results(tmp_path, told, (row("one", "m0", 0, 0.25),), ())).read_text(encoding="utf-8")
    assert "within 50 calls, seed 0. " in text
    assert "REINVENT" not in text
    assert "published" not in text


def test_the_tables_of_the_results_page_are_those_of_the_rows() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert BLOCK.search(page)
    assert with_tables(page) == page
