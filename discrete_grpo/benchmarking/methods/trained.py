"""Shared parts of the methods that train a policy: GRPO's trainer and the rounds over a memory, on one task and one ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from discrete_grpo.benchmarking.jobs import sample_key

if TYPE_CHECKING:
    import torch

    from discrete_grpo.core.rollout import Context
    from discrete_grpo.policies.options import NodeCount
    from discrete_grpo.rewards.ledger import Ledger
    from discrete_grpo.rewards.task import Task
    from discrete_grpo.training.memory import ScoredMemory
    from discrete_grpo.training.objectives import Objective
    from discrete_grpo.training.proposers import Proposer, Screen

__all__ = ["generator_of", "in_rounds", "with_trainer"]


def generator_of(policy: Any, seed: int) -> torch.Generator:
    """A generator on the policy's device."""
    import torch

    from discrete_grpo.core.rollout import as_module

    return torch.Generator(next(as_module(policy).parameters()).device).manual_seed(seed)


def with_trainer(
    task: Task,
    policy: Any,
    ledger: Ledger,
    seed: int,
    *,
    node_count: NodeCount = "prior",
    num_steps: int | None = None,
    **settings: Any,
) -> None:
    """Train the policy by :class:`~discrete_grpo.training.trainer.GRPOTrainer` until the budget is used up.

    Args:
        task: what is optimised.
        policy: is trained in place.
        ledger: counts the calls.
        seed: of the run.
        node_count: where the node counts of a graph policy come from, unless it has a choice of its own already. With ``prior`` the
            samples of a group share one count, so a policy that draws one group per update cannot learn which counts are good.
        num_steps: steps of a graph policy's sampler; None keeps the policy's.
        settings: fields of :class:`~discrete_grpo.training.config.GRPOConfig`.
    """
    from discrete_grpo.benchmarking.checks import policy_kind
    from discrete_grpo.policies.options import graph_part, with_options
    from discrete_grpo.recipes.families import SamplerOptions
    from discrete_grpo.recipes.loading import with_sampler
    from discrete_grpo.training.config import GRPOConfig
    from discrete_grpo.training.trainer import GRPOTrainer

    if num_steps is not None:
        policy = with_sampler(policy, SamplerOptions(num_steps=num_steps))
    if policy_kind(policy) == "graph" and graph_part(policy) is policy:
        policy = with_options(policy, node_count=node_count)
    GRPOTrainer(policy, task, GRPOConfig(seed=seed, max_steps=1_000_000, **settings), ledger=ledger).train()


def in_rounds(
    task: Task,
    policy: Any,
    ledger: Ledger,
    seed: int,
    objective: Objective,
    *,
    memory: ScoredMemory | None = None,
    drawable: ScoredMemory | None = None,
    proposers: Sequence[Proposer] = (),
    screen: Screen | None = None,
    rewrite: Callable[[Any, torch.Generator], Any] | None = None,
    contexts: Callable[[ScoredMemory, int, torch.Generator], Sequence[Context]] | None = None,
    temperature: float | None = None,
    warm_start: str | None = None,
    warm_start_calls: int | None = None,
    **settings: Any,
) -> None:
    """Train the policy by :class:`~discrete_grpo.training.rounds.Rounds` until the budget is used up or the run is stale.

    A run also ends when its ten best samples reach the ``goal`` of the settings, by default the optimum of the task.

    Args:
        task: what is optimised.
        policy: is trained in place.
        ledger: counts the calls.
        seed: of all draws.
        objective: loss of the passes.
        memory: memory from which the passes draw; None takes the default.
        drawable: memory of samples that the policy can draw, from which the passes draw instead.
        proposers: sources of candidates besides the policy.
        screen: chooses among candidates; None scores all.
        rewrite: another text of the same sample for a pass; None learns from the sample as it is.
        contexts: function that makes the contexts of the draws; None uses empty contexts.
        temperature: temperature at which a policy of tokens draws and is scored; None leaves its own.
        warm_start: SMILES file whose molecules are scored first, counted, and put into the memory, where the screen sees them too.
        warm_start_calls: how many of them; None takes all.
        settings: fields of :class:`~discrete_grpo.training.rounds_config.RoundsConfig`.
    """
    from discrete_grpo.recipes.grpo_memory import fill_memory
    from discrete_grpo.training.memory import ScoredMemory
    from discrete_grpo.training.rounds import Rounds
    from discrete_grpo.training.rounds_config import RoundsConfig

    if temperature is not None:
        from discrete_grpo.core.description import innermost
        from discrete_grpo.policies.truncation import Truncation

        innermost(policy).truncation = Truncation(temperature=temperature)
    memory = ScoredMemory() if memory is None else memory  # an empty one is False
    known = [] if warm_start is None else fill_memory(task, ledger, memory, warm_start, warm_start_calls)
    Rounds(
        policy,
        task,
        ledger,
        sample_key(task.kind),
        objective,
        RoundsConfig(**{"goal": task.optimum, **settings}),
        memory=memory,
        known=known,
        drawable=drawable,
        proposers=proposers,
        screen=screen,
        rewrite=rewrite,
        contexts=contexts,
        generator=generator_of(policy, seed),
    ).run()
