"""The results in the folder of a benchmark: all rows, failed jobs, and the files made from them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from discrete_grpo.benchmarking.existing_rows import is_misplaced
from discrete_grpo.benchmarking.folder import FAILED, PAGE, PLAN, RESULTS, ROW, no_benchmark
from discrete_grpo.benchmarking.plan import Plan
from discrete_grpo.benchmarking.table import Table, cell_text, column_name, make_table, seed_text, total_text
from discrete_grpo.core.checks import did_you_mean
from discrete_grpo.core.json_files import read_json, write_json
from discrete_grpo.runs.console import print_notes, print_table

__all__ = ["Results", "note_run", "notes_on_misplaced", "read_results", "write_results"]

PAGE_ONLY = ("best", "curve", "conditions", "made")
"""Entries of a row that ``results.json`` leaves out; ``row.json`` has them."""


@dataclass(frozen=True)
class Results:
    """The rows of a benchmark.

    Attributes:
        folder: folder of the benchmark.
        about: suite, tasks, methods, policies, seeds and commands of all runs in the folder.
        rows: one mapping per finished job, as in its ``row.json``.
        failed: one mapping per job that failed, with its ``error``.
        failed_now: failed jobs that this call requested.
        misplaced: folder -> row or failure of another job that lies in it, as in a renamed folder; neither is among the others.
    """

    folder: Path
    about: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]
    failed: tuple[Mapping[str, Any], ...]
    failed_now: tuple[Mapping[str, Any], ...] = ()
    misplaced: Mapping[Path, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def page(self) -> Path:
        """The page with table and curves."""
        return self.folder / PAGE

    def table(self, number: str = "auc_top10") -> Table:
        """Mean and spread of an entry of the rows by task and method, with sums and ranks.

        Raises:
            ValueError: if no row has a number of that name; the nearest is named.
        """
        entries = [(name, value) for row in self.rows for name, value in row.items()]
        known = dict.fromkeys(name for name, value in entries if isinstance(value, int | float) and not isinstance(value, bool))
        if self.rows and number not in known and (number, None) not in entries:
            hint = f"{did_you_mean(number, known)} ".lstrip()
            raise ValueError(f"number: {number!r} is no number of the rows; {hint}known: {', '.join(known)}")
        return make_table(self.about, self.rows, self.failed, number)

    def print(self) -> None:
        """Print the table of the area under the curve of the ten best, and which jobs failed and why."""
        table = self.table()
        names = {method: column_name(self.about, method) for method in table.methods}
        shown = {task: {name: cell_text(table.cells[task, method]) for method, name in names.items()} for task in table.tasks}
        shown["sum (tasks)"] = {name: total_text(table.totals[method]) for method, name in names.items()}
        print_table(f"AUC top-10 within {self.about['budget']:,} calls, {seed_text(table.seeds)}", shown)
        print_notes(f"failed: {row['task']}, {row['method']}, seed {row['seed']}: {row['error']}" for row in self.failed)

    def __repr__(self) -> str:
        return f"Results({str(self.folder)!r}: {len(self.rows)} rows, {len(self.failed)} failed)"


def note_run(plan: Plan, command: str) -> None:
    """Add this run to ``benchmark.json``, which has the requests of all runs in the folder, in order, and each command."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    before = read_json(plan.folder / PLAN) or {}
    merged = dict(plan.about)
    for name in ("tasks", "methods", "policies"):
        merged[name] = {**before.get(name, {}), **plan.about[name]}
    for name, told in merged["methods"].items():
        known = before.get("methods", {}).get(name)
        asked = {*(known.get("seeds", before["seeds"]) if known is not None else ()), *_asked_now(plan, name)}
        merged["methods"][name] = {**told, "seeds": sorted(asked)}
    merged["seeds"] = sorted({*before.get("seeds", []), *plan.about["seeds"]})
    run = {"command": command, "date": now, **(plan.jobs[0].made if plan.jobs else {})}
    merged["runs"] = [*before.get("runs", []), run]
    write_json(plan.folder / PLAN, merged)


def _asked_now(plan: Plan, method: str) -> Sequence[int]:
    seeds: Sequence[int] = plan.about["seeds"]
    return seeds if method in plan.about["methods"] else ()


def read_results(folder: str | Path) -> Results:
    """All rows and failures in the folder of a benchmark.

    Raises:
        ValueError: if it holds no benchmark.
    """
    root = Path(folder)
    about = read_json(root / PLAN)
    if about is None:
        raise ValueError(no_benchmark(root))
    misplaced: dict[Path, Mapping[str, Any]] = {}
    rows, failed = (_rows(root, name, misplaced) for name in (ROW, FAILED))
    place = {kind: {name: k for k, name in enumerate(about.get(kind, {}))} for kind in ("tasks", "methods")}

    def order(row: Mapping[str, Any]) -> tuple[int, int, int]:
        return place["tasks"].get(row["task"], 10**6), place["methods"].get(row["method"], 10**6), int(row["seed"])

    return Results(root, about, tuple(sorted(rows, key=order)), tuple(sorted(failed, key=order)), misplaced=misplaced)


def _rows(root: Path, name: str, misplaced: dict[Path, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows in the files of a name; those in the folder of another job go to ``misplaced``."""
    found = {path.parent: row for path in sorted(root.glob(f"jobs/*/*/*/*/{name}")) if (row := read_json(path)) is not None}
    misplaced |= {folder: row for folder, row in found.items() if is_misplaced(row, folder)}
    return [row for folder, row in found.items() if folder not in misplaced]


def notes_on_misplaced(results: Results) -> list[str]:
    """Lines that name the rows that lie in the folder of another job, and are left out."""
    return [
        f"{folder}: holds the row of {row.get('task')}, {row.get('method')}, seed {row.get('seed')}, and is left out"
        for folder, row in results.misplaced.items()
    ]


def write_results(results: Results) -> Path:
    """Write ``results.json``: the circumstances, ``rows`` and ``failed``."""
    shown = ("suite", "task", "method", "seed", "budget", "error")
    rows = [
        {
            **{k: v for k, v in row.items() if k not in PAGE_ONLY},
            **{k: (row.get("made") or {}).get(k) for k in ("version", "commit")},
        }
        for row in results.rows
    ]
    last = results.about["runs"][-1]
    content = {
        **{name: last.get(name) for name in ("command", "date", "version", "commit", "python", "torch", "rdkit", "processor")},
        **{name: last.get(name) for name in ("cores", "system")},
        **results.about,
        "rows": rows,
        "failed": [{k: row[k] for k in shown} for row in results.failed],
    }
    path = results.folder / RESULTS
    write_json(path, content)
    return path
