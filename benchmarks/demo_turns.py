"""Run ``train demo`` of two commits in turns, seed by seed, and compare their times and rewards.

    git worktree add ../earlier d78382d                            # the commit to compare with
    python -m benchmarks.demo_turns --earlier ../earlier           # -> results/demo_turns.json

Both run as processes of their own with the same interpreter and the same number of threads. Which of the two runs first changes
from seed to seed, and both are compiled to bytecode beforehand. The seconds are those of the whole command: start, both
evaluations, training and report.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, paired_ratio, stamp, write_result
from benchmarks.presets import SOURCES, run
from discrete_grpo.runs.console import print_table

CLOCKS = ("seconds", "processor_seconds")


def commit_of(root: Path) -> str:
    """The commit of a checkout other than this one, marked where files of it have changed.

    Raises:
        ValueError: for a folder that is this checkout, or a part of it.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    if Path(git("rev-parse", "--show-toplevel")).resolve() == ROOT.resolve():
        raise ValueError(f"earlier: {root} belongs to this checkout, expected one of another commit")
    return git("rev-parse", "HEAD") + (" and changes" if git("status", "--porcelain") else "")


def turn(roots: dict[str, Path], seed: int, first: str, folder: Path, threads: int) -> dict[str, Any]:
    """Run the demo of each checkout with a seed, that of ``first`` before the other."""
    rows: dict[str, Any] = {}
    for name in sorted(roots, key=lambda name: name != first):
        found = run("demo", folder / f"{name}-{seed}", seed, threads, roots[name])
        rows[name] = {key: found[key] for key in (*CLOCKS, "seconds_per_update", "evaluation")}
    return {"seed": seed, "first": first, **{name: rows[name] for name in roots}}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many times faster the later commit is, by both clocks and per update, and the mean rewards of both."""
    ratios = {}
    for clock in (*CLOCKS, "seconds_per_update"):
        later, earlier = ([row[name][clock] for row in rows] for name in ("later", "earlier"))
        ratios[clock] = dict(zip(("median", "least", "most"), paired_ratio(later, earlier), strict=True))
    rewards = {
        f"{name}_{place}": sum(row[name]["evaluation"][place]["reward"] for row in rows) / len(rows)
        for name in ("earlier", "later")
        for place in ("before", "after")
    }
    return {"times_faster": ratios, "mean_reward": rewards}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--earlier", type=Path, required=True, help="checkout of the commit to compare with")
    parser.add_argument("--seeds", nargs="+", type=int, default=[42, 0, 1])
    parser.add_argument("--threads", type=int, default=2, help="of each run")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/demo_turns.json")
    given = parser.parse_args(argv)
    roots = {"earlier": given.earlier.resolve(), "later": ROOT}
    head = stamp(given.seeds[0], sources=[*SOURCES, "discrete_grpo/cli/presets/demo.yaml", "benchmarks/demo_turns.py"])
    head["earlier_commit"] = commit_of(roots["earlier"])
    for root in roots.values():
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(root / "discrete_grpo")], check=True)
    result: dict[str, Any] = head
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(given.seeds):
            rows.append(turn(roots, seed, ("earlier", "later")[number % 2], Path(folder), given.threads))
            for name in roots:
                print_table(f"{name}, seed {seed}, {rows[-1][name]['seconds']:.0f} s", rows[-1][name]["evaluation"])
            result = head | summary(rows) | {"rows": rows}
            write_result(given.out, result)
    return result


if __name__ == "__main__":
    main()
