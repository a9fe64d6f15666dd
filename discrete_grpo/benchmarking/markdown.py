"""The table of a benchmark as Markdown, for a README or a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from discrete_grpo.benchmarking.folder import TABLE
from discrete_grpo.benchmarking.results import Results
from discrete_grpo.benchmarking.table import (
    PUBLISHED_BUDGET,
    Cell,
    Published,
    Table,
    cell_text,
    column_name,
    known_optima,
    published_rows,
    seed_text,
    total_text,
)
from discrete_grpo.core.atomic import atomic_write

__all__ = ["markdown_table", "write_markdown"]


def write_markdown(results: Results) -> Path:
    """Write ``results.md`` into the folder of a benchmark: what was measured, and the table."""
    about, path = results.about, results.folder / TABLE
    lines = [f"AUC top-10 within {about['budget']:,} calls, {seed_text(about['seeds'])}. Mean ± standard deviation over seeds."]
    if published := _comparable(about):
        lines.append(f"The second table has published rows of {PUBLISHED_BUDGET:,} calls, as their authors gave them.")
    if any(one.name.endswith("*") for one in published):
        lines.append("Those with * scored a data set before the first counted call.")
    with atomic_write(path, "w") as file:
        file.write(f"# {about['suite']}\n\n{' '.join(lines)}\n\n{markdown_table(results)}")
    return path


def _comparable(about: Mapping[str, Any]) -> list[Published]:
    """The published rows; none beside rows of another budget."""
    return published_rows(about) if about["budget"] == PUBLISHED_BUDGET else []


def markdown_table(results: Results) -> str:
    """AUC top-10 by task, one column per method with sums below; then the published methods beside the first of these.

    The best mean of a task is bold where several methods were run on it. Published numbers are those of their authors; ``*`` marks
    methods that prescreen. They are left out if the rows have another budget. The last column of the first table is the largest
    known score of a sample, where one other than 1 is known.
    """
    table, published = results.table(), _comparable(results.about)
    names = {method: column_name(results.about, method) for method in table.methods}
    tables = [_measured(table, names, known_optima(results.about))]
    if published:
        tables.append(_beside_published(table, names, published))
    return "\n".join(tables)


def _measured(table: Table, names: Mapping[str, str], optima: Mapping[str, str]) -> str:
    """The methods that were run."""
    rows = []
    for task in table.tasks:
        cells = [table.cells[task, method] for method in table.methods]
        rows.append([task, *(_text(cell, table.best(task)) for cell in cells), *([optima[task]] if optima else [])])
    rows.append(["sum (tasks)", *(total_text(table.totals[method]) for method in table.methods), *(["–"] if optima else [])])
    return _lines(["task", *names.values(), *(["largest score"] if optima else [])], rows)


def _beside_published(table: Table, names: Mapping[str, str], published: Sequence[Published]) -> str:
    """The published methods, and the first of the methods that were run."""
    first = table.methods[0]
    rows = []
    for task in table.tasks:
        known = [one.scores.get(task) for one in published]
        theirs = ["–" if score is None else f"{score:.3f}" for score in known]
        rows.append([task, cell_text(table.cells[task, first]), *theirs])
    totals = [table.totals[first], *(one.total(table.tasks) for one in published)]
    rows.append(["sum (tasks)", *map(total_text, totals)])
    return _lines(["task", f"{names[first]} (here)", *(one.name for one in published)], rows)


def _text(cell: Cell, best: float | None) -> str:
    return f"**{cell_text(cell)}**" if cell.mean is not None and cell.mean == best else cell_text(cell)


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"{_line(cells)}\n" for cells in (head, ["---"] * len(head), *rows))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
