"""``grpo-memory`` and its ablations on a task; the method itself is in :mod:`discrete_grpo.recipes.grpo_memory`."""

from __future__ import annotations

from typing import Any

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods.trained import generator_of, in_rounds
from discrete_grpo.recipes.grpo_memory import PART_NAMES, TOKEN_SETTINGS, parts_of_method

__all__ = ["METHOD", "NO_CLIP", "NO_GA", "NO_GRPO", "NO_REPLAY", "NO_SCREEN", "grpo_memory"]


def grpo_memory(task: Any, policy: Any, ledger: Any, seed: int, **settings: Any) -> None:
    """Propose by policy and genetic operators, choose by a Gaussian process, learn by GRPO's clipped loss on a memory.

    Args:
        task: what is optimised.
        policy: is trained in place.
        ledger: counts the calls.
        seed: of all draws.
        settings: as :data:`~discrete_grpo.recipes.grpo_memory.TOKEN_SETTINGS`.
    """
    parts = parts_of_method(generator_of(policy, seed), **{name: settings.pop(name) for name in PART_NAMES})
    in_rounds(task, policy, ledger, seed, **parts, **settings)


def _variant(name: str, about: str, **changes: Any) -> Method:
    return Method(
        name=name,
        about=about,
        source="this project",
        run=grpo_memory,
        settings=TOKEN_SETTINGS | changes,
        policy_kinds=("tokens",),
        task_kinds=("molecules",),
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
    objective=TOKEN_SETTINGS["objective"] | {"epsilon": 0.999, "epsilon_high": 1e6},
)
