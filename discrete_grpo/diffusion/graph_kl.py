"""The exact KL of a reverse step of graph diffusion, from dense posteriors of nodes [B, N, C] and edges [B, N, N, C]."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from discrete_grpo.core.categorical import kl_divergence, safe_log
from discrete_grpo.core.precision import widen
from discrete_grpo.domains.graphs import pair_index, pair_mask, upper

__all__ = ["PosteriorKL", "Posteriors", "posterior_kl"]

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Largest deviation of the sum of a row from 1, and of an edge from its mirror image, per dtype."""
_TOLERANCE_HALF = 2e-2
"""Largest deviation for 16-bit floats."""


class Posteriors(NamedTuple):
    """p_θ(x_s | x_t) of R graphs of at most N nodes, as the method ``posteriors`` of a graph policy returns it.

    Attributes:
        nodes: probabilities of every node [R, N, C_x].
        edges: probabilities of every pair [R, N, N, C_e], symmetric; 0 on the diagonal.
        mask: which nodes exist [R, N].
    """

    nodes: Float[Tensor, "row node class"]
    edges: Float[Tensor, "row node node edge_class"]
    mask: Bool[Tensor, "row node"]


class PosteriorKL(NamedTuple):
    """The KL of each site and graph, in nats.

    Attributes:
        nodes: of every node [B, N]; 0 where no node is.
        edges: of every unordered pair [B, N, N] at i < j; 0 on and below the diagonal and where a node is missing.
        per_graph: the sum over the nodes and unordered pairs of each graph [B].
    """

    nodes: Float[Tensor, "batch node"]
    edges: Float[Tensor, "batch node node"]
    per_graph: Float[Tensor, " batch"]


def posterior_kl(
    nodes: Float[Tensor, "batch node class"],
    edges: Float[Tensor, "batch node node edge_class"],
    ref_nodes: Float[Tensor, "batch node class"],
    ref_edges: Float[Tensor, "batch node node edge_class"],
    mask: Bool[Tensor, "batch node"],
    *,
    direction: Literal["reverse", "forward"] = "reverse",
) -> PosteriorKL:
    """The exact KL between the posteriors of policy and reference at one timestep, per node, unordered pair and graph.

        KL(p_θ ‖ p_ref) = Σ_i Σ_c p_θ(x_i = c) log [p_θ(x_i = c) / p_ref(x_i = c)]
                        + Σ_{i<j} Σ_c p_θ(e_ij = c) log [p_θ(e_ij = c) / p_ref(e_ij = c)]

    This is the adapter from nodes [B, N, C] and edges [B, N, N, C], the shapes in which graph diffusion networks give their
    posteriors p(x_s | x_t), to the exact KL of the product distribution. Each unordered pair counts once: entries i < j are
    used, and the lower triangle must mirror them. The arguments are checked on the host, which synchronises with an accelerator.

    0 log 0 = 0; the result is inf where p_θ has mass and p_ref has none. Gradients reach ``nodes`` and ``edges`` (at i < j) only.
    Padded nodes, pairs with a padded node, and the diagonal may hold any value, NaN included. 16-bit inputs become float32.

    Source: the KL of a product of categoricals is the sum of theirs (Cover and Thomas, 2006, Theorem 2.5.3); the
    factorisation over nodes and edges is that of Vignac et al. (2022), DiGress, Section 3.1, arXiv 2209.14734.

    Args:
        nodes: the policy's probabilities of node classes [B, N, C_x].
        edges: the policy's probabilities of edge classes [B, N, N, C_e], symmetric in the two nodes.
        ref_nodes: the reference's probabilities of node classes [B, N, C_x].
        ref_edges: the reference's probabilities of edge classes [B, N, N, C_e], symmetric in the two nodes.
        mask: True where a node exists [B, N].
        direction: ``reverse`` is KL(p_θ ‖ p_ref), ``forward`` is KL(p_ref ‖ p_θ).

    Raises:
        ValueError: for an unknown direction, another shape or dtype, and, where nodes exist, for rows that do not sum to 1,
            negative probabilities and asymmetric edges.

    >>> p = torch.tensor([[[0.5, 0.5], [0.25, 0.75]]])
    >>> e = torch.tensor([0.9, 0.1]).expand(1, 2, 2, 2)
    >>> kl = posterior_kl(p, e, torch.full_like(p, 0.5), torch.full_like(e, 0.5), torch.ones(1, 2, dtype=torch.bool))
    >>> kl.nodes, kl.edges, kl.per_graph
    (tensor([[0.0000, 0.1308]]), tensor([[[0.0000, 0.3681],
             [0.0000, 0.0000]]]), tensor([0.4989]))
    """
    _check_direction(direction)
    _check_shapes(nodes, edges, ref_nodes, ref_edges, mask)
    both = pair_mask(mask)
    _check_probabilities(nodes.detach(), edges.detach(), ref_nodes.detach(), ref_edges.detach(), mask, both)
    of_nodes = _kl(nodes, ref_nodes.detach(), mask, direction)
    of_pairs = _kl(upper(edges), upper(ref_edges.detach()), both, direction)
    return PosteriorKL(of_nodes, _upper_matrix(of_pairs, mask.shape[1]), of_nodes.sum(-1) + of_pairs.sum(-1))


