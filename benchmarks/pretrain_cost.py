"""Cost of pretraining a graph policy of molecules by a preset: seconds per update on one core, kernel launches and matrix products.

    OMP_NUM_THREADS=1 python -m benchmarks.pretrain_cost --data zinc250k_train.smi.gz    # -> results/pretrain_cost.json, 2 minutes

Nothing is trained: a few updates of the preset's network and batch size are timed by processor time. Launches are counted on a
pretend CUDA device (``tests/pretend_cuda.py``) without bfloat16, so the hours on a GPU are an **estimate**: launches times the
assumed time of one, and matrix products at the assumed rate, whichever is longer. A GPU that is limited by the bandwidth of its
memory takes longer than both, and validity at checkpoints comes on top.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.common import ROOT, stamp, write_result
from discrete_grpo.cli.parser import parse
from discrete_grpo.datasets.molecules import MoleculeDataset, load_molecules
from discrete_grpo.datasets.molecules import statistics as molecule_statistics
from discrete_grpo.recipes.pretraining.molecules import PretrainRecipe, molecule_policy
from discrete_grpo.runs.console import print_table
from discrete_grpo.training import pretrain
from discrete_grpo.training.pretrain import Pretrainer, batches
from tests.pretend_cuda import accelerator, pretending

SOURCES = (
    "models/graph_transformer.py",
    "models/pairs.py",
    "models/connectivity.py",
    "discrete_grpo/policies/graph.py",
    "discrete_grpo/training/pretrain.py",
    "benchmarks/pretrain_cost.py",
)
LAUNCH, RATE = 10e-6, 30e12
"""Assumed of a GPU: seconds per launch of an eager program, FLOP/s of such matrix products in bfloat16."""


def recipe_of(preset: str) -> PretrainRecipe:
    """The recipe of a preset of ``discrete-grpo pretrain``."""
    recipe: PretrainRecipe = parse("pretrain", [preset])[0]
    return recipe


def first_molecules(path: Path, count: int, recipe: PretrainRecipe) -> MoleculeDataset:
    """The molecules of the first lines of a file, which stand for all."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file, tempfile.TemporaryDirectory() as folder:
        short = Path(folder) / "molecules.smi"
        short.write_text("".join(itertools.islice(file, count)))
        return load_molecules(short, recipe.max_broken, max_atoms=recipe.max_atoms, cache_dir=None)


def trainer_of(recipe: PretrainRecipe, data: MoleculeDataset, folder: str) -> Pretrainer:
    """A trainer of the preset's policy, before its first update."""
    policy = molecule_policy(molecule_statistics(data), recipe.network, recipe, seed=recipe.pretrain.seed)
    return Pretrainer(policy, data, recipe.pretrain, folder)


def measure(recipe: PretrainRecipe, data: MoleculeDataset, updates: int, batch: int) -> dict[str, Any]:
    """Seconds of ``updates`` updates of ``batch`` molecules, the mean FLOPs of one, the launches of one and the number of weights.

    Batches hold molecules of like size, so single updates differ by several times, and means over many count.
    """
    rows = list(itertools.islice(batches(data.sizes, batch, recipe.pretrain.seed, 0), updates + 1))
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(recipe, data, folder)
        for part in rows:
            start = time.process_time()
            trainer._update(part)
            seconds.append(time.process_time() - start)
        with FlopCounterMode(display=False) as counter:
            for part in rows[1:]:
                trainer._update(part)
    with tempfile.TemporaryDirectory() as folder, pretending() as cuda, mock.patch.object(pretrain, "accelerator", accelerator):
        pretended = trainer_of(recipe, data, folder)
        pretended._update(rows[0][:2])  # fills what is kept
        with cuda.counting() as found:
            pretended._update(rows[0][:2])
    return {
        "batch_size": batch,
        "bf16": trainer.bf16,
        "parameters": sum(p.numel() for p in trainer.policy.parameters()),
        "seconds": seconds[1:],
        "gflops": counter.get_total_flops() / 1e9 / updates,
        "launches": found.launches,
        "synchronisations": found.waits,
    }


def estimates(row: dict[str, Any], steps: int) -> dict[str, float]:
    """Hours of ``steps`` updates: on a core like the measured one, and on a GPU as assumed."""
    gpu = max(row["launches"] * LAUNCH, row["gflops"] * 1e9 / RATE)
    return {"core_hours": statistics.fmean(row["seconds"]) * steps / 3600, "gpu_hours": gpu * steps / 3600}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--preset", default="zinc-graph", help="of discrete-grpo pretrain")
    parser.add_argument("--data", type=Path, required=True, help="file of SMILES")
    parser.add_argument("--molecules", type=int, default=4000, help="lines that are read")
    parser.add_argument("--updates", type=int, default=15, help="updates that are timed, of batches of every size")
    parser.add_argument("--batch", type=int, nargs="+", default=None, help="default: the preset's, and 64")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/pretrain_cost.json")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    recipe = recipe_of(given.preset)
    data = first_molecules(given.data, given.molecules, recipe)
    sources = (*SOURCES, f"discrete_grpo/cli/presets/{given.preset}.yaml")
    steps = recipe.pretrain.max_steps
    result = stamp(recipe.pretrain.seed, sources=sources) | {
        "steps": steps,
        "assumed": {"launch": LAUNCH, "rate": RATE},
        "rows": [],
    }
    for batch in given.batch or (recipe.pretrain.batch_size, 64):
        row = measure(recipe, data, given.updates, batch)
        result["rows"].append(row | estimates(row, steps))
    write_result(given.out, result)
    shown = {f"batch {row['batch_size']}": {k: v for k, v in row.items() if isinstance(v, float | int)} for row in result["rows"]}
    print_table(f"{given.preset}, {steps} updates", shown)
    return result


if __name__ == "__main__":
    main()
