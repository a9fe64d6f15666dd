"""Combination of several rewards into one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from discrete_grpo.core.reward_arguments import check_forgets, reward_name
from discrete_grpo.core.scoring import score_one

__all__ = ["WeightedSum"]


@dataclass(frozen=True)
class WeightedSum:
    """Weighted sum of several rewards, Σ_k w_k r_k(sample).

    To normalise each reward within its group before the sum, give the trainer the list of rewards instead.

    Args:
        rewards: at least one callable from samples to one number per sample.
        weights: as many finite numbers.

    Raises:
        ValueError: if there are no rewards, one of them remembers earlier samples (such a filter stands around the sum), their
            number differs from that of the weights, or a weight is not finite.

    >>> def length(samples, **columns): return [float(len(s)) for s in samples]
    >>> WeightedSum((length,), (0.5,))(["CCO"])
    [1.5]
    """

    rewards: tuple[Callable[..., Sequence[float | None]], ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rewards", tuple(self.rewards))
        object.__setattr__(self, "weights", tuple(float(w) for w in self.weights))
        if not self.rewards or not all(callable(reward) for reward in self.rewards):
            raise ValueError(f"rewards: {list(self.rewards)}, expected at least one callable")
        for reward in self.rewards:
            check_forgets(reward)
        if len(self.weights) != len(self.rewards) or not all(math.isfinite(w) for w in self.weights):
            raise ValueError(f"weights: {list(self.weights)}, expected {len(self.rewards)} finite numbers, one per reward")

    @classmethod
    def of(cls, weights: Mapping[Callable[..., Sequence[float | None]], float]) -> WeightedSum:
        """Make the sum from ``{reward: weight}``."""
        return cls(tuple(weights), tuple(weights.values()))

    @property
    def name(self) -> str:
        """The name in logs: ``0.5*qed + 0.5*validity``."""
        return " + ".join(f"{w:g}*{reward_name(r)}" for w, r in zip(self.weights, self.rewards, strict=True))

    @property
    def inner(self) -> tuple[Callable[..., Sequence[float | None]], ...]:
        """The rewards that are summed."""
        return self.rewards

    def __call__(self, samples: Sequence[Any], **columns: Sequence[Any]) -> list[float | None]:
        """Compute the sum of each sample.

        Returns:
            One number per sample, in the range that the rewards and weights imply; None where any of the rewards is unknown.

        Raises:
            RewardError: if one of the rewards fails; see :func:`discrete_grpo.core.scoring.score_one`.
        """
        scores = [score_one(reward, samples, columns).tolist() for reward in self.rewards]
        return [self._sum(row) for row in zip(*scores, strict=True)]

    def _sum(self, row: Sequence[float]) -> float | None:
        known = [w * x for w, x in zip(self.weights, row, strict=True) if not math.isnan(x)]
        return sum(known) if len(known) == len(row) else None
