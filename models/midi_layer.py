"""Layer of the MiDi network: attention over nodes, edges, a global state and positions, with the published parameter names.

Positions enter as distances, cosines and norms only, and leave as a sum of the vectors between atoms, so a layer is equivariant to
rotation and reflection. Every sum, mean, minimum and maximum runs over existing entries only, so padding changes nothing.

Shapes: B graphs, N places for nodes, d node width, d_e edge width, d_y global width, h heads.
Source: Vignac et al. (2023), sections 3.2 and A, arXiv 2302.09048, and the names and shapes of its published weights.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from discrete_grpo.domains.fields import centred
from discrete_grpo.models.digress_pooling import Pool, Pooling

__all__ = ["MidiLayer", "PositionsMLP", "SE3Norm", "States", "lengths", "pair_geometry"]

NORM_EPSILON = 1e-5
DIRECTION_EPSILON = 1e-7


class States(NamedTuple):
    """Hidden states of a batch.

    Attributes:
        nodes: x [B, N, d], 0 at padding.
        edges: e [B, N, N, d_e], symmetric, 0 on the diagonal and at padding.
        graph: y [B, d_y].
        positions: r [B, N, 3], zero-mean over the existing nodes and 0 at padding.
    """

    nodes: Tensor
    edges: Tensor
    graph: Tensor
    positions: Tensor


def lengths(vectors: Float[Tensor, "*any 3"]) -> Float[Tensor, "*any 1"]:
    """Euclidean lengths, with gradient 0 at the zero vector.

    >>> lengths(torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]])).flatten().tolist()
    [5.0, 0.0]
    """
    squares = vectors.square().sum(-1, keepdim=True)
    there = squares > 0
    return torch.where(there, squares, 1.0).sqrt() * there


def pair_geometry(
    positions: Float[Tensor, "batch node 3"],
) -> tuple[Float[Tensor, "batch node node 2"], Float[Tensor, "batch node 1"]]:
    """Distance |r_i - r_j| and cosine of the angle at the origin of every pair, and the norm |r_i| of every node.

    The cosine is 0 where one of the nodes lies at the origin. Distances come from differences, which keep their digits where two
    nodes are close.
    """
    norms = lengths(positions)
    directions = positions / (norms + DIRECTION_EPSILON)
    distances = lengths(positions.unsqueeze(2) - positions.unsqueeze(1))
    cosines = (directions @ directions.transpose(1, 2)).unsqueeze(-1)
    return torch.cat([distances, cosines], -1), norms


class PositionsMLP(nn.Module):
    """Positions r_i f(|r_i|) / (|r_i| + 1e-5) with an MLP f of one number, centred again."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, positions: Float[Tensor, "batch node 3"], mask: Bool[Tensor, "batch node"]) -> Float[Tensor, "batch node 3"]:
        """Scale the positions of each graph."""
        norms = lengths(positions)
        return centred(positions * self.mlp(norms) / (norms + NORM_EPSILON), mask)


