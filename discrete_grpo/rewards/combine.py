"""Combination of several rewards into one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from discrete_grpo.core.checks import check_range
from discrete_grpo.core.reward_arguments import check_forgets, reward_name
from discrete_grpo.core.scoring import RewardError, score_one, shown_value

__all__ = ["Gated", "GeometricMean", "WeightedSum"]


def _checked_rewards(given: Any) -> tuple[Callable[..., Sequence[float | None]], ...]:
    """Return one reward, or several, as a tuple; raises ValueError for anything else, and for rewards with a memory."""
    rewards = tuple(given) if isinstance(given, Iterable) else (given,)
    if not rewards or not all(callable(reward) for reward in rewards):
        raise ValueError(f"rewards: {list(rewards)}, expected at least one callable")
    for reward in rewards:
        check_forgets(reward)
    return rewards


def _checked_weights(given: Any, count: int) -> tuple[float, ...]:
    """Return ``count`` finite weights as a tuple; raises ValueError for anything else."""
    listed = tuple(given) if isinstance(given, Iterable) else (given,)
    try:
        weights = tuple(map(float, listed))
    except (TypeError, ValueError):
        weights = ()
    if len(weights) != count or not all(map(math.isfinite, weights)):
        raise ValueError(f"weights: {list(listed)}, expected {count} finite numbers, one per reward")
    return weights


@dataclass(frozen=True)
class WeightedSum:
    """Weighted sum of several rewards, Σ_k w_k r_k(sample).

    To normalise each reward within its group before the sum, pass the list of rewards to the trainer instead.

    Args:
        rewards: at least one callable from samples to one number per sample; a single one needs no tuple.
        weights: as many finite numbers; likewise.

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
        object.__setattr__(self, "rewards", _checked_rewards(self.rewards))
        object.__setattr__(self, "weights", _checked_weights(self.weights, len(self.rewards)))

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


@dataclass(frozen=True)
class GeometricMean:
    """Weighted geometric mean of several rewards, Π_k r_k(sample)^(w_k / Σ_j w_j): 0 where one of them is 0.

    Args:
        rewards: at least one callable from samples to one number >= 0 per sample; a single one needs no tuple.
        weights: as many numbers above 0; None (default) means equal ones.

    Raises:
        ValueError: if there are no rewards, one of them remembers earlier samples (such a filter stands around the mean), their
            number differs from that of the weights, or a weight is not a finite number above 0.

    Source: the aggregation ``geometric_mean`` of REINVENT4, Loeffler et al. (2024), which raises scores below 1e-8 to 1e-8 and
    leaves out unknown ones.

    >>> def length(samples, **columns): return [float(len(s)) for s in samples]
    >>> def ones(samples, **columns): return [1.0 for s in samples]
    >>> GeometricMean((length, ones))(["CCCO"])
    [2.0]
    """

    rewards: tuple[Callable[..., Sequence[float | None]], ...]
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rewards", _checked_rewards(self.rewards))
        count = len(self.rewards)
        weights = _checked_weights((1.0,) * count if self.weights is None else self.weights, count)
        for weight in weights:
            check_range("weights", weight, above=0)
        object.__setattr__(self, "weights", weights)

    @property
    def name(self) -> str:
        """The name in logs: ``geometric_mean(qed, validity)``."""
        return f"geometric_mean({', '.join(map(reward_name, self.rewards))})"

    @property
    def inner(self) -> tuple[Callable[..., Sequence[float | None]], ...]:
        """The rewards of which the mean is taken."""
        return self.rewards

    def __call__(self, samples: Sequence[Any], **columns: Sequence[Any]) -> list[float | None]:
        """Compute the mean of each sample.

        Returns:
            A number >= 0 per sample, between the smallest and the largest of the rewards; None where one of them is unknown.

        Raises:
            RewardError: if one of the rewards fails, or is negative.
        """
        scores = [score_one(reward, samples, columns).tolist() for reward in self.rewards]
        for reward, row in zip(self.rewards, scores, strict=True):
            for sample, score in zip(samples, row, strict=True):
                if score < 0.0:
                    told = f"{score:g} for {shown_value(sample)}, expected at least 0 in a geometric mean"
                    raise RewardError(f"reward {reward_name(reward)}: {told}")
        return [self._mean(row) for row in zip(*scores, strict=True)]

    def _mean(self, row: Sequence[float]) -> float | None:
        if any(map(math.isnan, row)):
            return None
        weights = self.weights or ()
        return math.prod(x ** (w / sum(weights)) for w, x in zip(weights, row, strict=True))


