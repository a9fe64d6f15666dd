"""``graph-ga`` and ``smiles-ga``: genetic algorithms without a policy that learns; the first population comes from the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from discrete_grpo.benchmarking.jobs import sample_key
from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods.trained import generator_of

if TYPE_CHECKING:
    from discrete_grpo.training.proposers import Proposer

__all__ = ["GRAPH_GA", "SMILES_GA", "genetic", "graph_ga", "smiles_ga"]


def graph_ga(
    task: Any,
    policy: Any,
    ledger: Any,
    seed: int,
    *,
    population: int,
    offspring: int,
    mutation_rate: float,
    rank_coefficient: float,
    **warm: Any,
) -> None:
    """Crossover and mutation of molecular graphs on the best so far."""
    from discrete_grpo.recipes.proposers import GraphGenetic

    proposer = GraphGenetic(population, mutation_rate, rank_coefficient)
    genetic(task, policy, ledger, seed, proposer, population, offspring, **warm)


def smiles_ga(task: Any, policy: Any, ledger: Any, seed: int, *, population: int, offspring: int, **warm: Any) -> None:
    """Mutation of the grammatical genes of SMILES on the best so far."""
    from discrete_grpo.recipes.proposers import SmilesGenetic

    genetic(task, policy, ledger, seed, SmilesGenetic(population), population, offspring, **warm)


def genetic(
    task: Any,
    policy: Any,
    ledger: Any,
    seed: int,
    proposer: Proposer,
    population: int,
    offspring: int,
    patience: int = 20,
    warm_start: str | None = None,
    warm_start_calls: int | None = None,
) -> None:
    """Score a first population drawn from the policy, then children of the best so far until the budget is used up.

    Args:
        task: what is optimised.
        policy: gives the first population, each of its samples counted, and is not changed.
        ledger: counts the calls.
        seed: of all draws.
        proposer: makes the children.
        population: size of the first population.
        offspring: children per generation.
        patience: generations in a row without a new child after which the run ends.
        warm_start: SMILES file whose molecules are scored before the first population and are parents like any other.
        warm_start_calls: how many of them; None takes all.
    """
    from discrete_grpo.core.rollout import Context
    from discrete_grpo.recipes.grpo_memory import fill_memory
    from discrete_grpo.training.memory import ScoredMemory

    generator, key, memory = generator_of(policy, seed), sample_key(task.kind), ScoredMemory(size=None)
    if warm_start is not None:
        fill_memory(task, ledger, memory, warm_start, warm_start_calls)
    first = policy.sample([Context(k) for k in range(population)], generator=generator).samples
    _score(task, ledger, memory, [k for sample in first if (k := key(sample)) is not None], "policy")
    idle = 0
    while not ledger.exhausted and idle < patience:
        before = len(memory)
        _score(task, ledger, memory, proposer.propose(memory, offspring, generator), proposer.name)
        idle = 0 if len(memory) > before else idle + 1


def _score(task: Any, ledger: Any, memory: Any, keys: list[str], source: str) -> None:
    new = [key for key in dict.fromkeys(keys) if key not in memory]
    if new:
        scores = ledger.score([task], new, source=source)[:, 0]
        memory.add([(key, key, score) for key, score in zip(new, scores.tolist(), strict=True)], source)


GRAPH_GA = Method(
    name="graph-ga",
    about="graph genetic algorithm: crossover and mutation of the best 120, 70 children per generation",
    source="Jensen (2019), doi 10.1039/c8sc05372c; sizes as in PMO (Gao et al. 2022)",
    run=graph_ga,
    settings={"population": 120, "offspring": 70, "mutation_rate": 0.067, "rank_coefficient": 0.1},
    task_kinds=("molecules",),
    least_budget=120,
    warm=True,
)
SMILES_GA = Method(
    name="smiles-ga",
    about="genetic algorithm on the grammar of SMILES: mutations of the best 100, 200 children per generation",
    source="Yoshikawa et al. (2018), ChemGE, doi 10.1246/cl.180665",
    run=smiles_ga,
    settings={"population": 100, "offspring": 200},
    task_kinds=("molecules",),
    least_budget=100,
    warm=True,
)
