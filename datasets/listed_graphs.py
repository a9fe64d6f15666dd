"""Graphs of any source as lists of class names, the common input of data sets of undirected and directed graphs.

See :mod:`~discrete_grpo.datasets.own_graphs` and :mod:`~discrete_grpo.datasets.own_digraphs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from discrete_grpo.core.checks import check_range
from discrete_grpo.datasets.graph_files import read_graph_objects
from discrete_grpo.datasets.graph_splits import read_npz
from discrete_grpo.datasets.synthetic_graphs import SPLITS
from discrete_grpo.datasets.text_files import MAX_BYTES, suffix_of
from discrete_grpo.domains.graph6 import MAX_NODES
from discrete_grpo.domains.named_graphs import ABSENT, NO_EDGE, Labels, ordered_names

__all__ = ["MAX_CLASSES", "ListedGraphs", "any_directed", "check_nodes", "listed_graphs", "split_rows"]

MAX_CLASSES = 256
"""Most classes of nodes, and of pairs with "no edge" among them; classes are kept as bytes."""


@dataclass(frozen=True)
class _Listed:
    """A graph as class names of its nodes, its edges as pairs (i < j if undirected, else tail and head), and their class names."""

    nodes: Sequence[str]
    ends: Sequence[tuple[int, int]]
    edges: Sequence[str]


@dataclass(frozen=True)
class ListedGraphs:
    """Graphs of one source.

    Attributes:
        graphs: each as lists of names.
        labels: names of the classes, and the attributes they were read from.
        directed: number of the first graph with a direction; None where the graphs are undirected.
        pyg: whether the source holds PyG data.
        name: name of the set in reports.
        parts: numbers of training, validation and test graphs, which stand in this order; None where the source has no splits.
    """

    graphs: Sequence[_Listed]
    labels: Labels
    directed: int | None
    pyg: bool
    name: str = ""
    parts: tuple[int, int, int] | None = None

    @property
    def sizes(self) -> Int[torch.Tensor, " graph"]:
        """Number of nodes of each graph."""
        return torch.tensor([len(graph.nodes) for graph in self.graphs])

    def numbered(self) -> Iterator[tuple[UInt8[np.ndarray, " node"], Int[np.ndarray, "edge 2"], UInt8[np.ndarray, " edge"]]]:
        """Classes of the nodes, ends and classes of the edges of each graph.

        Raises:
            ValueError: naming the graph, for a class that ``labels`` does not have.
        """
        nodes = {name: k for k, name in enumerate(self.labels.nodes)}
        edges = {name: k for k, name in enumerate(self.labels.edges) if k}
        for k, graph in enumerate(self.graphs):
            for kind, names, known in (("node", graph.nodes, nodes), ("edge", graph.edges, edges)):
                if unknown := next((name for name in names if name not in known), None):
                    _refuse(unknown, kind, k, self.labels)
            ends = np.array(graph.ends, dtype=np.int64).reshape(-1, 2)
            found = np.array([nodes[name] for name in graph.nodes], dtype=np.uint8)
            yield found, ends, np.array([edges[name] for name in graph.edges], dtype=np.uint8)


def listed_graphs(
    source: str | Path | Iterable[Any],
    *,
    node_attribute: str | None = None,
    edge_attribute: str | None = None,
    labels: Labels | None = None,
    max_nodes: int = MAX_NODES,
    max_bytes: int = MAX_BYTES,
) -> ListedGraphs:
    """Read the graphs of a source; arguments and errors are those of :func:`~discrete_grpo.datasets.own_graphs.own_graphs`."""
    name, parts = "", None
    if isinstance(source, str | Path):
        name = Path(source).name.removesuffix(".gz").rpartition(".")[0] or Path(source).name
        if suffix_of(Path(source)) == ".npz":
            splits = read_npz(source, max_nodes=max_nodes, max_bytes=max_bytes)
            objects = [graph for part in SPLITS for graph in getattr(splits, part)]
            parts = (len(splits.train), len(splits.val), len(splits.test))
        else:
            objects = read_graph_objects(Path(source), max_bytes)
    elif isinstance(source, nx.Graph) or not (hasattr(source, "__iter__") or hasattr(source, "__getitem__")):
        raise ValueError(f"data: one {type(source).__name__}, expected a file, a folder, or a list of graphs")
    else:
        objects = list(source)
    if not objects:
        told = repr(str(source)) if isinstance(source, str | Path) else "the list"
        raise ValueError(f"data: {told} holds no graphs, expected at least one")
    listed, attributes, directed = _listed(objects, node_attribute, edge_attribute, max_nodes)
    pyg = not isinstance(objects[0], nx.Graph)
    return ListedGraphs(listed, labels or _labels(listed, *attributes), directed, pyg, name, parts)


def any_directed(objects: Iterable[Any]) -> bool:
    """Whether one of some graphs, networkx graphs or PyG data, has a direction."""
    return any(_direction(graph) for graph in objects)


def split_rows(count: int, parts: tuple[int, int, int] | None, test_share: float) -> tuple[list[int], list[int]]:
    """Row numbers of the training graphs and of the test graphs.

    If the source has splits, ``parts``, these are used. Otherwise a fixed shuffle holds out ``test_share`` of the graphs, at least
    one of two or more; a single graph is in both parts.

    Raises:
        ValueError: if ``test_share`` is not above 0 and below 1.

    >>> split_rows(4, (2, 1, 1), 0.1), split_rows(1, None, 0.1)
    (([0, 1], [3]), ([0], [0]))
    """
    check_range("test_share", test_share, above=0, below=1)
    if parts is not None:
        train, val, test = parts
        return list(range(train)), list(range(train + val, train + val + test))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()
    held = min(count - 1, max(1, round(test_share * count)))
    return sorted(order[held:]), sorted(order[:held] or order)


def check_nodes(sizes: Int[Tensor, " graph"]) -> None:
    """Raise ValueError for a graph without a node, which no policy draws."""
    if bool((empty := sizes == 0).any()):
        raise ValueError(f"data: graph {int(empty.nonzero()[0])} has no node, expected at least one")


# -- graphs as lists


def _listed(
    objects: Sequence[Any], node_attribute: str | None, edge_attribute: str | None, max_nodes: int
) -> tuple[list[_Listed], tuple[str, str], int | None]:
    """All graphs as lists, the attributes that hold the classes, and the first graph with a direction."""
    networkx = isinstance(objects[0], nx.Graph)
    for k, graph in enumerate(objects):
        if isinstance(graph, nx.Graph) != networkx or not (networkx or hasattr(graph, "edge_index")):
            both = ", not both" if isinstance(graph, nx.Graph) or hasattr(graph, "edge_index") else ""
            raise ValueError(f"data: graph {k} is a {type(graph).__name__}, expected networkx graphs or PyG Data{both}")
        count = len(graph) if networkx else int(graph.num_nodes or 0)
        check_range(f"data: nodes of graph {k}", count, most=max_nodes, note=" (max_nodes)")
    directed = _first_directed(objects)
    if not networkx:
        from discrete_grpo.datasets import pyg_graphs  # which imports PyG

        pyg_graphs.check_attributes(objects, node_attribute, edge_attribute)
        settings = (node_attribute, edge_attribute, directed is not None)
        read = [pyg_graphs.listed(graph, f"data: graph {k}", *settings) for k, graph in enumerate(objects)]
        return [_Listed(*part) for part in read], (node_attribute or "x", edge_attribute or "edge_attr"), directed
    for k, graph in enumerate(objects):
        if graph.is_multigraph():
            raise ValueError(f"data: graph {k} is a multigraph, expected at most one edge between two nodes")
        if (loop := next(iter(nx.nodes_with_selfloops(graph)), None)) is not None:
            raise ValueError(f"data: graph {k}, node {loop!r} has a self-loop, expected none")
    chosen = (
        _attribute((values for g in objects for _, values in g.nodes(data=True)), node_attribute, "node"),
        _attribute((values for g in objects for *_, values in g.edges(data=True)), edge_attribute, "edge"),
    )
    listed = [_from_networkx(g, f"data: graph {k}", *chosen) for k, g in enumerate(objects)]
    return listed, (chosen[0] or "label", chosen[1] or "label"), directed


def _direction(graph: Any) -> bool | None:
    """Whether a graph is directed; None for PyG data without edges, which may be either."""
    if isinstance(graph, nx.Graph):
        return bool(graph.is_directed())
    from discrete_grpo.datasets import pyg_graphs

    if graph.edge_index is None or not graph.edge_index.numel():
        return None
    return pyg_graphs.is_directed(graph)


def _first_directed(objects: Sequence[Any]) -> int | None:
    """Number of the first directed graph, None if there is none; raises ValueError if others are undirected."""
    directed = [_direction(graph) for graph in objects]
    if True not in directed:
        return None
    first = directed.index(True)
    if False in directed:
        expected = "directed graphs alone or undirected graphs alone"
        raise ValueError(f"data: graph {first} is directed and graph {directed.index(False)} is not, expected {expected}")
    return first


def _attribute(values: Iterable[Any], wanted: str | None, part: str) -> str | None:
    """The attribute that holds the classes: the named one, else the only one; None if there is none."""
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
    ends = [(a, b) if graph.is_directed() else (min(a, b), max(a, b)) for a, b, _ in found]
    return _Listed(nodes, ends, [c for *_, c in found])


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


def _refuse(name: str, kind: str, number: int, labels: Labels) -> None:
    try:
        (labels.node_class if kind == "node" else labels.edge_class)(name)
    except ValueError as error:
        raise ValueError(f"data: graph {number}: {error}") from None
