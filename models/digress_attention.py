"""Attention with a weight a channel over all pairs, a few rows of pairs at a time.

For row i and column j of a graph, with P_ij = q_i k_j (a product a channel), M_ij and A_ij the two halves of W e_ij + b:
Y_ij = P_ij M_ij + A_ij;  o_i = Σ_j softmax_j(Y_ij) v_j;  e'_ij = W_g Y_ij + b_g, W_g one matrix a graph.
Rows are independent given k and v, so Y [B, N, N, d] never exists whole, in the gradient neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

__all__ = ["EdgeParts", "edge_update"]

CPU_ELEMENTS = 1 << 18
"""Numbers of one chunk of Y on a CPU, so that a few such tensors stay in its cache."""
GPU_ELEMENTS = 1 << 26
"""The same on a GPU, where more at once is faster and only memory bounds it."""


def chunks(of: Float[Tensor, "batch node d"]) -> Iterator[tuple[slice, slice]]:
    """Slices of graphs and of their rows whose Y has about as many numbers as the device likes, at least one row."""
    (batch, nodes, width), device = of.shape, of.device
    limit = CPU_ELEMENTS if device.type == "cpu" else GPU_ELEMENTS
    rows = max(1, min(nodes, limit // (nodes * width)))
    rows = -(-nodes // -(-nodes // rows))  # as many slices as that makes, but of equal size
    graphs = max(1, limit // (nodes * nodes * width)) if rows == nodes else 1
    for b in range(0, batch, graphs):
        for i in range(0, nodes, rows):
            yield slice(b, min(b + graphs, batch)), slice(i, min(i + rows, nodes))


@dataclass(frozen=True)
class EdgeParts:
    """What the rows of a layer's edges are computed from.

    Attributes:
        q, k, v: of the nodes, q divided by the root of a head's width.
        film_weight, film_bias: W and b of M and A, one above the other; M has its 1 in b.
        out_weight, out_bias: W_g and b_g, one a graph.
        norm1, lin1, lin2, norm2: weights and biases of the norms and the feed-forward part.
    """

    q: Float[Tensor, "batch node d"]
    k: Float[Tensor, "batch node d"]
    v: Float[Tensor, "batch node d"]
    film_weight: Float[Tensor, "twice_d de"]
    film_bias: Float[Tensor, " twice_d"]
    out_weight: Float[Tensor, "batch de d"]
    out_bias: Float[Tensor, "batch de"]
    norm1: tuple[Tensor, Tensor]
    lin1: tuple[Tensor, Tensor]
    lin2: tuple[Tensor, Tensor]
    norm2: tuple[Tensor, Tensor]

    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, in order."""
        first = (self.q, self.k, self.v, self.film_weight, self.film_bias, self.out_weight, self.out_bias)
        return (*first, *self.norm1, *self.lin1, *self.lin2, *self.norm2)


def edge_update(
    e: Float[Tensor, "batch node node de"], parts: EdgeParts, mask: Bool[Tensor, "batch node"] | None
) -> tuple[Float[Tensor, "batch node d"], Float[Tensor, "batch node node de"]]:
    """o as at the top of this file, and the next edges norm2(h + lin2(relu(lin1(h)))), h = norm1(e + e').

    e' is 0 wherever i or j does not exist. Under autocast everything is in its type. With gradients or without, the same
    operations run on the same chunks, so that the results are the same to the bit.
    """
    kind, tensors = e.device.type, (e, *parts.tensors())
    if torch.is_autocast_enabled(kind):
        tensors = tuple(t.to(torch.get_autocast_dtype(kind)) for t in tensors)
    with torch.autocast(kind, enabled=False):
        return _EdgeUpdate.apply(mask, *tensors)


