"""Sums and products over the unordered pairs of graphs, with gradients that keep few tensors of all pairs.

The plain forms are a product with the incidence matrix, N x P, whose cost grows with N³, and gathers and norms [B, P, d] that
autograd would store. Here the sum over the pairs of a node reads each pair twice, and the backward pass recomputes the gathers,
the norm and the activation, so that an update needs up to 60 % less memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from discrete_grpo.core.precision import place
from discrete_grpo.domains.graphs import num_pairs, pair_index, pair_mask

__all__ = ["FilmNorm", "PairLayout", "film_norm", "incident_sum", "pair_update", "square"]

EPS = 1e-5
"""Added to the variance by LayerNorm."""


@dataclass(frozen=True)
class PairLayout:
    """Index tensors of the pairs of a batch of graphs, P = N(N-1)/2, and of the N-1 pairs of each node.

    Attributes:
        left: first end of each pair.
        right: second end.
        flat: place of each pair in a square, ``left * N + right``.
        place: pair at each place of a square, P on the diagonal.
        rows: row in [B·P] of the N-1 pairs of each node, node after node.
        sides: the same in [B·2·P], where a pair has one row for each end, the left one first.
        starts: first entry of each node in ``rows`` and ``sides``.
        exists: pairs whose ends both exist, in the order of ``rows``; None if all pairs of all graphs exist.
    """

    left: Int[Tensor, " pair"]
    right: Int[Tensor, " pair"]
    flat: Int[Tensor, " pair"]
    place: Int[Tensor, " place"]
    rows: Int[Tensor, " entry"]
    sides: Int[Tensor, " entry"]
    starts: Int[Tensor, " bag"]
    exists: Float[Tensor, " entry"] | None

    @staticmethod
    def of(mask: Bool[Tensor, "batch node"], full: bool, dtype: torch.dtype) -> PairLayout:
        """Layout of a batch with this mask; ``full`` says that every node exists."""
        (b, n), device = mask.shape, mask.device
        left, right = pair_index(n, device)
        squared, own, sides = _of_nodes(n, device)
        p, graph = num_pairs(n), torch.arange(b, device=device)[:, None]
        starts = torch.arange(b * n, device=device) * (n - 1)
        exists = None if full else pair_mask(mask).index_select(1, own).flatten().to(dtype)
        # Copies, as views would tie compiled code to the tensors they are views of.
        rows, at = (graph * p + own).flatten().clone(), (graph * (2 * p) + sides).flatten().clone()
        return PairLayout(left, right, left * n + right, squared, rows, at, starts, exists)


@lru_cache(maxsize=512)
def _of_nodes(n: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Pair at each place of the square, the pairs of each node, and their rows where a pair has one row for each end.

    They are made on the CPU, as a GPU would make the host wait for the choice of entries off the diagonal.
    """
    with torch.inference_mode(False):  # cached tensors must be usable in autograd later
        left, right = pair_index(n)
        p = torch.arange(num_pairs(n))
        at = torch.full((n * n,), len(p))
        at[left * n + right] = p
        at[right * n + left] = p
        end = torch.zeros(n * n, dtype=torch.long)
        end[right * n + left] = len(p)  # as the node of this row of the square is the right end
        off = ~torch.eye(n, dtype=torch.bool).flatten()
        return place(at, device), place(at[off], device), place((at + end)[off], device)


def square(pairs: Float[Tensor, "batch pair d"], layout: PairLayout, num_nodes: int) -> Float[Tensor, "batch node node d"]:
    """Symmetric matrices with zero diagonal whose upper triangles are ``pairs``, by one gather."""
    return nn.functional.pad(pairs, (0, 0, 0, 1)).index_select(1, layout.place).unflatten(1, (num_nodes, num_nodes))


