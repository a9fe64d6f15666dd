"""Data sets of your own graphs with classes of nodes and edges: from files, networkx graphs or PyG data.

Classes are numbered by their names: as numbers where all names are whole numbers, else as text. So the same graphs have the same
classes in every format. Graphs are undirected, without self-loops, and have one attribute of nodes and one of edges. Directed
ones are read by :mod:`~discrete_grpo.datasets.own_digraphs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from discrete_grpo.datasets.graph_files import SUFFIXES
from discrete_grpo.datasets.listed_graphs import MAX_CLASSES, ListedGraphs, listed_graphs, split_rows
from discrete_grpo.datasets.synthetic_graphs import GraphSplits
from discrete_grpo.datasets.text_files import MAX_BYTES, suffix_of
from discrete_grpo.domains.graph6 import MAX_NODES
from discrete_grpo.domains.graphs import GraphBatch, PackedGraphs, num_pairs
from discrete_grpo.domains.named_graphs import Labels

if TYPE_CHECKING:
    from discrete_grpo.datasets.own_digraphs import OwnDigraphs

__all__ = ["MAX_CLASSES", "OwnGraphs", "is_own", "labelled_splits", "of_listed", "own_graphs"]


@dataclass(frozen=True)
class OwnGraphs:
    """M graphs with the names of their classes.

    Attributes:
        graphs: packed graphs; pair class 0 means that there is no edge.
        labels: names of the classes, and the attributes they were read from.
        name: name of the set in reports.
        parts: numbers of training, validation and test graphs, which stand in this order; None where the source has no splits.
    """

    graphs: PackedGraphs
    labels: Labels
    name: str = ""
    parts: tuple[int, int, int] | None = None

    def __len__(self) -> int:
        return len(self.graphs)

    @property
    def sizes(self) -> Int[Tensor, " graph"]:
        """Number of nodes [M]."""
        return self.graphs.sizes

    def batch(self, rows: Int[Tensor, " row"] | Sequence[int] | slice) -> GraphBatch:
        """The graphs at ``rows``, padded to the largest of them."""
        return self.graphs.batch(rows)

    @property
    def nbytes(self) -> int:
        """Number of bytes of the packed graphs."""
        return self.graphs.nbytes

    def to(self, device: torch.device | str) -> OwnGraphs:
        """The same with the packed graphs on ``device``, where batches of them are then made."""
        return replace(self, graphs=self.graphs.to(device))

    def index(self, rows: Int[Tensor, " row"] | Sequence[int]) -> OwnGraphs:
        """The graphs at ``rows``, without splits."""
        return OwnGraphs(self.graphs.index(rows), self.labels, self.name)

    def split(self, test_share: float) -> tuple[list[int], list[int]]:
        """Row numbers of the training and of the test graphs, see :func:`~discrete_grpo.datasets.listed_graphs.split_rows`."""
        return split_rows(len(self), self.parts, test_share)

    def networkx(self, rows: Iterable[int]) -> tuple[nx.Graph, ...]:
        """The graphs at ``rows``, their classes by name as the attribute ``label``; without it where the labels are plain."""
        return tuple(self._graph(row) for row in rows)

    def _graph(self, row: int) -> nx.Graph:
        batch, graph, named = self.graphs.batch([row]), nx.Graph(), not self.labels.plain
        graph.add_nodes_from((k, {"label": self.labels.nodes[c]} if named else {}) for k, c in enumerate(batch.nodes[0].tolist()))
        i, j = batch.edges[0].triu(1).nonzero().unbind(1)
        for a, b, c in zip(i.tolist(), j.tolist(), batch.edges[0, i, j].tolist(), strict=True):
            graph.add_edge(a, b, **({"label": self.labels.edges[c]} if named else {}))
        return graph


def is_own(source: str | Path) -> bool:
    """Whether ``source`` is a folder, or has the ending of a file that :func:`own_graphs` alone reads."""
    path = Path(source)
    return suffix_of(path) in SUFFIXES or path.is_dir()


def labelled_splits(data: OwnGraphs | OwnDigraphs, test_share: float | None = None) -> GraphSplits:
    """Graphs with which samples are compared: without ``test_share`` all graphs of a source without splits are both parts."""
    if test_share is None and data.parts is None:
        both = data.networkx(range(len(data)))
        return GraphSplits(both, (), both, data.name)
    train, test = data.split(test_share or 0.1)
    return GraphSplits(data.networkx(train), (), data.networkx(test), data.name)


def own_graphs(
    source: str | Path | Iterable[Any],
    *,
    node_attribute: str | None = None,
    edge_attribute: str | None = None,
    labels: Labels | None = None,
    max_nodes: int = MAX_NODES,
    max_bytes: int = MAX_BYTES,
) -> OwnGraphs:
    """Read graphs with classes of nodes and edges.

    Args:
        source: a file or folder (:func:`~discrete_grpo.datasets.graph_files.read_graph_objects`, or an npz file of splits),
            networkx graphs, or PyG ``Data``, a data set of them included.
        node_attribute: attribute of nodes that holds their class; None takes the only one of networkx graphs, ``x`` of PyG data,
            and one class where there is none. In PyG data it holds integers or one-hot rows.
        edge_attribute: likewise of edges; None takes ``edge_attr`` of PyG data.
        labels: names that classes must have, those of another set or of a checkpoint; None takes the names that occur.
        max_nodes: largest number of nodes of a graph.
        max_bytes: largest size of a file, unpacked.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: in one line, for a file of an unknown kind, directed graphs or a mix of directed and undirected ones, a
            self-loop, an attribute that does not exist or holds no class, a class that ``labels`` does not have, or more than 256
            classes.

    >>> graph = nx.path_graph(3)
    >>> nx.set_node_attributes(graph, {0: "red", 1: "blue", 2: "red"}, "colour")
    >>> own_graphs([graph]).labels.nodes
    ('blue', 'red')
    """
    settings: dict[str, Any] = {"node_attribute": node_attribute, "edge_attribute": edge_attribute, "labels": labels}
    return of_listed(listed_graphs(source, **settings, max_nodes=max_nodes, max_bytes=max_bytes))


def of_listed(listed: ListedGraphs) -> OwnGraphs:
    """Listed graphs end to end; pair (i, j) with i < j stands at j(j-1)/2 + i of its graph.

    Raises:
        ValueError: if they are directed, or for a class that their labels do not have.
    """
    if listed.directed is not None:
        hint = ": each edge in both directions with one class, as torch_geometric.transforms.ToUndirected makes it"
        raise ValueError(f"data: graph {listed.directed} is directed, expected undirected graphs{hint if listed.pyg else ''}")
    nodes, pairs = [], []
    for classes, ends, kinds in listed.numbered():
        own = np.zeros(num_pairs(len(classes)), dtype=np.uint8)
        i, j = ends.T
        own[j * (j - 1) // 2 + i] = kinds
        nodes.append(classes)
        pairs.append(own)
    packed = PackedGraphs(torch.from_numpy(np.concatenate(nodes)), torch.from_numpy(np.concatenate(pairs)), listed.sizes)
    return OwnGraphs(packed, listed.labels, listed.name, listed.parts)
