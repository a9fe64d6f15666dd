"""Attention with one weight per channel and pair, computed for a few rows of pairs at a time.

For row i and column j of a graph, with P_ij = q_i k_j (elementwise), M_ij and A_ij the two halves of W e_ij + b:
Y_ij = P_ij M_ij + A_ij;  o_i = Σ_j softmax_j(Y_ij) v_j;  e'_ij = W_g Y_ij + b_g, with one matrix W_g per graph.
Rows are independent given k and v, so no tensor [B, N, N, d] has to exist as a whole. The backward pass uses Y and M as stored by
the forward pass, or computes them again.
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
"""Number of elements of one chunk of Y on a CPU, such that a few such tensors fit into its cache."""
GPU_ELEMENTS = 1 << 26
"""Number of elements of one chunk of Y on a GPU, where larger chunks are faster and only memory is the limit."""


def chunks(of: Float[Tensor, "batch node d"]) -> Iterator[tuple[slice, slice]]:
    """Yield slices of graphs and rows whose Y has about as many elements as is best on the device, and at least one row."""
    (batch, nodes, width), device = of.shape, of.device
    limit = CPU_ELEMENTS if device.type == "cpu" else GPU_ELEMENTS
    rows = max(1, min(nodes, limit // (nodes * width)))
    rows = -(-nodes // -(-nodes // rows))  # the same number of slices, of equal size
    graphs = max(1, limit // (nodes * nodes * width)) if rows == nodes else 1
    for b in range(0, batch, graphs):
        for i in range(0, nodes, rows):
            yield slice(b, min(b + graphs, batch)), slice(i, min(i + rows, nodes))


@dataclass(frozen=True)
class EdgeParts:
    """Inputs of the edge update of one layer.

    Attributes:
        q, k, v: queries, keys and values of the nodes; q is divided by the square root of the width of a head.
        film_weight, film_bias: W and b of M and A, stacked; b of M includes the 1 of the FiLM layer.
        out_weight, out_bias: W_g and b_g, one per graph.
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
        """Return all tensors, in order."""
        first = (self.q, self.k, self.v, self.film_weight, self.film_bias, self.out_weight, self.out_bias)
        return (*first, *self.norm1, *self.lin1, *self.lin2, *self.norm2)


def edge_update(
    e: Float[Tensor, "batch node node de"], parts: EdgeParts, mask: Bool[Tensor, "batch node"] | None, *, keep: bool
) -> tuple[Float[Tensor, "batch node d"], Float[Tensor, "batch node node de"]]:
    """Attention output o, and the next edges norm2(h + lin2(relu(lin1(h)))) with h = norm1(e + e').

    The docstring of the module has the equations of o and e'. e' is 0 wherever i or j does not exist. Under autocast all tensors
    have its dtype. With and without gradients, the same operations run on the same chunks, so results are the same to the bit.

    Args:
        e: edges.
        parts: the other inputs of the update.
        mask: which nodes exist; None if all do.
        keep: whether the forward pass stores 2 d + 5 d_e numbers per pair for the backward pass, which else computes them again.
    """
    kind, tensors = e.device.type, (e, *parts.tensors())
    if torch.is_autocast_enabled(kind):
        tensors = tuple(t.to(torch.get_autocast_dtype(kind)) for t in tensors)
    with torch.autocast(kind, enabled=False):
        return _EdgeUpdate.apply(keep and torch.is_grad_enabled(), mask, *tensors)