def incident_sum(pairs: Float[Tensor, "batch pair d"], layout: PairLayout, num_nodes: int) -> Float[Tensor, "batch node d"]:
    """Σ_j x_{ij} over the pairs of each node, those with a padded node left out."""
    if torch.compiler.is_compiling():
        return _bags(pairs, layout.rows, layout.starts, layout.exists).unflatten(0, (-1, num_nodes))
    found: Tensor = _IncidentSum.apply(pairs, layout, num_nodes)
    return found


def film_norm(
    x: Float[Tensor, "batch row d"], scale: Float[Tensor, "batch 1 d"], shift: Float[Tensor, "batch 1 d"]
) -> Float[Tensor, "batch row d"]:
    """LayerNorm(x)·(1 + scale) + shift, where every graph has its own scale and shift."""
    width = x.shape[-1:]
    one, zero = x.new_ones(width), x.new_zeros(width)  # on a CPU the kernel without weights takes twice the time
    if torch.compiler.is_compiling():
        return torch.addcmul(shift, nn.functional.layer_norm(x, width, one, zero), 1 + scale)
    found: Tensor = _FilmFunction.apply(x, scale, shift, one, zero)
    return found


class FilmNorm(nn.Module):
    """LayerNorm with scale and shift linear in the state of the graph, (1 + W y)·LayerNorm(x) + U y; a plain one at first.

    Args:
        width: width of the states that are normalised.
        global_width: width of the state of the graph.
    """

    def __init__(self, width: int, global_width: int) -> None:
        super().__init__()
        self.film = nn.Linear(global_width, 2 * width)
        nn.init.zeros_(self.film.weight)  # otherwise scales, states and pools amplify each other, and a deep network overflows
        nn.init.zeros_(self.film.bias)

    def forward(self, x: Float[Tensor, "batch row d"], y: Float[Tensor, "batch g"]) -> Float[Tensor, "batch row d"]:
        """Norm of ``x`` with the scale and the shift that ``y`` gives."""
        scale, shift = self.film(y).unsqueeze(1).chunk(2, -1)
        return film_norm(x, scale, shift)


def pair_update(
    state: Float[Tensor, "batch pair d"],
    normed: Float[Tensor, "batch pair d"],
    logits: Float[Tensor, "batch pair head"],
    nodes: Float[Tensor, "batch node hidden"],
    weight_in: Float[Tensor, "hidden inner"],
    weight_out: Float[Tensor, "d hidden"],
    bias_out: Float[Tensor, " d"],
    layout: PairLayout,
) -> Float[Tensor, "batch pair d"]:
    """e + W_out GELU(W_in [normed, logits, 1] + a_i a_j) + b_out for every pair (i, j).

    Args:
        state: e.
        normed: normalised pair states.
        logits: attention logits of the pair.
        nodes: a, one vector per node; the products are taken channel by channel.
        weight_in: W_in, whose last column is a bias.
        weight_out: W_out.
        bias_out: b_out.
        layout: layout of the pairs.
    """
    if torch.compiler.is_compiling():
        own = nn.functional.linear(_columns(normed, logits), weight_in)
        product = torch.addcmul(own, nodes.index_select(1, layout.left), nodes.index_select(1, layout.right))
        return state + nn.functional.linear(nn.functional.gelu(product), weight_out, bias_out)
    tensors = [normed, logits, nodes, weight_in, weight_out, bias_out]
    if torch.is_autocast_enabled(state.device.type):
        kind = torch.get_autocast_dtype(state.device.type)
        tensors = [t.to(kind) for t in tensors]
    found: Tensor = _PairUpdate.apply(state, *tensors, layout)
    return found


def _rows(x: Tensor) -> Tensor:
    return x.flatten(0, 1)


def _columns(normed: Tensor, logits: Tensor) -> Tensor:
    return torch.cat([normed, logits, torch.ones_like(normed[..., :1])], -1)


