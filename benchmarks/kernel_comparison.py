"""One pretrained network fine-tuned under every kernel and likelihood, with equal oracle budgets: reward curves and a table.

    discrete-grpo pretrain-graphs planar-16 --noise=absorbing --output_dir=runs/planar-16-masked     # once, half an hour
    python -m benchmarks.kernel_comparison --masked runs/planar-16-masked                            # about an hour

D3PM and flow kernels drive the very same network (the bundled ``planar-16``): it learned p̂(x_0 | x_t), which depends on the
noise alone. Masked noise is another noise, so the masked kernel has a network of the same architecture, pretrained alike.
Task: planar and connected graphs of 16 nodes, reward 1 or 0, with few sampler steps so that there is something to learn.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.common import ROOT, stamp, write_result
from benchmarks.expected_rate import FlowExpectedRate
from discrete_grpo.diffusion.choices import KernelName
from discrete_grpo.diffusion.noise import Noise
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.surrogate import with_likelihood
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.recipes.loading import load_policy
from discrete_grpo.recipes.sample import sample_policy
from discrete_grpo.rewards.graphs import planar_valid
from discrete_grpo.runs.console import print_table
from discrete_grpo.runs.report.charts import Line, line_chart, standalone
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.trainer import GRPOTrainer

KERNEL_NAMES: Mapping[str, KernelName] = {"d3pm": "d3pm", "flow": "flow", "masked": "d3pm"}
EXPECTED_RATE = "expected_rate"
"""Graph-GRPO's step (:class:`~benchmarks.expected_rate.FlowExpectedRate`); run if it is named."""
LIKELIHOODS = ("transition", "eager", "elbo")
SOURCES = (
    "models/graph_transformer.py",
    "models/pairs.py",
    "discrete_grpo/diffusion/flow.py",
    "discrete_grpo/policies/surrogate.py",
    "discrete_grpo/training/update.py",
    "benchmarks/kernel_comparison.py",
)


@dataclass(frozen=True)
class Budget:
    """Settings that all runs share.

    Attributes:
        updates: of the policy.
        batch: oracle calls per update.
        group: samples compared with each other.
        num_steps: of the sampler.
        trained: share of a trajectory's steps, or of the ELBO's draws, that an update learns from.
        evaluated: fresh samples before and after, oracle calls outside the budget.
        learning_rate: of AdamW, the same for all.
    """

    updates: int = 20
    batch: int = 64
    group: int = 16
    num_steps: int = 20
    trained: float = 0.5
    evaluated: int = 200
    learning_rate: float = 1e-4


def load(checkpoint: str | Path, kernel: str, num_steps: int) -> GraphPolicy:
    """The network of a checkpoint with the kernel of that name."""
    policy = load_policy(checkpoint, SamplerOptions(kernel=KERNEL_NAMES.get(kernel, "d3pm"), num_steps=num_steps))
    if kernel != EXPECTED_RATE:
        return policy
    kernels = {
        name: FlowExpectedRate(cast(Noise, old.noise))
        for name, old in (("node_kernel", policy.node_kernel), ("edge_kernel", policy.edge_kernel))
    }
    return GraphPolicy(**policy.init_args() | {"decode": policy.decode} | kernels).eval()


def run(checkpoint: str | Path, kernel: str, likelihood: str, seed: int, budget: Budget) -> dict[str, Any]:
    """One run: the reward of every update's samples, and the share of valid samples before and after."""
    policy = load(checkpoint, kernel, budget.num_steps)
    before = _valid(policy, budget, seed)
    config = GRPOConfig(
        max_steps=budget.updates,
        num_generations=budget.group,
        generation_batch_size=budget.batch,
        per_device_batch_size=budget.batch,
        timestep_chunk=2,
        timestep_fraction=budget.trained,
        learning_rate=budget.learning_rate,
        seed=seed,
    )
    start = time.perf_counter()
    wrapped = with_likelihood(policy, likelihood, draws=budget.num_steps)  # type: ignore[arg-type]
    history = GRPOTrainer(wrapped, planar_valid, config).train()
    seconds = time.perf_counter() - start
    return {
        "reward": [line["reward"] for line in history],
        "before": before,
        "after": _valid(policy, budget, seed),
        "seconds": seconds,
    }


