"""Mean scores of the molecules that a method makes early and late in a row of the benchmark, and of the ten best up to there.

python -m benchmarks.score_curves benchmarks/results/pmo_graphs_10000 --every 1000
python -m benchmarks.score_curves benchmarks/results/docking_graphs --sources_after 200   # by who proposed them, from call 201 on
python -m benchmarks.score_curves benchmarks/results/docking --above 10   # how many score above 10

It reads ``calls.csv.gz`` of the rows of a folder of ``discrete-grpo benchmark`` and prints a Markdown table. A mean that rises says
that the method makes better molecules; the ten best also rise where it only makes more of them. Calls whose score is unknown, as
of failed dockings, are in no mean.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from discrete_grpo.core.checks import check_whole

__all__ = ["above_table", "mean", "parts", "source_table", "table"]


def mean(scores: Sequence[float | None]) -> float:
    """Mean of the scores that are known; NaN without any."""
    known = [score for score in scores if score is not None]
    return sum(known) / len(known) if known else math.nan


def parts(scores: Sequence[float | None], every: int) -> Iterator[tuple[float, float]]:
    """For each ``every`` calls the mean of their scores, and the mean of the ten best scores of all calls up to their end.

    >>> list(parts([1.0, 2.0, 3.0, None], 2))
    [(1.5, 1.5), (3.0, 2.0)]
    """
    check_whole("every", every, least=1)
    for first in range(0, len(scores), every):
        yield mean(scores[first : first + every]), mean(sorted(s for s in scores[: first + every] if s is not None)[-10:])


def table(folder: Path, every: int) -> str:
    """A Markdown table with a row per method, task and seed whose calls were kept.

    Raises:
        FileNotFoundError: if the folder has no calls.
    """
    lines = []
    for names, calls in _rows(folder):
        found = parts([score for score, _ in calls], every)
        lines.append([*names, *(f"{average:.3f}, {best:.3f}" for average, best in found)])
    most = max(map(len, lines))
    return _markdown([f"to call {every * k:,}" for k in range(1, most - 2)], lines)


def source_table(folder: Path, after: int) -> str:
    """A Markdown table with a row per method, task, seed and source of molecules: number and mean score from call ``after`` + 1 on.

    Raises:
        FileNotFoundError: if the folder has no calls.
    """
    check_whole("sources_after", after, least=0)
    lines = []
    for names, calls in _rows(folder):
        for source in sorted({one for _, one in calls[after:]}):
            scores = [score for score, one in calls[after:] if one == source]
            lines.append([*names, source, str(len(scores)), f"{mean(scores):.3f}"])
    return _markdown(["source", "calls", "mean score"], lines)


def above_table(folder: Path, bound: float) -> str:
    """A Markdown table with a row per method, task and seed: number of calls with a score above ``bound``.

    Raises:
        FileNotFoundError: if the folder has no calls.
    """
    lines = [[*names, str(sum(s is not None and s > bound for s, _ in calls)), str(len(calls))] for names, calls in _rows(folder)]
    return _markdown([f"above {bound:g}", "calls"], lines)


def _rows(folder: Path) -> Iterator[tuple[list[str], list[tuple[float | None, str]]]]:
    """Task, method and seed of each row, with score and source of each of its calls."""
    files = sorted(folder.glob("jobs/*/*/*/*/calls.csv.gz"))
    if not files:
        raise FileNotFoundError(f"folder: {folder} has no calls.csv.gz of a row, expected a folder of discrete-grpo benchmark")
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8", newline="") as rows:
            calls = [(float(row["score"]) if row["score"] else None, row.get("source", "")) for row in csv.DictReader(rows)]
        yield list(file.parts[-4:-1]), calls


def _markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    names = ["task", "method", "seed", *heads]
    rows = [names, ["---"] * len(names), *([*line, *[""] * (len(names) - len(line))] for line in lines)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1000, help="number of calls per column, at least 1")
    parser.add_argument("--sources_after", type=int, help="print the mean score per source of the calls after this one instead")
    parser.add_argument("--above", type=float, help="print the number of calls with a score above this one instead")
    given = parser.parse_args(arguments)
    try:
        if given.above is not None:
            print(above_table(given.folder, given.above), end="")
        elif given.sources_after is not None:
            print(source_table(given.folder, given.sources_after), end="")
        else:
            print(table(given.folder, given.every), end="")
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
