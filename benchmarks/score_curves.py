"""Mean scores of the molecules that a method makes early and late in a row of the benchmark, and of the ten best up to there.

python -m benchmarks.score_curves benchmarks/results/pmo_graphs_10000 --every 1000

It reads ``calls.csv.gz`` of the rows of a folder of ``discrete-grpo benchmark`` and prints a Markdown table. A mean that rises says
that the method makes better molecules; the ten best also rise where it only makes more of them.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path

from discrete_grpo.core.checks import check_whole

__all__ = ["parts", "table"]


def parts(scores: Sequence[float], every: int) -> Iterator[tuple[float, float]]:
    """For each ``every`` calls the mean of their scores, and the mean of the ten best scores of all calls up to their end.

    >>> list(parts([1.0, 2.0, 3.0, 0.0], 2))
    [(1.5, 1.5), (1.5, 1.5)]
    """
    check_whole("every", every, least=1)
    for first in range(0, len(scores), every):
        part, best = scores[first : first + every], sorted(scores[: first + every])[-10:]
        yield sum(part) / len(part), sum(best) / len(best)


def table(folder: Path, every: int) -> str:
    """A Markdown table with a row per method, task and seed whose calls were kept.

    Raises:
        FileNotFoundError: if the folder has no calls.
    """
    files = sorted(folder.glob("jobs/*/*/*/*/calls.csv.gz"))
    if not files:
        raise FileNotFoundError(f"folder: {folder} has no calls.csv.gz of a row, expected a folder of discrete-grpo benchmark")
    lines = []
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8", newline="") as rows:
            scores = [float(row["score"]) for row in csv.DictReader(rows)]
        task, method, seed = file.parts[-4:-1]
        cells = [f"{mean:.3f}, {best:.3f}" for mean, best in parts(scores, every)]
        lines.append([task, method, seed, *cells])
    most = max(map(len, lines))
    heads = ["task", "method", "seed", *(f"to call {every * k:,}" for k in range(1, most - 2))]
    rows = [heads, ["---"] * most, *(line + [""] * (most - len(line)) for line in lines)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1000, help="number of calls per column, at least 1")
    given = parser.parse_args(arguments)
    try:
        print(table(given.folder, given.every), end="")
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
