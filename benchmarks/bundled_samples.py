"""Samples of bundled policies of molecules as they stand: validity, uniqueness, novelty and mean properties.

    python -m benchmarks.bundled_samples --reference zinc250k_train.smi.gz     # -> results/bundled_samples.json, about 10 minutes

Every row has 1,000 samples per seed, drawn with the sampler of the policy or with another temperature, and measured as by
``discrete-grpo evaluate``; novelty is relative to the reference.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, stamp, write_result
from discrete_grpo.datasets.reading import read_smiles
from discrete_grpo.metrics.molecules import canonical, evaluate
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.recipes.sample import sample
from discrete_grpo.runs.console import print_table

SETTINGS = (("smiles-zinc", None), ("smiles-zinc", 1.0), ("zinc-graph-small", None))
"""Policies and temperatures; None is that of the policy."""
SOURCES = (
    "benchmarks/bundled_samples.py",
    "discrete_grpo/policies/tokens.py",
    "discrete_grpo/policies/graph.py",
    "discrete_grpo/metrics/molecules.py",
    "models/gpt.py",
    "models/graph_transformer.py",
)


def measured(policy: str, temperature: float | None, count: int, seed: int, known: Collection[str]) -> Mapping[str, Any]:
    """The numbers of one row."""
    start = time.process_time()
    drawn = sample(policy, count, seed=seed, options=None if temperature is None else SamplerOptions(temperature=temperature))
    row = {"policy": policy, "temperature": temperature, "seed": seed, "seconds": time.process_time() - start}
    return {**row, **evaluate(drawn, known)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the rows as JSON and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--reference", type=Path, required=True, help="SMILES file of the molecules that the policies were trained on"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--count", type=int, default=1000, help="samples per row and seed")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/bundled_samples.json")
    given = parser.parse_args(arguments)
    known = {smiles for smiles in map(canonical, read_smiles(given.reference).smiles) if smiles is not None}
    rows = [measured(*setting, given.count, seed, known) for setting in SETTINGS for seed in given.seeds]
    names = ("valid", "sanitised", "connected", "unique", "novel", "qed", "sa", "seconds")
    shown = {f"{r['policy']}, {r['temperature'] or 'own'}, seed {r['seed']}": {k: round(r[k], 4) for k in names} for r in rows}
    print_table("samples of bundled policies", shown)
    write_result(given.out, {**stamp(given.seeds[0], sources=SOURCES), "rows": rows})


if __name__ == "__main__":
    main()