@dataclass(frozen=True)
class _Chunk:
    """Intermediate results of a few rows of pairs, which the backward pass needs.

    Attributes:
        logits: Y, and the smallest finite number where a column does not exist.
        multiply: M.
        first, second: input, mean and reciprocal deviation of the two norms.
        hidden: relu(lin1(h)).
    """

    logits: Tensor
    multiply: Tensor
    first: tuple[Tensor, Tensor, Tensor]
    hidden: Tensor
    second: tuple[Tensor, Tensor, Tensor]

    @staticmethod
    def of(b: slice, i: slice, mask: Tensor | None, tensors: Sequence[Tensor]) -> tuple[_Chunk, Tensor]:
        """Compute the chunk of graphs ``b`` and rows ``i``, and its next edges."""
        e, q, k, _, film_weight, film_bias, out_weight, out_bias, n1, m1, w1, b1, w2, b2, n2, m2 = tensors
        norm, linear, rows, (d, width) = torch.native_layer_norm, nn.functional.linear, e[b, i], film_weight.shape
        there, d = None if mask is None else mask[b], d // 2
        multiply, logits = linear(rows, film_weight[:d], film_bias[:d]), linear(rows, film_weight[d:], film_bias[d:])
        logits.addcmul_(q[b, i].unsqueeze(2) * k[b].unsqueeze(1), multiply)
        total = _out(logits, out_weight[b], out_bias[b], there, i).add_(rows)
        h, *first = norm(total, (width,), n1, m1, LAYER_NORM_EPSILON)
        hidden = linear(h, w1, b1).relu_()
        more = linear(hidden, w2, b2).add_(h)
        new, *second = norm(more, (width,), n2, m2, LAYER_NORM_EPSILON)
        if there is not None:
            logits.masked_fill_(~there[:, None, :, None], torch.finfo(logits.dtype).min)
        return _Chunk(logits, multiply, (total, first[0], first[1]), hidden, (more, second[0], second[1])), new

    def tensors(self) -> tuple[Tensor, ...]:
        """Return all tensors, in order."""
        return (self.logits, self.multiply, *self.first, self.hidden, *self.second)

    @staticmethod
    def from_tensors(kept: Sequence[Tensor]) -> _Chunk:
        """Inverse of :meth:`tensors`."""
        logits, multiply, x, mean, deviation, hidden, *second = kept
        return _Chunk(logits, multiply, (x, mean, deviation), hidden, (second[0], second[1], second[2]))


LAYER_NORM_EPSILON = 1e-5
"""Epsilon of the layer norms, the default of ``nn.LayerNorm``."""
CHUNK_TENSORS = 9
"""Number of tensors of a :class:`_Chunk`."""


def _out(logits: Tensor, weight: Tensor, bias: Tensor, mask: Tensor | None, rows: slice) -> Tensor:
    """W_g Y + b_g [b, r, N, d_e], 0 where a node does not exist."""
    b, r, n, d = logits.shape
    flat = logits.view(b, r * n, d)
    if b == 1:  # the product of two matrices is faster than that of a batch of one
        change = nn.functional.linear(flat[0], weight[0], bias[0]).view(b, r, n, -1)
    else:
        change = torch.baddbmm(bias.unsqueeze(1), flat, weight.transpose(1, 2)).view(b, r, n, -1)
    return change if mask is None else change.mul_(_pairs(mask, rows))


def _pairs(mask: Tensor, rows: slice) -> Tensor:
    return (mask[:, rows, None] & mask[:, None, :]).unsqueeze(-1)


