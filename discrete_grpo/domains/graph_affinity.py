"""How closely the nodes of a graph that is being written are tied to the head of its queue.

The affinity of nodes h and u is a number of walks of three and four edges between them, per pair of an edge of h and an edge of u:

    a(h, u) = (8 A^3 + A^4)_hu / (d_h d_u) = the mean over neighbours x of h and y of u of 8 A_xy + (A^2)_xy,

where A_xy is 1 if they are joined, and (A^2)_xy the number of their common neighbours. It is large in a dense block and near 0
between blocks. The weights are those of Katz's index with β = 1/8. Numbers of walks are whole, and exact in double precision below
2^53 (on a device without it, in single precision below 2^24), so that they do not depend on the order of a sum.

A network reads affinities in levels: 0 for no such node, 1 below 1/8, and one more with each factor of √2 up to 16.

Source: the index is that of Katz (1953), doi 10.1007/bf02289026; the normalisation is this package's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from discrete_grpo.core.precision import widen

__all__ = ["LEVELS", "STEPS", "TIED", "affinities", "affinities_of"]

STEPS = tuple(2.0 ** (k / 2) for k in range(-6, 9))
"""Where the levels 2, 3, ... begin."""
LEVELS = len(STEPS) + 2
"""Number of levels, 0 included."""
TIED = 2.0
"""Nodes of at least this affinity are probably in the same block."""
THREE = 8.0
"""Weight of a walk of three edges."""


def affinities(
    adjacent: Bool[Tensor, "row node node"], degrees: Int[Tensor, "row node"], head: Int[Tensor, "row 1"]
) -> Float[Tensor, "row node"]:
    """a(h, u) of all nodes u.

    Args:
        adjacent: symmetric matrices A.
        degrees: d, their sums.
        head: h.
    """
    edges = widen(adjacent)
    two = edges @ edges.gather(1, head.unsqueeze(2).expand(-1, -1, edges.shape[2])).transpose(1, 2)
    three = edges @ two
    walks = (THREE * three + edges @ three).squeeze(2)
    return walks / (degrees * degrees.gather(1, head)).clamp_min(1)


def affinities_of(
    adjacent: np.ndarray[Any, np.dtype[np.float64]], degrees: np.ndarray[Any, np.dtype[np.int16]], head: int
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The same for one graph on the host."""
    three = adjacent @ (adjacent @ adjacent[head])
    walks: np.ndarray[Any, np.dtype[np.float64]] = THREE * three + adjacent @ three
    return walks / np.maximum(degrees.astype(np.int64) * int(degrees[head]), 1)