def _rest(change: Tensor, e: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """norm2(h + lin2(relu(lin1(h)))), h = norm1(e + e')."""
    norm, linear, width = nn.functional.layer_norm, nn.functional.linear, e.shape[-1:]
    n1, m1, w1, b1, w2, b2, n2, m2 = weights
    h = norm(change + e, width, n1, m1)
    return norm(h + linear(linear(h, w1, b1).relu(), w2, b2), width, n2, m2)


def _logits(q: Tensor, k: Tensor, e: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Y [b, r, N, d] of rows, and W e + b [b, r, N, 2d]."""
    film = nn.functional.linear(e, weight, bias)
    multiply, add = film.chunk(2, -1)
    product = q.unsqueeze(2) * k.unsqueeze(1)
    return torch.addcmul(add, product, multiply, out=product), film


def _out(logits: Tensor, weight: Tensor, bias: Tensor, mask: Tensor | None, rows: slice) -> Tensor:
    """W_g Y + b_g [b, r, N, d_e], 0 where a node does not exist."""
    b, r, n, d = logits.shape
    flat = logits.view(b, r * n, d)
    if b == 1:  # the product of two matrices is faster than that of a batch of one
        change = nn.functional.linear(flat[0], weight[0], bias[0]).view(b, r, n, -1)
    else:
        change = torch.baddbmm(bias.unsqueeze(1), flat, weight.transpose(1, 2)).view(b, r, n, -1)
    return change if mask is None else change.mul_(_pairs(mask, rows))


def _weights(logits: Tensor, mask: Tensor | None) -> Tensor:
    """softmax over the columns that exist; ``logits`` is overwritten."""
    if mask is not None:
        logits.masked_fill_(~mask[:, None, :, None], torch.finfo(logits.dtype).min)
    return logits.softmax(2)


def _pairs(mask: Tensor, rows: slice) -> Tensor:
    return (mask[:, rows, None] & mask[:, None, :]).unsqueeze(-1)


class _EdgeUpdate(torch.autograd.Function):
    """The forward part keeps its inputs and o only; the backward part computes every chunk again."""

    @staticmethod
    def forward(ctx: Any, mask: Tensor | None, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        e, q, k, v, film_weight, film_bias, out_weight, out_bias, *rest = tensors
        o, new_e = torch.empty_like(v), torch.empty_like(e)
        for b, i in chunks(v):
            there = None if mask is None else mask[b]
            logits, _ = _logits(q[b, i], k[b], e[b, i], film_weight, film_bias)
            change = _out(logits, out_weight[b], out_bias[b], there, i)
            o[b, i] = _weights(logits, there).mul_(v[b].unsqueeze(1)).sum(2)
            new_e[b, i] = _rest(change, e[b, i], rest)
        ctx.save_for_backward(mask, o, *tensors)
        return o, new_e

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        mask, o, *tensors = ctx.saved_tensors
        wide = torch.promote_types(o.dtype, torch.float32)
        found = [torch.zeros_like(t, dtype=wide) for t in tensors[1:]]
        g_e = torch.empty_like(tensors[0])
        for b, i in chunks(o):
            g_e[b, i] = _chunk_gradients(b, i, mask, o, gradients, tensors, found)
        return (None, g_e, *(g.to(t.dtype) for g, t in zip(found, tensors[1:], strict=True)))


def _chunk_gradients(
    b: slice, i: slice, mask: Tensor | None, o: Tensor, gradients: Sequence[Tensor], tensors: Sequence[Tensor], found: list[Tensor]
) -> Tensor:
    """The gradient of the edges of a chunk; those of all else are added to ``found``."""
    e, q, k, v, film_weight, film_bias, out_weight, out_bias, *rest = tensors
    g_q, g_k, g_v, g_film_weight, g_film_bias, g_out_weight, g_out_bias, *g_rest = found
    g_o, g_new = gradients
    there, d, rows = None if mask is None else mask[b], v.shape[-1], e[b, i]
    q_i, k_j, v_j = q[b, i].unsqueeze(2), k[b].unsqueeze(1), v[b].unsqueeze(1)
    logits, film = _logits(q[b, i], k[b], rows, film_weight, film_bias)
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (_out(logits, out_weight[b], out_bias[b], there, i), rows, *rest)]
        outer = torch.autograd.grad(_rest(leaves[0], leaves[1], leaves[2:]), leaves, g_new[b, i])
    for total, part in zip(g_rest, outer[2:], strict=True):
        total += part
    g_change, g_rows = outer[0] if there is None else outer[0] * _pairs(there, i), outer[1]
    flat = g_change.flatten(1, 2)
    g_out_weight[b] += flat.transpose(1, 2) @ logits.flatten(1, 2)
    g_out_bias[b] += flat.sum(1)
    g_logits = (flat @ out_weight[b]).view_as(logits)
    weighted = _weights(logits, there).mul_(g_o[b, i].unsqueeze(2))
    g_v[b] += weighted.sum(1)
    g_logits.addcmul_(weighted, v_j - o[b, i].unsqueeze(2))  # softmax: Σ_j w_j v_j is o
    g_product = g_logits * film[..., :d]
    g_q[b, i] += (g_product * k_j).sum(2)
    g_k[b] += g_product.mul_(q_i).sum(1)
    torch.mul(g_logits, q_i * k_j, out=film[..., :d])
    film[..., d:] = g_logits
    g_film = film.flatten(0, 2)
    g_film_weight += g_film.T @ rows.reshape(-1, rows.shape[-1])
    g_film_bias += g_film.sum(0)
    return g_rows + (g_film @ film_weight).view_as(g_rows)
