"""Graphs as token sequences: the nodes in the order of a breadth-first search, each with its edges to nodes that are still open.

A node is *open* until its own edges have been listed. The open nodes form a queue in the order in which they were made, and the
first of them is the *head*. A text is read from left to right:

========= ===================================================================================================
sign      meaning
========= ===================================================================================================
``*``     a new node at the end of the queue, the first of a connected part; only where no node is open
``+``     a new node at the end of the queue, with an edge from the head
``>``     an edge from the head to the next node of the queue; ``k>``, k >= 2: to the k-th after the head
``<``     an edge from the head to the last node of the queue; ``k<``, k >= 1: to the one k places before it
``k)``    an edge to the k-th after the head, k >= 1, which *cuts* the queue: that node and those behind it wait in a queue
          of their own, and the node stays at the end of this one too; ``k(``, k >= 0: the same, counted from the last
``.``     the head has no more edges and leaves the queue; where none is left, the queue that was cut off last comes back
``ce``    class c of the edge just written (only with several edge classes)
``cn``    class c of the node just made, behind that of its edge (only with several node classes)
========= ===================================================================================================

``*++.>.`` is a triangle: node 0 makes 1 and 2 and is done, node 1 has an edge to the next node and is done. At the end of a text
all nodes are done. Every graph has a text, and usually many of them, one per order in which nodes and neighbours are visited. A
text that breaks the rules, names an edge twice or goes on where no node is open is no graph (None); nothing is repaired. Any
simple graph can be written, planar or not, a tree or not, connected or not.

A **token** is a sign, or all signs of a head that has edges to its two neighbours in the queue and to at most eight new nodes
alone: ``<+++>.``. The order of writing makes what follows predictable. In a planar graph neighbours are listed as they stand
around the node in an embedding in the plane; the queue is then the boundary of what is not written yet, an edge across it cuts
it, and in a triangulation nearly every head is one token: 64 nodes with 180 edges are about 90 of them. In any other graph
neighbours are listed by their place in the queue, new ones last, and nothing is cut. A text without ``k>`` and ``k<`` is always
the text of a planar graph, as one without ``<``, ``>`` and numbers is one of trees.

Sources: the breadth-first order is that of You et al. (2018), GraphRNN, arXiv 1802.08773; graphs as one sequence for a causal
transformer: Chen et al. (2025), Flatten Graphs as Sequences, arXiv 2502.02216.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import networkx as nx
import numpy as np
import torch

from discrete_grpo.core.checks import check_range
from discrete_grpo.domains.named_graphs import Labels, named_graph, to_line
from discrete_grpo.domains.numpy_random import numpy_generator

__all__ = ["PATTERN", "GraphSequences", "ListedGraph", "listed", "most_tokens", "text_of", "vocabulary"]

MERGED = 8
"""The most new nodes in a token that is all signs of a head."""
PATTERN = rf"<?\+{{0,{MERGED}}}>?\.|\d+[<>()ne]|[*+<>]"
"""Regular expression of a token."""
SIGN = r"\d*[<>]|\d+[()ne]|[*+.]"
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
    (('*', '+', '<', '>', '.'), 46)
    """
    for name, value in {"max_nodes": max_nodes, "node_classes": node_classes, "edge_classes": edge_classes}.items():
        check_range(name, value, least=1)
    half = max_nodes // 2
    heads = [f"{newest}{'+' * k}{after}." for k in range(MERGED + 1) for newest in ("", "<") for after in ("", ">")]
    tokens = ["*", "+", "<", ">", *heads, *(f"{k}>" for k in range(2, half + 1)), *(f"{k}<" for k in range(1, half))]
    tokens += [*(f"{k})" for k in range(1, half + 1)), *(f"{k}(" for k in range(half))]
    tokens += [f"{c}n" for c in range(node_classes)] if node_classes > 1 else []
    return (*tokens, *([f"{c}e" for c in range(1, edge_classes + 1)] if edge_classes > 1 else []))


def most_tokens(graph: nx.Graph, labels: Labels | None = None) -> int:
    """Bound on the number of tokens of a graph in any order: 2 (m + c), plus n and m with several classes of nodes and of edges.

    Each node and each edge that closes a cycle has a sign and at most one ``.``. As heads are mostly one token, texts are shorter.

    >>> most_tokens(nx.path_graph(3))
    6
    """
    n, m = graph.number_of_nodes(), graph.number_of_edges()
    named = 0 if labels is None else n * (len(labels.nodes) > 1) + m * (len(labels.edges) > 2)
    return 2 * (m + nx.number_connected_components(graph)) + named


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
    neighbours = tuple(tuple(embedding.neighbors_cw_order(v) if planar else plain[v]) for v in range(len(plain)))
    nodes: tuple[int, ...] = ()
    edges: dict[Pair, int] | None = None
    if labels is not None and len(labels.nodes) > 1:
        nodes = tuple(labels.node_class(str(name)) for _, name in plain.nodes(data="label"))
    if labels is not None and len(labels.edges) > 2:
        kinds = [(i, j, labels.edge_class(str(name))) for i, j, name in plain.edges(data="label")]
        edges = {pair: c for i, j, c in kinds for pair in ((i, j), (j, i))}
    return ListedGraph(neighbours, planar, nodes, edges)


