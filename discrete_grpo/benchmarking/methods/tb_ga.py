"""``tb-ga``: trajectory balance on samples drawn by rank, fed by a graph genetic algorithm (the Genetic GFN recipe)."""

from __future__ import annotations

from typing import Any

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods.trained import in_rounds

__all__ = ["METHOD", "PUBLISHED", "tb_ga"]


def tb_ga(
    task: Any, policy: Any, ledger: Any, seed: int, *, beta: float, kl_coef: float, mutation_rate: float, **settings: Any
) -> None:
    """Fit log Z + log π to β R on the best samples of policy and genetic operators alike; see Genetic GFN."""
    from discrete_grpo.recipes.proposers import GraphGenetic
    from discrete_grpo.training.objectives import TrajectoryBalance

    proposers = [GraphGenetic(mutation_rate=mutation_rate)]
    in_rounds(task, policy, ledger, seed, TrajectoryBalance(beta, kl_coef=kl_coef), proposers=proposers, **settings)


def _variant(name: str, about: str, **changes: Any) -> Method:
    return Method(
        name=name,
        about=about,
        source="Kim et al. (2024), Genetic GFN, arXiv 2402.05961",
        run=tb_ga,
        settings={
            "beta": 50.0,
            "kl_coef": 0.01,
            "mutation_rate": 0.3,
            "draws": 64,
            "children": 16,
            "passes": 8,
            "batch_size": 64,
            "learning_rate": 5e-4,
            "temperature": 1.0,
            "patience": 10,
            "when_stale": "restart",
        }
        | changes,
        policy_kinds=("tokens",),
        task_kinds=("molecules",),
        least_budget=80,
        warm=True,
    )


METHOD = _variant(
    "tb-ga", "trajectory balance on 8 times 64 of the best 1,024 samples drawn by rank, with 16 children of a graph GA per round"
)
PUBLISHED = _variant(
    "tb-ga-published",
    "tb-ga with the published settings: rare mutations, two generations of 8 children per round, no restarts",
    mutation_rate=0.01,
    children=8,
    generations=2,
    when_stale="stop",
)
