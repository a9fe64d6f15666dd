"""Seconds of a generation whose halves are scored beside drawing, and of the same one scored after drawing.

A reward that sleeps for a fixed time on each sample stands for a slow oracle in a pool of worker processes, and a sampler of few
steps that sleeps too stands for one that waits for a GPU: both leave the processor free, so that what is measured is whether they
run side by side. Both ways are timed in turn, on the same policy and settings.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import interleaved, paired_ratio, stamp, write_result
from discrete_grpo import Context, GRPOConfig, Rollout, load_policy
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.rewards.pool import RewardPool
from discrete_grpo.training.trainer import GRPOTrainer

OUT = Path(__file__).parent / "results" / "score_while_drawing.json"
SOURCES = ("discrete_grpo/training/sampler.py", "discrete_grpo/training/background.py", "discrete_grpo/rewards/pool.py")


class Sleeps:
    """A reward that sleeps for ``seconds`` on each sample."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, samples: Sequence[Any], **columns: Any) -> list[float]:
        """Return 1 for a valid sample."""
        time.sleep(self.seconds * len(samples))
        return [0.0 if sample is None else 1.0 for sample in samples]


def waiting(sample: Callable[..., Rollout], seconds: float) -> Callable[..., Rollout]:
    """The sampler, which also sleeps for ``seconds`` on each trajectory."""

    def found(contexts: Sequence[Context], **options: Any) -> Rollout:
        time.sleep(seconds * len(contexts))
        return sample(contexts, **options)

    return found


def measure(options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Time generations both ways, with a reward that sleeps for ``seconds`` on each sample."""
    config = GRPOConfig(generation_batch_size=options.samples, num_generations=8, generation_shards=2, seed=options.seed)
    policy = load_policy(options.policy, SamplerOptions(num_steps=options.num_steps))
    object.__setattr__(policy, "sample", waiting(policy.sample, options.draw_seconds))
    with RewardPool("benchmarks.score_while_drawing.Sleeps", {"seconds": seconds}, workers=options.workers) as pool:
        samplers = [GRPOTrainer(policy, pool, replace(config, score_while_drawing=on)).sampler for on in (True, False)]
        first, second = (torch.cat([batch.rewards for batch in sampler.draw().batches]) for sampler in samplers)
        assert torch.equal(first, second)
        beside, after = interleaved([sampler.draw for sampler in samplers], options.repeats, warmup=0)
        (alone,) = interleaved([lambda: pool(["C"] * options.samples)], options.repeats, warmup=0)
    return {
        "seconds per sample": seconds,
        "scored beside drawing s": round(statistics.median(beside.wall), 3),
        "scored after drawing s": round(statistics.median(after.wall), 3),
        "scoring alone s": round(statistics.median(alone.wall), 3),
        "times faster": [round(x, 2) for x in paired_ratio(beside.wall, after.wall)],
    }


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="qm9-small")
    parser.add_argument("--num_steps", type=int, default=2, help="of the sampler")
    parser.add_argument("--draw_seconds", type=float, default=0.01, help="that the sampler sleeps on a sample")
    parser.add_argument("--samples", type=int, default=64, help="samples in a generation")
    parser.add_argument("--seconds", type=float, nargs="+", default=[0.005, 0.02, 0.05], help="that the reward sleeps on a sample")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows = []
    for seconds in options.seconds:
        rows.append(measure(options, seconds))
        print(rows[-1])
    settings = {name: getattr(options, name) for name in ("policy", "num_steps", "draw_seconds", "samples", "workers", "repeats")}
    write_result(OUT, stamp(options.seed, sources=SOURCES) | {"settings": settings, "rows": rows})


if __name__ == "__main__":
    main()
