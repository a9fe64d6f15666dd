"""Molecules in space before and after GRPO on stability, beside the same updates on random rewards.

    python -m benchmarks.space --data qm9.smi.gz                      # -> results/space.json, about 40 minutes on one core
    python -m benchmarks.space --data qm9.smi.gz --seeds 42 --control 0 --out tiny.json

Runs the preset ``qm9-3d-stability`` as it stands, one process per seed, and measures the samples of its evaluations against
molecules that the bundled policy was not trained on. The file is written after every run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common import ROOT, stamp, write_result
from discrete_grpo.cli.commands import preset_path
from discrete_grpo.domains.spatial_molecules import SpatialMolecule, from_cxsmiles
from discrete_grpo.metrics.spatial import evaluate
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.recipes.pretraining.spatial import PretrainSpatialRecipe, split_molecules
from discrete_grpo.recipes.sample import sample
from discrete_grpo.runs.console import print_table
from discrete_grpo.runs.recorder import read_samples

PRESET, POLICY = "qm9-3d-stability", "qm9-3d"
SHOWN = (
    "molecule_octet",
    "molecule_stable",
    "atom_stable",
    "valid",
    "unique",
    "w1_bond_length",
    "w1_bond_angle",
    "strain_per_atom",
)
SOURCES = (
    f"discrete_grpo/cli/presets/{PRESET}.yaml",
    "discrete_grpo/policies/fields.py",
    "discrete_grpo/policies/field_steps.py",
    "discrete_grpo/rewards/spatial.py",
)


def noise(samples: Sequence[SpatialMolecule | None], **columns: Any) -> list[float]:
    """A random number in [0, 1) for each sample, always the same for the same one: the control."""
    return [int.from_bytes(hashlib.blake2b(str(one).encode(), digest_size=6).digest(), "big") / 2**48 for one in samples]


def held_out(data: str, cache: str, count: int) -> list[SpatialMolecule]:
    """Molecules that the bundled policy was not trained on, with their conformers."""
    settings = yaml.safe_load(preset_path("pretrain-spatial", POLICY).read_text(encoding="utf-8"))
    kept = {name: settings[name] for name in ("max_molecules", "jobs")}
    return split_molecules(PretrainSpatialRecipe(data=data, cache_dir=cache, **kept))[0][:count]


def run(folder: Path, seed: int, reward: str | None, reference: Sequence[SpatialMolecule]) -> dict[str, Any]:
    """Run the preset once; return the metrics of the samples before and after, and the seconds."""
    command = [sys.executable, "-m", "discrete_grpo.cli", "train", PRESET, f"--output_dir={folder}", f"--grpo.seed={seed}"]
    command += [] if reward is None else [f"--reward={reward}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    found: dict[str, Any] = {"seed": seed, "reward": reward or "of the preset", "seconds": seconds}
    for place in ("before", "after"):
        texts = read_samples(folder / f"evaluation_{place}.csv.gz")["sample"]
        found[place] = evaluate([from_cxsmiles(text) if text else None for text in texts], reference)
    return found


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Means over seeds, by reward and place."""
    table = {}
    for reward in dict.fromkeys(row["reward"] for row in rows):
        for place in ("before", "after"):
            own = [row[place] for row in rows if row["reward"] == reward]
            table[f"{reward}, {place}"] = {name: statistics.fmean(row[name] for row in own) for name in SHOWN}
    return table


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--data", required=True, help="QM9 as SMILES, the file of the preset qm9-3d")
    parser.add_argument("--cache", default="cache", help="folder of the conformers")
    parser.add_argument("--seeds", nargs="+", type=int, default=[42, 0, 1])
    parser.add_argument("--control", nargs="*", type=int, default=[42, 0, 1], help="seeds of the runs on random rewards")
    parser.add_argument("--reference", type=int, default=1000, help="number of held-out molecules")
    parser.add_argument("--full", type=int, default=1000, help="samples of the bundled policy with all its steps; 0 draws none")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/space.json")
    given = parser.parse_args(argv)
    reference = held_out(given.data, given.cache, given.reference)
    result: dict[str, Any] = stamp(42, sources=SOURCES) | {"reference_molecules": len(reference)}
    result["of the data"] = evaluate(reference, reference)
    if given.full:
        start = time.perf_counter()
        drawn = sample(POLICY, given.full, options=SamplerOptions())
        result["all steps"] = evaluate(drawn, reference) | {"seconds": time.perf_counter() - start}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        jobs = [*((seed, None) for seed in given.seeds), *((seed, "benchmarks.space.noise") for seed in given.control)]
        for k, (seed, reward) in enumerate(jobs):
            rows.append(run(Path(folder) / str(k), seed, reward, reference))
            write_result(given.out, result | {"rows": rows, "means": summary(rows)})
            print_table(f"{PRESET}, {k + 1} of {len(jobs)} runs", summary(rows))
    return result | {"rows": rows}


if __name__ == "__main__":
    main()