def text_of(graph: ListedGraph, generator: np.random.Generator | None = None, candidates: int = 1) -> str:
    """Write a graph as a text, in one of its orders.

    Args:
        graph: see :func:`listed`.
        generator: of the order; None begins at node 0 of each part and turns clockwise.
        candidates: number of random orders, of which the one with the fewest edges across the queue is taken.

    Raises:
        ValueError: for fewer than one candidate.
    """
    check_range("candidates", candidates, least=1)
    writers = [_Writer(graph, generator) for _ in range(1 if generator is None else candidates)]
    return "".join(min(writers, key=lambda writer: writer.distant).tokens)


class _Writer:
    """Tokens of a graph in one order, which is drawn when the object is made."""

    def __init__(self, graph: ListedGraph, generator: np.random.Generator | None) -> None:
        n = len(graph.neighbours)
        self.graph = graph
        self.starts = list(range(n)) if generator is None else generator.permutation(n).tolist()
        self.turns = [0] * n if generator is None else generator.integers(1 << 30, size=n).tolist()
        self.step = 1 if generator is None or generator.integers(2) else -1
        self.number: dict[int, int] = {}  # of each node that is made
        self.tokens: list[str] = []
        self.distant = 0  # edges to open nodes other than the next and the last
        self._write()

    def _write(self) -> None:
        """Write all parts, in time linear in nodes and edges; a cut copies the queue, and edges of no planar graph are sorted."""
        for start in self.starts:
            if start not in self.number:
                (self._write_planar if self.graph.planar else self._write_any)(start)
        while self.tokens[-2:] == [".", "."]:  # the last nodes have no edges of their own
            self.tokens.pop()

    def _make(self, node: int, parent: int) -> None:
        self.number[node] = len(self.number)
        self.tokens.append("+" if parent >= 0 else "*")
        if parent >= 0:
            self._name_edge(parent, node)
        if self.graph.nodes:
            self.tokens.append(f"{self.graph.nodes[node]}n")

    def _name_edge(self, one: int, other: int) -> None:
        if self.graph.edges is not None:
            self.tokens.append(f"{self.graph.edges[one, other]}e")

    def _join(self, node: int, other: int, place: int, size: int, *, cut: bool = False) -> None:
        """Write an edge to the open node at a place of the queue, the head being at place 0."""
        behind = size - 1 - place
        if not cut and (place == 1 or behind == 0):
            self.tokens.append(">" if place == 1 else "<")
        else:
            self.distant += 1
            near, far = ")(" if cut else "><"
            self.tokens.append(f"{place}{near}" if place <= behind else f"{behind}{far}")
        self._name_edge(node, other)

    def _write_any(self, start: int) -> None:
        """Write edges by the places of their ends in one queue, new nodes last; linear in edges times log of the degree."""
        head = len(self.number)
        order = [start]
        self._make(start, -1)
        for node in order:  # which grows
            row, size = self.graph.neighbours[node], len(self.number) - head
            for place in sorted(self.number[w] - head for w in row if self.number.get(w, -1) > head):
                self._join(node, order[place - size], place, size)
            new = [w for w in row if w not in self.number]
            for k in range(len(new)):
                order.append(new[(self.turns[node] + k) % len(new)])
                self._make(order[-1], node)
            self.tokens.append(".")
            head += 1

    def _write_planar(self, start: int) -> None:
        """Write the boundary of what is not written yet as a queue, cut in two where an edge divides it."""
        queue = deque([_Open(start, self._around(start, self.turns[start]))])
        waiting: list[deque[_Open]] = []
        written: set[Pair] = set()
        self._make(start, -1)
        while queue:
            queue = self._write_head(queue, waiting, written)
            queue.popleft()
            self.tokens.append(".")
            if not queue and waiting:
                queue = waiting.pop()

    def _around(self, node: int, first: int) -> list[int]:
        """The neighbours of a node as they stand around it, from the one at ``first`` on."""
        row = self.graph.neighbours[node]
        return [row[(first + self.step * k) % len(row)] for k in range(len(row))]

    def _write_head(self, queue: deque[_Open], waiting: list[deque[_Open]], written: set[Pair]) -> deque[_Open]:
        """Write the edges of the head that lie in what the queue bounds; returns the queue that is left."""
        node, items = queue[0].node, queue[0].around
        for k, other in enumerate(items):
            if (node, other) in written:
                continue
            written |= {(node, other), (other, node)}
            if other not in self.number:
                self._make(other, node)
                queue.append(_Open(other, self._around(other, self.graph.neighbours[other].index(node))[1:]))
                continue
            last = len(queue) - 1
            place = last if queue[last].node == other else next(j for j, one in enumerate(queue) if j and one.node == other)
            cut_at = queue[place].around.index(node)
            sides = queue[place].around[:cut_at], queue[place].around[cut_at + 1 :]
            left = [any((other, w) not in written for w in side) for side in sides]
            later = any((node, w) not in written for w in items[k + 1 :])
            cut = (place > 1 or later or left[0]) and (place < last or left[1])
            self._join(node, other, place, len(queue), cut=cut)
            if cut:
                waiting.append(deque([_Open(other, sides[1]), *islice(queue, place + 1, None)]))
                queue = deque([*islice(queue, place), _Open(other, sides[0])])
        return queue


