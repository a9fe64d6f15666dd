"""``planar-16`` trained further on planar graphs of another size (``discrete-grpo sft``), beside training from scratch.

    python -m benchmarks.sft_sizes                           # 24 nodes, 3 seeds, about half an hour of a core

The data are Delaunay graphs of ``--nodes`` nodes, made as those of the named sets. Rows: ``planar-16`` as it is with other node
counts; after ``sft`` with the edge frequency of the data (``--marginals=data``); and its network from random weights after as many
updates at its own, higher rate. With seed 0 also ``sft`` with the edge frequency of the policy. With ``--grpo N`` also the policy
of the first seed after N updates of GRPO with the settings and the reward of ``planar-16-grpo``, or, with ``--control``, on random
rewards. A row is of 5 folds of 40 samples.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.common import ROOT, stamp, write_result
from benchmarks.graph_sequences import noise
from benchmarks.sft import SCRATCH_RATE, scratch
from discrete_grpo.cli.commands import preset_path
from discrete_grpo.datasets.graph_splits import load_splits, write_npz
from discrete_grpo.datasets.synthetic_graphs import GraphSplits, planar
from discrete_grpo.metrics.graphs import GraphReference, evaluate_folds
from discrete_grpo.recipes.loading import load, load_policy
from discrete_grpo.recipes.pretraining.sft import SFTRecipe, held_out_loss
from discrete_grpo.recipes.pretraining.sft_data import prepare
from discrete_grpo.recipes.pretraining.sft_files import samples_of
from discrete_grpo.recipes.sample import sample
from discrete_grpo.recipes.train import train
from discrete_grpo.rewards.graphs import NovelTo, ShapeMatch
from discrete_grpo.runs.checkpoint import save
from discrete_grpo.runs.console import print_table
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.pretrain import Pretrainer

POLICY = "planar-16"
COUNTS = (2048, 32, 40)
FOLDS, SAMPLES = 5, 40
SOURCES = (
    "models/graph_transformer.py",
    "discrete_grpo/policies/graph.py",
    "discrete_grpo/recipes/pretraining/sft.py",
    "discrete_grpo/recipes/pretraining/sft_data.py",
    "discrete_grpo/training/pretrain.py",
    "discrete_grpo/training/update.py",
    "discrete_grpo/rewards/graphs.py",
    "discrete_grpo/metrics/graphs.py",
    "benchmarks/sft_sizes.py",
)


def made(nodes: int, file: Path) -> Path:
    """Write a set of planar graphs of one size, which is the same every time."""
    generator = np.random.default_rng([0, nodes])
    train, val, test = (tuple(planar(nodes, generator) for _ in range(count)) for count in COUNTS)
    write_npz(file, GraphSplits(train, val, test, file.stem))
    return file


def row(recipe: SFTRecipe, start: str, folder: Path) -> dict[str, Any]:
    """Train, unless ``start`` is ``as it is``, and measure the policy."""
    loaded = load(recipe.policy)
    ready = prepare(recipe, loaded, samples_of(recipe, loaded))
    policy, seconds = ready.policy, 0.0
    if start != "as it is":
        config = recipe.pretrain
        if start == "from scratch":
            policy, config = scratch(policy, config.seed), replace(config, learning_rate=SCRATCH_RATE)
        began = time.process_time()
        trainer = Pretrainer(policy, ready.train, config, folder)
        trainer.train()
        policy, seconds = trainer.averaged, time.process_time() - began
        save(folder / "policy", policy, metadata={"kind": "graphs", "shape": "planar"})
    assert ready.held_out is not None
    about = {"start": start, "marginals": recipe.marginals, "seed": recipe.pretrain.seed, "cpu_seconds": round(seconds, 1)}
    loss = round(held_out_loss(policy, ready.held_out, 64, draws=ready.draws), 4)
    return {**about, "test_loss": loss, **measured(policy, recipe.source)}


def measured(policy: Any, data: str) -> dict[str, list[float]]:
    """Mean and deviation over the folds."""
    drawn = sample(policy.eval(), FOLDS * SAMPLES, batch_size=SAMPLES)
    found = evaluate_folds(drawn, GraphReference(load_splits(data), "planar"), FOLDS)
    return {name: [round(value, 4) for value in found[name]] for name in ("valid", "vun", "ratio", "edges", "mmd_clustering")}


def row_of_grpo(policy: Path, data: str, updates: int, folder: Path, *, noisy: bool) -> dict[str, Any]:
    """Fine-tune as the preset ``planar-16-grpo`` does, with the set of another size in its reward, and measure the policy."""
    settings = yaml.safe_load(preset_path("train", "planar-16-grpo").read_text(encoding="utf-8"))["grpo"]
    reward: Any = noise if noisy else NovelTo(ShapeMatch(data, "planar"), data)
    began = time.process_time()
    train(policy, reward, output_dir=folder, grpo=GRPOConfig(**settings | {"max_steps": updates}), evaluation_samples=0)
    start = f"sft, then GRPO{' on random rewards' if noisy else ''}"
    seconds = round(time.process_time() - began, 1)
    return {"start": start, "updates": updates, "cpu_seconds": seconds, **measured(load_policy(folder), data)}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure all rows, each written when it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=24)
    parser.add_argument("--max_steps", type=int, default=400)
    parser.add_argument("--learning_rate", type=float, default=3e-4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--grpo", type=int, default=0, help="updates of GRPO after sft")
    parser.add_argument("--control", action="store_true", help="GRPO on random rewards")
    parser.add_argument("--out", default="sft_sizes.json", help="in benchmarks/results")
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    result: dict[str, Any] = {**stamp(options.seeds[0], sources=SOURCES), "nodes": options.nodes, "rows": rows}
    with tempfile.TemporaryDirectory() as place:
        data = made(options.nodes, Path(place) / f"planar-{options.nodes}.npz")
        for seed in options.seeds:
            make = partial(SFTRecipe, POLICY, str(data))
            config = replace(make().pretrain, learning_rate=options.learning_rate, seed=seed, ema_decay=0.995)
            config = replace(config, max_steps=options.max_steps, save_steps=options.max_steps)
            result["settings"] = vars(config)
            plans = [("sft", "data"), ("from scratch", "data")]
            plans += [("as it is", "policy"), ("as it is", "data"), ("sft", "policy")] if seed == 0 else []
            for start, marginals in plans:
                recipe = make(marginals=marginals, pretrain=config)
                rows.append(row(recipe, start, Path(place) / f"{start}-{marginals}-{seed}"))
                keep(rows, result, options.out)
        if options.grpo:
            policy = Path(place) / f"sft-data-{options.seeds[0]}" / "policy"
            rows.append(row_of_grpo(policy, str(data), options.grpo, Path(place) / "grpo", noisy=options.control))
            keep(rows, result, options.out)


def keep(rows: Sequence[dict[str, Any]], result: dict[str, Any], out: str) -> None:
    """Print the last row and write all of them."""
    print_table("", {rows[-1]["start"]: {name: str(value) for name, value in rows[-1].items()}})
    write_result(ROOT / "benchmarks/results" / out, result)


if __name__ == "__main__":
    main()
