"""The control ``best-of-prior``: samples of the policy as it is, without any learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods.trained import generator_of

if TYPE_CHECKING:
    from discrete_grpo.rewards.ledger import Ledger
    from discrete_grpo.rewards.task import Task

__all__ = ["METHOD", "best_of_prior"]


def best_of_prior(task: Task, policy: Any, ledger: Ledger, seed: int, *, batch_size: int = 64, patience: int = 10) -> None:
    """Score samples of the policy until the budget is used up, or ``patience`` batches in a row hold nothing new.

    Args:
        task: what is optimised.
        policy: is sampled and not changed.
        ledger: counts the calls.
        seed: seed of the draws.
        batch_size: samples per batch, each a group of its own.
        patience: batches without a new sample after which the policy counts as exhausted.
    """
    from discrete_grpo.core.rollout import Context

    generator = generator_of(policy, seed)
    contexts = [Context(k) for k in range(batch_size)]
    idle = 0
    while idle < patience and not ledger.exhausted:
        before = ledger.calls
        ledger.score([task], policy.sample(contexts, generator=generator).samples, source="policy")
        idle = 0 if ledger.calls > before else idle + 1


METHOD = Method(
    name="best-of-prior",
    about="control: samples of the policy without any learning",
    source="",
    run=best_of_prior,
    settings={"batch_size": 64, "patience": 10},
)
