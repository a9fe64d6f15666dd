"""Pairs of nodes of a padded batch, and the invariant features and equivariant updates of positions.

Shapes: B graphs, N nodes, n of them existing, P pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from discrete_grpo.domains.fields import centred
from discrete_grpo.domains.graphs import pair_index

__all__ = ["Pairs", "lengths", "moved", "pair_invariants", "radial_features"]

FARTHEST = 20.0
"""Largest centre of the Gaussian functions of a distance; the centres start at 0, at equal steps of log(1 + distance)."""
SMALLEST = 1e-8
"""Constant added to squared lengths, since the square root has no gradient at 0."""


@dataclass(frozen=True)
class Pairs:
    """Masks and index tensors of a batch, which all layers share.

    Attributes:
        left: i of each pair; unordered pairs are those with i < j, ordered ones are these and then all with i > j.
        right: j of each pair.
        flat: i N + j of each pair.
        reverse: number of the pair (j, i); of the pair itself if pairs are unordered.
        mask: which nodes exist.
        nodes: the same with a last axis of length 1.
        weight: 1 / sqrt(n - 1) where both ends exist, else 0.
        no_key: True where a column is not attended to.
        incidence: 1 where a node is i of an ordered pair, or either end of an unordered one.
        ordered: whether (i, j) and (j, i) are two pairs.
    """

    left: Int[Tensor, " pair"]
    right: Int[Tensor, " pair"]
    flat: Int[Tensor, " pair"]
    reverse: Int[Tensor, " pair"]
    mask: Bool[Tensor, "batch node"]
    nodes: Bool[Tensor, "batch node 1"]
    weight: Float[Tensor, "batch pair 1"]
    no_key: Bool[Tensor, "batch 1 1 node"]
    incidence: Float[Tensor, "node pair"]
    ordered: bool

    @staticmethod
    def of(mask: Bool[Tensor, "batch node"], dtype: torch.dtype, ordered: bool) -> Pairs:
        """Pairs of the graphs whose existing nodes ``mask`` gives."""
        n = mask.shape[1]
        left, right = pair_index(n, mask.device)
        reverse = torch.arange(len(left), device=mask.device)
        if ordered:
            left, right, reverse = torch.cat([left, right]), torch.cat([right, left]), torch.cat([reverse + len(left), reverse])
        number = torch.arange(n, device=mask.device)[:, None]
        incidence = number == left if ordered else (number == left) | (number == right)
        neighbours = (mask.sum(1) - 1).clamp_min(1)[:, None, None].to(dtype)
        weight = (mask[:, left] & mask[:, right]).unsqueeze(-1) * neighbours.rsqrt()
        nodes, no_key = mask.unsqueeze(-1).clone(), ~mask[:, None, None, :]  # a view would tie compiled code to its base
        return Pairs(left, right, left * n + right, reverse, mask, nodes, weight, no_key, incidence.to(dtype), ordered)

    def square(self, pairs: Float[Tensor, "batch pair d"]) -> Float[Tensor, "batch node node d"]:
        """The matrix with entries [i, j] and a zero diagonal, which is symmetric if pairs are unordered."""
        n = self.mask.shape[1]
        full = pairs.new_zeros(pairs.shape[0], n * n, pairs.shape[2]).index_copy(1, self.flat, pairs).unflatten(1, (n, n))
        return full if self.ordered else full + full.transpose(1, 2)

    def entries(self, matrix: Float[Tensor, "batch channel node node"]) -> Float[Tensor, "batch pair ways"]:
        """m_ij + m_ji of unordered pairs, [m_ij, m_ji] of ordered ones."""
        both = matrix if self.ordered else matrix + matrix.transpose(-1, -2)
        return self.around(rearrange(both, "b h i j -> b (i j) h").index_select(1, self.flat))

    def around(self, pairs: Float[Tensor, "batch pair d"]) -> Float[Tensor, "batch pair ways"]:
        """[e_ij, e_ji] of ordered pairs; unordered ones as they are."""
        return torch.cat([pairs, pairs.index_select(1, self.reverse)], -1) if self.ordered else pairs

    def ends(self, nodes: Float[Tensor, "batch node ways"]) -> tuple[Tensor, Tensor]:
        """States of both ends of each pair; the first half of the channels is read at i and the other at j if pairs are ordered."""
        at_left, at_right = nodes.chunk(2, -1) if self.ordered else (nodes, nodes)
        return at_left.index_select(1, self.left), at_right.index_select(1, self.right)


def lengths(vectors: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 1"]:
    """sqrt(|v|² + 1e-8), which has a gradient at v = 0."""
    return ((vectors * vectors).sum(-1, keepdim=True) + SMALLEST).sqrt()


def radial_features(distances: Float[Tensor, "*batch 1"], count: int) -> Float[Tensor, "*batch feature"]:
    """u = log(1 + r), and exp(-(u - c_k)² / (2 s²)) for ``count`` centres c_k at equal steps s from 0 to log 21.

    >>> radial_features(torch.tensor([[0.0], [20.0]]), 2)
    tensor([[0.0000, 1.0000, 0.6065],
            [3.0445, 0.6065, 1.0000]])
    """
    far = distances.log1p()
    step = math.log1p(FARTHEST) / (count - 1)
    centres = torch.arange(count, device=far.device, dtype=far.dtype) * step
    return torch.cat([far, torch.exp(-0.5 * ((far - centres) / step) ** 2)], -1)


def pair_invariants(positions: Float[Tensor, "batch node 3"], pairs: Pairs, count: int) -> tuple[Tensor, Tensor]:
    """Distances of pairs [B, P, 1], and features [B, P, count + 2] that rotations and reflections leave as they are.

    The features are p_i · p_j / ((1 + |p_i|) (1 + |p_j|)) and those of :func:`radial_features`.
    """
    p_i, p_j = positions.index_select(1, pairs.left), positions.index_select(1, pairs.right)
    inner = (p_i * p_j).sum(-1, keepdim=True) / ((1 + lengths(p_i)) * (1 + lengths(p_j)))
    distances = lengths(p_i - p_j)
    return distances, torch.cat([inner, radial_features(distances, count)], -1)


def moved(
    positions: Float[Tensor, "batch node 3"],
    weights: Float[Tensor, "batch pair 1"],
    steps: Float[Tensor, "batch node 2"],
    pairs: Pairs,
) -> Float[Tensor, "batch node 3"]:
    """p_i + (1 + α_i) Σ_j w_ij (p_i - p_j) + β_i p_i / (|p_i| + 1), centred.

    The sum is p_i Σ_j w_ij - Σ_j w_ij p_j, a product of matrices [N, N] and [N, 3].

    Args:
        positions: p, zero-mean.
        weights: w, 0 for pairs that do not exist.
        steps: α and β.
        pairs: the pairs that ``weights`` belong to.
    """
    alpha, beta = steps.to(positions.dtype).chunk(2, -1)
    with torch.autocast(positions.device.type, enabled=False):  # products in bfloat16 would not be equivariant
        matrix = pairs.square(weights.to(positions.dtype)).squeeze(-1)
        pushed = matrix.sum(-1, keepdim=True) * positions - matrix @ positions
    return centred(positions + (1 + alpha) * pushed + beta * positions / (lengths(positions) + 1), pairs.mask)
