"""Interfaces of proposers, the sources of candidates besides the policy, and of screens, which select among candidates."""

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
    """A source of candidates that depends on the scored samples, such as genetic operators or a fragment library."""

    @property
    def name(self) -> str:
        """Short name under which the ledger counts the calls of its samples."""
        ...

    def propose(self, memory: ScoredMemory, count: int, generator: torch.Generator) -> list[Any]:
        """Return at most ``count`` samples made from the entries of the memory; none while it has too few.

        The caller drops invalid, known and repeated samples, which cost no call.
        """
        ...


class Screen(Protocol):
    """A model of the score, fitted to scored samples, that ranks candidates before they are scored."""

    def observe(self, samples: Sequence[Any], scores: Float[Tensor, " batch"]) -> None:
        """Add scored samples; a NaN score is unknown."""
        ...

    def forget(self) -> None:
        """Remove all observations."""
        ...

    def merit(self, samples: Sequence[Any]) -> Float[Tensor, " batch"] | None:
        """Return the merit of scoring each sample, higher is better; None while too few samples were observed."""
        ...


@dataclass(frozen=True)
class Regeneration:
    """A proposer that draws parents from the memory by rank, re-noises them and regenerates them with the current policy.

    Attributes:
        policy: can start again from finished samples (:class:`~discrete_grpo.core.rollout.Refinable`), also from ones that it did
            not draw (:class:`~discrete_grpo.core.rollout.Replayable`).
        time: time to which a parent is noised, 0 (data) < t < 1 (noise), rounded to the grid of the sampler.
        population: number of the best that can be parents, at least 1; None takes all that the memory holds.
        rank_coefficient: k of :func:`~discrete_grpo.training.memory.rank_weights` for the parents.
        name: name of the source in the ledger.
        memory: memory of the parents in place of the one that :meth:`propose` receives, such as ``drawable`` of
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
        """Return ``count`` samples, each from a separately drawn parent that the policy can draw; none without such a parent."""
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
