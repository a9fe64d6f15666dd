"""Random search over the settings of a baseline of ``discrete-grpo benchmark pmo``.

    python -m benchmarks.tuning --method graph-ga --trials 50 --jobs 2   # -> results/tuning_graph_ga.json, about 40 minutes

The tasks are the three on which the settings of ``grpo-memory`` were chosen. Trial 0 has the settings of the benchmark; the others
are drawn evenly from the lists in ``CHOICES``, and no settings come twice. All of them run with one seed. Then the best few, and
trial 0, run with two more seeds, and the settings with the highest mean over the three seeds are the best. None of these seeds is
one of the tables. Rows are kept in ``--output_dir``, and the same command goes on where it was stopped. A trial with a job that
failed is left out and named in the result.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, stamp, write_result
from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods import METHODS
from discrete_grpo.benchmarking.runner import benchmark
from discrete_grpo.runs.console import print_table

SOURCES = (
    "discrete_grpo/benchmarking/methods/genetic.py",
    "discrete_grpo/benchmarking/methods/tb_ga.py",
    "discrete_grpo/recipes/proposers.py",
    "discrete_grpo/training/memory.py",
    "discrete_grpo/rewards/pmo.py",
    "discrete_grpo/rewards/scoring_parts.py",
    "discrete_grpo/domains/molecule_operators.py",
    "discrete_grpo/domains/smiles_grammar.py",
)
TASKS = ("zaleplon_mpo", "perindopril_mpo", "median1")
SEEDS = (100, 101, 102)
"""The first is that of all trials, the others are those of the best few."""
CHOICES: Mapping[str, Mapping[str, Sequence[float]]] = {
    "graph-ga": {
        "population": (20, 50, 120, 250, 500),
        "offspring": (10, 20, 35, 70, 140, 300),
        "mutation_rate": (0.01, 0.067, 0.2, 0.5, 0.8, 1.0),
        "rank_coefficient": (0.001, 0.01, 0.03, 0.1, 0.3, 1.0),
    },
    "smiles-ga": {"population": (10, 20, 50, 100, 200, 400), "offspring": (10, 20, 50, 100, 200, 400)},
    "tb-ga": {
        "beta": (25.0, 50.0, 100.0),
        "kl_coef": (0.001, 0.01),
        "mutation_rate": (0.01, 0.067, 0.3),
        "draws": (32, 64),
        "children": (8, 16, 32),
        "learning_rate": (2e-4, 5e-4, 1e-3),
    },
}


def trials_of(method: Method, count: int, seed: int) -> list[Method]:
    """The method with ``count`` settings, all different, its own first; each has the number of its trial in its name.

    Raises:
        ValueError: if there are not as many different settings, or the method has no lists of choices.
    """
    if method.name not in CHOICES:
        raise ValueError(f"method: {method.name!r}, expected one of {', '.join(CHOICES)}")
    choices, chance = CHOICES[method.name], random.Random(seed)
    most = 1
    for values in choices.values():
        most *= len(values)
    if not 1 <= count <= most:
        raise ValueError(f"trials: {count}, expected 1 to {most} of {method.name}")
    found = [dict(method.settings)]
    while len(found) < count:
        drawn = {**method.settings, **{name: chance.choice(values) for name, values in choices.items()}}
        if drawn not in found:
            found.append(drawn)
    return [_trial(method, k, settings) for k, settings in enumerate(found)]


def _trial(method: Method, number: int, settings: dict[str, Any]) -> Method:
    least = max(method.least_budget, int(settings.get("population", 0)))
    return replace(method, name=f"{method.name}-{number:02d}", settings=settings, least_budget=least)


def sums(rows: Sequence[Mapping[str, Any]], name: str, seeds: Sequence[int]) -> list[float]:
    """Sum of AUC top-10 over the tasks, per seed; empty where a row is missing, since its job failed."""
    found = {(row["task"], row["seed"]): row["auc_top10"] for row in rows if row["method"] == name}
    if any((task, seed) not in found for task in TASKS for seed in seeds):
        return []
    return [sum(found[task, seed] for task in TASKS) for seed in seeds]


def search(method: Method, trials: int, again: int, budget: int, seed: int, jobs: int, folder: Path) -> dict[str, Any]:
    """Settings of every trial with their sums, the best of those that ran with three seeds, and names of trials that lack rows.

    Raises:
        ValueError: if no trial has all its rows.
    """
    methods = trials_of(method, trials, seed)
    common: dict[str, Any] = {"tasks": TASKS, "budget": budget, "jobs": jobs, "output_dir": folder}
    rows = benchmark("pmo", methods=methods, seeds=SEEDS[:1], **common).rows
    finalists = list({m.name: m for m in [methods[0], *_ranked(methods, rows)[:again]]}.values())
    rows = benchmark("pmo", methods=finalists, seeds=SEEDS, **common).rows
    told: list[dict[str, Any]] = []
    for one in _ranked(methods, rows):
        found = (sums(rows, one.name, SEEDS) if one in finalists else []) or sums(rows, one.name, SEEDS[:1])
        settings = {name: one.settings[name] for name in CHOICES[method.name]}
        told.append({"trial": one.name, "settings": settings, "sums": [round(s, 4) for s in found]})
    full = [t for t in told if len(t["sums"]) == len(SEEDS)]
    if not full:
        raise ValueError(
            f"trials: none of {len(methods)} has rows of all tasks and seeds in {folder}; the same command runs them again"
        )
    result = {"method": method.name, "tasks": TASKS, "budget": budget, "trials": told}
    result["best"] = max(full, key=lambda t: statistics.mean(t["sums"]))
    result["incomplete"] = [m.name for m in methods if not sums(rows, m.name, SEEDS if m in finalists else SEEDS[:1])]
    return result | {"cpu_seconds": round(sum(row["cpu_seconds"] for row in rows))}


def _ranked(methods: Sequence[Method], rows: Sequence[Mapping[str, Any]]) -> list[Method]:
    """The methods that have all rows of the first seed, best first."""
    found = {m.name: sums(rows, m.name, SEEDS[:1]) for m in methods}
    return sorted((m for m in methods if found[m.name]), key=lambda m: -found[m.name][0])


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Search, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--method", default="graph-ga", choices=sorted(CHOICES))
    parser.add_argument("--trials", type=int, default=50, help="number of settings, the benchmark's own among them")
    parser.add_argument("--again", type=int, default=5, help="how many of the best run with three seeds")
    parser.add_argument("--budget", type=int, default=10_000, help="oracle calls of a row")
    parser.add_argument("--seed", type=int, default=0, help="of the draws of settings")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output_dir", type=Path, default=None, help="folder of the rows; runs/tuning/METHOD unless given")
    parser.add_argument("--out", type=Path, default=None, help="result; benchmarks/results/tuning_METHOD.json unless given")
    given = parser.parse_args(argv)
    if given.again < 0:
        parser.error(f"--again: {given.again}, expected 0 or more")
    folder = given.output_dir or ROOT / "runs" / "tuning" / given.method
    found = search(METHODS[given.method], given.trials, given.again, given.budget, given.seed, given.jobs, folder)
    shown = {t["trial"]: {**t["settings"], "sum": statistics.mean(t["sums"]), "seeds": len(t["sums"])} for t in found["trials"]}
    print_table(f"sum of AUC top-10 on {', '.join(TASKS)}", shown)
    if found["incomplete"]:
        print(f"left out, since jobs failed: {', '.join(found['incomplete'])}")
    out = given.out or ROOT / "benchmarks/results" / f"tuning_{given.method.replace('-', '_')}.json"
    result = stamp(given.seed, sources=SOURCES) | found
    write_result(out, result)
    return result


if __name__ == "__main__":
    main()