class SE3Norm(nn.Module):
    """Vectors divided by the mean of their lengths over the existing nodes, times one learned number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, vectors: Float[Tensor, "batch node 3"], mask: Bool[Tensor, "batch node"]) -> Float[Tensor, "batch node 3"]:
        """Normalise vectors that are 0 at padding."""
        mean = lengths(vectors).sum(1, keepdim=True) / mask.sum(1).clamp_min(1)[:, None, None]
        return self.weight * vectors / (mean + NORM_EPSILON)


class _Attention(nn.Module):
    """Linear maps of the attention of one layer under their published names; :class:`MidiLayer` applies them."""

    def __init__(self, width: int, edge_width: int, global_width: int, heads: int, pooling: Pooling) -> None:
        super().__init__()
        d, de, dy, linear = width, edge_width, global_width, nn.Linear
        self.in_E, self.x_e_mul1, self.x_e_mul2 = linear(de, de), linear(d, de), linear(d, de)
        self.lin_dist1, self.lin_norm_pos1, self.lin_norm_pos2 = linear(2, de), linear(1, de), linear(1, de)
        self.dist_add_e, self.dist_mul_e = linear(de, de), linear(de, de)
        self.k, self.q, self.v = linear(d, d), linear(d, d), linear(d, d)
        self.a, self.out = linear(d, heads, bias=False), linear(d * heads, d)
        self.e_att_mul, self.pos_att_mul = linear(de, heads), linear(de, heads)
        self.e_x_mul, self.pos_x_mul = Pool(de, d, pooling), Pool(de, d, pooling)
        self.y_e_mul, self.y_e_add = linear(dy, de), linear(dy, de)
        self.pre_softmax = linear(de, d).requires_grad_(False)  # not used, but stored as published
        self.y_x_mul, self.y_x_add, self.y_y = linear(dy, d), linear(dy, d), linear(dy, dy)
        self.x_y, self.e_y, self.dist_y = Pool(d, dy, pooling), Pool(de, dy, pooling), Pool(de, dy, pooling)
        self.e_pos1, self.e_pos2 = linear(de, de, bias=False), linear(de, 1, bias=False)
        self.x_out, self.e_out = linear(d, d), linear(de, de)
        self.y_out = nn.Sequential(linear(dy, dy), nn.ReLU(), linear(dy, dy))


class MidiLayer(nn.Module):
    """Attention and feed-forward parts of nodes, edges and the global state, each followed by a norm, and a step of the positions.

    Args:
        width: d, a multiple of ``heads``.
        edge_width: d_e.
        global_width: d_y.
        heads: h.
        hidden: hidden widths of the feed-forward parts of nodes, edges and the global state.
        pooling: fourth statistic of the pooled sets, beside mean, minimum and maximum.
    """

    def __init__(
        self, width: int, edge_width: int, global_width: int, heads: int, hidden: tuple[int, int, int], pooling: Pooling
    ) -> None:
        super().__init__()
        self.self_attn = _Attention(width, edge_width, global_width, heads, pooling)
        self.linX1, self.linX2 = nn.Linear(width, hidden[0]), nn.Linear(hidden[0], width)
        self.normX1, self.normX2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.norm_pos1 = SE3Norm()
        self.linE1, self.linE2 = nn.Linear(edge_width, hidden[1]), nn.Linear(hidden[1], edge_width)
        self.normE1, self.normE2 = nn.LayerNorm(edge_width), nn.LayerNorm(edge_width)
        self.lin_y1, self.lin_y2 = nn.Linear(global_width, hidden[2]), nn.Linear(hidden[2], global_width)
        self.norm_y1, self.norm_y2 = nn.LayerNorm(global_width), nn.LayerNorm(global_width)

    def forward(self, states: States, mask: Bool[Tensor, "batch node"], last: bool, keep: bool) -> States:
        """Compute the next states.

        With D_ij = relu(W [|r_i - r_j|, cos_ij] + W_1 |r_i| + W_2 |r_j|):
        Y_ij = (W e_ij) (W_1 x_j) (W_2 x_i) (1 + M D_ij) + A D_ij;  E_ij = (1 + c(y)) Y_ij + b(y);  e' = W E;
        r'_i = Σ_j w(Y_ij) (r_i - r_j), with its mean taken away.

        Args:
            states: states of the previous layer.
            mask: which nodes exist.
            last: whether this is the last layer, whose global state is not used and therefore not computed.
            keep: whether autograd keeps the intermediate results of the pooling; otherwise the backward pass computes them again.
        """
        x, e, y, r = states
        att, both = self.self_attn, (mask[:, :, None] & mask[:, None, :]).unsqueeze(-1)
        distances = self._distances(r, both)
        mixed = att.in_E(e) * att.x_e_mul1(x).unsqueeze(1) * att.x_e_mul2(x).unsqueeze(2)
        mixed = (mixed * (1 + att.dist_mul_e(distances)) + att.dist_add_e(distances)) * both
        film = (mixed * (1 + att.y_e_mul(y))[:, None, None] + att.y_e_add(y)[:, None, None]) * both
        new_x = self._attend(x, y, film, distances, mask, keep)
        if not last:
            y = self._next_graph(y, new_x, mixed, distances, mask, both, keep)
        x = self.normX1(x + att.x_out(new_x))
        x = self.normX2(x + self.linX2(self.linX1(x).relu())) * mask.unsqueeze(-1)
        return States(x, self._next_edges(e + att.e_out(film), both), y, self._move(r, mixed, mask))

    def _distances(self, positions: Tensor, both: Tensor) -> Tensor:
        """D [B, N, N, d_e], 0 at padding."""
        att = self.self_attn
        with torch.autocast(positions.device.type, enabled=False):
            pairs, norms = pair_geometry(positions)
        either = att.lin_norm_pos1(norms).unsqueeze(2) + att.lin_norm_pos2(norms).unsqueeze(1)
        return (att.lin_dist1(pairs) + either).relu() * both

    def _attend(self, x: Tensor, y: Tensor, film: Tensor, distances: Tensor, mask: Tensor, keep: bool) -> Tensor:
        """Nodes before the output map, [B, N, d].

        α_ij = softmax_j(a·(q_i k_j) / √d_e (1 + w_e E_ij) (1 + w_p D_ij)), one per head; every head weighs all of v. The result is
        scaled by the pooled rows of E and of D, and by the global state.
        """
        att, (b, n, _) = self.self_attn, x.shape
        queries = att.q(x).unsqueeze(2) * att.a.weight * film.shape[-1] ** -0.5
        weights = torch.einsum("bihd,bjd->bijh", queries, att.k(x))
        weights = weights * (1 + att.e_att_mul(film)) * (1 + att.pos_att_mul(distances))
        weights = weights.masked_fill(~mask[:, None, :, None], torch.finfo(weights.dtype).min).softmax(2)
        mean = att.out(torch.einsum("bijh,bjd->bihd", weights, att.v(x)).flatten(2))
        columns = mask.repeat_interleave(n, 0)
        for pool, rows in ((att.e_x_mul, film), (att.pos_x_mul, distances)):
            mean = mean * (1 + pool(rows.flatten(0, 1), columns, keep).view(b, n, -1))
        return mean * (1 + att.y_x_mul(y)).unsqueeze(1) + att.y_x_add(y).unsqueeze(1)

    def _next_graph(
        self, y: Tensor, nodes: Tensor, mixed: Tensor, distances: Tensor, mask: Tensor, both: Tensor, keep: bool
    ) -> Tensor:
        att, pairs = self.self_attn, both.flatten(1)
        total = att.y_y(y) + att.x_y(nodes, mask, keep)
        total = total + att.e_y(mixed.flatten(1, 2), pairs, keep) + att.dist_y(distances.flatten(1, 2), pairs, keep)
        y = self.norm_y1(y + att.y_out(total))
        return self.norm_y2(y + self.lin_y2(self.lin_y1(y).relu()))

    def _next_edges(self, e: Tensor, both: Tensor) -> Tensor:
        e = self.normE1(e)
        e = self.normE2(e + self.linE2(self.linE1(e).relu()))
        apart = ~torch.eye(e.shape[1], dtype=torch.bool, device=e.device).unsqueeze(-1)
        return (e + e.transpose(1, 2)) / 2 * (both & apart)

    def _move(self, positions: Tensor, mixed: Tensor, mask: Tensor) -> Tensor:
        att = self.self_attn
        pull = att.e_pos2(att.e_pos1(mixed).relu()).squeeze(-1)
        with torch.autocast(positions.device.type, enabled=False):
            pull = pull.to(positions.dtype)
            velocity = pull.sum(2, keepdim=True) * positions - pull @ positions  # Σ_j w_ij (r_i - r_j)
            return centred(positions + self.norm_pos1(centred(velocity, mask), mask), mask)
