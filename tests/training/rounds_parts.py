"""Rounds over a memory of texts of a few letters, and what their tests watch them with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from discrete_grpo import Rollout
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.training.memory import ScoredMemory
from discrete_grpo.training.objectives import GroupBalance, MemoryBatch, Objective
from discrete_grpo.training.rounds import Rounds
from discrete_grpo.training.rounds_config import RoundsConfig
from tests.letters import Worth, letters_policy, not_empty

SMALL: dict[str, Any] = {"draws": 12, "passes": 2, "batch_size": 4, "children": 0, "bf16": False}


def rounds(
    policy: TokenPolicy | None = None,
    *,
    budget: int | None = None,
    seed: int = 0,
    objective: Objective | None = None,
    memory: ScoredMemory | None = None,
    proposers: Sequence[Any] = (),
    screen: Any = None,
    rewrite: Callable[[Any, torch.Generator], Any] | None = None,
    **settings: Any,
) -> Rounds:
    return Rounds(
        letters_policy() if policy is None else policy,
        Worth(),
        Ledger(key=not_empty, max_oracle_calls=budget),
        not_empty,
        GroupBalance(5.0) if objective is None else objective,
        RoundsConfig(**SMALL | settings),
        memory=ScoredMemory() if memory is None else memory,
        proposers=proposers,
        screen=screen,
        rewrite=rewrite,
        generator=torch.Generator().manual_seed(seed),
    )


def asked(loop: Rounds) -> list[str]:
    assert isinstance(loop.reward, Worth)
    return loop.reward.asked


def calls(loop: Rounds) -> int:
    assert isinstance(loop.ledger, Ledger)
    return loop.ledger.calls


def sources(loop: Rounds) -> dict[str, int]:
    assert isinstance(loop.ledger, Ledger)
    return loop.ledger.sources()


def weights(loop: Rounds) -> list[Tensor]:
    assert isinstance(loop.policy, nn.Module)
    return [p.detach().clone() for p in loop.policy.parameters()]


def equal(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


class Fixed:
    """A proposer that always makes the same texts."""

    def __init__(self, name: str, *made: str) -> None:
        self.name, self.made = name, list(made)

    def propose(self, memory: ScoredMemory, count: int, generator: torch.Generator) -> list[str]:
        return self.made[:count]


class Spy:
    """An objective that keeps the batches that it is given."""

    def __init__(self, inner: Objective, needs_old: bool = False) -> None:
        self.inner, self.needs_old = inner, needs_old
        self.batches: list[MemoryBatch] = []

    def __call__(self, batch: MemoryBatch) -> Tensor:
        self.batches.append(batch)
        return self.inner(batch)


def spied(policy: TokenPolicy) -> list[list[str]]:
    """The samples of which the policy is asked for trajectories, from now on."""
    seen: list[list[str]] = []
    inner = policy.rollout_of

    def rollout_of(samples: Sequence[str], *, generator: torch.Generator | None = None) -> Rollout:
        seen.append(list(samples))
        return inner(samples, generator=generator)

    policy.rollout_of = rollout_of  # type: ignore[method-assign]
    return seen


def rollout(*samples: str) -> Rollout:
    """Draws whose log-probs do not matter."""
    group, one = torch.arange(len(samples)), torch.ones(len(samples), 1)
    return Rollout({}, group, 0 * one, one.long(), torch.ones_like(group), 1, samples)


class Ranking:
    """A screen that prefers texts late in the alphabet, and is ready after some observations."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.offered: list[list[str]] = []
        self.observed: dict[str, float] = {}

    def observe(self, samples: Sequence[str], scores: Tensor) -> None:
        self.observed |= dict(zip(samples, scores.tolist(), strict=True))

    def forget(self) -> None:
        self.observed.clear()

    def merit(self, samples: Sequence[str]) -> Tensor | None:
        self.offered.append(list(samples))
        ready = len(self.observed) >= self.start
        return torch.tensor([float(sorted(samples).index(text)) for text in samples]) if ready else None