@dataclass(frozen=True)
class Gated:
    """Reward under constraints, p r(sample) + (1 - p) otherwise with p = Π_k g_k(sample).

    Gates are computed in order, each on the samples for which no earlier gate was 0, and the reward on the remaining samples. With
    cheap gates an expensive reward, such as docking, is not computed for samples that fail. A ledger nevertheless counts a
    call for every sample.

    Args:
        reward: a callable from samples to one number per sample.
        gates: at least one such callable with scores in [0, 1], such as
            :class:`~discrete_grpo.rewards.molecules.InRange`: 1 passes, 0 fails, and values between reduce the reward.
        otherwise: the score of a sample that does not pass, a finite number. Choose it below the values of the reward.

    Raises:
        ValueError: if there are no gates, one of the rewards remembers earlier samples (such a filter stands around the whole),
            or ``otherwise`` is not finite.

    >>> from discrete_grpo.rewards.molecules import InRange, molecular_weight, qed
    >>> light = Gated(qed, (InRange(molecular_weight, low=0, high=50),), otherwise=-1.0)
    >>> [round(x, 2) for x in light(["CCO", "CCCCCC"])]
    [0.41, -1.0]
    """

    reward: Callable[..., Sequence[float | None]]
    gates: tuple[Callable[..., Sequence[float | None]], ...]
    otherwise: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "gates", tuple(self.gates) if isinstance(self.gates, Iterable) else (self.gates,))
        if not callable(self.reward):
            raise ValueError(f"reward: {self.reward!r}, expected a callable")
        if not self.gates or not all(callable(gate) for gate in self.gates):
            raise ValueError(f"gates: {list(self.gates)}, expected at least one callable")
        for part in self.inner:
            check_forgets(part)
        check_range("otherwise", self.otherwise)

    @property
    def name(self) -> str:
        """The name in logs: ``qed if molecular_weight in 0..50``."""
        return f"{reward_name(self.reward)} if {' and '.join(map(reward_name, self.gates))}"

    @property
    def inner(self) -> tuple[Callable[..., Sequence[float | None]], ...]:
        """The reward and its gates."""
        return (self.reward, *self.gates)

    def __call__(self, samples: Sequence[Any], **columns: Sequence[Any]) -> list[float | None]:
        """Score the samples that pass.

        Returns:
            One number per sample, between ``otherwise`` and the reward; None where a computed gate or the reward is unknown.

        Raises:
            RewardError: if a reward fails, or a gate has a score outside of [0, 1].
        """
        passed = [1.0] * len(samples)
        for gate in self.gates:
            for row, score in self._asked(gate, passed, samples, columns).items():
                if not (0.0 <= score <= 1.0 or math.isnan(score)):
                    sample = shown_value(samples[row])
                    raise RewardError(f"gate {reward_name(gate)}: {score:g} for {sample}, expected a number in [0, 1]")
                passed[row] *= score
        scores = self._asked(self.reward, passed, samples, columns)
        found = [p * scores[row] + (1.0 - p) * self.otherwise if row in scores else self.otherwise for row, p in enumerate(passed)]
        known = [not math.isnan(p) for p in passed]
        return [score if ok and not math.isnan(score) else None for score, ok in zip(found, known, strict=True)]

    @staticmethod
    def _asked(
        reward: Callable[..., Any], passed: Sequence[float], samples: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> dict[int, float]:
        """Scores by row of the samples that have not failed so far; NaN where unknown."""
        rows = [row for row, p in enumerate(passed) if p > 0.0]
        if not rows:
            return {}
        picked = {name: [values[row] for row in rows] for name, values in columns.items()}
        return dict(zip(rows, score_one(reward, [samples[row] for row in rows], picked).tolist(), strict=True))
