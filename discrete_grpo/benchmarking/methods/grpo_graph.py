"""``grpo-graph``: GRPO of a graph policy with few steps per sample, as in the preset ``zinc-graph-qed``.

``grpo-graph-refine`` is the same with half of the groups made by re-noising and regenerating the best molecules found so far.
``grpo-graph-memory`` is ``grpo-memory`` for graph policies: it learns from everything that was scored, see
:mod:`discrete_grpo.recipes.memory_methods`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods.random_reward import Blindfold
from discrete_grpo.benchmarking.methods.trained import generator_of, in_rounds, with_trainer
from discrete_grpo.recipes.grpo_memory import GRAPH_SETTINGS

__all__ = ["MEMORY", "MEMORY_NO_GRPO", "MEMORY_RANDOM_REWARD", "METHOD", "REFINE", "graph_memory"]

METHOD = Method(
    name="grpo-graph",
    about="GRPO of a graph policy: 8 groups of 16 samples of 25 steps, updates on 40 % of them, exact KL to the prior",
    source="Shao et al. (2024), arXiv 2402.03300; settings of the preset zinc-graph-qed",
    run=with_trainer,
    settings={
        "num_steps": 25,
        "node_count": "running",
        "num_generations": 16,
        "generation_batch_size": 128,
        "per_device_batch_size": "auto",
        "timestep_chunk": "auto",
        "timestep_fraction": 0.4,
        "learning_rate": 1e-4,
        "warmup_steps": 3,
        "max_grad_norm": 0.2,
        "beta": 0.05,
        "ema_decay": 0.9,
        "patience": 20,
        "patience_threshold": 0.05,
        "when_stale": "restart",
    },
    policy_kinds=("graph",),
    least_budget=128,
)

REFINE = replace(
    METHOD,
    name="grpo-graph-refine",
    about="grpo-graph with half of the groups re-noised to t = 0.3 from the best 16 molecules; all steps are trained on",
    source="Shao et al. (2024), arXiv 2402.03300; the refinement of Graph-GRPO, arXiv 2603.10395",
    settings={**METHOD.settings, "timestep_fraction": 1.0, "refine_fraction": 0.5, "refine_time": 0.3, "refine_memory": 16},
)


def graph_memory(task: Any, policy: Any, ledger: Any, seed: int, **settings: Any) -> None:
    """Propose by policy, regeneration and genetic operators, screen by a Gaussian process, learn by GRPO's clipped loss.

    Args:
        task: what is optimised.
        policy: its network is trained in place.
        ledger: counts the calls.
        seed: of all draws.
        settings: as :data:`~discrete_grpo.recipes.grpo_memory.GRAPH_SETTINGS`, with ``goal`` beside them.
    """
    from discrete_grpo.recipes.memory_methods import GRAPHS

    drawn = GRAPHS.drawing(policy, **{name: settings.pop(name) for name in GRAPHS.of_policy})
    parts = {name: settings.pop(name) for name in GRAPHS.of_parts}
    in_rounds(task, drawn, ledger, seed, **GRAPHS.parts(drawn, generator_of(drawn, seed), **parts), **settings)


def graph_memory_blindfold(task: Any, policy: Any, ledger: Any, seed: int, **settings: Any) -> None:
    """Run :func:`graph_memory` on random scores, while the ledger counts and keeps the real ones."""
    graph_memory(task, policy, Blindfold(ledger, seed), seed, **{**settings, "goal": None})


MEMORY = replace(
    METHOD,
    name="grpo-graph-memory",
    about="grpo-memory for graph policies: also regenerates the best molecules, draws sizes like theirs; the likelihood is a bound",
    source="this project; the refinement of Graph-GRPO, arXiv 2603.10395",
    run=graph_memory,
    settings=GRAPH_SETTINGS,
    task_kinds=("molecules",),
    least_budget=200,
    uncounted="settings chosen in seven runs on median1 and zaleplon_mpo with seed 0; see docs/benchmarking.md",
    warm=True,
)
MEMORY_NO_GRPO = replace(
    MEMORY,
    name="grpo-graph-memory-no-grpo",
    about="ablation of grpo-graph-memory: the policy is not trained",
    settings=GRAPH_SETTINGS | {"passes": 0},
)
MEMORY_RANDOM_REWARD = replace(
    MEMORY,
    name="random-reward-graph",
    about="control: grpo-graph-memory learns from random scores, while the real ones are counted",
    run=graph_memory_blindfold,
)
