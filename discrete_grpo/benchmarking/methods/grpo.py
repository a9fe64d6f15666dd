"""``grpo``: GRPO as it is, on what the policy has just drawn."""

from __future__ import annotations

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods.trained import with_trainer

__all__ = ["METHOD"]

METHOD = Method(
    name="grpo",
    about="GRPO: groups of fresh samples, clipped ratios, KL to the prior; starts again from the prior when it repeats itself",
    source="Shao et al. (2024), arXiv 2402.03300",
    run=with_trainer,
    settings={
        "num_generations": 64,
        "generation_batch_size": 64,
        "learning_rate": 3e-4,
        "beta": 0.02,
        "patience": 20,
        "patience_threshold": 0.05,
        "when_stale": "restart",
        "node_count": "running",
    },
    least_budget=64,
)
