"""Penalties of a diversity filter: the factor on a score whose bucket has been hit ``count`` times, this time included.

Source: REINVENT4's diversity filters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

__all__ = ["PENALTIES", "Penalty", "erf_penalty", "linear_penalty", "sigmoid_penalty", "step_penalty", "tanh_penalty"]

Penalty: TypeAlias = Literal["Step", "Linear", "Tanh", "Sigmoid", "Erf"]


def step_penalty(count: int, bucket_size: int) -> float:
    """Compute 1 while n <= size, then 0.

    Source: Blaschke et al. (2020); REINVENT4 up to 4.8 (4.9 gives 0 from n = size on).

    >>> step_penalty(25, 25), step_penalty(26, 25)
    (1.0, 0.0)
    """
    return float(count <= bucket_size)


def linear_penalty(count: int, bucket_size: int) -> float:
    """Compute max(0, 1 - n / size). Source: REINVENT4 4.9."""
    return max(0.0, 1.0 - count / bucket_size)


def tanh_penalty(count: int, bucket_size: int) -> float:
    """Compute 1 - tanh(3 (n - 1) / size). Source: REINVENT4 4.9."""
    return 1.0 - math.tanh(3.0 * (count - 1) / bucket_size)


def sigmoid_penalty(count: int, bucket_size: int) -> float:
    """Compute 1 - 1 / (1 + exp(-(2 n / size - 1) / 0.15)), which is one half at n = size / 2. Source: REINVENT4 4.9."""
    return 0.5 * (1.0 - math.tanh((2.0 * count / bucket_size - 1.0) / 0.3))  # the same, without an exponential that overflows


def erf_penalty(count: int, bucket_size: int) -> float:
    """Compute 1 + erf(√π / size) - erf(√π n / size). Source: REINVENT4 4.9."""
    scale = math.sqrt(math.pi) / bucket_size
    return 1.0 + math.erf(scale) - math.erf(scale * count)


PENALTIES: Mapping[Penalty, Callable[[int, int], float]] = {
    "Step": step_penalty,
    "Linear": linear_penalty,
    "Tanh": tanh_penalty,
    "Sigmoid": sigmoid_penalty,
    "Erf": erf_penalty,
}
