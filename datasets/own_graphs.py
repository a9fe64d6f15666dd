"""Data sets of your own graphs with classes of nodes and edges: from files, networkx graphs or PyG data.

Classes are numbered by their names: as numbers where all names are whole numbers, else as text. So the same graphs have the same
classes in every format. Graphs are undirected, without self-loops, and have one attribute of nodes and one of edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from discrete_grpo.core.checks import check_range
from discrete_grpo.datasets.graph_files import SUFFIXES, read_graph_objects
from discrete_grpo.datasets.synthetic_graphs import SPLITS, GraphSplits, read_npz
from discrete_grpo.datasets.text_files import MAX_BYTES, suffix_of
from discrete_grpo.domains.graph6 import MAX_NODES
from discrete_grpo.domains.graphs import GraphBatch, PackedGraphs
from discrete_grpo.domains.named_graphs import ABSENT, NO_EDGE, Labels, ordered_names

__all__ = ["MAX_CLASSES", "OwnGraphs", "is_own", "labelled_splits", "own_graphs"]

MAX_CLASSES = 256
"""Most classes of nodes, and of pairs with "no edge" among them; classes are kept as bytes."""


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

    def index(self, rows: Int[Tensor, " row"] | Sequence[int]) -> OwnGraphs:
        """The graphs at ``rows``, without splits."""
        return OwnGraphs(self.graphs.index(rows), self.labels, self.name)

    def split(self, test_share: float) -> tuple[list[int], list[int]]:
        """Row numbers of the training graphs and of the test graphs.

        They are those of the source where it has splits. Else a shuffle that is always the same holds out ``test_share`` of the
        graphs, at least one of two or more; of a single graph both are made.

        Raises:
            ValueError: if ``test_share`` is not above 0 and below 1.
        """
        check_range("test_share", test_share, above=0, below=1)
        if self.parts is not None:
            train, val, test = self.parts
            return list(range(train)), list(range(train + val, train + val + test))
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0)).tolist()
        count = min(len(self) - 1, max(1, round(test_share * len(self))))
        return sorted(order[count:]), sorted(order[:count] or order)

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


def labelled_splits(data: OwnGraphs, test_share: float | None = None) -> GraphSplits:
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
    name, parts = "", None
    if isinstance(source, str | Path):
        name = Path(source).name.removesuffix(".gz").rpartition(".")[0] or Path(source).name
        if suffix_of(Path(source)) == ".npz":
            splits = read_npz(source, max_nodes=max_nodes, max_bytes=max_bytes)
            objects = [graph for part in SPLITS for graph in getattr(splits, part)]
            parts = (len(splits.train), len(splits.val), len(splits.test))
        else:
            objects = read_graph_objects(Path(source), max_bytes)
    else:
        objects = list(source)
    if not objects:
        raise ValueError(f"data: {name or 'the list'} holds no graphs, expected at least one")
    listed, attributes = _listed(objects, node_attribute, edge_attribute, max_nodes)
    known = labels or _labels(listed, *attributes)
    return OwnGraphs(_packed(listed, known), known, name, parts)


# -- graphs as lists


@dataclass(frozen=True)
class _Listed:
    """A graph as names of its nodes, pairs i < j of its edges, and names of these."""

    nodes: Sequence[str]
    ends: Sequence[tuple[int, int]]
    edges: Sequence[str]


def _listed(
    objects: Sequence[Any], node_attribute: str | None, edge_attribute: str | None, max_nodes: int
) -> tuple[list[_Listed], tuple[str, str]]:
    """All graphs as lists, and the attributes that hold the classes."""
    from discrete_grpo.datasets import pyg_graphs  # which imports PyG

    networkx = isinstance(objects[0], nx.Graph)
    for k, graph in enumerate(objects):
        if isinstance(graph, nx.Graph) != networkx or not (networkx or hasattr(graph, "edge_index")):
            raise ValueError(f"data: graph {k} is a {type(graph).__name__}, expected networkx graphs or PyG Data, not both")
        count = len(graph) if networkx else int(graph.num_nodes or 0)
        check_range(f"data: nodes of graph {k}", count, most=max_nodes, note=" (max_nodes)")
    _check_direction([graph.is_directed() if networkx else pyg_graphs.is_directed(graph) for graph in objects], networkx)
    if not networkx:
        read = [pyg_graphs.listed(graph, f"data: graph {k}", node_attribute, edge_attribute) for k, graph in enumerate(objects)]
        return [_Listed(*part) for part in read], (node_attribute or "x", edge_attribute or "edge_attr")
    for k, graph in enumerate(objects):
        if graph.is_multigraph():
            raise ValueError(f"data: graph {k} is a multigraph, expected at most one edge between two nodes")
        if (loop := next(iter(nx.nodes_with_selfloops(graph)), None)) is not None:
            raise ValueError(f"data: graph {k}, node {loop!r} has a self-loop, expected none")
    chosen = (
        _attribute((values for g in objects for _, values in g.nodes(data=True)), node_attribute, "node"),
        _attribute((values for g in objects for *_, values in g.edges(data=True)), edge_attribute, "edge"),
    )
    return [_from_networkx(g, f"data: graph {k}", *chosen) for k, g in enumerate(objects)], (
        chosen[0] or "label",
        chosen[1] or "label",
    )


def _check_direction(directed: Sequence[bool], networkx: bool) -> None:
    if not any(directed):
        return
    first = directed.index(True)
    if not all(directed):
        other = directed.index(False)
        raise ValueError(f"data: graph {first} is directed and graph {other} is not, expected undirected graphs alone")
    hint = "" if networkx else ": each edge in both directions with one class, as torch_geometric.transforms.ToUndirected makes it"
    raise ValueError(f"data: graph {first} is directed, expected undirected graphs{hint}")


def _attribute(values: Iterable[Any], wanted: str | None, part: str) -> str | None:
    """The attribute that holds the classes: the named one, else the only one; None where there is none."""
    known = list(dict.fromkeys(name for row in values for name in row))
    if wanted is not None and wanted not in known:
        raise ValueError(f"{part}_attribute: {wanted!r}, expected one of {', '.join(map(str, known)) or 'none'}")
    if wanted is None and len(known) > 1:
        raise ValueError(f"{part}_attribute: None, expected one of {', '.join(map(str, known))}: the graphs have several")
    return wanted if wanted is not None else next(iter(known), None)


def _from_networkx(graph: nx.Graph, name: str, node: str | None, edge: str | None) -> _Listed:
    place = {v: k for k, v in enumerate(graph)}
    nodes = [ABSENT[0] if node is None else _class_name(row, node, f"{name}, node {v!r}") for v, row in graph.nodes(data=True)]
    found = [
        (place[a], place[b], ABSENT[1] if edge is None else _class_name(row, edge, f"{name}, edge ({a!r}, {b!r})"))
        for a, b, row in graph.edges(data=True)
    ]
    return _Listed(nodes, [(min(a, b), max(a, b)) for a, b, _ in found], [c for *_, c in found])


def _class_name(values: Any, attribute: str, where: str) -> str:
    """The name of a class: text, or a whole number."""
    if attribute not in values:
        raise ValueError(f"{where} has no attribute {attribute!r}, expected one at each")
    value = values[attribute]
    if isinstance(value, str) and value:
        return value
    whole = isinstance(value, float) and value.is_integer()
    if not (hasattr(value, "__index__") or whole):
        raise ValueError(f"{where} has {value!r} as its {attribute}, expected a class, a whole number or text")
    return str(bool(value)).lower() if isinstance(value, bool) else str(int(value))


# -- classes


def _labels(graphs: Sequence[_Listed], node_attribute: str, edge_attribute: str) -> Labels:
    nodes = ordered_names(name for graph in graphs for name in graph.nodes)
    edges = [NO_EDGE, *ordered_names(name for graph in graphs for name in graph.edges)]
    for part, names, attribute in (("nodes", nodes, node_attribute), ("edges", edges, edge_attribute)):
        check_range(f"data: classes of {part} by {attribute!r}", len(names), most=MAX_CLASSES)
    if NO_EDGE in edges[1:]:
        raise ValueError(f"data: an edge is of class {NO_EDGE!r}, expected another name: it is that of absent edges")
    if not nodes:
        raise ValueError("data: no graph has a node, expected at least one")
    return Labels(tuple(nodes), tuple(edges), node_attribute, edge_attribute)


def _packed(graphs: Sequence[_Listed], labels: Labels) -> PackedGraphs:
    """Graphs end to end; pair (i, j) with i < j stands at j(j-1)/2 + i of its graph."""
    places = {name: k for k, name in enumerate(labels.nodes)}, {name: k for k, name in enumerate(labels.edges) if k}
    nodes, pairs = [], []
    for k, graph in enumerate(graphs):
        for kind, names, known in (("node", graph.nodes, places[0]), ("edge", graph.edges, places[1])):
            if unknown := next((name for name in names if name not in known), None):
                _refuse(unknown, kind, k, labels)
        nodes.append(np.array([places[0][name] for name in graph.nodes], dtype=np.uint8))
        own = np.zeros(len(graph.nodes) * (len(graph.nodes) - 1) // 2, dtype=np.uint8)
        if graph.edges:
            i, j = np.array(graph.ends).T
            own[j * (j - 1) // 2 + i] = [places[1][name] for name in graph.edges]
        pairs.append(own)
    sizes = torch.tensor([len(graph.nodes) for graph in graphs])
    return PackedGraphs(torch.from_numpy(np.concatenate(nodes)), torch.from_numpy(np.concatenate(pairs)), sizes)


def _refuse(name: str, kind: str, number: int, labels: Labels) -> None:
    try:
        (labels.node_class if kind == "node" else labels.edge_class)(name)
    except ValueError as error:
        raise ValueError(f"data: graph {number}: {error}") from None
