"""``planar-16`` trained further on planar graphs of one size after another (``discrete-grpo sft``).

    python -m benchmarks.size_curriculum                                         # 24, then 40 nodes, 10 minutes of a core
    python -m benchmarks.size_curriculum --stages 40:640:32 --out size_direct.json    # 40 nodes at once

A stage is ``nodes:updates:batch size``. Each begins with the averaged weights of the one before and trains on Delaunay graphs of
its size, made as those of the named sets. Its row is of 5 folds of 40 samples with the sampler of ``planar-16``. Run folders stay
in ``--folder``, and a run that was stopped goes on there.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, stamp, write_result
from benchmarks.sft_sizes import SOURCES, made, measured
from discrete_grpo.recipes.loading import load_policy
from discrete_grpo.recipes.pretraining.sft import SFTRecipe, run_sft
from discrete_grpo.runs.console import print_table
from discrete_grpo.runs.recorder import read_evaluation, read_metrics

POLICY = "planar-16"
STAGES = ("24:300:64", "40:400:32")


def run_stage(stage: str, policy: str, seed: int, learning_rate: float, folder: Path) -> dict[str, Any]:
    """Train a policy further on graphs of one size, in a run folder of its own, and measure it."""
    nodes, updates, batch = map(int, stage.split(":"))
    folder.mkdir(parents=True, exist_ok=True)
    data, run = folder / f"planar-{nodes}.npz", folder / stage.replace(":", "-")
    if not data.exists():
        made(nodes, data)
    recipe = SFTRecipe(policy, str(data), str(run), marginals="data", evaluation_samples=0)
    loop = replace(recipe.pretrain, max_steps=updates, batch_size=batch, learning_rate=learning_rate, seed=seed, ema_decay=0.995)
    exported = run_sft(replace(recipe, pretrain=loop), resume=run.exists())
    rates = [rate for line in read_metrics(run) if (rate := line.get("samples_per_second"))]
    seconds = round(sum(loop.log_steps * batch / rate for rate in rates), 1)  # of the wall clock, also those before a stop
    loss = {f"test_loss_{part}": round(values["test_loss"], 4) for part, values in read_evaluation(run).items()}
    about = {"nodes": nodes, "updates": updates, "batch_size": batch, "seed": seed, "seconds": seconds, **loss}
    return {**about, **measured(load_policy(exported), str(data))}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stages, each row written when it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", nargs="+", default=list(STAGES), help="nodes:updates:batch size")
    parser.add_argument("--learning_rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", default="runs/size_curriculum", help="run folders of the stages")
    parser.add_argument("--out", default="size_curriculum.json", help="in benchmarks/results")
    options = parser.parse_args(argv)
    sources = ("benchmarks/size_curriculum.py", *SOURCES)
    rows: list[dict[str, Any]] = []
    result = {**stamp(options.seed, sources=sources), "learning_rate": options.learning_rate, "rows": rows}
    policy = POLICY
    for stage in options.stages:
        rows.append(run_stage(stage, policy, options.seed, options.learning_rate, Path(options.folder)))
        policy = str(Path(options.folder) / stage.replace(":", "-"))
        print_table("", {stage: {name: str(value) for name, value in rows[-1].items()}})
        write_result(ROOT / "benchmarks/results" / options.out, result)


if __name__ == "__main__":
    main()
