"""``reinforce``: one update per generation with the mean of the other samples as baseline, without ratios and without a KL."""

from __future__ import annotations

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods import grpo
from discrete_grpo.benchmarking.methods.trained import with_trainer

__all__ = ["METHOD"]

METHOD = Method(
    name="reinforce",
    about="REINFORCE: one update per generation of 64, baseline of the other samples, no KL",
    source="Williams (1992), doi 10.1007/BF00992696; leave-one-out baseline: Ahmadian et al. (2024), arXiv 2402.14740",
    run=with_trainer,
    settings=dict(grpo.METHOD.settings)
    | {"loss_type": "dr_grpo", "baseline": "leave_one_out", "scale_rewards": "batch", "beta": 0.0},
    least_budget=64,
)
