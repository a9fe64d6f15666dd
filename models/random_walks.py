"""Random walks on graphs: powers of the normalised adjacency matrix, as features of nodes and pairs (RRWP)."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["random_walks"]


def random_walks(
    adjacency: Float[Tensor, "batch node node"], length: int, *, by: Literal["both", "row"] = "both"
) -> Float[Tensor, "length batch node node"]:
    """Powers 1 to K of the normalised adjacency matrix; an isolated or padded node has rows of zeros.

    Source: Ma et al. (2023), section 3.1, arXiv 2305.17589.

    Args:
        adjacency: A, 0 or 1, symmetric.
        length: K, at least 1.
        by: degrees that A is divided by: those of ``both`` ends gives D^-1/2 A D^-1/2, which is symmetric; those of the
            ``row`` gives D^-1 A, the transition matrix. Their powers are equal up to a diagonal similarity.
    """
    if by == "row":
        degree = adjacency.sum(-1, keepdim=True)
        walk = torch.where(degree > 0, adjacency / degree.clamp_min(1.0), 0.0)
    else:
        scale = adjacency.sum(-1).clamp_min(1.0).rsqrt()
        walk = scale[:, :, None] * adjacency * scale[:, None, :]
    powers = [walk]
    for _ in range(length - 1):
        powers.append(powers[-1] @ walk)
    return torch.stack(powers)
