"""Connectivity features of graphs: components, effective resistances and bridges.

Random walks of K steps depend on K hops only. Whether a graph is a tree or planar depends on larger distances: on whether an
edge closes a cycle or joins two parts. Effective resistance measures both at any distance.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from discrete_grpo.core.precision import exact_device

__all__ = ["GLOBAL_FEATURES", "NODE_FEATURES", "PAIR_FEATURES", "components", "connectivity_features", "effective_resistance"]

NODE_FEATURES, PAIR_FEATURES, GLOBAL_FEATURES = 1, 4, 2
"""Widths of the three results of :func:`connectivity_features`."""


def components(adjacency: Float[Tensor, "batch node node"]) -> Bool[Tensor, "batch node node"]:
    """Whether a path joins i and j: (I + A)^N > 0, by repeated squaring; true on the diagonal."""
    n = adjacency.shape[-1]
    reach = (adjacency > 0) | torch.eye(n, dtype=torch.bool, device=adjacency.device)
    for _ in range(math.ceil(math.log2(max(n, 2)))):
        reach = reach.float() @ reach.float() > 0
    return reach


def effective_resistance(
    adjacency: Float[Tensor, "batch node node"], same: Bool[Tensor, "batch node node"]
) -> Float[Tensor, "batch node node"]:
    """R_ij = L⁺_ii + L⁺_jj - 2 L⁺_ij inside a component, 0 between components; computed in float64.

    With J_ij = 1 inside a component, (L + J)⁻¹ differs from L⁺ by one constant per component, which cancels in R. In a tree R is
    the distance; an edge with R = 1 is a bridge. Source: Klein and Randic (1993), Resistance distance, J. Math. Chem. 12; as a
    feature Zhang et al. (2023), section 4, arXiv 2301.09505.

    Args:
        adjacency: symmetric, zeros and ones, zero diagonal.
        same: whether two nodes are in the same component, from :func:`components`.
    """
    where = exact_device(adjacency.device)
    a, joined = adjacency.to(where).double(), same.to(where)
    inverse = torch.linalg.inv_ex(torch.diag_embed(a.sum(-1)) - a + joined).inverse  # always regular; a check would wait for a GPU
    own = inverse.diagonal(dim1=1, dim2=2)
    found = torch.where(joined, own[:, :, None] + own[:, None, :] - inverse - inverse.mT, 0.0).clamp_min(0.0)
    return found.to(adjacency.dtype).to(adjacency.device)


def connectivity_features(
    adjacency: Float[Tensor, "batch node node"], mask: Bool[Tensor, "batch node"]
) -> tuple[Float[Tensor, "batch node 1"], Float[Tensor, "batch node node 4"], Float[Tensor, "batch 2"]]:
    """Features of nodes (log size of the component), pairs (same component, log(1 + R), bridge, log(1 - R)) and graph.

    log(1 - R) is given for edges only, is at least log 0.001, and is divided by 4: 1 - R is the share of spanning trees that do not
    contain the edge (Kirchhoff). The two features of the graph are the log of the number c of components and the log of one plus
    the cycle rank m - n + c.
    """
    same = components(adjacency)
    resistance = effective_resistance(adjacency, same)
    bridge = (adjacency > 0) & (resistance > 1 - 1e-4)  # cycle of k nodes: R = (k - 1)/k
    spare = torch.where(adjacency > 0, (1 - resistance).clamp_min(1e-3).log() / 4, 0.0)
    pairs = torch.stack([same.to(adjacency.dtype), torch.log1p(resistance), bridge.to(adjacency.dtype), spare], -1)
    sizes = same.sum(-1).to(adjacency.dtype)
    count = (mask / sizes).sum(-1).round()
    rank = adjacency.sum((1, 2)) / 2 - mask.sum(-1) + count
    return sizes.log().unsqueeze(-1), pairs, torch.stack([count.clamp_min(1.0).log(), torch.log1p(rank.clamp_min(0.0))], -1)