def _kl(p: Tensor, q: Tensor, on: Tensor, direction: str) -> Tensor:
    """KL of each site, 0 where ``on`` is False; tables there are replaced before any arithmetic."""
    wide = torch.promote_types(torch.promote_types(p.dtype, q.dtype), torch.float32)
    log_p, log_q = (safe_log(torch.where(on.unsqueeze(-1), x.to(wide), 1.0)) for x in (p, q))
    return kl_divergence(log_p, log_q) if direction == "reverse" else kl_divergence(log_q, log_p)


def _upper_matrix(pairs: Tensor, num_nodes: int) -> Tensor:
    """The matrix [B, N, N] with ``pairs`` at i < j and 0 elsewhere."""
    i, j = pair_index(num_nodes, pairs.device)
    full = pairs.new_zeros(pairs.shape[0], num_nodes * num_nodes)
    return full.index_copy(1, i * num_nodes + j, pairs).unflatten(1, (num_nodes, num_nodes))


def _check_direction(direction: str) -> None:
    if direction not in ("reverse", "forward"):
        raise ValueError(f"direction: {direction!r}, expected reverse or forward")


def _check_shapes(nodes: Tensor, edges: Tensor, ref_nodes: Tensor, ref_edges: Tensor, mask: Tensor) -> None:
    if nodes.dim() != 3:
        raise ValueError(f"nodes: shape {tuple(nodes.shape)}, expected [B, N, C]")
    b, n, _ = nodes.shape
    if edges.dim() != 4 or edges.shape[:3] != (b, n, n):
        raise ValueError(f"edges: shape {tuple(edges.shape)}, expected ({b}, {n}, {n}, C), as nodes are {tuple(nodes.shape)}")
    wanted = {"ref_nodes": (ref_nodes, nodes.shape), "ref_edges": (ref_edges, edges.shape), "mask": (mask, nodes.shape[:2])}
    for name, (tensor, shape) in wanted.items():
        if tensor.shape != shape:
            raise ValueError(f"{name}: shape {tuple(tensor.shape)}, expected {tuple(shape)}")
    for name, tensor in {"nodes": nodes, "edges": edges, "ref_nodes": ref_nodes, "ref_edges": ref_edges}.items():
        if not tensor.is_floating_point():
            raise ValueError(f"{name}: dtype {tensor.dtype}, expected probabilities of a floating-point dtype")
        if tensor.shape[-1] == 0:
            raise ValueError(f"{name}: 0 classes, expected at least 1")
    if mask.dtype != torch.bool:
        raise ValueError(f"mask: dtype {mask.dtype}, expected torch.bool, True where a node exists")


def _check_probabilities(nodes: Tensor, edges: Tensor, ref_nodes: Tensor, ref_edges: Tensor, mask: Tensor, both: Tensor) -> None:
    """Raise ValueError unless the tables are distributions, and symmetric in the two nodes, where nodes exist."""
    for name, table in (("nodes", nodes), ("ref_nodes", ref_nodes)):
        _check_rows(name, table[mask])
    for name, table in (("edges", edges), ("ref_edges", ref_edges)):
        _check_symmetric(name, table, both)
        _check_rows(name, upper(table)[both])


def _check_rows(name: str, rows: Tensor) -> None:
    """Raise ValueError unless every row [R, C] is a distribution."""
    if not rows.numel():
        return
    if not bool((rows >= 0).all()):
        raise ValueError(f"{name}: smallest entry {float(rows.min()):.3g}, expected probabilities of at least 0")
    tolerance = _TOLERANCE.get(rows.dtype, _TOLERANCE_HALF)
    off = float((widen(rows).sum(-1) - 1).abs().max())
    if not off <= tolerance:
        raise ValueError(f"{name}: a row sums to 1 ± {off:.3g}, expected probabilities with sum 1 to {tolerance:g}")


def _check_symmetric(name: str, edges: Tensor, both: Tensor) -> None:
    """Raise ValueError unless entries (i, j) and (j, i) agree for every pair of existing nodes."""
    off = (upper(edges) - upper(edges.transpose(1, 2)))[both].abs()
    tolerance = _TOLERANCE.get(edges.dtype, _TOLERANCE_HALF)
    if off.numel() and not bool((off <= tolerance).all()):
        raise ValueError(
            f"{name}: entries [b, i, j] and [b, j, i] differ by up to {float(off.max()):.3g}, expected symmetric edges"
            f" to {tolerance:g} (an unordered pair has one distribution)"
        )
