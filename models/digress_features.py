"""Structural and molecular features of noisy graphs, as the published code of DiGress and DeFoG computes them.

A graph has N places, of which the first n exist; A is its adjacency, an edge wherever the class is not 0 (so a mask class
counts as an edge). Counts and eigenvectors are computed in float64, where counts are exact.

Sources: Vignac et al. (2022), appendix B, arXiv 2209.14734; Qin et al. (2024), arXiv 2410.04263.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from discrete_grpo.core.checks import check_range
from discrete_grpo.core.precision import exact_device, place, widen
from discrete_grpo.models.random_walks import random_walks

__all__ = ["Extra", "Features", "FiveCycles", "MoleculeFeatures", "cycles", "extra", "feature_widths", "random_walk_powers"]

Features = Literal["none", "cycles", "eigenvalues", "all", "rrwp", "rrwp_only"]
"""``cycles``: cycle counts; ``eigenvalues``: these and eigenvalues; ``all``: these and eigenvectors; ``rrwp``: powers of the random
walk and cycle counts; ``rrwp_only``: powers of the random walk."""
FiveCycles = Literal["published", "corrected"]
"""Number of 5-cycles as DiGress and DeFoG compute it, which also counts walks that are no cycle, or the exact number (DiGress's
branch fixed_bug, MiDi)."""

NUM_EIGENVALUES, NUM_EIGENVECTORS = 5, 2
ZERO = 1e-5
"""Bound of λ/n below which an eigenvalue λ counts as 0."""


@dataclass(frozen=True)
class Extra:
    """Features [B, N, F_x], [B, N, N, F_e] and [B, F_y]; values at padding are undefined."""

    nodes: Float[Tensor, "batch node fx"]
    edges: Float[Tensor, "batch node node fe"]
    graph: Float[Tensor, "batch fy"]


@dataclass(frozen=True)
class MoleculeFeatures:
    """Molecular features as published: charge and valency per atom, and one weight per molecule.

    The "valency" is the sum of the bond *classes* (aromatic is 4), the "charge" is the number of the atom class minus the valency,
    and a masked atom has the weight of class 0.

    Attributes:
        weights: one weight per atom class.
        max_weight: number that the sum of the weights is divided by, more than 0.

    Raises:
        ValueError: if there are no weights or ``max_weight`` is not positive.
    """

    weights: tuple[float, ...]
    max_weight: float

    def __post_init__(self) -> None:
        if not self.weights:
            raise ValueError("weights: none, expected one per atom class")
        check_range("max_weight", self.max_weight, above=0)

    def of(
        self,
        nodes: Int[Tensor, "batch node"],
        edges: Int[Tensor, "batch node node"],
        counted: Bool[Tensor, "batch node"],
        edge_classes: int,
    ) -> tuple[Float[Tensor, "batch node 2"], Float[Tensor, "batch 1"]]:
        """Charge and valency per node, and the weight of the nodes in ``counted`` per graph."""
        kinds = torch.where(nodes < len(self.weights), nodes, 0)
        valency = torch.where(edges < edge_classes, edges, 0).sum(-1)
        weights = place(torch.tensor(self.weights, dtype=torch.float64), nodes.device)[kinds]
        weight = torch.where(counted, weights, 0.0).sum(-1, keepdim=True) / self.max_weight
        return widen(torch.stack([kinds - valency, valency], -1)), weight


def feature_widths(features: Features, walk_length: int) -> tuple[int, int, int]:
    """Return the widths (F_x, F_e, F_y) of the features of :func:`extra`.

    >>> feature_widths("all", 0), feature_widths("rrwp", 12)
    ((6, 0, 11), (12, 12, 5))
    """
    k = walk_length
    table = {"none": (0, 0, 0), "cycles": (3, 0, 5), "eigenvalues": (3, 0, 11), "all": (6, 0, 11)}
    table |= {"rrwp": (k, k, 5), "rrwp_only": (k, k, 1)}
    if features not in table:
        raise ValueError(f"features: {features!r}, expected one of {', '.join(table)}")
    return table[features]


def extra(
    features: Features,
    adjacency: Float[Tensor, "batch node node"],
    mask: Bool[Tensor, "batch node"],
    *,
    max_nodes: int,
    walk_length: int = 0,
    five_cycles: FiveCycles = "published",
    padded: bool = False,
) -> Extra:
    """Compute the features of noisy graphs, float64.

    Args:
        features: kind of features.
        adjacency: A, 0 or 1, symmetric with a zero diagonal and zero at padding.
        mask: which nodes exist; padding comes last.
        max_nodes: number that n is divided by.
        walk_length: K of the random walks.
        five_cycles: formula of the number of 5-cycles.
        padded: whether padding adds eigenvalues, as in the published code; else each graph is decomposed alone.
    """
    where = exact_device(mask.device)
    rest = (max_nodes, walk_length, five_cycles, padded)
    found = _extra(features, adjacency.to(where).double(), mask.to(where), *rest)
    return Extra(*(place(part, mask.device) for part in (found.nodes, found.edges, found.graph)))


def _extra(
    features: Features, a: Tensor, mask: Tensor, max_nodes: int, walk_length: int, five_cycles: FiveCycles, padded: bool
) -> Extra:
    b, n = mask.shape
    share = mask.sum(1, keepdim=True).double() / max_nodes
    no_nodes, no_edges = a.new_zeros(b, n, 0), a.new_zeros(b, n, n, 0)
    if features == "none":
        return Extra(no_nodes, no_edges, a.new_zeros(b, 0))
    if features in ("rrwp", "rrwp_only"):
        walks = random_walk_powers(a, walk_length)
        back = walks.diagonal(dim1=1, dim2=2).transpose(1, 2)
        graph = share if features == "rrwp_only" else torch.cat([share, cycles(a, five_cycles)[1]], -1)
        return Extra(back, walks, graph)
    by_node, by_graph = cycles(a, five_cycles)
    if features == "cycles":
        return Extra(by_node, no_edges, torch.cat([share, by_graph], -1))
    spectrum, vectors = _spectra(a, mask, padded)
    nodes = torch.cat([by_node, vectors], -1) if features == "all" else by_node
    return Extra(nodes, no_edges, torch.cat([share, by_graph, spectrum], -1))


def random_walk_powers(adjacency: Float[Tensor, "batch node node"], length: int) -> Float[Tensor, "batch node node length"]:
    """Powers I, M, ..., M^(K-1) of the random walk M = D⁻¹A, with zero rows for isolated nodes (RRWP).

    Source: Ma et al. (2023), section 3.1, arXiv 2305.17589.
    """
    identity = torch.eye(adjacency.shape[1], dtype=adjacency.dtype, device=adjacency.device).expand_as(adjacency)
    return torch.stack([identity, *random_walks(adjacency, length - 1, by="row")[: length - 1]], -1)


def cycles(
    adjacency: Float[Tensor, "batch node node"], five: FiveCycles = "published"
) -> tuple[Float[Tensor, "batch node 3"], Float[Tensor, "batch 4"]]:
    """Numbers of cycles of length 3, 4, 5 through each node, and of length 3 to 6 per graph, divided by 10 and at most 1.

    With ``five="published"``, c5 = diag A⁵ - 2 d·diag A³ - A diag A³ + diag A³, which lacks terms of the exact formula.
    """
    a = adjacency.double()
    a2 = a @ a
    a3, a4 = a2 @ a, a2 @ a2
    d = a.sum(-1)
    t2, t3, t4, t5 = (m.diagonal(dim1=1, dim2=2) for m in (a2, a3, a4, a2 @ a3))
    around = (a @ t3.unsqueeze(-1)).squeeze(-1)
    c4 = t4 - d * (d - 1) - (a @ d.unsqueeze(-1)).squeeze(-1)
    c5 = t5 - 2 * t3 * d - around + t3
    if five == "corrected":
        c5 = c5 + 4 * t3 - 2 * ((a * a2) @ d.unsqueeze(-1)).squeeze(-1)
    c6 = (a3 * a3).sum((1, 2)) - 3 * (t3**2).sum(1) + 9 * (a * a2**2).sum((1, 2)) - 6 * (t2 * t4).sum(1) + 6 * t4.sum(1)
    c6 = c6 - 4 * t3.sum(1) + 4 * (t2**3).sum(1) + 3 * a3.sum((1, 2)) - 12 * (t2**2).sum(1) + 4 * t2.sum(1)
    by_node = torch.stack([t3, c4, c5], -1) / 2
    by_graph = torch.stack([t3.sum(1) / 6, c4.sum(1) / 8, c5.sum(1) / 10, c6 / 12], -1)
    return (by_node / 10).clamp_max(1.0), (by_graph / 10).clamp_max(1.0)


def _spectra(a: Tensor, mask: Tensor, padded: bool) -> tuple[Tensor, Tensor]:
    """Number of components and the next 5 eigenvalues [B, 6]; indicator of small components and 2 eigenvectors [B, N, 3].

    Each graph is decomposed alone, on the CPU: in a batch the signs of eigenvectors depend on the memory layout, and a replay would
    give a step a probability other than that of its draw.
    """
    b, n = mask.shape
    sizes = mask.sum(1)
    spectrum, vectors = a.new_zeros(b, 1 + NUM_EIGENVALUES), a.new_zeros(b, n, 1 + NUM_EIGENVECTORS)
    for size in sizes.unique().tolist():
        rows = (sizes == size).nonzero().squeeze(1)
        beyond = 2.0 * n / max(size, 1) if padded else 2.0
        inside = a[rows, :size, :size]
        laplacians = (torch.diag_embed(inside.sum(-1)) - inside).cpu()
        pairs = [torch.linalg.eigh(one.clone()) for one in laplacians]
        values, basis = (torch.stack(parts).to(a.device) for parts in zip(*pairs, strict=True))
        values = values / max(size, 1)
        components = (values < ZERO).sum(-1, keepdim=True)
        at = components + torch.arange(NUM_EIGENVALUES, device=a.device)
        longer = torch.cat([values, values.new_full((len(rows), n - size), beyond), values.new_full((len(rows), 5), 2.0)], -1)
        spectrum[rows] = torch.cat([components.double(), longer.gather(1, at.clamp_max(longer.shape[1] - 1))], -1)
        low = torch.nn.functional.pad(basis, (0, NUM_EIGENVECTORS))
        which = (components + torch.arange(NUM_EIGENVECTORS, device=a.device)).unsqueeze(1).expand(-1, size, -1)
        vectors[rows, :size] = torch.cat([_outside_largest(basis[..., 0]).unsqueeze(-1), low.gather(2, which)], -1)
    return spectrum, vectors


def _outside_largest(first: Float[Tensor, "batch node"]) -> Float[Tensor, "batch node"]:
    """Return 1 where the first eigenvector, rounded to 3 decimals, is not its most frequent value (the smallest of several)."""
    rounded = torch.round(first, decimals=3)
    count = (rounded.unsqueeze(1) == rounded.unsqueeze(2)).sum(-1)
    frequent = count == count.amax(1, keepdim=True)
    mode = torch.where(frequent, rounded, torch.inf).amin(1, keepdim=True)
    return (rounded != mode).double()