class _Open(NamedTuple):
    """An open node, and its neighbours as they stand around it in what the queue bounds."""

    node: int
    around: list[int]


# -- reading


class _Reader:
    """State of reading a text; :meth:`read` returns whether a sign follows the rules."""

    def __init__(self, node_classes: int, edge_classes: int) -> None:
        self.node_classes, self.edge_classes = node_classes, edge_classes
        self.nodes: list[int] = []  # class of each node
        self.edges: dict[Pair, int] = {}  # class of each edge
        self.queue: list[int] = []
        self.head = 0  # place of the head in the queue
        self.waiting: list[list[int]] = []
        self.due = ""  # kinds of the classes that have to come next
        self.last: Pair = (0, 0)

    def read(self, sign: str) -> bool:
        kind, number = sign[-1], int(sign[:-1] or -1)
        if self.due or kind in "ne":
            return self._named(kind, number)
        if (kind == "*") != (self.head == len(self.queue)):
            return False
        if kind == ".":
            self.head += 1
            if self.head == len(self.queue) and self.waiting:
                self.queue, self.head = self.waiting.pop(), 0
            return True
        if kind == "*":
            return self._made()
        if kind == "+":
            return self._joined(len(self.nodes))
        return self._old(kind, number)

    def _old(self, kind: str, number: int) -> bool:
        """An edge to an open node, and the cut of the queue there."""
        if 0 <= number < {">": 2, "<": 1, ")": 1, "(": 0}[kind]:
            return False
        place = self.head + abs(number) if kind in ">)" else len(self.queue) - 1 - max(0, number)
        if not (self.head < place < len(self.queue) and self._joined(self.queue[place])):
            return False
        if kind in "()":
            self.waiting.append(self.queue[place:])
            self.queue = self.queue[: place + 1]
        return True

    def _made(self) -> bool:
        self.queue.append(len(self.nodes))
        self.nodes.append(0)
        self.due += "n" if self.node_classes > 1 else ""
        return True

    def _joined(self, other: int) -> bool:
        node = self.queue[self.head]
        self.last = (min(node, other), max(node, other))
        fits = self.last not in self.edges
        self.edges[self.last] = 1
        self.due = "e" if self.edge_classes > 1 else ""
        return fits and (other < len(self.nodes) or self._made())

    def _named(self, kind: str, number: int) -> bool:
        wanted, self.due = self.due[:1], self.due[1:]
        if kind != wanted:
            return False
        if kind == "n":
            self.nodes[-1] = number
            return number < self.node_classes
        self.edges[self.last] = number
        return 1 <= number <= self.edge_classes


@dataclass(frozen=True)
class GraphSequences:
    """Decoder from texts to lines of graphs: graph6, followed by the names of the classes if there are ``labels``.

    >>> decoder = GraphSequences()
    >>> decoder(["*.", "*++.", "*++.>.", "*++.>.<.", "*++.2>."])
    ['@', 'Bo', 'Bw', None, None]
    """

    labels: Labels | None = None

    def __call__(self, texts: Sequence[str]) -> list[str | None]:
        """The line of each text; None for a text that is no graph."""
        return [self._line(text) for text in texts]

    def encode(self, samples: Sequence[Any], *, generator: torch.Generator | None = None) -> list[str]:
        """A text of each graph, in a random order, or in the one in which it lists its nodes if ``generator`` is None.

        Raises:
            ValueError: for what is no line of a simple graph, or a class that ``labels`` does not have.

        >>> GraphSequences().encode(["Bw"])
        ['*++.>.']
        """
        order = None if generator is None else numpy_generator(generator)
        return [text_of(listed(_parsed(sample), self.labels), order) for sample in samples]

    def _line(self, text: str) -> str | None:
        signs = re.findall(SIGN, text)
        counts = (1, 1) if self.labels is None else (len(self.labels.nodes), len(self.labels.edges) - 1)
        reader = _Reader(*counts)
        if sum(map(len, signs)) != len(text) or not all(map(reader.read, signs)) or reader.due:
            return None
        if not reader.nodes or (reader.edges and counts[1] < 1):  # no text, or labels of a set without edges
            return None
        graph = nx.empty_graph(len(reader.nodes))
        graph.add_edges_from(reader.edges)
        if self.labels is not None:
            nx.set_node_attributes(graph, {v: self.labels.nodes[c] for v, c in enumerate(reader.nodes)}, "label")
            nx.set_edge_attributes(graph, {pair: self.labels.edges[c] for pair, c in reader.edges.items()}, "label")
        return to_line(graph)


def _parsed(sample: Any) -> nx.Graph:
    if not isinstance(sample, str):
        raise ValueError(f"samples: {sample!r}, expected lines of graphs"[:200])
    try:
        return named_graph(sample)
    except ValueError as error:
        raise ValueError(f"samples: {str(error).removeprefix('graph: ')}") from error
