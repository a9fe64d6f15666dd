"""``grpo-memory`` and its ablations: GRPO's clipped loss on a memory that policy and genetic operators feed, behind a screen.

A round draws candidates from the policy and from a graph genetic algorithm, a Gaussian process fitted to what was scored so far
chooses which of them are worth a call, and the policy makes updates with GRPO's clipped loss on samples drawn by rank from the best
that was scored, with advantages relative to its own draws and exact ratios to the beginning of the round. The Gaussian process sees
scored molecules only, so what it knows is counted. Where the ten best stay as they are for 800 calls, policy, memory and Gaussian
process begin anew, and at every second time with everything that was scored.
"""

from __future__ import annotations

from typing import Any

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods.trained import generator_of, in_rounds

__all__ = ["METHOD", "NO_CLIP", "NO_GA", "NO_GRPO", "NO_REPLAY", "NO_SCREEN", "grpo_memory"]


def grpo_memory(
    task: Any,
    policy: Any,
    ledger: Any,
    seed: int,
    *,
    memory_size: int,
    mutation_rate: float,
    kappa: float,
    screen: bool,
    objective: dict[str, Any],
    **settings: Any,
) -> None:
    """Propose by policy and genetic operators, choose by a Gaussian process, learn by GRPO's clipped loss on a memory.

    Args:
        task: what is optimised.
        policy: is trained in place.
        ledger: counts the calls.
        seed: of all draws.
        memory_size: number of the best from which the passes draw.
        mutation_rate: of the genetic operators.
        kappa: weight of the uncertainty in the choice.
        screen: whether a Gaussian process chooses among the candidates.
        objective: fields of :class:`~discrete_grpo.training.objectives.SelfImitation`.
        settings: fields of :class:`~discrete_grpo.training.rounds.RoundsConfig`, and ``temperature``.
    """
    from discrete_grpo.recipes.proposers import GraphGenetic
    from discrete_grpo.training.memory import ScoredMemory
    from discrete_grpo.training.objectives import SelfImitation

    in_rounds(
        task,
        policy,
        ledger,
        seed,
        SelfImitation(**objective),
        memory=ScoredMemory(memory_size),
        proposers=[GraphGenetic(mutation_rate=mutation_rate)],
        screen=_screen(policy, kappa, seed) if screen else None,
        **settings,
    )


def _screen(policy: Any, kappa: float, seed: int) -> Any:
    from discrete_grpo.domains.molecule_features import molecule_counts, molecule_numbers
    from discrete_grpo.training.gaussian_process import Features, GaussianProcessScreen

    def featurize(smiles: str) -> Features:
        return Features(molecule_counts(smiles), molecule_numbers(smiles))

    return GaussianProcessScreen(featurize, kappa=kappa, generator=generator_of(policy, seed))


SETTINGS: dict[str, Any] = {
    "memory_size": 1024,
    "mutation_rate": 0.3,
    "kappa": 0.3,
    "screen": True,
    "objective": {"temperature": 0.005, "new_share": 0.4, "epsilon": 0.2},
    "draws": 160,
    "children": 48,
    "take": 40,
    "unscreened": 10,
    "take_children": 10,
    "passes": 6,
    "batch_size": 64,
    "learning_rate": 5e-4,
    "temperature": 1.0,
    "patience": 10,
    "plateau": 800,
    "when_stale": "islands",
}


def _variant(name: str, about: str, **changes: Any) -> Method:
    return Method(
        name=name,
        about=about,
        source="this project",
        run=grpo_memory,
        settings=SETTINGS | changes,
        families=("tokens",),
        kinds=("molecules",),
        least_budget=200,
        warm=True,
        uncounted="settings chosen in about 50 trials on three tasks, after eight rows on others; see docs/benchmarking.md",
    )


METHOD = _variant(
    "grpo-memory", "this project's own: GRPO's clipped loss on remembered samples, graph GA, Gaussian process as a screen"
)
NO_GA = _variant("grpo-memory-no-ga", "ablation of grpo-memory: without children of the graph GA", children=0)
NO_REPLAY = _variant(
    "grpo-memory-no-replay", "ablation of grpo-memory: groups of the round's new samples only", batch_size=0, fresh_passes=6
)
NO_GRPO = _variant("grpo-memory-no-grpo", "ablation of grpo-memory: the policy is not trained", passes=0)
NO_SCREEN = _variant(
    "grpo-memory-no-screen", "ablation of grpo-memory: every candidate is scored", screen=False, draws=32, children=8
)
NO_CLIP = _variant(
    "grpo-memory-no-clip",
    "ablation of grpo-memory: ratios are not clipped",
    objective=SETTINGS["objective"] | {"epsilon": 0.999, "epsilon_high": 1e6},
)
