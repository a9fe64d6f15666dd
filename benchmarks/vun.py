"""V.U.N. and MMD ratios of plain-graph policies before and after GRPO, as the field reports them: 5 folds of 40 samples.

    python -m benchmarks.vun                                              # the presets planar-16-grpo and tree-16-grpo, 20 minutes
    python -m benchmarks.vun --fresh --out vun_fresh.json                 # what a perfect generator would score
    python -m benchmarks.vun --policy runs/planar --data planar.npz --out vun_planar.json   # a checkpoint as it stands

A row is mean and standard deviation over the folds; a graph is unique within its fold. Validity is the field's test: connected and
planar, a tree, or the block-model test.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import ROOT, stamp, write_result
from discrete_grpo.datasets.graph_splits import load_splits
from discrete_grpo.datasets.synthetic_graphs import NAMED_SETS
from discrete_grpo.diffusion.choices import KernelName
from discrete_grpo.domains.graph6 import graph6
from discrete_grpo.metrics.graphs import GraphReference, evaluate_folds
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.recipes.kinds.graphs import shape_of
from discrete_grpo.recipes.loading import load_policy
from discrete_grpo.recipes.sample import sample_policy
from discrete_grpo.runs.console import print_table

PRESETS: dict[str, tuple[str, KernelName]] = {"planar-16-grpo": ("planar-16", "d3pm"), "tree-16-grpo": ("tree-16", "flow")}
"""Preset -> the bundled policy, which is also the name of its set, and the kernel the preset draws with."""
FOLDS, SAMPLES = 5, 40
SOURCES = (
    "models/graph_transformer.py",
    "models/pairs.py",
    "discrete_grpo/policies/graph.py",
    "discrete_grpo/training/update.py",
    "discrete_grpo/metrics/graphs.py",
    "discrete_grpo/domains/graph_validity.py",
    "discrete_grpo/recipes/kinds/graph_sources.py",
    "benchmarks/vun.py",
)


def measure(policy: str | Path, data: str, seed: int, options: SamplerOptions | None = None) -> dict[str, Any]:
    """5 x 40 samples of a checkpoint against a set, and the seconds it took to draw them."""
    splits = load_splits(data)
    start = time.perf_counter()
    samples, _ = sample_policy(load_policy(policy, options), FOLDS * SAMPLES, seed=seed, batch_size=SAMPLES)
    seconds = time.perf_counter() - start
    found = evaluate_folds(samples, GraphReference(splits, shape_of(data)), FOLDS)
    return {"seconds_sampling": seconds, **{name: {"mean": m, "std": s} for name, (m, s) in found.items()}}


def perfect(data: str, seed: int, folds: int = 20) -> dict[str, Any]:
    """Fresh draws of a set's own generator in the place of samples: what is left to reach, and the noise of a fold of 40."""
    generator = np.random.default_rng([seed, 1, *data.encode()])
    drawn = [graph6(NAMED_SETS[data].draw(generator)) for _ in range(folds * SAMPLES)]
    found = evaluate_folds(drawn, GraphReference(load_splits(data), shape_of(data)), folds)
    return {name: {"mean": m, "std": s} for name, (m, s) in found.items()}


def fine_tuned(preset: str, folder: Path) -> tuple[Path, float]:
    """Run a preset of ``discrete-grpo train``; its policy and the seconds."""
    command = [sys.executable, "-m", "discrete_grpo.cli", "train", preset, f"--output_dir={folder}", "--evaluation_samples=0"]
    start = time.perf_counter()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return folder / "policy", time.perf_counter() - start


def shown(row: dict[str, Any]) -> dict[str, str]:
    """Mean ± deviation of what a table of the field has."""
    names = ("valid", "unique", "novel", "vun")
    percent = {n: f"{100 * row[n]['mean']:.1f} ± {100 * row[n]['std']:.1f}" for n in names}
    return percent | {"ratio": f"{row['ratio']['mean']:.2f} ± {row['ratio']['std']:.2f}", "edges": f"{row['edges']['mean']:.1f}"}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--presets", nargs="*", default=list(PRESETS))
    parser.add_argument("--policy", default=None, help="measure this checkpoint instead of presets")
    parser.add_argument("--fresh", action="store_true", help="measure fresh draws of the generators instead")
    parser.add_argument("--data", default=None, help="set of --policy: a name or an npz file")
    parser.add_argument("--kernel", default=None, help="reverse step of --policy")
    parser.add_argument("--eta", type=float, default=None)
    parser.add_argument("--num_steps", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="vun.json", help="file name under benchmarks/results")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows: dict[str, Any] = {}
    if given.fresh:
        rows = {f"{name}, fresh draws": perfect(name, given.seed) for name, _ in PRESETS.values()}
    elif given.policy is not None:
        options = SamplerOptions(num_steps=given.num_steps, kernel=given.kernel, eta=given.eta)
        rows[str(given.policy)] = measure(given.policy, given.data, given.seed, options)
    else:
        for preset in given.presets:
            name, kernel = PRESETS[preset]
            for kind in dict.fromkeys(("d3pm", kernel)):
                rows[f"{name} before, {kind}"] = measure(name, name, given.seed, SamplerOptions(kernel=kind))
            with tempfile.TemporaryDirectory() as folder:
                policy, seconds = fine_tuned(preset, Path(folder) / "run")
                row = measure(policy, name, given.seed)
            rows[f"{name} after, {kernel}"] = row | {"seconds_training": seconds}
    print_table("folds of 40 samples, mean ± deviation", {name: shown(row) for name, row in rows.items()})
    presets = [] if given.fresh or given.policy is not None else given.presets
    result = stamp(given.seed, sources=[*SOURCES, *(f"discrete_grpo/cli/presets/{p}.yaml" for p in presets)]) | {"rows": rows}
    write_result(ROOT / "benchmarks/results" / given.out, result)
    return result


if __name__ == "__main__":
    main()