class _EdgeUpdate(torch.autograd.Function):
    """Edge update as an autograd function: it stores its inputs, o and, with ``keep``, each chunk, which else is recomputed."""

    @staticmethod
    def forward(ctx: Any, keep: bool, mask: Tensor | None, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        e, v = tensors[0], tensors[3]
        o, new_e, kept = torch.empty_like(v), torch.empty_like(e), list[Tensor]()
        for b, i in chunks(v):
            chunk, new_e[b, i] = _Chunk.of(b, i, mask, tensors)
            o[b, i] = chunk.logits.softmax(2).mul_(v[b].unsqueeze(1)).sum(2)
            kept += chunk.tensors() if keep else ()
        ctx.save_for_backward(mask, o, *tensors, *kept)
        return o, new_e

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        mask, o, *rest = ctx.saved_tensors
        tensors, kept = rest[:NUM_TENSORS], rest[NUM_TENSORS:]
        wide = torch.promote_types(o.dtype, torch.float32)
        found = [torch.zeros_like(t, dtype=wide) for t in tensors[1:]]
        g_e = torch.empty_like(tensors[0])
        for n, (b, i) in enumerate(chunks(o)):
            of_chunk = kept[CHUNK_TENSORS * n : CHUNK_TENSORS * (n + 1)]
            chunk = _Chunk.from_tensors(of_chunk) if kept else _Chunk.of(b, i, mask, tensors)[0]
            g_e[b, i] = _chunk_gradients(b, i, mask, o, chunk, gradients, tensors, found)
        return (None, None, g_e, *(g.to(t.dtype) for g, t in zip(found, tensors[1:], strict=True)))


NUM_TENSORS = 16
"""Number of tensors: the edges and those of :class:`EdgeParts`."""


def _rest_gradients(chunk: _Chunk, g_new: Tensor, tensors: Sequence[Tensor], found: Sequence[Tensor]) -> Tensor:
    """Gradient of e + e' from that of the next edges; the gradients of the later weights are added to ``found``."""
    n1, m1, w1, _, w2, _, n2, m2 = tensors
    back, width, all_three = torch.ops.aten.native_layer_norm_backward, g_new.shape[-1], [True, True, True]
    g_more, *g_norm2 = back(g_new.contiguous(), chunk.second[0], [width], *chunk.second[1:], n2, m2, all_three)
    total, mean, deviation = chunk.first
    h = ((total - mean) * deviation).mul_(n1).add_(m1).to(total.dtype).flatten(0, -2)  # CUDA keeps both in float32
    g_flat, hidden = g_more.flatten(0, -2), chunk.hidden.flatten(0, -2)
    g_hidden = torch.ops.aten.threshold_backward(g_flat @ w2, hidden, 0)
    g_h = torch.addmm(g_flat, g_hidden, w1).view_as(g_more)
    g_total, *g_norm1 = back(g_h, total, [width], mean, deviation, n1, m1, all_three)
    parts = (*g_norm1, g_hidden.T @ h, g_hidden.sum(0), g_flat.T @ hidden, g_flat.sum(0), *g_norm2)
    for sum_of_all, part in zip(found, parts, strict=True):
        sum_of_all += part
    return g_total


def _chunk_gradients(
    b: slice,
    i: slice,
    mask: Tensor | None,
    o: Tensor,
    chunk: _Chunk,
    gradients: Sequence[Tensor],
    tensors: Sequence[Tensor],
    found: Sequence[Tensor],
) -> Tensor:
    """Gradient of the edges of a chunk; the gradients of all other inputs are added to ``found``."""
    e, q, k, v, film_weight, _, out_weight, _, *rest = tensors
    g_q, g_k, g_v, g_film_weight, g_film_bias, g_out_weight, g_out_bias, *g_rest = found
    g_o, g_new = gradients
    there, d, rows = None if mask is None else mask[b], v.shape[-1], e[b, i].flatten(0, -2)
    q_i, k_j, v_j = q[b, i].unsqueeze(2), k[b].unsqueeze(1), v[b].unsqueeze(1)
    g_total = _rest_gradients(chunk, g_new[b, i], rest, g_rest)
    flat = (g_total if there is None else g_total * _pairs(there, i)).flatten(1, 2)
    g_out_weight[b] += flat.transpose(1, 2) @ chunk.logits.flatten(1, 2)
    g_out_bias[b] += flat.sum(1)
    g_logits = (flat @ out_weight[b]).view_as(chunk.logits)
    weighted = chunk.logits.softmax(2).mul_(g_o[b, i].unsqueeze(2))
    g_v[b] += weighted.sum(1)
    g_logits.addcmul_(weighted, v_j - o[b, i].unsqueeze(2))  # softmax: Σ_j w_j v_j is o
    g_product = torch.mul(g_logits, chunk.multiply, out=weighted)
    g_q[b, i] += (g_product * k_j).sum(2)
    g_k[b] += g_product.mul_(q_i).sum(1)
    g_multiply = torch.mul(q_i, k_j, out=weighted).mul_(g_logits).flatten(0, 2)
    g_add = g_logits.flatten(0, 2)
    g_film_weight[:d] += g_multiply.T @ rows
    g_film_weight[d:] += g_add.T @ rows
    g_film_bias[:d] += g_multiply.sum(0)
    g_film_bias[d:] += g_add.sum(0)
    return torch.addmm(g_total.flatten(0, -2), g_multiply, film_weight[:d]).addmm_(g_add, film_weight[d:]).view_as(g_total)
