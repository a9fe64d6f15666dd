"""Batches of graphs with several categorical fields per node and per pair of nodes, and with positions.

A field is a class per node, such as the atom type or the formal charge, or a class per pair, such as the bond. Class 0 of a pair
means "no edge" in the data sets here. Padded places hold class 0 and position 0 and are never read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["FieldBatch", "FieldLogits", "centred"]


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

    def index(self, rows: Int[Tensor, " row"]) -> FieldBatch:
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
        positions = None if self.positions is None else self.positions.to(device)
        return FieldBatch(
            {name: value.to(device) for name, value in self.nodes.items()},
            {name: value.to(device) for name, value in self.edges.items()},
            positions,
            self.mask.to(device),
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
