"""``ppo-clip``: four updates on each generation with PPO's clipped ratios of single tokens or sites."""

from __future__ import annotations

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods import grpo
from discrete_grpo.benchmarking.methods.trained import with_trainer

__all__ = ["METHOD"]

METHOD = Method(
    name="ppo-clip",
    about="PPO's clipped ratios, four passes over each generation of 64; the mean of the generation in place of a critic",
    source="Schulman et al. (2017), arXiv 1707.06347",
    run=with_trainer,
    settings=dict(grpo.METHOD.settings) | {"num_iterations": 4, "beta": 0.0, "scale_rewards": "batch"},
    least_budget=64,
)
