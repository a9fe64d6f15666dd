"""Batches of graphs with several categorical fields per node and per pair of nodes, and with positions.

A field is a class per node, such as the atom type or the formal charge, or a class per pair, such as the bond. Class 0 of a pair
means "no edge" in the data sets here. Padded places hold class 0 and position 0 and are never read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from discrete_grpo.core.precision import place
from discrete_grpo.domains.graphs import pair_index, pair_mask, symmetrise, upper

__all__ = ["FieldBatch", "FieldLogits", "centred", "matrix_of", "pairs_mask", "pairs_of"]


class FieldLogits(NamedTuple):
    """Prediction of a network over fields.

    Attributes:
        nodes: logits of the clean classes of each node field [B, N, C].
        edges: logits of the clean classes of each pair field [B, N, N, C], symmetric where the field is undirected.
        positions: predicted clean positions [B, N, 3] with zero mean over the existing nodes; None without positions.
    """

    nodes: dict[str, Tensor]
    edges: dict[str, Tensor]
    positions: Tensor | None = None


@dataclass(frozen=True)
class FieldBatch:
    """B graphs of at most N nodes.

    Attributes:
        nodes: class of each node [B, N], one tensor per field.
        edges: class of each pair [B, N, N], one tensor per field, with a zero diagonal; entry [i, j] belongs to the edge from i
            to j, and equals [j, i] where the field is undirected.
        positions: coordinates [B, N, 3], zero-mean over the existing nodes; None without positions.
        mask: True where a node exists [B, N].
    """

    nodes: Mapping[str, Int[Tensor, "batch node"]]
    edges: Mapping[str, Int[Tensor, "batch node node"]]
    positions: Float[Tensor, "batch node 3"] | None
    mask: Bool[Tensor, "batch node"]

    def __len__(self) -> int:
        return len(self.mask)

    @property
    def num_nodes(self) -> int:
        """N, the number of places for nodes."""
        return self.mask.shape[1]

    @property
    def sizes(self) -> Int[Tensor, " batch"]:
        """Number of nodes of each graph."""
        return self.mask.sum(1)

    def index(self, rows: Int[Tensor, " row"] | slice) -> FieldBatch:
        """The graphs at ``rows``, in that order."""
        positions = None if self.positions is None else self.positions[rows]
        return FieldBatch(
            {name: value[rows] for name, value in self.nodes.items()},
            {name: value[rows] for name, value in self.edges.items()},
            positions,
            self.mask[rows],
        )

    def to(self, device: torch.device | str) -> FieldBatch:
        """The same graphs on ``device``."""
        where = torch.device(device)
        return FieldBatch(
            {name: place(value, where) for name, value in self.nodes.items()},
            {name: place(value, where) for name, value in self.edges.items()},
            None if self.positions is None else place(self.positions, where),
            place(self.mask, where),
        )


def centred(positions: Float[Tensor, "*batch node 3"], mask: Bool[Tensor, "*batch node"]) -> Float[Tensor, "*batch node 3"]:
    """x_i - mean_j x_j over the existing nodes; 0 at padding.

    >>> x = torch.tensor([[[1.0, 0.0, 0.0], [3.0, 0.0, 0.0], [9.0, 9.0, 9.0]]])
    >>> centred(x, torch.tensor([[True, True, False]]))[0, :, 0].tolist()
    [-1.0, 1.0, 0.0]
    """
    there = mask.unsqueeze(-1).to(positions.dtype)
    kept = torch.where(mask.unsqueeze(-1), positions, 0.0)
    mean = kept.sum(-2, keepdim=True) / there.sum(-2, keepdim=True).clamp_min(1)
    return torch.where(mask.unsqueeze(-1), kept - mean, 0.0)


# -- pairs as a list


def pairs_of(matrix: Shaped[Tensor, "batch node node *rest"], *, directed: bool) -> Shaped[Tensor, "batch pair *rest"]:
    """Entries of a matrix of pairs as a list: i < j for an undirected field, else (0,1), (1,0), (0,2), (2,0), (1,2), ...

    Pairs are in the order of :mod:`discrete_grpo.domains.graphs`; of a directed field each stands twice, once per direction.
    Padding a graph appends pairs. The diagonal is never read.

    >>> pairs_of(torch.tensor([[[0, 1], [2, 0]]]), directed=True).tolist()
    [[1, 2]]
    """
    if not directed:
        return upper(matrix)
    i, j = pair_index(matrix.shape[1], matrix.device)
    return torch.stack([matrix[:, i, j], matrix[:, j, i]], 2).flatten(1, 2)


def matrix_of(pairs: Shaped[Tensor, "batch pair"], num_nodes: int, *, directed: bool) -> Shaped[Tensor, "batch node node"]:
    """Inverse of :func:`pairs_of`, with a zero diagonal.

    >>> matrix_of(torch.tensor([[1, 2]]), 2, directed=True).tolist()
    [[[0, 1], [2, 0]]]
    """
    if not directed:
        return symmetrise(pairs, num_nodes)
    i, j = pair_index(num_nodes, pairs.device)
    both = pairs.unflatten(1, (-1, 2))
    found = pairs.new_zeros(len(pairs), num_nodes, num_nodes)
    found[:, i, j], found[:, j, i] = both[:, :, 0], both[:, :, 1]
    return found


def pairs_mask(mask: Bool[Tensor, "batch node"], *, directed: bool) -> Bool[Tensor, "batch pair"]:
    """True where both ends of a pair exist, in the order of :func:`pairs_of`."""
    both = pair_mask(mask)
    return both.repeat_interleave(2, 1) if directed else both
