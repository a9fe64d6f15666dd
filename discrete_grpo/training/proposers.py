"""Proposers: whoever suggests samples to score besides the policy, and screens, which choose among suggestions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from jaxtyping import Float
from torch import Tensor

from discrete_grpo.core.checks import check_range, check_whole
from discrete_grpo.core.drawing import draw
from discrete_grpo.core.rollout import Context, Policy, Refinable, Replayable, is_refinable, is_replayable
from discrete_grpo.training.memory import ScoredMemory, rank_weights

__all__ = ["Proposer", "Regeneration", "Screen"]


class Proposer(Protocol):
    """A source of samples that learns from what was scored, such as genetic operators or a fragment library."""

    @property
    def name(self) -> str:
        """Short name, by which the ledger counts the calls of its samples."""
        ...

    def propose(self, memory: ScoredMemory, count: int, generator: torch.Generator) -> list[Any]:
        """Return at most ``count`` samples, made from what the memory holds; none while it holds too little.

        Invalid, known and repeated samples are left out by the caller, and cost nothing.
        """
        ...


class Screen(Protocol):
    """A model of the score, fitted to what was scored, that ranks candidates before they are paid for."""

    def observe(self, samples: Sequence[Any], scores: Float[Tensor, " batch"]) -> None:
        """Learn from scored samples; NaN is unknown."""
        ...

    def forget(self) -> None:
        """Forget everything that was observed."""
        ...

    def merit(self, samples: Sequence[Any]) -> Float[Tensor, " batch"] | None:
        """Expected use of scoring each sample, higher is better; None as long as too little was observed."""
        ...


@dataclass(frozen=True)
class Regeneration:
    """Parents drawn from the memory by rank, noised again and finished by the policy as it is at present.

    Attributes:
        policy: can start again from finished samples (:class:`~discrete_grpo.core.rollout.Refinable`), also from ones that it did
            not draw (:class:`~discrete_grpo.core.rollout.Replayable`).
        time: time to which a parent is noised, 0 (data) < t < 1 (noise), rounded to the grid of the sampler.
        population: number of the best that can be parents, at least 1; None takes all that the memory holds.
        rank_coefficient: k of :func:`~discrete_grpo.training.memory.rank_weights` for the parents.
        name: of the source in the ledger.
        memory: where parents are drawn from in place of the memory that :meth:`propose` is given, such as ``drawable`` of
            :class:`~discrete_grpo.training.rounds.Rounds`.

    Raises:
        ValueError: for a policy that cannot start from finished samples, or a number out of its range.

    Source: the refinement of Graph-GRPO, arXiv 2603.10395.
    """

    policy: Policy
    time: float = 0.3
    population: int | None = None
    rank_coefficient: float = 0.01
    name: str = "regeneration"
    memory: ScoredMemory | None = None

    def __post_init__(self) -> None:
        if not (is_refinable(self.policy) and is_replayable(self.policy)):
            wanted = "expected one with restarts, rollout_of and can_draw, which can go on from any finished sample"
            raise ValueError(f"policy: {type(self.policy).__name__}, {wanted}")
        check_range("time", self.time, above=0, below=1)
        if self.population is not None:
            check_whole("population", self.population, least=1, note=" or None")
        check_range("rank_coefficient", self.rank_coefficient, above=0)

    def propose(self, memory: ScoredMemory, count: int, generator: torch.Generator) -> list[Any]:
        """``count`` samples, each from a parent of its own draw, of those that the policy can draw; none without such a parent."""
        known, memory = cast(Replayable, self.policy), memory if self.memory is None else self.memory
        parents = [entry.sample for entry in memory.kept[: self.population] if known.can_draw(entry.sample)]
        if not parents or count < 1:
            return []
        weights = rank_weights(len(parents), self.rank_coefficient).to(generator.device, torch.float32)
        chosen = torch.multinomial(weights, count, replacement=True, generator=generator).tolist()
        rollout = known.rollout_of([parents[k] for k in chosen], generator=generator)
        rows = torch.arange(count, device=rollout.group.device)
        starts = cast(Refinable, self.policy).restarts(rollout, rows, self.time)
        contexts = [Context(number, columns) for number, columns in enumerate(starts)]
        added = {name for columns in starts for name in columns}
        return list(draw(self.policy, contexts, generator=generator, added=added).samples)