def _bags(table: Tensor, rows: Tensor, starts: Tensor, weight: Tensor | None = None) -> Tensor:
    if table.numel() == 0:  # graphs of one node
        return table.new_zeros(len(starts), table.shape[-1])
    if weight is not None:
        weight = weight.to(table.dtype)
    return nn.functional.embedding_bag(rows, table.flatten(0, -2), starts, mode="sum", per_sample_weights=weight)


class _IncidentSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pairs: Tensor, layout: PairLayout, num_nodes: int) -> Tensor:
        ctx.layout = layout
        return _bags(pairs, layout.rows, layout.starts, layout.exists).unflatten(0, (-1, num_nodes))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        layout: PairLayout = ctx.layout
        found = gradient.index_select(1, layout.left).add_(gradient.index_select(1, layout.right))
        if layout.exists is not None:
            each = gradient.shape[1] * (gradient.shape[1] - 1)
            exists = gradient.new_zeros(found.shape[:2])
            own = layout.rows[:each]
            exists.index_copy_(1, own, layout.exists.to(found.dtype).view(len(gradient), each))  # both ends write the same value
            found.mul_(exists.unsqueeze(-1))
        return found, None, None


class _FilmFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, one: Tensor, zero: Tensor) -> Tensor:
        normed, mean, inverse = torch.native_layer_norm(x, one.shape, one, zero, EPS)
        ctx.save_for_backward(x, scale, one, zero, mean, inverse)
        return torch.addcmul(shift, normed, 1 + scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, one, zero, mean, inverse = ctx.saved_tensors
        normed = torch.native_layer_norm(x, one.shape, one, zero, EPS)[0]
        of_scale = normed.mul_(gradient).sum(1, keepdim=True)
        inner = torch.mul(gradient, 1 + scale, out=normed) if normed.dtype == gradient.dtype else gradient * (1 + scale)
        of_x = torch.ops.aten.native_layer_norm_backward(inner, x, one.shape, mean, inverse, one, zero, [True, False, False])[0]
        return of_x, of_scale, gradient.sum(1, keepdim=True), None, None


class _PairUpdate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        state: Tensor,
        normed: Tensor,
        logits: Tensor,
        nodes: Tensor,
        weight_in: Tensor,
        weight_out: Tensor,
        bias_out: Tensor,
        layout: PairLayout,
    ) -> Tensor:
        hidden = torch.mm(_rows(_columns(normed, logits)), weight_in.T).view(*normed.shape[:2], len(weight_in))
        hidden.addcmul_(nodes.index_select(1, layout.left), nodes.index_select(1, layout.right))
        ctx.layout = layout
        ctx.save_for_backward(hidden, normed, logits, nodes, weight_in, weight_out)
        found = nn.functional.linear(nn.functional.gelu(hidden), weight_out, bias_out)
        return found.add_(state) if found.dtype == state.dtype else state + found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, normed, logits, nodes, weight_in, weight_out = ctx.saved_tensors
        layout, d, shape = ctx.layout, normed.shape[-1], nodes.shape[:2]
        part = _rows(gradient.to(normed.dtype))
        of_out, of_bias = part.T @ _rows(nn.functional.gelu(hidden)), part.sum(0)
        inner = torch.ops.aten.gelu_backward((part @ weight_out).view_as(hidden), hidden)
        of_in = _rows(inner).T @ _rows(_columns(normed, logits))
        of_normed = (_rows(inner) @ weight_in[:, :d]).view_as(normed)
        of_logits = (_rows(inner) @ weight_in[:, d:-1]).view_as(logits)
        ends = inner.new_empty(len(inner), 2, *inner.shape[1:])
        torch.mul(inner, nodes.index_select(1, layout.right), out=ends[:, 0])
        torch.mul(inner, nodes.index_select(1, layout.left), out=ends[:, 1])
        of_nodes = _bags(ends, layout.sides, layout.starts).unflatten(0, shape)
        return gradient, of_normed, of_logits, of_nodes, of_in, of_out, of_bias, None
