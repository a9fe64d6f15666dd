"""The table of a benchmark as Markdown."""

from __future__ import annotations

from pathlib import Path

from benchmarks.results_page import BLOCK, PAGE, with_tables
from discrete_grpo.benchmarking.markdown import markdown_table, write_markdown
from discrete_grpo.benchmarking.results import Results
from tests.benchmarking.test_page import about, row


def test_cells_sums_and_published_columns(tmp_path: Path) -> None:
    rows = (row("one", "m0", 0, 0.25), row("one", "m0", 1, 0.75), row("two", "m0", 0, 1.0), row("one", "m1", 0, 0.5))
    told = about() | {"methods": {name: about()["methods"][name] for name in ("m0", "m1")}}
    results = Results(tmp_path, told, rows, ({**row("two", "m1", 0, 0.0), "error": "no"},))
    assert markdown_table(results).splitlines() == [
        "| task | m0 | m1 | REINVENT | GenMol* |",
        "| --- | --- | --- | --- | --- |",
        "| one | **0.500 ± 0.354** | **0.500 (1 of 2 seeds)** | 0.500 | 0.900 |",
        "| two | 1.000 (1 of 2 seeds) | failed | – | – |",
        "| sum (tasks) | 0.500 ± 0.354 (1) | – (0) | 0.500 (1) | 0.900 (1) |",
    ]
    assert write_markdown(results).read_text(encoding="utf-8") == markdown_table(results)


def test_the_tables_of_the_results_page_are_those_of_the_rows() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert BLOCK.search(page)
    assert with_tables(page) == page
