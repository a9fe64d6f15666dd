"""The table of a benchmark: mean and spread per task and method, ranks, sums, and published results beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "PUBLISHED_BUDGET",
    "Cell",
    "Published",
    "Table",
    "Total",
    "cell_text",
    "column_name",
    "known_optima",
    "make_table",
    "mean_and_spread",
    "published_rows",
    "rank_methods",
    "seed_text",
    "seeds_of",
    "total_text",
]

Row = Mapping[str, Any]
SEARCH = "search of its settings"
PUBLISHED_BUDGET = 10_000
"""Calls of the published rows."""
PRESCREEN = f"scores of all of ZINC250k, made before the first counted call (prescreen); {SEARCH}"


@dataclass(frozen=True)
class Cell:
    """A method on a task.

    Attributes:
        mean: over the seeds that finished; None where none did.
        spread: sample standard deviation over the seeds; None for fewer than two.
        count: number of seeds that finished.
        wanted: number of requested seeds.
        failures: ``seed N: reason`` of each that failed.
    """

    mean: float | None
    spread: float | None
    count: int
    wanted: int
    failures: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every seed finished."""
        return self.count == self.wanted


@dataclass(frozen=True)
class Total:
    """The sum of a method over tasks that all its seeds finished; mean and spread over the seeds, None without such tasks."""

    mean: float | None
    spread: float | None
    tasks: int


@dataclass(frozen=True)
class Table:
    """One number of all rows, by task and method.

    Attributes:
        tasks: names in order.
        methods: names in order.
        seeds: all that were asked for.
        cells: (task, method) -> cell.
        totals: method -> sum over the tasks that all seeds of the method finished.
        common: the tasks that all seeds of all methods finished; a method that finished none is left out here.
        common_totals: method -> sum over these.
        ranks: method -> mean rank over these, 1 for the best; None without such tasks.
    """

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    cells: Mapping[tuple[str, str], Cell]
    totals: Mapping[str, Total]
    common: tuple[str, ...]
    common_totals: Mapping[str, Total]
    ranks: Mapping[str, float | None]

    def best(self, task: str) -> float | None:
        """The highest mean of a task; None where fewer than two methods have one, as there is nothing to compare then."""
        means = [cell.mean for method in self.methods if (cell := self.cells[task, method]).mean is not None]
        return max(means) if len(means) > 1 else None


@dataclass(frozen=True)
class Published:
    """A published method: its scores by task, and what its count of calls leaves out."""

    name: str
    scores: Mapping[str, float]
    uncounted: str

    def total(self, tasks: Sequence[str]) -> Total:
        """The sum of its scores over those of the tasks that it has."""
        scores = [self.scores[task] for task in tasks if task in self.scores]
        return Total(math.fsum(scores) if scores else None, None, len(scores))


