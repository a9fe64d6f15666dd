"""Data sets of your own directed graphs with classes of nodes and arcs: from files, networkx graphs or PyG data.

Classes are numbered as in :mod:`~discrete_grpo.datasets.own_graphs`, which reads undirected graphs; :func:`read_own` reads both.
PyG data are directed where an edge stands in one direction only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from discrete_grpo.core.precision import place
from discrete_grpo.datasets import own_graphs
from discrete_grpo.datasets.graph_files import iter_graph_objects
from discrete_grpo.datasets.listed_graphs import ListedGraphs, any_directed, listed_graphs, split_rows
from discrete_grpo.datasets.own_graphs import OwnGraphs
from discrete_grpo.domains.fields import FieldBatch, matrix_of
from discrete_grpo.domains.graphs import node_mask, num_pairs, padded_rows, taken_rows
from discrete_grpo.domains.named_digraphs import EDGE, NODE
from discrete_grpo.domains.named_graphs import Labels

__all__ = ["OwnDigraphs", "holds_directed", "own_digraphs", "read_own"]


@dataclass(frozen=True)
class OwnDigraphs:
    """M directed graphs with the names of their classes, end to end, one byte per node and per ordered pair.

    Attributes:
        nodes: node classes of all graphs; batches are made on their device.
        arcs: classes of the ordered pairs of all graphs, each graph's in the order of
            :func:`~discrete_grpo.domains.fields.pairs_of`; class 0 means that there is no arc.
        sizes: number of nodes [M], on the CPU.
        labels: names of the classes, and the attributes they were read from.
        name: name of the set in reports.
        parts: numbers of training, validation and test graphs, which stand in this order; None where the source has no splits.

    Raises:
        ValueError: if the lengths do not fit the sizes.
    """

    nodes: UInt8[Tensor, " node"]
    arcs: UInt8[Tensor, " arc"]
    sizes: Int[Tensor, " graph"]
    labels: Labels
    name: str = ""
    parts: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        wanted = int(self.sizes.sum()), int(self._counts.sum())
        if (len(self.nodes), len(self.arcs)) != wanted:
            found = f"{len(self.nodes)} nodes and {len(self.arcs)} ordered pairs"
            raise ValueError(f"graphs: {found}, expected {wanted[0]} and {wanted[1]} by their sizes")

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def _counts(self) -> Tensor:
        """Number of ordered pairs of each graph."""
        return self.sizes * (self.sizes - 1)

    @cached_property
    def _starts(self) -> tuple[Tensor, Tensor]:
        """Offsets of the nodes and of the ordered pairs of each graph."""
        return self.sizes.cumsum(0) - self.sizes, self._counts.cumsum(0) - self._counts

    def batch(self, rows: Int[Tensor, " row"] | Sequence[int] | slice) -> FieldBatch:
        """The graphs at ``rows``, padded to the largest of them, with fields ``node`` and ``edge``."""
        at = rows if isinstance(rows, slice) else torch.as_tensor(rows, dtype=torch.long)
        n = int(self.sizes[at].max()) if self.sizes[at].numel() else 0
        sizes, nodes, arcs = place(torch.stack([x[at] for x in (self.sizes.long(), *self._starts)]), self.nodes.device)  # one copy
        pairs = padded_rows(self.arcs, arcs, sizes * (sizes - 1), 2 * num_pairs(n)).long()
        found = padded_rows(self.nodes, nodes, sizes, n).long()
        return FieldBatch({NODE: found}, {EDGE: matrix_of(pairs, n, directed=True)}, None, node_mask(sizes, n))

    @property
    def nbytes(self) -> int:
        """Number of bytes of the classes."""
        return int(self.nodes.nbytes + self.arcs.nbytes)

    def to(self, device: torch.device | str) -> OwnDigraphs:
        """The same graphs with their classes on ``device``, where batches of them are then made."""
        where = torch.device(device)
        return replace(self, nodes=place(self.nodes, where), arcs=place(self.arcs, where))

    def index(self, rows: Int[Tensor, " row"] | Sequence[int]) -> OwnDigraphs:
        """The graphs at ``rows``, without splits."""
        at = torch.as_tensor(rows, dtype=torch.long)
        sizes, (nodes, arcs) = self.sizes[at], self._starts
        pairs = taken_rows(self.arcs, arcs[at], self._counts[at])
        return OwnDigraphs(taken_rows(self.nodes, nodes[at], sizes), pairs, sizes, self.labels, self.name)

    def split(self, test_share: float) -> tuple[list[int], list[int]]:
        """Row numbers of the training and of the test graphs, see :func:`~discrete_grpo.datasets.listed_graphs.split_rows`."""
        return split_rows(len(self), self.parts, test_share)

    def networkx(self, rows: Iterable[int]) -> tuple[nx.DiGraph, ...]:
        """The graphs at ``rows``, their classes by name as the attribute ``label``; without it where the labels are plain."""
        return tuple(self._graph(row) for row in rows)

    def _graph(self, row: int) -> nx.DiGraph:
        batch, graph, named = self.batch([row]), nx.DiGraph(), not self.labels.plain
        nodes, edges = batch.nodes[NODE][0], batch.edges[EDGE][0]
        graph.add_nodes_from((k, {"label": self.labels.nodes[c]} if named else {}) for k, c in enumerate(nodes.tolist()))
        i, j = edges.nonzero().unbind(1)
        for a, b, c in zip(i.tolist(), j.tolist(), edges[i, j].tolist(), strict=True):
            graph.add_edge(a, b, **({"label": self.labels.edges[c]} if named else {}))
        return graph


def own_digraphs(source: str | Path | Iterable[Any], **options: Any) -> OwnDigraphs:
    """Read directed graphs with classes of nodes and arcs.

    Args:
        source: as for :func:`~discrete_grpo.datasets.own_graphs.own_graphs`.
        options: likewise.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: in one line, as :func:`~discrete_grpo.datasets.own_graphs.own_graphs`, and for undirected graphs.

    >>> own_digraphs([nx.DiGraph([(0, 1), (2, 1)])]).batch([0]).edges["edge"].tolist()
    [[[0, 1, 0], [0, 0, 0], [0, 1, 0]]]
    """
    return _of_listed(listed_graphs(source, **options))


def read_own(source: str | Path | Iterable[Any], **options: Any) -> OwnGraphs | OwnDigraphs:
    """Read undirected or directed graphs, as :func:`~discrete_grpo.datasets.own_graphs.own_graphs` or :func:`own_digraphs` does."""
    listed = listed_graphs(source, **options)
    return own_graphs.of_listed(listed) if listed.directed is None else _of_listed(listed)


def holds_directed(path: Path) -> bool:
    """Whether a file or folder holds a directed graph; False where it cannot be read."""
    try:
        return any_directed(iter_graph_objects(path))
    except (OSError, ValueError):
        return False


def _of_listed(listed: ListedGraphs) -> OwnDigraphs:
    """Listed graphs end to end; of i < j, the arc (i, j) stands at 2 (j(j-1)/2 + i) of its graph, and (j, i) behind it."""
    if listed.directed is None:
        raise ValueError("data: graph 0 is undirected, expected directed graphs")
    nodes, arcs = [], []
    for classes, ends, kinds in listed.numbered():
        own = np.zeros(2 * num_pairs(len(classes)), dtype=np.uint8)
        tail, head = ends.T
        low, high = np.minimum(tail, head), np.maximum(tail, head)
        own[high * (high - 1) + 2 * low + (tail > head)] = kinds
        nodes.append(classes)
        arcs.append(own)
    packed = torch.from_numpy(np.concatenate(nodes)), torch.from_numpy(np.concatenate(arcs))
    return OwnDigraphs(*packed, listed.sizes, listed.labels, listed.name, listed.parts)
