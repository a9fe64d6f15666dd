"""Intervals of metrics by resampling, and the value that a perfect generator would have.

Metrics of sets count pairs and repetitions (uniqueness, MMD, nearest neighbours), and repeated samples, as in the bootstrap with
replacement, would themselves change them. Parts are therefore drawn **without** replacement, and their deviations from their mean
are rescaled. For a mean of n values and parts of m,

    Var(mean of a part) = σ²/m · (1 - m/n),    so that deviations · √(m / (n - m)) have the variance σ²/n of the whole.

Parts are halves (m = n/2, factor 1) unless a metric bounds their size for its cost.

Source: Politis and Romano (1994), doi 10.1214/aos/1176325770 (subsampling).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Int

from discrete_grpo.core.checks import check_range, check_whole

__all__ = ["Estimate", "Statistic", "disjoint_halves", "interval", "mean_of", "whole"]

Rows: TypeAlias = Int[np.ndarray, " row"]


@dataclass(frozen=True)
class Statistic:
    """A number of a set of samples, as a function of the rows taken from it.

    Attributes:
        of: rows, ascending, to the number.
        size: number of rows there are.
        least, most: range of the number; an interval is cut off there.
        part: largest number of rows of a part; None takes halves.
    """

    of: Callable[[Rows], float]
    size: int
    least: float = -math.inf
    most: float = math.inf
    part: int | None = None


@dataclass(frozen=True)
class Estimate:
    """A metric with its uncertainty.

    Attributes:
        value: of all samples; NaN where it is not defined.
        low, high: ends of the 95 % interval; NaN without resampling, or with fewer than 4 samples.
        perfect: value for fresh data in place of the samples; NaN if there is none.
        mean, deviation: mean and population standard deviation over folds of the samples; NaN without folds.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    perfect: float = math.nan
    mean: float = math.nan
    deviation: float = math.nan


def whole(statistic: Statistic) -> float:
    """The number of all rows; NaN where there are none."""
    return float(statistic.of(np.arange(statistic.size))) if statistic.size else math.nan


def interval(statistic: Statistic, resamples: int, seed: int = 0, *, level: float = 0.95) -> tuple[float, float]:
    """Compute value + (q - mean q) √(m / (n - m)) at the two tails, q the numbers of random parts of m of the n rows.

    Args:
        statistic: the metric.
        resamples: number of parts; 0 gives NaN.
        seed: seed of the draws.
        level: share that lies between the ends.

    Returns:
        Both ends, cut off at the range of the metric; NaN where there are fewer than 4 rows or a number is not finite.

    Raises:
        ValueError: for negative ``resamples``, or a ``level`` outside (0, 1).

    >>> values = np.arange(100.0)
    >>> low, high = interval(mean_of(values), 200)
    >>> low < 49.5 < high
    True
    """
    check_whole("bootstrap", resamples, least=0)
    check_range("level", level, above=0, below=1)
    value, n = whole(statistic), statistic.size
    if n < 4 or not resamples or not math.isfinite(value):
        return math.nan, math.nan
    m = n // 2 if statistic.part is None else min(n // 2, statistic.part)
    generator = np.random.default_rng(seed)
    draws = (np.sort(generator.permutation(n)[:m]) for _ in range(resamples))
    found = np.array([statistic.of(rows) for rows in draws])
    if not np.isfinite(found).all():
        return math.nan, math.nan
    deviations = (found - found.mean()) * math.sqrt(m / (n - m))
    low, high = np.quantile(deviations, [(1 - level) / 2, (1 + level) / 2], method="weibull")  # others are too narrow
    return max(statistic.least, value + float(low)), min(statistic.most, value + float(high))


def disjoint_halves(size: int, wanted: int, seed: int = 0) -> tuple[Rows, Rows]:
    """Split rows at random into one part that stands for the samples and the rest, which stands for the reference.

    Args:
        size: number of rows.
        wanted: rows of the first part, cut down to half of all.
        seed: of the split.

    >>> first, second = disjoint_halves(10, 3)
    >>> len(first), sorted([*first.tolist(), *second.tolist()]) == list(range(10))
    (3, True)
    """
    order = np.random.default_rng(seed).permutation(size)
    count = min(wanted, size // 2)
    return np.sort(order[:count]), np.sort(order[count:])


def mean_of(values: np.ndarray, least: float = -math.inf, most: float = math.inf) -> Statistic:
    """The mean of one value per sample.

    >>> whole(mean_of(np.array([0.0, 1.0])))
    0.5
    """
    table = np.asarray(values, dtype=np.float64)
    return Statistic(lambda rows: float(table[rows].mean()), len(table), least, most)
