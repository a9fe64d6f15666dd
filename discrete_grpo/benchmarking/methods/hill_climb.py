"""``hill-climb``: the policy is fitted by likelihood to the best samples so far."""

from __future__ import annotations

from typing import Any

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods.trained import in_rounds

__all__ = ["METHOD", "hill_climb"]


def hill_climb(task: Any, policy: Any, ledger: Any, seed: int, *, memory_size: int, **settings: Any) -> None:
    """Draw, keep the best, and raise their likelihood; see Brown et al. (2019)."""
    from discrete_grpo.training.memory import ScoredMemory
    from discrete_grpo.training.objectives import Likelihood

    in_rounds(task, policy, ledger, seed, Likelihood(), memory=ScoredMemory(memory_size, rank_coefficient=1.0), **settings)


METHOD = Method(
    name="hill-climb",
    about="maximum likelihood of the best 256 samples so far, 4 passes after every 128 draws",
    source="SMILES LSTM-HC of GuacaMol, Brown et al. (2019), doi 10.1021/acs.jcim.8b00839",
    run=hill_climb,
    settings={
        "memory_size": 256,
        "draws": 128,
        "passes": 4,
        "batch_size": 128,
        "learning_rate": 5e-4,
        "temperature": 1.0,
        "patience": 10,
        "when_stale": "restart",
    },
    least_budget=128,
    warm=True,
)