def mean_and_spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation (n - 1); None where they are not defined.

    >>> mean_and_spread([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    if not values:
        return None, None
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def rank_methods(means: Mapping[str, float]) -> dict[str, float]:
    """Rank of each method, 1 for the highest mean; equal ones share the mean of their ranks.

    >>> rank_methods({"a": 0.5, "b": 0.9, "c": 0.5})
    {'a': 2.5, 'b': 1.0, 'c': 2.5}
    """
    return {
        name: 1.0 + sum(other > mine for other in means.values()) + (sum(other == mine for other in means.values()) - 1) / 2
        for name, mine in means.items()
    }


def seeds_of(about: Mapping[str, Any], method: str) -> tuple[int, ...]:
    """The seeds requested for a method, which may be fewer than those of the whole folder."""
    told = about["methods"]
    return tuple((told[method] if isinstance(told, Mapping) else {}).get("seeds", about["seeds"]))


def column_name(about: Mapping[str, Any], method: str) -> str:
    """The heading of a method's column, with its seeds if other methods have more.

    >>> column_name({"methods": {"a": {"seeds": [0]}, "b": {}}, "seeds": [0, 1]}, "a")
    'a (seed 0)'
    """
    seeds = seeds_of(about, method)
    return method if len(seeds) == len(about["seeds"]) else f"{method} ({seed_text(seeds)})"


def seed_text(seeds: Sequence[int]) -> str:
    """Seeds in words: ``seed 0``, or ``seeds 0, 1``."""
    return f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"


def make_table(about: Mapping[str, Any], rows: Sequence[Row], failed: Sequence[Row], number: str = "auc_top10") -> Table:
    """The table of one number of the rows.

    Args:
        about: tasks, methods and seeds that were asked for.
        rows: the finished jobs.
        failed: the jobs that failed.
        number: name of an entry of the rows.
    """
    tasks, methods, seeds = tuple(about["tasks"]), tuple(about["methods"]), tuple(about["seeds"])
    values: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        if row.get(number) is not None:
            values.setdefault((row["task"], row["method"]), {})[row["seed"]] = float(row[number])
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in failed:
        reasons.setdefault((row["task"], row["method"]), []).append(f"seed {row['seed']}: {row['error']}")
    asked, cells = {method: seeds_of(about, method) for method in methods}, {}
    for task, method in ((task, method) for task in tasks for method in methods):
        found = [value for seed, value in sorted(values.get((task, method), {}).items()) if seed in asked[method]]
        failures = tuple(reasons.get((task, method), ()))
        cells[task, method] = Cell(*mean_and_spread(found), len(found), len(asked[method]), failures)
    whole = {method: [task for task in tasks if cells[task, method].complete] for method in methods}
    compared = [method for method in methods if whole[method]]
    common = tuple(task for task in tasks if compared and all(task in whole[method] for method in compared))
    return Table(
        tasks,
        methods,
        seeds,
        cells,
        totals={method: _total(values, whole[method], method, asked[method]) for method in methods},
        common=common,
        common_totals={m: _total(values, common if m in compared else (), m, asked[m]) for m in methods},
        ranks=dict.fromkeys(methods) | _mean_ranks(cells, common, compared),
    )


def _total(values: Mapping[tuple[str, str], Mapping[int, float]], tasks: Sequence[str], method: str, seeds: Sequence[int]) -> Total:
    sums = [math.fsum(values[task, method][seed] for task in tasks) for seed in seeds] if tasks else []
    return Total(*mean_and_spread(sums), len(tasks))


def _mean_ranks(cells: Mapping[tuple[str, str], Cell], tasks: Sequence[str], methods: Sequence[str]) -> dict[str, float | None]:
    ranks = [rank_methods({method: cells[task, method].mean or 0.0 for method in methods}) for task in tasks]
    return {method: math.fsum(rank[method] for rank in ranks) / len(ranks) if ranks else None for method in methods}


def published_rows(about: Mapping[str, Any]) -> list[Published]:
    """The published methods of the tasks, sorted by their sum over the tasks they have; those that prescreen come last."""
    found = []
    for entry, mark, uncounted in (("published", "", SEARCH), ("published_prescreened", "*", PRESCREEN)):
        names = dict.fromkeys(name for task in about["tasks"].values() for name in task.get(entry, {}))
        made = [
            Published(
                f"{name}{mark}",
                {task: facts[entry][name] for task, facts in about["tasks"].items() if name in facts.get(entry, {})},
                uncounted,
            )
            for name in names
        ]
        found += sorted(made, key=lambda one: -math.fsum(one.scores.values()))
    return found


def known_optima(about: Mapping[str, Any]) -> dict[str, str]:
    """Task -> its largest known score, for a column beside the methods; empty where nothing but 1 is known.

    >>> known_optima({"tasks": {"a": {"optimum": 0.603}, "b": {"optimum": None}}})
    {'a': '0.603', 'b': '–'}
    >>> known_optima({"tasks": {"a": {"optimum": 1.0}}})
    {}
    """
    found = {task: facts.get("optimum") for task, facts in about["tasks"].items()}
    if not any(value not in (None, 1.0) for value in found.values()):
        return {}
    return {task: "–" if value is None else f"{value:.3f}" for task, value in found.items()}


def cell_text(cell: Cell) -> str:
    """Mean and spread of a cell with the number of seeds where not all finished; ``missing`` or ``failed`` without any.

    >>> cell_text(Cell(0.5, 0.01, 3, 3)), cell_text(Cell(0.5, None, 1, 3)), cell_text(Cell(None, None, 0, 3))
    ('0.500 ± 0.010', '0.500 (1 of 3 seeds)', 'missing')
    """
    if cell.mean is None:
        return "failed" if cell.failures else "missing"
    spread = "" if cell.spread is None else f" ± {cell.spread:.3f}"
    part = "" if cell.complete else f" ({cell.count} of {cell.wanted} seeds)"
    return f"{cell.mean:.3f}{spread}{part}"


def total_text(total: Total) -> str:
    """A sum with its spread and the number of tasks in it.

    >>> total_text(Total(1.5, 0.1, 3)), total_text(Total(None, None, 0))
    ('1.500 ± 0.100 (3)', '– (0)')
    """
    spread = "" if total.spread is None else f" ± {total.spread:.3f}"
    return "– (0)" if total.mean is None else f"{total.mean:.3f}{spread} ({total.tasks})"
