"""``augmented-memory``: REINVENT's loss on the best samples, each pass with other SMILES of them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods.trained import in_rounds

if TYPE_CHECKING:
    import torch

__all__ = ["METHOD", "augmented_memory"]


def augmented_memory(task: Any, policy: Any, ledger: Any, seed: int, *, sigma: float, memory_size: int, **settings: Any) -> None:
    """Fit log π to log π_prior + σ R on fresh samples, then on the whole memory in random spellings; see Augmented Memory."""
    from discrete_grpo.training.memory import ScoredMemory
    from discrete_grpo.training.objectives import AugmentedLikelihood

    memory = ScoredMemory(memory_size, rank_coefficient=1.0)
    objective = AugmentedLikelihood(sigma)
    in_rounds(task, policy, ledger, seed, objective, memory=memory, rewrite=spelled_anew, temperature=1.0, **settings)


def spelled_anew(smiles: str, generator: torch.Generator) -> str:
    """Write the same molecule starting from another atom."""
    import torch

    from discrete_grpo.domains.random_smiles import random_smiles
    from discrete_grpo.domains.smiles import parse

    mol, seed = parse(smiles), int(torch.randint(2**62, (), generator=generator, device=generator.device))
    return smiles if mol is None else random_smiles(mol, random.Random(seed))


METHOD = Method(
    name="augmented-memory",
    about="REINVENT's loss on fresh samples, then twice on the best 100 in randomised SMILES",
    source="Guo and Schwaller (2024), doi 10.1021/jacsau.4c00066",
    run=augmented_memory,
    settings={
        "sigma": 500.0,
        "memory_size": 100,
        "draws": 64,
        "passes": 3,
        "fresh_passes": 1,
        "batch_size": 100,
        "learning_rate": 1e-4,
        "patience": 20,
        "when_stale": "restart",
    },
    policy_kinds=("tokens",),
    task_kinds=("molecules",),
    least_budget=64,
    warm=True,
)
