"""The Gaussian by which rewards compare a number with a target."""

from __future__ import annotations

import math

__all__ = ["gaussian"]


def gaussian(x: float, mean: float, sigma: float) -> float:
    """exp(-((x - mean) / sigma)² / 2), which is 0 also where the square is beyond every float.

    Args:
        x: any finite number.
        mean: where the maximum of 1 lies.
        sigma: the standard deviation, more than 0.

    Source: the score modifiers of GuacaMol, Brown et al. (2019).

    >>> round(gaussian(1.0, 2.0, 1.0), 4), gaussian(3.0, 2.0, 1e-200)
    (0.6065, 0.0)
    """
    try:
        return math.exp(-(((x - mean) / sigma) ** 2) / 2)
    except OverflowError:
        return 0.0
