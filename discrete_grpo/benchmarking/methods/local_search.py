"""``local-search``: the best samples of a graph policy are re-noised and regenerated; the policy is not changed."""

from __future__ import annotations

from typing import Any

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods.trained import generator_of

__all__ = ["METHOD", "search"]


def search(task: Any, policy: Any, ledger: Any, seed: int, *, rounds: int, population: int, children: int, time: float) -> None:
    """Re-noise, regenerate, score and keep the best until the budget is used up or ``rounds`` are made."""
    from discrete_grpo.training.local_search import local_search

    shared = {"ledger": ledger, "generator": generator_of(policy, seed)}
    local_search(policy, task, rounds=rounds, population=population, children=children, time=time, **shared)


METHOD = Method(
    name="local-search",
    about="re-noises the best 16 to t = 0.3 and regenerates 8 of each, round after round, without any learning",
    source="the refinement of Graph-GRPO, arXiv 2603.10395",
    run=search,
    settings={"rounds": 1000, "population": 16, "children": 8, "time": 0.3},
    policy_kinds=("graph",),
    least_budget=128,
)
