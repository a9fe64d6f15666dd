"""The page of a benchmark: one self-contained HTML file with sums, tables, curves, the best samples and the circumstances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from discrete_grpo.benchmarking.results import Results
from discrete_grpo.benchmarking.suites import SUITES
from discrete_grpo.benchmarking.table import (
    PUBLISHED_BUDGET,
    Cell,
    Table,
    cell_text,
    column_name,
    known_optima,
    mean_and_spread,
    published_rows,
    seed_text,
    seeds_of,
    total_text,
)
from discrete_grpo.core.atomic import atomic_write
from discrete_grpo.runs.report.charts import Line, line_chart
from discrete_grpo.runs.report.formatting import chart_card, format_value
from discrete_grpo.runs.report.graphs import render_graph
from discrete_grpo.runs.report.molecules import render_smiles
from discrete_grpo.runs.report.page import page

__all__ = ["write_page"]

MOST_CURVES = 8
"""Largest number of curves per chart, as further ones would have no distinct colours."""
DRAWN = 4
"""Best samples that are drawn of each task."""
NUMBERS = {
    "auc_top1": "AUC top-1",
    "auc_top100": "AUC top-100",
    "top1": "best",
    "top10": "mean of the best 10",
    "top100": "mean of the best 100",
    "diversity_top100": "diversity of the best 100",
    "sa_top10": "SA of the best 10",
    "calls": "calls",
    "valid_share": "valid (share)",
    "wall_seconds": "wall time (s)",
    "cpu_seconds": "processor time (s)",
}
"""Further numbers of the rows and their headings."""


def write_page(results: Results) -> Path:
    """Write ``results.html`` into the folder of a benchmark."""
    about, table = results.about, results.table()
    title = f"Benchmark {about['suite']}"
    sections = [
        f"<header><h1>{escape(title)}</h1>{_introduction(results)}</header>",
        _sums(table, about),
        _tasks(table, about),
        _failures(results),
        _published(table, about),
        _curves(table, results),
        _numbers(table, results),
        _best(results),
        _methods(about),
        _circumstances(about),
    ]
    with atomic_write(results.page, "w") as file:
        file.write(page(title, "\n".join(part for part in sections if part)))
    return results.page


def _introduction(results: Results) -> str:
    about = results.about
    asked = {method: seeds_of(about, method) for method in about["methods"]}
    wanted = len(about["tasks"]) * sum(map(len, asked.values()))
    fewer = [column_name(about, method) for method in asked if len(asked[method]) < len(about["seeds"])]
    seeds = f"each with the {seed_text(about['seeds'])}" + (f", but {', '.join(fewer)}" if fewer else "")
    tiles = (
        ("rows", f"{len(results.rows)}", f"of {wanted}, {len(results.failed)} failed"),
        ("tasks", f"{len(about['tasks'])}", f"suite {about['suite']}"),
        ("methods", f"{len(about['methods'])}", seeds),
        ("calls per row", f"{about['budget']:,}", "different valid samples scored, whatever for"),
    )
    cards = "".join(
        f'<div class="card"><dt>{escape(a)}</dt><dd>{escape(b)}<small>{escape(c)}</small></dd></div>' for a, b, c in tiles
    )
    return f'<dl class="tiles" id="summary">{cards}</dl>'


# -- tables


def _html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of safe HTML; the first cell of a row is its heading."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join(f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>' for first, *rest in rows)
    return f'<div class="card scroll" tabindex="0"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _sentence(text: str) -> str:
    """Text in a cell that may be wrapped."""
    return f'<span style="display:inline-block;white-space:normal;min-width:15em;max-width:24em">{escape(text)}</span>'


def _section(ident: str, title: str, note: str, body: str) -> str:
    told = f'<p class="note">{note}</p>' if note else ""
    return f'<section id="{ident}"><h2>{escape(title)}</h2>{told}{body}</section>'


def _sums(table: Table, about: Mapping[str, Any]) -> str:
    """Methods by the sum over their tasks, and by mean rank."""
    count = len(table.common)
    note = (
        "AUC top-10: area under the curve of the mean of the ten best scores against calls, divided by the budget. "
        "± is the sample standard deviation over seeds. A sum holds only tasks that every seed of the method finished, and the "
        "number of these tasks stands in brackets; nothing is filled in."
    )
    order = sorted(table.methods, key=lambda m: (-table.totals[m].tasks, -(table.totals[m].mean or 0.0)))
    rows = [
        (
            escape(column_name(about, method)),
            escape(total_text(table.totals[method])),
            escape(total_text(table.common_totals[method])),
            format_value(table.ranks[method]),
            _sentence(about["methods"][method].get("uncounted") or "–"),
        )
        for method in order
    ]
    common = f"sum over the {count} common tasks" if count != 1 else "sum over the common task"
    head = ("method", "sum (tasks)", common, "mean rank on these", "what its calls leave out")
    return _section("sums", "Sums and ranks", note, _html_table(head, rows))


def _tasks(table: Table, about: Mapping[str, Any]) -> str:
    """AUC top-10 by task and method, the best mean of a task in bold."""
    rows, optima = [], known_optima(about)
    for task in table.tasks:
        cells = [_cell(table.cells[task, method], table.best(task)) for method in table.methods]
        rows.append((escape(task), *cells, *([optima[task]] if optima else [])))
    names = [escape(column_name(about, method)) for method in table.methods] + (["largest score"] if optima else [])
    return _section("tasks", "AUC top-10 by task", "", _html_table(("task", *names), rows))


def _cell(cell: Cell, best: float | None) -> str:
    text = escape(cell_text(cell))
    title = f' title="{escape("; ".join(cell.failures))}"' if cell.failures else ""
    return f"<span{title}><b>{text}</b></span>" if cell.mean is not None and cell.mean == best else f"<span{title}>{text}</span>"


def _failures(results: Results) -> str:
    if not results.failed:
        return ""
    rows = [(escape(row["task"]), escape(row["method"]), str(row["seed"]), escape(row["error"])) for row in results.failed]
    return _section("failures", "Jobs that failed", "", _html_table(("task", "method", "seed", "reason"), rows))


def _published(table: Table, about: Mapping[str, Any]) -> str:
    """Published sums beside those of this benchmark over the same tasks, and the calls that they did not count."""
    published = published_rows(about)
    if not published:
        return ""
    ours = [m for m in table.methods if table.totals[m].tasks]
    rows = []
    for one in published:
        cells = [_beside(table, method, one.scores) for method in ours]
        rows.append((escape(one.name), total_text(one.total(table.tasks)), _sentence(one.uncounted), *cells))
    note = (
        f"Sums of AUC top-10 within {PUBLISHED_BUDGET:,} calls as published, over the tasks of this table, and the difference of "
        "each of our methods to them over the tasks that it finished with every seed. * prescreened."
    )
    if about["budget"] != PUBLISHED_BUDGET:
        note += f" <b>The rows here have a budget of {about['budget']:,}, so the differences compare unequal things.</b>"
    head = ("published", "sum (tasks)", "what they did not count", *(f"{escape(method)} − it" for method in ours))
    details = [
        (escape(task), *(format_value(one.scores.get(task)) for one in published))
        for task in table.tasks
        if any(task in one.scores for one in published)
    ]
    by_task = _html_table(("task", *(escape(one.name) for one in published)), details)
    body = _html_table(head, rows) + f"<details><summary>Published, by task</summary>{by_task}</details>"
    return _section("published", "Published results", note, body)


def _beside(table: Table, method: str, scores: Mapping[str, float]) -> str:
    """The difference of a method to published scores, over the tasks that both have in full."""
    both = [task for task in table.tasks if task in scores and table.cells[task, method].complete]
    difference = sum((table.cells[task, method].mean or 0.0) - scores[task] for task in both)
    return f"{difference:+.3f} ({len(both)})".replace("-", "−") if both else "–"


def _numbers(table: Table, results: Results) -> str:
    """Means of the other numbers of the rows over all tasks, and calls by source."""
    rows = []
    suite = SUITES.get(results.about["suite"])
    numbers = NUMBERS if suite is None else {**suite.numbers, **NUMBERS}
    for method in table.methods:
        own = [row for row in results.rows if row["method"] == method]
        means = [mean_and_spread([float(row[name]) for row in own if row.get(name) is not None])[0] for name in numbers]
        rows.append((escape(method), *map(format_value, means), escape(_sources(own))))
    note = "Means over all finished rows of a method, so methods with different tasks do not compare. SA: 1 (easy) to 10."
    return _section("numbers", "Further numbers", note, _html_table(("method", *numbers.values(), "calls by source"), rows))


def _sources(rows: Sequence[Mapping[str, Any]]) -> str:
    """Shares of the calls by source over several rows."""
    total: dict[str, int] = {}
    for row in rows:
        for name, count in row["sources"].items():
            total[name or "not said"] = total.get(name or "not said", 0) + count
    whole = sum(total.values())
    return ", ".join(f"{name} {100 * count / whole:.0f} %" for name, count in sorted(total.items(), key=lambda one: -one[1]))


# -- pictures


def _curves(table: Table, results: Results) -> str:
    """The mean of the ten best scores against calls, one chart per task; a method has the same colour in all."""
    place = {method: k for k, method in enumerate(table.methods)}
    best = sorted(table.methods, key=lambda m: (-table.totals[m].tasks, -(table.totals[m].mean or 0.0), place[m]))[:MOST_CURVES]
    shown = sorted(best, key=lambda method: place[method])
    cards = []
    for k, task in enumerate(table.tasks):
        lines = [_line(method, [r for r in results.rows if (r["task"], r["method"]) == (task, method)]) for method in shown]
        known = [value for line in lines for value in line.y if value is not None]
        if known:
            svg = line_chart(
                lines,
                ident=f"curve-{k}",
                title=task,
                x_label="oracle calls",
                y_label="mean of the best 10",
                y_range=(min(0.0, *known), max(*known, 1e-3)),
            )
            cards.append(chart_card(task, svg))
    if not cards:
        return ""
    note = "Mean over seeds; the band is the sample standard deviation. After its last call a method keeps its value."
    if len(table.methods) > MOST_CURVES:
        note += f" The {MOST_CURVES} methods with the largest sums are drawn."
    return _section("curves", "Best ten against calls", note, f'<div class="grid">{"".join(cards)}</div>')


def _line(method: str, rows: Sequence[Mapping[str, Any]]) -> Line:
    """The curve of a method over the seeds that finished; without any, a curve without points that keeps the colours in order."""
    if not rows:
        return Line(method, [0.0], [None])
    points = [dict(row["curve"]) for row in rows]
    places = sorted(set.intersection(*(set(one) for one in points)))
    values = [mean_and_spread([one[place] for one in points]) for place in places]
    spread = [s for _, s in values] if len(rows) > 1 else None
    return Line(method, places, [mean for mean, _ in values], spread)


def _best(results: Results) -> str:
    """The best different samples of each task over all methods and seeds, drawn."""
    parts = []
    for task, facts in results.about["tasks"].items():
        found: dict[str, tuple[float, str]] = {}
        for row in (row for row in results.rows if row["task"] == task):
            for sample, score in row["best"]:
                if sample not in found or score > found[sample][0]:
                    found[sample] = (score, row["method"])
        top = sorted(found, key=lambda sample: -found[sample][0])[:DRAWN]
        cards = "".join(_card(sample, *found[sample], facts.get("kind", "molecules")) for sample in top)
        if cards:
            optimum = facts.get("optimum")
            known = "" if optimum is None else f" Largest known score: {format_value(float(optimum))}."
            note = escape(f"{facts['about']}.{known}")
            parts.append(f'<h3>{escape(task)}</h3><p class="note">{note}</p><div class="grid">{cards}</div>')
    return f'<section id="samples"><h2>Best samples</h2>{"".join(parts)}</section>' if parts else ""


def _card(sample: str, score: float, method: str, kind: str) -> str:
    picture = render_smiles(sample) if kind == "molecules" else render_graph(sample) if kind == "graphs" else None
    text = escape(sample)
    shown = picture or f'<div class="text">{text}</div>'
    return (
        f'<figure class="card">{shown}<figcaption><b>{format_value(score)}</b>{escape(method)}'
        f'<code title="{text}">{text}</code></figcaption></figure>'
    )


# -- how it was made


def _methods(about: Mapping[str, Any]) -> str:
    rows = []
    for name, facts in about["methods"].items():
        settings = ", ".join(f"{key} {value}" for key, value in facts["settings"].items() if value is not None) or "–"
        rows.append((escape(name), escape(facts["about"]), escape(facts["source"] or "–"), escape(settings)))
    table = _html_table(("method", "about", "source", "settings"), rows)
    return f'<section id="methods"><h2>Methods and their settings</h2>{_wrapping(table)}</section>'


def _wrapping(table: str) -> str:
    """A table whose cells hold sentences."""
    return f'<div id="examples">{table}</div>'


def _circumstances(about: Mapping[str, Any]) -> str:
    """Policies, commands, versions and machine."""
    policies = [
        f"policy {one['name']}: {one['parameters']:,} parameters, trained on {one['data'] or 'data that its file does not name'} "
        f"(sha256 {one['sha256']})"
        for one in about["policies"].values()
    ]
    tasks = [f"{name}: {facts['settings']}" for name, facts in about["tasks"].items() if facts.get("settings")]
    runs = []
    for run in about["runs"]:
        commit = f", commit {run['commit']}" if run.get("commit") else ""
        versions = f"discrete-grpo {run['version']}{commit}; Python {run['python']}, torch {run['torch']}, RDKit {run['rdkit']}"
        machine = f"{run['processor']}, {run['cores']} cores, {run['system']}"
        runs.append(f"{run['date']}\n  {run['command']}\n  {versions}\n  {machine}")
    text = "\n".join([*policies, *tasks, "", *dict.fromkeys(runs)])
    return f'<section id="circumstances"><h2>How it was made</h2><pre class="card">{escape(text)}</pre></section>'
