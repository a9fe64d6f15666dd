"""Graphs as token sequences: the nodes in the order of a breadth-first search, each with its edges to nodes that are still open.

A node is *open* until its own edges have been listed. The open nodes form a queue in the order in which they were made, and the
first of them is the *head*. A text is read from left to right:

========= ===================================================================================================
sign      meaning
========= ===================================================================================================
``*``     a new node at the end of the queue, the first of a connected part; only where no node is open
``+``     a new node at the end of the queue, with an edge from the head
``>``     an edge from the head to the next open node; ``k>``, k >= 2: to the k-th after the head
``<``     an edge from the head to the newest node; ``k<``, k >= 1: to the open node k places before it
``.``     the head has no more edges and leaves the queue
``ce``    class c of the edge just written (only with several edge classes)
``cn``    class c of the node just made, behind that of its edge (only with several node classes)
========= ===================================================================================================

``*++.>.`` is a triangle: node 0 makes 1 and 2 and is done, node 1 has an edge to the next node and is done. At the end of a text
all nodes are done. A graph of n nodes, m edges and c connected parts has at most n + m + c signs, classes not counted. Every
graph has a text, and usually many of them, one per order in which nodes and neighbours are visited. A text that breaks the
rules, names an edge twice or goes on where no node is open is no graph (None); nothing is repaired. The grammar knows no property
of the graphs: planar or not, a tree or not, connected or not is the choice of whoever writes.

A **token** is a sign, or all signs of a head that has edges to its two neighbours in the queue and to at most eight new nodes
alone: ``<+++>.``. The order of writing makes what follows predictable. Neighbours of a planar graph are listed as they stand
around the node in an embedding in the plane, so that in a triangulation nearly every head is one such token, and 64 nodes with
180 edges are about 90 tokens. Neighbours in another graph are listed by their place in the queue, new ones last.

Sources: the breadth-first order is that of You et al. (2018), GraphRNN, arXiv 1802.08773; graphs as one sequence for a causal
transformer: Chen et al. (2025), Flatten Graphs as Sequences, arXiv 2502.02216.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import networkx as nx
import numpy as np

from discrete_grpo.core.checks import check_range
from discrete_grpo.domains.named_graphs import Labels, named_graph, to_line

__all__ = ["PATTERN", "GraphSequences", "ListedGraph", "listed", "most_tokens", "text_of", "vocabulary"]

MERGED = 8
"""The most new nodes in a token of all signs of a head."""
PATTERN = rf"<?\+{{0,{MERGED}}}>?\.|\d+[<>ne]|[*+<>]"
"""Regular expression of a token."""
SIGN = r"\d*[<>]|\d+[ne]|[*+.]"
"""Regular expression of a sign."""

Pair: TypeAlias = "tuple[int, int]"


# -- alphabet


def vocabulary(max_nodes: int, node_classes: int = 1, edge_classes: int = 1) -> tuple[str, ...]:
    """The tokens that every graph of at most ``max_nodes`` nodes can be written with.

    Args:
        max_nodes: N; an edge is written from the nearer end of the queue, so that no place is above N/2.
        node_classes: number of classes of nodes.
        edge_classes: number of classes of edges, "no edge" not counted.

    Raises:
        ValueError: for a number below 1.

    >>> vocabulary(4)[:5], len(vocabulary(4))
    (('*', '+', '<', '>', '.'), 42)
    """
    for name, value in {"max_nodes": max_nodes, "node_classes": node_classes, "edge_classes": edge_classes}.items():
        check_range(name, value, least=1)
    half = max_nodes // 2
    heads = [f"{newest}{'+' * k}{after}." for k in range(MERGED + 1) for newest in ("", "<") for after in ("", ">")]
    tokens = ["*", "+", "<", ">", *heads, *(f"{k}>" for k in range(2, half + 1)), *(f"{k}<" for k in range(1, half))]
    tokens += [f"{c}n" for c in range(node_classes)] if node_classes > 1 else []
    return (*tokens, *([f"{c}e" for c in range(1, edge_classes + 1)] if edge_classes > 1 else []))


def most_tokens(graph: nx.Graph, labels: Labels | None = None) -> int:
    """Largest number of tokens of a graph: n + m + c, plus n with several node classes, plus m with several edge classes.

    >>> most_tokens(nx.path_graph(3))
    6
    """
    n, m = graph.number_of_nodes(), graph.number_of_edges()
    named = 0 if labels is None else n * (len(labels.nodes) > 1) + m * (len(labels.edges) > 2)
    return n + m + nx.number_connected_components(graph) + named


# -- writing


@dataclass(frozen=True)
class ListedGraph:
    """A graph ready to be written in many orders.

    Attributes:
        neighbours: of each node, in the order around it if ``planar``.
        planar: whether the lists are an embedding in the plane.
        nodes: class of each node; empty for one class.
        edges: class of each edge (i, j), both ways; empty for one class.
    """

    neighbours: tuple[tuple[int, ...], ...]
    planar: bool
    nodes: tuple[int, ...] = ()
    edges: Mapping[Pair, int] | None = None


def listed(graph: nx.Graph, labels: Labels | None = None) -> ListedGraph:
    """Prepare a graph for :func:`text_of`; finds an embedding in the plane where there is one.

    Args:
        graph: a simple undirected graph, with the names of its classes as the attribute ``label`` if ``labels`` is given.
        labels: numbers of the classes.

    Raises:
        ValueError: for a graph without nodes, a directed one, a multigraph, a self-loop or a class that ``labels`` does not have.
    """
    if not len(graph):
        raise ValueError("graph: 0 nodes, expected at least one")
    if graph.is_directed() or graph.is_multigraph() or nx.number_of_selfloops(graph):
        raise ValueError("graph: directed, with parallel edges or with a self-loop, expected a simple graph")
    plain = nx.convert_node_labels_to_integers(graph)
    planar, embedding = nx.check_planarity(plain)
    rows = (embedding.neighbors_cw_order(v) if planar else plain[v] for v in range(len(plain)))
    neighbours = tuple(tuple(map(int, row)) for row in rows)
    nodes: tuple[int, ...] = ()
    edges: dict[Pair, int] | None = None
    if labels is not None and len(labels.nodes) > 1:
        nodes = tuple(labels.node_class(str(name)) for _, name in plain.nodes(data="label"))
    if labels is not None and len(labels.edges) > 2:
        kinds = [(i, j, labels.edge_class(str(name))) for i, j, name in plain.edges(data="label")]
        edges = {pair: c for i, j, c in kinds for pair in ((i, j), (j, i))}
    return ListedGraph(neighbours, planar, nodes, edges)


def text_of(graph: ListedGraph, generator: np.random.Generator | None = None, candidates: int = 1) -> str:
    """One text of a graph.

    Args:
        graph: see :func:`listed`.
        generator: of the order; None begins at node 0 of each part and turns clockwise.
        candidates: number of random orders, of which the one is taken that has the fewest edges to old nodes other than the next
            and the newest.

    Raises:
        ValueError: for fewer than one candidate.
    """
    check_range("candidates", candidates, least=1)
    writers = [_Writer(graph, generator) for _ in range(1 if generator is None else candidates)]
    for writer in writers:
        writer.write()
    return "".join(min(writers, key=lambda writer: writer.distant).tokens)


class _Writer:
    """One order of a graph, drawn at once, and its tokens."""

    def __init__(self, graph: ListedGraph, generator: np.random.Generator | None) -> None:
        n = len(graph.neighbours)
        self.graph = graph
        self.starts = list(range(n)) if generator is None else generator.permutation(n).tolist()
        self.turns = [0] * n if generator is None else generator.integers(1 << 30, size=n).tolist()
        self.step = 1 if generator is None or generator.integers(2) else -1
        self.number: dict[int, int] = {}
        self.order: list[int] = []
        self.came: list[int] = []  # the node that each was reached from; -1 for the first of a part
        self.tokens: list[str] = []
        self.distant = 0  # edges to old nodes other than the next and the newest

    def write(self) -> None:
        """Write all parts, in time linear in nodes and edges (times log of the degree where the graph is not planar)."""
        for start in self.starts:
            if start in self.number:
                continue
            head = len(self.order)
            self._add(start, -1, "*")
            while head < len(self.order):
                self._write_edges(head)
                self.tokens.append(".")
                head += 1
        while self.tokens[-2:] == [".", "."]:  # the last nodes have no edges of their own
            self.tokens.pop()

    def _add(self, node: int, parent: int, sign: str) -> None:
        self.number[node] = len(self.order)
        self.order.append(node)
        self.came.append(parent)
        self.tokens.append(sign)
        self._name(parent, node)

    def _write_edges(self, head: int) -> None:
        node = self.order[head]
        for other in self._turned(node, self.came[head]):
            place = self.number.get(other)
            if place is None:
                self._add(other, node, "+")
            elif place > head:
                self.tokens.append(self._old(place - head, len(self.order) - 1 - place))
                self._name(node, other, old=True)

    def _old(self, ahead: int, behind: int) -> str:
        """The sign of an edge to an open node, ``ahead`` places after the head and ``behind`` before the newest."""
        if ahead == 1:
            return ">"
        if behind == 0:
            return "<"
        self.distant += 1
        return f"{ahead}>" if ahead <= behind else f"{behind}<"

    def _name(self, parent: int, node: int, *, old: bool = False) -> None:
        """Write the classes of an edge and of its new node."""
        if self.graph.edges is not None and parent >= 0:
            self.tokens.append(f"{self.graph.edges[parent, node]}e")
        if self.graph.nodes and not old:
            self.tokens.append(f"{self.graph.nodes[node]}n")

    def _turned(self, node: int, parent: int) -> Sequence[int]:
        """The neighbours of a node in the order in which they are written."""
        row, turn = self.graph.neighbours[node], self.turns[node]
        if not row:
            return row
        if self.graph.planar:
            at = row.index(parent) if parent >= 0 else turn % len(row)
            return [row[(at + self.step * k) % len(row)] for k in range(len(row))]
        known = sorted((w for w in row if w in self.number), key=lambda w: self.number[w])
        new = [w for w in row if w not in self.number]
        return [*known, *(new[(turn + k) % len(new)] for k in range(len(new)))]


# -- reading


class _Reader:
    """State of reading a text; :meth:`read` returns whether a sign follows the rules."""

    def __init__(self, node_classes: int, edge_classes: int) -> None:
        self.node_classes, self.edge_classes = node_classes, edge_classes
        self.nodes: list[int] = []  # class of each node
        self.edges: dict[Pair, int] = {}  # class of each edge
        self.head = 0
        self.due = ""  # kinds of the classes that have to come next
        self.last: Pair = (0, 0)

    def read(self, sign: str) -> bool:
        kind, number = sign[-1], sign[:-1]
        if self.due or kind in "ne":
            return self._named(kind, int(number or 0))
        if (kind == "*") != (self.head == len(self.nodes)):
            return False
        if kind == ".":
            self.head += 1
            return True
        if kind == "*":
            return self._made()
        if kind == "+":
            return self._joined(len(self.nodes))
        if number and int(number) < (2 if kind == ">" else 1):
            return False
        other = self.head + int(number or 1) if kind == ">" else len(self.nodes) - 1 - int(number or 0)
        return self.head < other < len(self.nodes) and self._joined(other)

    def _made(self) -> bool:
        self.nodes.append(0)
        self.due += "n" if self.node_classes > 1 else ""
        return True

    def _joined(self, other: int) -> bool:
        self.last = (self.head, other)
        if self.last in self.edges:
            return False
        self.edges[self.last] = 1
        self.due = "e" if self.edge_classes > 1 else ""
        return other < len(self.nodes) or self._made()

    def _named(self, kind: str, number: int) -> bool:
        wanted, self.due = self.due[:1], self.due[1:]
        if kind != wanted:
            return False
        if kind == "n":
            self.nodes[-1] = number
            return number < self.node_classes
        self.edges[self.last] = number
        return 1 <= number <= self.edge_classes

    @property
    def finished(self) -> bool:
        return bool(self.nodes) and not self.due


@dataclass(frozen=True)
class GraphSequences:
    """Decoder from texts to lines of graphs: graph6, followed by the names of the classes where there are labels.

    Attributes:
        labels: names of the classes; None for plain graphs.

    >>> decoder = GraphSequences()
    >>> decoder(["*.", "*++.", "*++.>.", "*++.>.<.", "*++.2>."])
    ['@', 'Bo', 'Bw', None, None]
    """

    labels: Labels | None = None

    def __call__(self, texts: Sequence[str]) -> list[str | None]:
        """The line of each text; None for a text that is no graph."""
        return [self._line(text) for text in texts]

    def encode(self, samples: Sequence[Any]) -> list[str]:
        """A text of each graph, that of the order in which it lists its nodes.

        Raises:
            ValueError: for what is no line of a simple graph, or a class that ``labels`` does not have.

        >>> GraphSequences().encode(["Bw"])
        ['*++.>.']
        """
        return [text_of(listed(_parsed(sample), self.labels)) for sample in samples]

    def _line(self, text: str) -> str | None:
        signs = re.findall(SIGN, text)
        counts = (1, 1) if self.labels is None else (len(self.labels.nodes), len(self.labels.edges) - 1)
        reader = _Reader(*counts)
        if sum(map(len, signs)) != len(text) or not all(map(reader.read, signs)) or not reader.finished:
            return None
        if reader.edges and counts[1] < 1:  # labels of a set without edges
            return None
        graph = nx.empty_graph(len(reader.nodes))
        graph.add_edges_from(reader.edges)
        if self.labels is not None:
            names = self.labels.nodes, self.labels.edges
            nx.set_node_attributes(graph, {v: names[0][c] for v, c in enumerate(reader.nodes)}, "label")
            nx.set_edge_attributes(graph, {pair: names[1][c] for pair, c in reader.edges.items()}, "label")
        return to_line(graph)


def _parsed(sample: Any) -> nx.Graph:
    if not isinstance(sample, str):
        raise ValueError(f"samples: {sample!r}, expected lines of graphs"[:200])
    try:
        return named_graph(sample)
    except ValueError as error:
        raise ValueError(f"samples: {str(error).removeprefix('graph: ')}") from error
