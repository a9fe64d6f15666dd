"""Batches of simple graphs as integer classes, and their packed upper triangle.

Conventions, stated once and relied on everywhere:

* A graph has N nodes, each of one class, and N(N-1)/2 **unordered pairs** i<j, each of one class
  (class 0 is "no edge" by the convention of the data sets here; nothing in this file needs it).
* ``edges[b, i, j] == edges[b, j, i]``; the diagonal and everything that touches padding is 0
  and is never read.
* Pairs are listed with j in the outer loop: (0,1), (0,2), (1,2), (0,3), ... so that
  ``pair(i, j) = j(j-1)/2 + i`` does not depend on N, and padding a graph **appends** pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from torch import Tensor

from discrete_grpo.core.precision import place

__all__ = [
    "ConditionedGraphs",
    "GraphBatch",
    "PackedGraphs",
    "node_mask",
    "num_pairs",
    "pack",
    "padded_rows",
    "pair_index",
    "pair_mask",
    "permute",
    "symmetrise",
    "taken_rows",
    "unpack",
    "upper",
]


def num_pairs(num_nodes: int) -> int:
    """Number of unordered pairs, N(N-1)/2.

    >>> num_pairs(9)
    36
    """
    return num_nodes * (num_nodes - 1) // 2


@lru_cache(maxsize=512)
def _pair_index(num_nodes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):  # cached tensors must be usable in autograd later
        j, i = torch.tril_indices(num_nodes, num_nodes, offset=-1, device=device).unbind(0)
    return i, j


@lru_cache(maxsize=512)
def _flat_index(num_nodes: int, device: torch.device) -> Tensor:
    """Number i N + j of every unordered pair in a matrix whose rows lie end to end."""
    i, j = _pair_index(num_nodes, device)
    with torch.inference_mode(False):
        return i * num_nodes + j


def pair_index(num_nodes: int, device: torch.device | str = "cpu") -> tuple[Int[Tensor, " pair"], Int[Tensor, " pair"]]:
    """End points (i, j), i<j, of every unordered pair, in the order stated at the top of this file.

    >>> [p.tolist() for p in pair_index(3)]
    [[0, 0, 1], [1, 2, 2]]
    """
    return _pair_index(num_nodes, torch.device(device))


def node_mask(sizes: Int[Tensor, " batch"], num_nodes: int) -> Bool[Tensor, "batch node"]:
    """True where a node exists: the first ``sizes[b]`` of ``num_nodes`` places.

    >>> node_mask(torch.tensor([1, 3]), 3).int().tolist()
    [[1, 0, 0], [1, 1, 1]]
    """
    return torch.arange(num_nodes, device=sizes.device) < sizes[:, None]


def pair_mask(mask: Bool[Tensor, "batch node"]) -> Bool[Tensor, "batch pair"]:
    """True where both ends of a pair exist."""
    i, j = pair_index(mask.shape[1], mask.device)
    return mask[:, i] & mask[:, j]


def upper(edges: Shaped[Tensor, "batch node node *rest"]) -> Shaped[Tensor, "batch pair *rest"]:
    """The entries i<j of a matrix of pairs; the lower triangle and the diagonal are never read."""
    n = edges.shape[1]
    return edges.flatten(1, 2).index_select(1, _flat_index(n, edges.device))


def symmetrise(pairs: Shaped[Tensor, "batch pair *rest"], num_nodes: int) -> Shaped[Tensor, "batch node node *rest"]:
    """The symmetric matrix with zero diagonal whose upper triangle is ``pairs`` (inverse of :func:`upper`)."""
    full = pairs.new_zeros(pairs.shape[0], num_nodes * num_nodes, *pairs.shape[2:])
    full = full.index_copy(1, _flat_index(num_nodes, pairs.device), pairs).unflatten(1, (num_nodes, num_nodes))
    return full + full.transpose(1, 2)


@dataclass(frozen=True)
class GraphBatch:
    """B graphs of at most N nodes.

    Attributes:
        nodes: node classes [B, N], int64.
        edges: edge classes [B, N, N], int64, symmetric with zero diagonal.
        mask: which nodes exist [B, N]; real nodes come first.
    """

    nodes: Int[Tensor, "batch node"]
    edges: Int[Tensor, "batch node node"]
    mask: Bool[Tensor, "batch node"]

    def __len__(self) -> int:
        return self.nodes.shape[0]

    @property
    def num_nodes(self) -> int:
        """N, the padded number of nodes."""
        return self.nodes.shape[1]

    @property
    def sizes(self) -> Int[Tensor, " batch"]:
        """Number of real nodes of each graph [B]."""
        return self.mask.sum(-1)

    def index(self, rows: Int[Tensor, " row"] | slice) -> GraphBatch:
        """The graphs at ``rows``, padding kept."""
        return GraphBatch(self.nodes[rows], self.edges[rows], self.mask[rows])

    def crop(self, num_nodes: int) -> GraphBatch:
        """The same graphs padded to ``num_nodes`` places; at least the largest graph must fit."""
        n = num_nodes
        return GraphBatch(self.nodes[:, :n], self.edges[:, :n, :n], self.mask[:, :n])

    def pad(self, num_nodes: int) -> GraphBatch:
        """The same graphs with zero padding appended up to ``num_nodes`` places."""
        extra = num_nodes - self.num_nodes
        grow = torch.nn.functional.pad
        return GraphBatch(grow(self.nodes, (0, extra)), grow(self.edges, (0, extra, 0, extra)), grow(self.mask, (0, extra)))

    def to(self, device: torch.device | str) -> GraphBatch:
        """The same batch on another device."""
        where = torch.device(device)
        return GraphBatch(place(self.nodes, where), place(self.edges, where), place(self.mask, where))


@dataclass(frozen=True)
class ConditionedGraphs:
    """Graphs with the properties they are trained to follow.

    Attributes:
        graphs: B graphs.
        properties: standardised, NaN where unknown [B, K].
    """

    graphs: GraphBatch
    properties: Float[Tensor, "batch property"]

    def __len__(self) -> int:
        return len(self.graphs)

    def to(self, device: torch.device | str) -> ConditionedGraphs:
        """A copy on ``device``."""
        return ConditionedGraphs(self.graphs.to(device), place(self.properties, torch.device(device)))


def permute(batch: GraphBatch, order: Int[Tensor, "batch node"]) -> GraphBatch:
    """Relabel nodes: new node k of graph b is old node ``order[b, k]``."""
    rows = torch.arange(len(batch), device=order.device)[:, None]
    edges = batch.edges[rows[..., None], order[:, :, None], order[:, None, :]]
    return GraphBatch(batch.nodes[rows, order], edges, batch.mask[rows, order])


def pack(batch: GraphBatch) -> tuple[UInt8[Tensor, "batch node"], UInt8[Tensor, "batch pair"]]:
    """Node classes [B, N] and upper triangle [B, P] as uint8: one byte per site, nothing twice."""
    return batch.nodes.to(torch.uint8), upper(batch.edges).to(torch.uint8)


def unpack(nodes: UInt8[Tensor, "batch node"], pairs: UInt8[Tensor, "batch pair"], mask: Bool[Tensor, "batch node"]) -> GraphBatch:
    """Inverse of :func:`pack`."""
    return GraphBatch(nodes.long(), symmetrise(pairs.long(), nodes.shape[1]), mask)


@dataclass(frozen=True)
class PackedGraphs:
    """M graphs of different sizes end to end, one byte per node and per pair, without padding.

    Attributes:
        nodes: node classes of all graphs; batches are made on their device.
        pairs: pair classes of all graphs, each graph's in the order stated at the top of this file.
        sizes: number of nodes of each graph [M], on the CPU.

    Raises:
        ValueError: if the lengths do not fit the sizes.
    """

    nodes: UInt8[Tensor, " node"]
    pairs: UInt8[Tensor, " pair"]
    sizes: Int[Tensor, " graph"]

    def __post_init__(self) -> None:
        wanted = int(self.sizes.sum()), int((self.sizes * (self.sizes - 1) // 2).sum())
        if (len(self.nodes), len(self.pairs)) != wanted:
            found = f"{len(self.nodes)} nodes and {len(self.pairs)} pairs"
            raise ValueError(f"graphs: {found}, expected {wanted[0]} and {wanted[1]} by their sizes")

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def num_nodes(self) -> int:
        """Nodes of the largest graph."""
        return int(self.sizes.max()) if len(self) else 0

    @cached_property
    def _starts(self) -> tuple[Tensor, Tensor]:
        """Offsets of the nodes and of the pairs of each graph."""
        pairs = self.sizes * (self.sizes - 1) // 2
        return self.sizes.cumsum(0) - self.sizes, pairs.cumsum(0) - pairs

    def batch(self, rows: Int[Tensor, " row"] | Sequence[int] | slice) -> GraphBatch:
        """The graphs at ``rows``, padded to the largest among them."""
        at = rows if isinstance(rows, slice) else torch.as_tensor(rows, dtype=torch.long)
        n = int(self.sizes[at].max()) if self.sizes[at].numel() else 0
        sizes, nodes, pairs = place(torch.stack([x[at] for x in (self.sizes.long(), *self._starts)]), self.nodes.device)  # one copy
        padded = padded_rows(self.nodes, nodes, sizes, n)
        return unpack(padded, padded_rows(self.pairs, pairs, sizes * (sizes - 1) // 2, num_pairs(n)), node_mask(sizes, n))

    @property
    def nbytes(self) -> int:
        """Number of bytes of the classes."""
        return int(self.nodes.nbytes + self.pairs.nbytes)

    def to(self, device: torch.device | str) -> PackedGraphs:
        """The same graphs with their classes on ``device``, where batches of them are then made."""
        where = torch.device(device)
        return PackedGraphs(place(self.nodes, where), place(self.pairs, where), self.sizes)

    def index(self, rows: Int[Tensor, " row"] | Sequence[int]) -> PackedGraphs:
        """The graphs at ``rows``, in that order."""
        at = torch.as_tensor(rows, dtype=torch.long)
        sizes, (nodes, pairs) = self.sizes[at], self._starts
        return PackedGraphs(
            taken_rows(self.nodes, nodes[at], sizes), taken_rows(self.pairs, pairs[at], sizes * (sizes - 1) // 2), sizes
        )


def padded_rows(flat: Tensor, starts: Int[Tensor, " row"], lengths: Int[Tensor, " row"], width: int) -> Shaped[Tensor, "row width"]:
    """Pieces of a flat array as rows, filled up with 0."""
    column = torch.arange(width, device=flat.device)
    inside = column < lengths[:, None]
    return torch.where(inside, flat[torch.where(inside, starts[:, None] + column, 0)], 0)


def taken_rows(flat: Tensor, starts: Int[Tensor, " row"], lengths: Int[Tensor, " row"]) -> Shaped[Tensor, " item"]:
    """Pieces of a flat array end to end."""
    ends = lengths.cumsum(0)
    return flat[torch.arange(int(lengths.sum())) + (starts - ends + lengths).repeat_interleave(lengths)]
