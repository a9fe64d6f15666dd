"""Time of an update of pretraining with each option that changes its speed alone, on the GPU if there is one, else on the CPU.

    python -m benchmarks.pretrain_speed --preset planar --batch 64     # -> results/pretrain_speed.json, some minutes

The variants take turns, one update each, so that a slow spell of the machine falls on all. The first updates, in which kernels are
loaded, compiled and recorded, are timed apart. CUDA graphs and TF32 are left out on the CPU, which ignores them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import ROOT, paired_ratio, stamp, write_result
from discrete_grpo.cli.parser import parse
from discrete_grpo.datasets.graph_splits import load_splits
from discrete_grpo.datasets.synthetic_graphs import dataset_from_networkx, graph_statistics
from discrete_grpo.recipes.pretraining.graphs import PretrainGraphsRecipe, graph_policy
from discrete_grpo.runs.console import print_table
from discrete_grpo.training.pretrain import Pretrainer

SOURCES = (
    "models/graph_transformer.py",
    "models/pairs.py",
    "models/connectivity.py",
    "discrete_grpo/policies/graph.py",
    "discrete_grpo/training/pretrain.py",
    "discrete_grpo/training/recorded_passes.py",
    "benchmarks/pretrain_speed.py",
)
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "bf16": {"bf16": True},
    "compiled": {"torch_compile": True},
    "CUDA graphs": {"cuda_graphs": True},
    "CUDA graphs, TF32": {"cuda_graphs": True, "tf32": True},
    "CUDA graphs, bf16": {"cuda_graphs": True, "bf16": True},
    "compiled, CUDA graphs, TF32": {"torch_compile": True, "cuda_graphs": True, "tf32": True},
}
ON_CUDA = frozenset({"cuda_graphs", "tf32"})
FIRST = 4
"""Updates that warm up: the first of a shape is never recorded, and the second is recorded."""


def trainers(recipe: PretrainGraphsRecipe, names: Sequence[str], folder: Path) -> dict[str, Pretrainer]:
    """A trainer per variant, with equal first weights and the same batches."""
    splits = load_splits(recipe.data)
    data = dataset_from_networkx(splits.train, splits.name)
    stats = graph_statistics(data)
    found = {}
    for k, name in enumerate(names):
        policy = graph_policy(stats, recipe.network, recipe, seed=recipe.pretrain.seed)
        found[name] = Pretrainer(policy, data, replace(recipe.pretrain, **VARIANTS[name]), folder / str(k))
    return found


def timed(trainer: Pretrainer, rows: torch.Tensor) -> tuple[float, float]:
    """Seconds and loss of an update; the loss is read at its end, so the GPU has finished all but the optimizer's step."""
    start = time.perf_counter()
    loss = trainer._update(rows)["loss"]
    trainer.step += 1
    return time.perf_counter() - start, loss


def measure(recipe: PretrainGraphsRecipe, names: Sequence[str], updates: int) -> dict[str, Any]:
    """Seconds of the updates of each variant, of its first updates together, and its losses."""
    with ExitStack() as stack:
        made = trainers(recipe, names, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        rows = {name: trainer._rows() for name, trainer in made.items()}
        found: dict[str, Any] = {name: {"first_seconds": 0.0, "seconds": [], "losses": []} for name in made}
        for name, trainer in made.items():
            for _ in range(FIRST):
                seconds, _ = timed(trainer, next(rows[name]))
                found[name]["first_seconds"] += seconds
        for _ in range(updates):
            for name, trainer in made.items():
                seconds, loss = timed(trainer, next(rows[name]))
                found[name]["seconds"].append(seconds)
                found[name]["losses"].append(loss)
    for row in found.values():
        row["ratio"], low, high = paired_ratio(row["seconds"], found[names[0]]["seconds"])
        row["ratio_range"] = [low, high]
    return found


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--preset", default="planar", help="of discrete-grpo pretrain-graphs")
    parser.add_argument("--batch", type=int, default=None, help="graphs per update; default: the preset's")
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=None, help="default: all that the device takes")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/pretrain_speed.json")
    given = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    names = given.variants or [name for name, options in VARIANTS.items() if device == "cuda" or not ON_CUDA & options.keys()]
    recipe: PretrainGraphsRecipe = parse("pretrain-graphs", [given.preset])[0]
    if given.batch is not None:
        recipe = replace(recipe, pretrain=replace(recipe.pretrain, batch_size=given.batch))
    sources = (*SOURCES, f"discrete_grpo/cli/presets/{given.preset}.yaml")
    result = stamp(recipe.pretrain.seed, device=device, sources=sources)
    result |= {"preset": given.preset, "batch_size": recipe.pretrain.batch_size, "rows": measure(recipe, names, given.updates)}
    write_result(given.out, result)
    shown = {
        name: {
            "ms per update": 1e3 * statistics.median(row["seconds"]),
            f"times faster than {names[0]}": row["ratio"],
            "first updates, s": row["first_seconds"],
            "last loss": row["losses"][-1],
        }
        for name, row in result["rows"].items()
    }
    print_table(f"{given.preset}, {recipe.pretrain.batch_size} graphs per update, {device}", shown)
    return result


if __name__ == "__main__":
    main()
