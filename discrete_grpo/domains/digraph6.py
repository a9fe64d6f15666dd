"""Directed graphs as text: conversions between digraph6 lines, adjacency matrices and ``networkx.DiGraph``.

A line is ``&N(n)R(x)``: the number of nodes, then the adjacency matrix row by row, entry (i, j) for the arc from i to j. Classes
after it, as in :mod:`~discrete_grpo.domains.named_graphs`, are not read here.

Source: McKay, Description of digraph6, https://users.cecs.anu.edu.au/~bdm/data/formats.txt
"""

from __future__ import annotations

from typing import TypeAlias

import networkx as nx
import numpy as np
from jaxtyping import Bool

from discrete_grpo.domains.graph6 import CLASSES, bits_of, read_codes, write_codes

__all__ = ["DigraphLike", "adjacency_to_digraph6", "arcs", "digraph6", "from_digraph6", "is_digraph6", "node_count"]

DigraphLike: TypeAlias = "nx.DiGraph | str"
"""A directed graph, or its digraph6 line."""
HEADER = ">>digraph6<<"


def is_digraph6(text: str) -> bool:
    """Whether a line is marked as a directed graph by its first character.

    >>> is_digraph6("&AO"), is_digraph6("A_")
    (True, False)
    """
    return text.strip().removeprefix(HEADER).startswith("&")


def digraph6(graph: nx.DiGraph) -> str:
    """A simple directed graph as a digraph6 line, nodes in the order in which the graph lists them.

    >>> digraph6(nx.DiGraph([(0, 1), (1, 2)]))
    '&BP?'

    Raises:
        ValueError: if the graph is undirected, a multigraph, or has a self-loop.
    """
    return adjacency_to_digraph6(arcs(graph))


def from_digraph6(text: str) -> nx.DiGraph:
    """The graph of a digraph6 line, on nodes 0..n-1.

    >>> from_digraph6("&BP?").edges
    OutEdgeView([(0, 1), (1, 2)])

    Raises:
        ValueError: if ``text`` is not a digraph6 line, or describes a graph with a self-loop.
    """
    matrix = arcs(text)
    graph = nx.empty_graph(len(matrix), create_using=nx.DiGraph)
    graph.add_edges_from(np.argwhere(matrix).tolist())
    return graph


def arcs(graph: DigraphLike) -> Bool[np.ndarray, "tail head"]:
    """The adjacency matrix of a directed graph or of a digraph6 line: True at [i, j] for an arc from i to j.

    >>> arcs("&BP?").astype(int).tolist()
    [[0, 1, 0], [0, 0, 1], [0, 0, 0]]

    Raises:
        ValueError: if the text is no digraph6 line, or the graph is undirected, a multigraph, or has a self-loop.
    """
    if not isinstance(graph, str):
        return nx.to_numpy_array(_simple(graph), dtype=bool, weight=None)
    codes, head, n = read_codes(_body(graph), lambda n: n * n, graph, "digraph6")
    matrix = bits_of(codes[head:])[: n * n].reshape(n, n)
    if matrix.diagonal().any():
        raise ValueError(f"graph: node {int(matrix.diagonal().argmax())} of {graph[:60]!r} has a self-loop, expected none")
    return matrix


def adjacency_to_digraph6(matrix: Bool[np.ndarray, "tail head"]) -> str:
    """The digraph6 line of an adjacency matrix; inverse of :func:`arcs`."""
    return "&" + write_codes(len(matrix), matrix.ravel())


def node_count(text: str) -> int:
    """Number of nodes of a digraph6 line, read without building the graph.

    >>> node_count("&BP?")
    3

    Raises:
        ValueError: if ``text`` is no digraph6 line, or is not as long as that many nodes need.
    """
    return read_codes(_body(text), lambda n: n * n, text, "digraph6")[2]


def _body(text: str) -> str:
    if not is_digraph6(text):
        raise ValueError(f"graph: {text[:60]!r} is no digraph6 line (it does not begin with '&')")
    return CLASSES.sub("", text.strip()).removeprefix(HEADER)[1:]


def _simple(graph: nx.DiGraph) -> nx.DiGraph:
    """Return the graph after checking that it is simple and directed."""
    if not graph.is_directed() or graph.is_multigraph():
        kind = "a multigraph" if graph.is_multigraph() else "undirected"
        raise ValueError(f"graph: {kind}, expected a simple directed graph")
    looped = next(iter(nx.nodes_with_selfloops(graph)), None)
    if looped is not None:
        raise ValueError(f"graph: node {looped!r} has a self-loop, expected a simple directed graph")
    return graph
