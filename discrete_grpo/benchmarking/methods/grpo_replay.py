"""``grpo-replay``: GRPO whose groups hold good samples of earlier generations."""

from __future__ import annotations

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods import grpo
from discrete_grpo.benchmarking.methods.trained import with_trainer

__all__ = ["METHOD"]

METHOD = Method(
    name="grpo-replay",
    about="GRPO whose groups of 64 are joined by 16 good samples of earlier generations, with ratios to the policy that drew them",
    source="Li et al. (2025), RePO, arXiv 2506.09340",
    run=with_trainer,
    settings=dict(grpo.METHOD.settings) | {"replay_samples": 16, "replay_memory": 64},
    least_budget=64,
)
