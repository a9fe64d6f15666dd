"""How closely an open node of a graph that is being written is tied to the head of its queue.

The affinity of nodes h and u is the number of walks of four edges between them, per pair of an edge of h and an edge of u:

    a(h, u) = (A^4)_hu / (d_h d_u) = the mean over neighbours x of h and y of u of (A^2)_xy,

the number of common neighbours that a neighbour of one and a neighbour of the other have. It is large in a dense block and near 0
between blocks. Numbers of walks are whole, and exact in double precision below 2^53 (on a device without it, in single precision
below 2^24), so that the levels do not depend on the order of a sum.

A network reads it in steps: 0 for no such node, 1 below 1/8, and one more with each factor of √2 up to 16.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from discrete_grpo.core.precision import constant, widen

__all__ = ["LEVELS", "STEPS", "levels", "levels_of"]

STEPS = tuple(2.0 ** (k / 2) for k in range(-6, 9))
"""Where the levels 2, 3, ... begin."""
LEVELS = len(STEPS) + 2
"""Number of levels, 0 included."""


def levels(
    adjacent: Bool[Tensor, "row node node"],
    degrees: Int[Tensor, "row node"],
    head: Int[Tensor, "row 1"],
    nodes: Int[Tensor, "row place"],
) -> Int[Tensor, "row place"]:
    """Levels of the affinity of nodes to a head, at least 1.

    Args:
        adjacent: symmetric adjacency matrices A.
        degrees: d, right for the head and the nodes.
        head: h.
        nodes: u.
    """
    edges = widen(adjacent)
    walks = edges.gather(1, head.unsqueeze(2).expand(-1, -1, edges.shape[2])).transpose(1, 2)
    for _ in range(3):
        walks = edges @ walks
    pairs = degrees.gather(1, nodes) * degrees.gather(1, head)
    found = walks.squeeze(2).gather(1, nodes) / pairs.clamp_min(1)
    return torch.bucketize(found, constant(STEPS, found.device, found.dtype), right=True) + 1


def levels_of(
    adjacent: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    degrees: np.ndarray[tuple[int], np.dtype[np.int16]],
    queue: np.ndarray[tuple[int], np.dtype[np.int16]],
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The same for the nodes of a queue behind its head, in one graph on the host."""
    walks = adjacent[queue[0]]
    for _ in range(3):
        walks = adjacent @ walks
    pairs = degrees[queue[1:]].astype(np.int64) * degrees[queue[0]]
    return np.searchsorted(STEPS, walks[queue[1:]] / np.maximum(pairs, 1), side="right") + 1
