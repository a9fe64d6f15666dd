"""Relabelling of the nodes of stored graph trajectories, with a layout inferred from the names and shapes of the states.

States called ``nodes`` hold one entry per node [B, ..., N], ``pairs`` one per unordered pair [B, ..., N(N-1)/2] in the order of
:mod:`discrete_grpo.domains.graphs`, and ``edges`` a symmetric matrix [B, ..., N, N]. A prefix may stand before each
(``free_nodes``). States of a policy over fields are called ``node NAME`` and ``edge NAME``, the latter also with one entry per
ordered pair [B, ..., N(N-1)] in the order of :mod:`discrete_grpo.domains.fields`; beside them ``positions`` [B, ..., N, 3] belong
to nodes. All other states belong to whole graphs.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from discrete_grpo.core.rollout import Rollout
from discrete_grpo.domains.graphs import GraphBatch, node_mask, num_pairs, pair_index

__all__ = ["obstacle", "relabelled"]


def obstacle(rollout: Rollout) -> str:
    """Return the reason why these trajectories cannot be relabelled without ``permute``; empty if they can."""
    graphs = _are_graphs(rollout)
    n = _num_nodes(rollout)
    kinds = {name: _kind(name, value, n) for name, value in rollout.states.items()}
    exact = {name for name in rollout.states if name in ("pairs", "edges") or name.startswith("edge ")}
    if not n or not exact:
        return f"no permute given{', and no states named nodes with pairs or edges' if graphs else ''}"
    shapes = {"nodes": (n,), "pairs": (num_pairs(n),), "arcs": (2 * num_pairs(n),), "edges": (n, n), "positions": (n, 3)}
    for name, value in rollout.states.items():
        wanted = shapes.get(kinds[name])
        if wanted is not None and tuple(value.shape[1:][-len(wanted) :]) != wanted:
            return f"no permute given, and states[{name!r}] is {tuple(value.shape)}, expected {wanted} in the last places"
    if not graphs and int(rollout.size.max()) > n:
        return "no permute given, and size is no number of nodes"
    return ""


def relabelled(rollout: Rollout, generator: torch.Generator) -> Rollout:
    """Return the trajectories with the existing nodes of each graph in another order, the same at all steps."""
    n = _num_nodes(rollout)
    exists = _existing(rollout, n)
    drawn = torch.rand(exists.shape, generator=generator, device=generator.device).to(exists.device)
    order = torch.where(exists, drawn, 2.0 + torch.arange(n, device=exists.device)).argsort(-1)
    return replace(rollout, states={name: _moved(_kind(name, value, n), value, order) for name, value in rollout.states.items()})


def _are_graphs(rollout: Rollout) -> bool:
    return bool(rollout.samples) and all(isinstance(sample, GraphBatch) for sample in rollout.samples)


def _existing(rollout: Rollout, num_nodes: int) -> Bool[Tensor, "batch node"]:
    """Which nodes exist; the first ``size`` of each graph, unless the samples say so."""
    if _are_graphs(rollout):
        sizes = torch.tensor([int(sample.sizes.sum()) for sample in rollout.samples], device=rollout.size.device)
        return node_mask(sizes, num_nodes)
    return node_mask(rollout.size, num_nodes)


def _num_nodes(rollout: Rollout) -> int:
    """Number of places for nodes; 0 if no state determines it."""
    named = (value for name, value in rollout.states.items() if name == "nodes" or name.startswith("node "))
    return next((value.shape[-1] for value in named), 0)


def _kind(name: str, value: Tensor, num_nodes: int) -> str:
    if name.startswith("node "):
        return "nodes"
    if name.startswith("edge "):
        return "arcs" if value.shape[-1] == 2 * num_pairs(num_nodes) else "pairs"
    if name == "positions":
        return name if value.shape[-2:] == (num_nodes, 3) else ""
    kind = name.rpartition("_")[2]
    return kind if kind in ("nodes", "pairs", "edges") else ""


def _moved(kind: str, value: Shaped[Tensor, "batch ..."], order: Int[Tensor, "batch node"]) -> Shaped[Tensor, "batch ..."]:
    """A state under a new numbering: new node k is old node ``order[b, k]``."""
    if kind == "nodes":
        return value.gather(-1, _spread(order, value.dim()).expand_as(value))
    if kind == "edges":
        rows, columns = (_spread(x, value.dim()).expand_as(value) for x in (order[:, :, None], order[:, None, :]))
        return value.gather(-2, rows).gather(-1, columns)
    if kind == "pairs":
        i, j = pair_index(order.shape[1], order.device)
        return value.gather(-1, _spread(_pair(order[:, i], order[:, j]), value.dim()).expand_as(value))
    if kind == "arcs":
        i, j = pair_index(order.shape[1], order.device)
        tail, head = (order[:, torch.stack(ends, 1).flatten()] for ends in ((i, j), (j, i)))
        return value.gather(-1, _spread(2 * _pair(tail, head) + (tail > head), value.dim()).expand_as(value))
    if kind == "positions":
        return value.gather(-2, _spread(order[:, :, None], value.dim()).expand_as(value))
    return value


def _pair(a: Int[Tensor, "batch pair"], b: Int[Tensor, "batch pair"]) -> Int[Tensor, "batch pair"]:
    """Place of the unordered pair of nodes a and b in the list of pairs."""
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    return high * (high - 1) // 2 + low


def _spread(index: Tensor, dims: int) -> Tensor:
    """``index`` [B, ...] with axes of length 1 after the first, up to ``dims`` axes."""
    return index.view(index.shape[0], *[1] * (dims - index.dim()), *index.shape[1:])
