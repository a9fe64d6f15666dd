"""Graphs whose nodes and edges have named classes: as text, as classes of a batch, as networkx graphs and as PyG data.

The text is a graph6 line followed by the names, ``Bg nodes=red,blue,red edges=thin,thick``, with edges in the order of graph6's
pairs; a character of a name that would break the line is written as in a URL (``%20``). The lines of
:mod:`~discrete_grpo.domains.labelled_graphs` are of this form, with numbers as names. Readers of graph6 see the plain graph.

A directed graph is a digraph6 line, which begins with ``&``, followed by the names in the same way, ``&BP? nodes=red,blue,red
edges=thin,thick``: arcs in the order of the rows of the adjacency matrix, those of node 0 first.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import networkx as nx
import numpy as np
import torch

from discrete_grpo.core.checks import did_you_mean
from discrete_grpo.domains import digraph6, graph6
from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.domains.isomorphism import Form, form, form_of_edges

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = [
    "ABSENT",
    "NO_EDGE",
    "Labels",
    "batch_to_lines",
    "graph_of",
    "labelled_form",
    "lines_to_batch",
    "named_graph",
    "ordered_names",
    "quoted",
    "to_line",
    "to_networkx",
    "to_pyg",
]

NO_EDGE = "no edge"
"""Name of class 0 of a pair."""
ABSENT = ("0", "1")
"""Names of the only class of nodes and of edges, of graphs without classes."""
FORM = re.compile(r"(?P<graph>\S+)(?: nodes=(?P<nodes>\S*) edges=(?P<edges>\S*))?")
SAFE = "+#/:*()[]@"


@dataclass(frozen=True)
class Labels:
    """Names of the classes of a data set of graphs.

    Attributes:
        nodes: names of the node classes 0, 1, ...
        edges: names of the classes of a pair; class 0 is "no edge".
        node_attribute: the attribute of a node that holds the name, in networkx graphs and files.
        edge_attribute: the attribute of an edge that holds the name.

    Raises:
        ValueError: if there is no node class, class 0 of a pair is not "no edge", or a name stands there twice.
    """

    nodes: tuple[str, ...]
    edges: tuple[str, ...]
    node_attribute: str = "label"
    edge_attribute: str = "label"

    def __post_init__(self) -> None:
        if self.edges[:1] != (NO_EDGE,):
            raise ValueError(f"edges: {self.edges[:1]} as class 0, expected {NO_EDGE!r}")
        for kind, names in (("nodes", self.nodes), ("edges", self.edges)):
            if not names or len(set(names)) < len(names):
                raise ValueError(f"{kind}: {names}, expected names that differ, at least one")

    @property
    def plain(self) -> bool:
        """Whether the classes say nothing: those of graphs that have none."""
        return self.nodes == ABSENT[:1] and self.edges in ((NO_EDGE,), (NO_EDGE, ABSENT[1]))

    def node_class(self, name: str) -> int:
        """Number of a node class.

        Raises:
            ValueError: for a name that is not one of ``nodes``.
        """
        return _class_of(name, self.nodes, "node")

    def edge_class(self, name: str) -> int:
        """Number of an edge class, at least 1.

        Raises:
            ValueError: for a name that is not one of ``edges`` after the first.
        """
        return _class_of(name, self.edges[1:], "edge") + 1

    def to_json(self) -> dict[str, Any]:
        """The labels as plain values."""
        attributes = {"node_attribute": self.node_attribute, "edge_attribute": self.edge_attribute}
        return {"nodes": list(self.nodes), "edges": list(self.edges), **attributes}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Labels:
        """Inverse of :meth:`to_json`."""
        attributes = {name: str(values[name]) for name in ("node_attribute", "edge_attribute")}
        return cls(tuple(map(str, values["nodes"])), tuple(map(str, values["edges"])), **attributes)


def _class_of(name: str, known: Sequence[str], kind: str) -> int:
    if name not in known:
        hint = f"; {did_you_mean(name, known)}".rstrip("; ")
        shown = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
        raise ValueError(f"{kind} class {name!r}, expected one of {shown or 'none'}{hint}")
    return known.index(name)


def ordered_names(names: Iterable[str]) -> list[str]:
    """The different names, sorted: as numbers where all are whole numbers, else as text.

    >>> ordered_names(["10", "9"]), ordered_names(["b", "a", "b"])
    (['9', '10'], ['a', 'b'])
    """
    found = set(names)
    numbers = all(re.fullmatch(r"-?\d+", name) for name in found)
    return sorted(found, key=(lambda name: (int(name), name)) if numbers else (lambda name: (0, name)))


# -- text


def quoted(name: str) -> str:
    """A name as it stands in a line."""
    return quote(name, safe=SAFE)


def to_line(graph: nx.Graph) -> str:
    """The line of a graph whose nodes and edges have their name as the attribute ``label``; a plain line where they have none.

    >>> to_line(named_graph("Bg nodes=red,blue,red edges=thin,thick"))
    'Bg nodes=red,blue,red edges=thin,thick'
    >>> to_line(nx.DiGraph([(0, 1), (1, 2)]))
    '&BP?'
    """
    shape = digraph6.digraph6(graph) if graph.is_directed() else graph6.graph6(graph)
    if not has_classes(graph):
        return shape
    nodes, edges = graph.nodes(data="label", default=""), (graph.edges[pair].get("label", "") for pair in _ordered(graph))
    names = ([name for _, name in nodes], list(edges))
    return "{} nodes={} edges={}".format(shape, *(",".join(quoted(str(c)) for c in part) for part in names))


def has_classes(graph: nx.Graph) -> bool:
    """Whether any node or edge has a name of its class, the attribute ``label``; those without one have the empty name then."""
    return any("label" in values for *_, values in (*graph.nodes(data=True), *graph.edges(data=True)))


def _ordered(graph: nx.Graph) -> list[tuple[Any, Any]]:
    """The edges in the order of their text: arcs by tail and head, pairs by their later and then their earlier end."""
    place = {node: k for k, node in enumerate(graph)}
    if graph.is_directed():
        return sorted(graph.edges, key=lambda arc: (place[arc[0]], place[arc[1]]))
    return sorted(graph.edges, key=lambda pair: sorted((place[pair[0]], place[pair[1]]), reverse=True))


def named_graph(sample: str | nx.Graph) -> nx.Graph:
    """The graph of a line, on nodes 0..n-1 that have their name as the attribute ``label``, as edges have; plain lines give none.

    A line that begins with ``&`` gives a ``networkx.DiGraph``.

    >>> named_graph("Bg nodes=red,blue,red edges=thin,thick").edges(data="label")
    EdgeDataView([(0, 1, 'thin'), (1, 2, 'thick')])

    Raises:
        ValueError: if the text is no such line, or has another number of names than nodes or edges.
    """
    if not isinstance(sample, str):
        return sample
    found = FORM.fullmatch(sample.strip())
    if found is None:
        raise ValueError(f"graph: {sample[:60]!r}, expected a graph6 line, with nodes=NAMES edges=NAMES after it or without")
    text = found["graph"]
    graph = digraph6.from_digraph6(text) if digraph6.is_digraph6(text) else graph6.from_graph6(text)
    if found["nodes"] is None:
        return graph
    for part, wanted in (("nodes", list(graph)), ("edges", _ordered(graph))):
        names = [unquote(name) for name in found[part].split(",")] if found[part] or len(wanted) == 1 else []
        if len(names) != len(wanted):
            raise ValueError(f"graph: {sample[:60]!r} has {len(names)} classes of {part}, expected {len(wanted)}")
        setter = nx.set_node_attributes if part == "nodes" else nx.set_edge_attributes
        setter(graph, dict(zip(wanted, names, strict=True)), "label")
    return graph


def graph_of(sample: str | nx.Graph | None) -> nx.Graph | None:
    """:func:`named_graph`; None for None, for text that is no line of a graph, and for a graph without nodes."""
    if sample is None:
        return None
    try:
        graph = named_graph(sample)
    except ValueError:
        return None
    return graph if len(graph) else None


# -- classes


def batch_to_lines(batch: GraphBatch, labels: Labels) -> list[str]:
    """Every graph of a batch as a line with the names of its node and edge classes."""
    sizes, found = batch.sizes.tolist(), []
    nodes, edges = batch.nodes.cpu().numpy(), batch.edges.cpu().numpy()
    names = [[quoted(name) for name in part] for part in (labels.nodes, labels.edges)]
    for k, n in enumerate(sizes):
        matrix = edges[k, :n, :n]
        pairs = matrix[np.tril_indices(n, -1)]
        kinds = ",".join(names[0][c] for c in nodes[k, :n]), ",".join(names[1][c] for c in pairs[pairs > 0])
        found.append("{} nodes={} edges={}".format(graph6.adjacency_to_graph6(matrix > 0), *kinds))
    return found


def lines_to_batch(samples: Sequence[str | nx.Graph], labels: Labels) -> GraphBatch:
    """Lines, or graphs with the attribute ``label``, as a batch padded to the largest; inverse of :func:`batch_to_lines`.

    Raises:
        ValueError: naming the graph, for a class that ``labels`` does not have, or what is no graph with classes.
    """
    graphs = [named_graph(sample) for sample in samples]
    plain = graph6.graphs_to_batch(graphs)
    nodes, edges = plain.nodes, torch.zeros_like(plain.edges)
    for b, graph in enumerate(graphs):
        place = {node: k for k, node in enumerate(graph)}
        try:
            for node, name in graph.nodes(data="label"):
                nodes[b, place[node]] = labels.node_class(str(name))
            for i, j, name in graph.edges(data="label"):
                edges[b, place[i], place[j]] = edges[b, place[j], place[i]] = labels.edge_class(str(name))
        except ValueError as error:
            raise ValueError(f"graphs[{b}]: {error}") from None
    return GraphBatch(nodes, edges, plain.mask)


# -- objects that rewards and files hold


def to_networkx(sample: str | nx.Graph, labels: Labels | None = None) -> nx.Graph:
    """A graph whose nodes and edges have their class by the attribute that ``labels`` names, directed where the line is.

    >>> labels = Labels(("blue", "red"), ("no edge", "thin"), node_attribute="colour")
    >>> to_networkx("A_ nodes=red,blue edges=thin", labels).nodes[0]
    {'colour': 'red'}

    Raises:
        ValueError: if ``sample`` is no graph.
    """
    graph = named_graph(sample)
    found = nx.DiGraph() if graph.is_directed() else nx.Graph()
    names = ("label", "label") if labels is None else (labels.node_attribute, labels.edge_attribute)
    found.add_nodes_from((node, {names[0]: c} if c is not None else {}) for node, c in graph.nodes(data="label"))
    found.add_edges_from((i, j, {names[1]: c} if c is not None else {}) for i, j, c in graph.edges(data="label"))
    return found


def to_pyg(sample: str | nx.Graph, labels: Labels | None = None) -> Data:
    """PyG data with node classes ``x`` [n, 1] and edge classes ``edge_attr`` [E]; each edge stands there in both directions.

    An arc of a directed graph stands there once. Without ``labels`` classes are the numbers in the line; a plain graph has node
    class 0 and edge class 1.

    >>> data = to_pyg("A_ nodes=2,0 edges=3")
    >>> data.x.flatten().tolist(), data.edge_attr.tolist()
    ([2, 0], [3, 3])

    Raises:
        ValueError: if ``sample`` is no graph, or has a class that ``labels`` does not have; without ``labels``, one that is no
            number.
    """
    from torch_geometric.utils import from_networkx

    graph = named_graph(sample)
    numbered = nx.DiGraph() if graph.is_directed() else nx.Graph()
    kinds = ((i, _number(c, 0) if labels is None else labels.node_class(str(c))) for i, c in graph.nodes(data="label"))
    numbered.add_nodes_from((i, {"x": [c]}) for i, c in kinds)
    orders = ((i, j, _number(c, 1) if labels is None else labels.edge_class(str(c))) for i, j, c in graph.edges(data="label"))
    numbered.add_edges_from((i, j, {"edge_attr": c}) for i, j, c in orders)
    data = from_networkx(numbered)
    if not numbered.number_of_edges():
        data.edge_attr = torch.zeros(0, dtype=torch.long)
    return data


def _number(label: Any, usual: int) -> int:
    """A class that a line writes as its number; ``usual`` where it writes none."""
    if label is None:
        return usual
    if not str(label).isdecimal():
        raise ValueError(f"labels: None with a graph of class {label!r}, expected the Labels of its policy")
    return int(label)


# -- isomorphism


def labelled_form(sample: str | nx.Graph) -> Form:
    """A graph prepared for comparison, classes included: isomorphic forms differ by a renumbering of the nodes alone.

    Every edge becomes a node that is joined to both ends, so that classes of edges are classes of nodes, where colour refinement
    starts; every arc becomes two, one at its tail and one at its head. A plain undirected graph has the form of
    :func:`~discrete_grpo.domains.isomorphism.form`.

    >>> from discrete_grpo.domains.isomorphism import isomorphic
    >>> first, second, third = map(labelled_form, ["A_ nodes=a,b edges=x", "A_ nodes=b,a edges=x", "A_ nodes=a,b edges=y"])
    >>> isomorphic(first, second), isomorphic(first, third)
    (True, False)

    Raises:
        ValueError: if ``sample`` is no graph, or has a self-loop.
    """
    graph = named_graph(sample)
    if not graph.is_directed() and not has_classes(graph):
        return form(graph)
    number = {node: k for k, node in enumerate(graph)}
    colours = [_hash("node", c) for _, c in graph.nodes(data="label", default="")]
    ends = ("tail", "head") if graph.is_directed() else ("edge",)
    joined: list[tuple[int, int]] = []
    for i, j, c in graph.edges(data="label", default=""):
        if i == j:
            raise ValueError(f"graph: a self-loop at node {i!r}, expected a simple graph")
        path = [number[i], *range(len(colours), len(colours) + len(ends)), number[j]]
        joined += pairwise(path)
        colours += [_hash(end, c) for end in ends]
    both = np.array([*joined, *((j, i) for i, j in joined)], dtype=np.int64).reshape(-1, 2)
    tails, heads = both[np.lexsort(both.T[::-1])].T
    return form_of_edges(len(colours), tails, heads, np.array(colours, dtype=np.uint64))


def _hash(kind: str, name: Any) -> int:
    return int.from_bytes(hashlib.blake2b(f"{kind} {name}".encode(), digest_size=8).digest(), "little")
