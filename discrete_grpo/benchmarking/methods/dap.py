"""``dap``: REINVENT's augmented likelihood with experience replay."""

from __future__ import annotations

from typing import Any

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods.trained import in_rounds

__all__ = ["METHOD", "dap"]


def dap(task: Any, policy: Any, ledger: Any, seed: int, *, sigma: float, memory_size: int, **settings: Any) -> None:
    """Fit log π to log π_prior + σ R on fresh samples and on the best remembered ones; see REINVENT."""
    from discrete_grpo.training.memory import ScoredMemory
    from discrete_grpo.training.objectives import AugmentedLikelihood

    in_rounds(
        task, policy, ledger, seed, AugmentedLikelihood(sigma), memory=ScoredMemory(memory_size, rank_coefficient=1.0), **settings
    )


METHOD = Method(
    name="dap",
    about="REINVENT: squared distance to the augmented likelihood on 64 fresh and 24 of the best 100 samples",
    source="Olivecrona et al. (2017), arXiv 1704.07555; σ and replay as in PMO (Gao et al. 2022)",
    run=dap,
    settings={
        "sigma": 500.0,
        "memory_size": 100,
        "draws": 64,
        "passes": 1,
        "fresh_passes": 1,
        "batch_size": 24,
        "learning_rate": 5e-4,
        "temperature": 1.0,
        "patience": 20,
        "when_stale": "restart",
    },
    policy_kinds=("tokens",),
    least_budget=64,
    warm=True,
)