def _valid(policy: Any, budget: Budget, seed: int) -> float:
    samples, _ = sample_policy(policy, budget.evaluated, seed=10_000 + seed)
    return statistics.fmean(float(r or 0.0) for r in planar_valid(samples))


def table(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean and spread over seeds: valid before and after, the mean reward of the last fifth, and seconds."""
    found = {}
    for (kernel, likelihood), group in itertools.groupby(rows, lambda r: (r["kernel"], r["likelihood"])):
        runs = list(group)
        last = [statistics.fmean(r["reward"][-max(1, len(r["reward"]) // 5) :]) for r in runs]
        after = [r["after"] for r in runs]
        found[f"{kernel}, {likelihood}"] = {
            "before": statistics.fmean(r["before"] for r in runs),
            "after": statistics.fmean(after),
            "after_spread": statistics.stdev(after) if len(after) > 1 else 0.0,
            "last_reward": statistics.fmean(last),
            "seconds": statistics.fmean(r["seconds"] for r in runs),
        }
    return found


def draw(rows: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Reward curves as SVG files, mean over seeds with their standard deviation as a band: one picture per kernel."""
    written = []
    for kernel in dict.fromkeys(r["kernel"] for r in rows):
        of_kernel = [r for r in rows if r["kernel"] == kernel]
        lines = [curve(name, [r["reward"] for r in of_kernel if r["likelihood"] == name]) for name in _likelihoods(of_kernel)]
        name = "kernel_comparison_" + kernel.replace(", ", "_").replace(" ", "")
        chart = line_chart(
            lines, ident=name, title=f"Reward under kernel {kernel}", x_label="update", y_label="reward", y_range=(0.0, 1.0)
        )
        path = folder / f"{name}.svg"
        path.write_text(standalone(chart) + "\n", encoding="utf-8")
        written.append(path)
    return written


def _likelihoods(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(r["likelihood"] for r in rows))


def curve(name: str, runs: Sequence[Sequence[float]]) -> Line:
    """The mean of several runs at every update, smoothed over 5, and the spread between them."""
    smoothed = [smooth(run) for run in runs]
    at = list(zip(*smoothed, strict=True))
    spread = [statistics.stdev(v) if len(v) > 1 else 0.0 for v in at]
    return Line(name, list(range(1, len(at) + 1)), [statistics.fmean(v) for v in at], spread)


def smooth(values: Sequence[float], width: int = 5) -> list[float]:
    """Running mean over at most ``width`` values up to each.

    >>> smooth([1.0, 2.0, 3.0], 2)
    [1.0, 1.5, 2.5]
    """
    return [statistics.fmean(values[max(0, k + 1 - width) : k + 1]) for k in range(len(values))]


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run, print, draw and write; the file is written after every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--network", default="planar-16", help="checkpoint with marginal noise")
    parser.add_argument(
        "--masked", default=None, help="checkpoint of the same architecture with absorbing noise; without it no masked runs"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=Budget.updates)
    parser.add_argument("--kernels", nargs="+", default=list(KERNEL_NAMES), choices=[*KERNEL_NAMES, EXPECTED_RATE])
    parser.add_argument("--likelihoods", nargs="+", default=list(LIKELIHOODS))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/kernel_comparison.json")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    budget = Budget(updates=given.updates)
    result = stamp(0, sources=SOURCES)
    rows: list[dict[str, Any]] = []
    for kernel, likelihood, seed in itertools.product(given.kernels, given.likelihoods, range(given.seeds)):
        checkpoint = given.masked if kernel == "masked" else given.network
        if checkpoint is not None:
            row = {"kernel": kernel, "likelihood": likelihood, "seed": seed}
            rows.append(row | run(checkpoint, kernel, likelihood, seed, budget))
            print(row, f"{rows[-1]['before']:.3f} -> {rows[-1]['after']:.3f}", flush=True)
            write_result(given.out, result | {"budget": vars(budget), "table": table(rows), "rows": rows})
    print_table("planar and connected, 16 nodes", table(rows))
    draw(rows, given.out.parent)
    return result


if __name__ == "__main__":
    main()
