r"""Work of the busiest process against the mean, with the sizes of groups drawn by each shard alone and dealt to all.

    python -m benchmarks.group_sizes --smiles=zinc250k_train.smi.gz    # the committed table: seconds

The members of a group share a node count n, and the work of a graph is taken as n². Without ``--smiles`` the histogram is that of
the bundled policy ``qm9-small`` alone. Nothing is trained or timed: the numbers say how much longer than the mean a generation
takes where each process has a device of its own and its time is proportional to the work.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.common import ROOT, stamp, write_result
from discrete_grpo.datasets.reading import smiles_rows
from discrete_grpo.domains.smiles import parse_smiles
from discrete_grpo.recipes.loading import load_policy
from discrete_grpo.runs.console import print_table
from discrete_grpo.training.size_dealing import dealt

SOURCES = ("benchmarks/group_sizes.py", "discrete_grpo/training/size_dealing.py")
PROCESSES, GROUPS = (2, 8, 64), (2, 8, 32)


@dataclass(frozen=True)
class Row:
    """The mean over generations of the largest sum of n² of a process / the mean sum.

    Attributes:
        sizes: whose node counts.
        processes: number of processes, with one shard each.
        groups: groups per process.
        alone: where each shard draws its own sizes.
        dealt: where the sizes of all are drawn and dealt.
    """

    sizes: str
    processes: int
    groups: int
    alone: float
    dealt: float


def histogram(smiles: Path, count: int) -> np.ndarray:
    """Shares of 0, 1, 2, ... atoms among the first ``count`` molecules of a file."""
    found = Counter[int]()
    for _, text in smiles_rows(smiles):
        if (mol := parse_smiles(text)) is not None:
            found[mol.GetNumAtoms()] += 1
        if found.total() == count:
            break
    counts = np.array([found[n] for n in range(max(found) + 1)], dtype=np.float64)
    return counts / counts.sum()


def measured(name: str, shares: np.ndarray, processes: int, groups: int, generations: int, seed: int) -> Row:
    """The row of one setting."""
    random = np.random.default_rng(seed)
    sums = np.zeros(2)
    for _ in range(generations):
        sizes = random.choice(len(shares), processes * groups, p=shares).tolist()
        for k, own in enumerate((np.reshape(sizes, (processes, groups)), np.array(dealt(sizes, processes)))):
            work = (own**2).sum(1)
            sums[k] += work.max() / work.mean()
    alone, together = sums / generations
    return Row(name, processes, groups, float(alone), float(together))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table as JSON and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smiles", type=Path, help="a file of SMILES whose atoms are counted as well")
    parser.add_argument("--count", type=int, default=20_000, help="molecules of it that are counted")
    parser.add_argument("--generations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/group_sizes.json")
    options = parser.parse_args(arguments)
    known = {"qm9-small": np.array(load_policy("qm9-small").node_counts)}
    known["qm9-small"] /= known["qm9-small"].sum()
    if options.smiles is not None:
        known[options.smiles.name] = histogram(options.smiles, options.count)
    settings = [(name, shares, p, g) for name, shares in known.items() for p in PROCESSES for g in GROUPS]
    rows = [measured(*one, options.generations, options.seed) for one in settings]
    shown = {f"{r.sizes}, {r.processes} x {r.groups}": {"alone": round(r.alone, 3), "dealt": round(r.dealt, 3)} for r in rows}
    print_table("work of the busiest process / the mean", shown)
    write_result(options.output, {**stamp(options.seed, sources=SOURCES), "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
