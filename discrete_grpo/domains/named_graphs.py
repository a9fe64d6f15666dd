"""Graphs whose nodes and edges have named classes: as text, as classes of a batch, as networkx graphs and as PyG data.

The text is a graph6 line followed by the names, ``Bg nodes=red,blue,red edges=thin,thick``, with edges in the order of graph6's
pairs; a character of a name that would break the line is written as in a URL (``%20``). The lines of
:mod:`~discrete_grpo.domains.labelled_graphs` are of this form, with numbers as names. Readers of graph6 see the plain graph.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import networkx as nx
import numpy as np
import torch

from discrete_grpo.core.checks import did_you_mean
from discrete_grpo.domains import graph6
from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.domains.isomorphism import Form, form

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = [
    "ABSENT",
    "NO_EDGE",
    "Labels",
    "batch_to_lines",
    "labelled_form",
    "lines_to_batch",
    "named_graph",
    "ordered_names",
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


def to_line(graph: nx.Graph) -> str:
    """The line of a graph whose nodes and edges have their name as the attribute ``label``; a graph6 line where they have none.

    >>> to_line(named_graph("Bg nodes=red,blue,red edges=thin,thick"))
    'Bg nodes=red,blue,red edges=thin,thick'
    """
    if not any("label" in values for _, values in graph.nodes(data=True)):
        return graph6.graph6(graph)
    place = {node: k for k, node in enumerate(graph)}
    edges = sorted((max(place[a], place[b]), min(place[a], place[b]), str(c)) for a, b, c in graph.edges(data="label"))
    names = ([str(c) for _, c in graph.nodes(data="label")], [c for *_, c in edges])
    return "{} nodes={} edges={}".format(graph6.graph6(graph), *(",".join(quote(c, safe=SAFE) for c in part) for part in names))


def named_graph(sample: str | nx.Graph) -> nx.Graph:
    """The graph of a line, on nodes 0..n-1 that have their name as the attribute ``label``, as edges have; plain lines give none.

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
    graph = graph6.from_graph6(found["graph"])
    if found["nodes"] is None:
        return graph
    pairs = sorted(graph.edges, key=lambda pair: (max(pair), min(pair)))
    for part, wanted in (("nodes", list(graph)), ("edges", pairs)):
        names = [unquote(name) for name in found[part].split(",")] if found[part] else []
        if len(names) != len(wanted):
            raise ValueError(f"graph: {sample[:60]!r} has {len(names)} classes of {part}, expected {len(wanted)}")
        setter = nx.set_node_attributes if part == "nodes" else nx.set_edge_attributes
        setter(graph, dict(zip(wanted, names, strict=True)), "label")
    return graph


# -- classes


def batch_to_lines(batch: GraphBatch, labels: Labels) -> list[str]:
    """Every graph of a batch as a line with the names of its node and edge classes."""
    sizes, found = batch.sizes.tolist(), []
    nodes, edges = batch.nodes.cpu().numpy(), batch.edges.cpu().numpy()
    names = [[quote(name, safe=SAFE) for name in part] for part in (labels.nodes, labels.edges)]
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
    """A graph whose nodes and edges have their class by the attribute that ``labels`` names.

    >>> labels = Labels(("blue", "red"), ("no edge", "thin"), node_attribute="colour")
    >>> to_networkx("A_ nodes=red,blue edges=thin", labels).nodes[0]
    {'colour': 'red'}

    Raises:
        ValueError: if ``sample`` is no graph.
    """
    graph, found = named_graph(sample), nx.Graph()
    names = ("label", "label") if labels is None else (labels.node_attribute, labels.edge_attribute)
    found.add_nodes_from((node, {names[0]: c} if c is not None else {}) for node, c in graph.nodes(data="label"))
    found.add_edges_from((i, j, {names[1]: c} if c is not None else {}) for i, j, c in graph.edges(data="label"))
    return found


def to_pyg(sample: str | nx.Graph, labels: Labels | None = None) -> Data:
    """PyG data with node classes ``x`` [n, 1] and edge classes ``edge_attr`` [E]; each edge stands there in both directions.

    Without ``labels`` node classes are 0 and edge classes 1.

    Raises:
        ValueError: if ``sample`` is no graph, or has a class that ``labels`` does not have.
    """
    from torch_geometric.utils import from_networkx

    graph, numbered = named_graph(sample), nx.Graph()
    kinds = ((i, 0 if labels is None else labels.node_class(str(c))) for i, c in graph.nodes(data="label"))
    numbered.add_nodes_from((i, {"x": [c]}) for i, c in kinds)
    orders = ((i, j, 1 if labels is None else labels.edge_class(str(c))) for i, j, c in graph.edges(data="label"))
    numbered.add_edges_from((i, j, {"edge_attr": c}) for i, j, c in orders)
    data = from_networkx(numbered)
    if not numbered.number_of_edges():
        data.edge_attr = torch.zeros(0, dtype=torch.long)
    return data


# -- isomorphism


def labelled_form(sample: str | nx.Graph) -> Form:
    """A graph prepared for comparison, classes included: isomorphic forms differ by a renumbering of the nodes alone.

    Every edge becomes a node that is joined to both ends, so that classes of edges are classes of nodes, where colour refinement
    starts. A plain graph has the form of :func:`~discrete_grpo.domains.isomorphism.form`.

    >>> from discrete_grpo.domains.isomorphism import isomorphic
    >>> first, second, third = map(labelled_form, ["A_ nodes=a,b edges=x", "A_ nodes=b,a edges=x", "A_ nodes=a,b edges=y"])
    >>> isomorphic(first, second), isomorphic(first, third)
    (True, False)

    Raises:
        ValueError: if ``sample`` is no simple undirected graph.
    """
    graph = named_graph(sample)
    if not any("label" in values for _, values in graph.nodes(data=True)):
        return form(graph)
    split = nx.Graph()
    split.add_nodes_from(("node", node) for node in graph)
    colours = [_hash("node", c) for _, c in graph.nodes(data="label")]
    for i, j, c in graph.edges(data="label"):
        split.add_edges_from((("edge", i, j), ("node", end)) for end in (i, j))
        colours.append(_hash("edge", c))
    return form(split, np.array(colours, dtype=np.uint64))


def _hash(kind: str, name: Any) -> int:
    return int.from_bytes(hashlib.blake2b(f"{kind} {name}".encode(), digest_size=8).digest(), "little")
