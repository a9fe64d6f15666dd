"""Cycles, parts and longest paths of directed graphs, and the test that makes one valid.

Graphs are lines that begin with ``&`` or ``networkx.DiGraph``. None, text that is no such line, an undirected graph and a graph
without nodes fail every test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import networkx as nx

from discrete_grpo.domains.digraph6 import DigraphLike
from discrete_grpo.domains.named_graphs import graph_of

__all__ = [
    "DIGRAPH_SHAPES",
    "DigraphShape",
    "acyclic_share",
    "digraph_of",
    "has_digraph_shape",
    "is_acyclic",
    "is_weakly_connected",
    "longest_path",
]

DigraphShape = Literal["dag", "connected"]


def digraph_of(graph: DigraphLike | None) -> nx.DiGraph | None:
    """The directed graph; None for None, for text that is no line of a directed graph, and for a graph without nodes."""
    found = graph_of(graph)
    return found if found is not None and found.is_directed() else None


def is_acyclic(graph: DigraphLike | None) -> bool:
    """Whether the graph has no directed cycle.

    >>> is_acyclic("&BP?"), is_acyclic("&BP_")  # a path of three nodes, a cycle
    (True, False)
    """
    found = digraph_of(graph)
    return found is not None and nx.is_directed_acyclic_graph(found)


def is_weakly_connected(graph: DigraphLike | None) -> bool:
    """Whether the graph has at least one node and is connected when directions are ignored.

    >>> is_weakly_connected("&BP?"), is_weakly_connected("&BO?")
    (True, False)
    """
    found = digraph_of(graph)
    return found is not None and nx.is_weakly_connected(found)


def longest_path(graph: DigraphLike | None) -> int | None:
    """Number of arcs of the longest path; None if there is a cycle or no graph.

    A path of L arcs needs L + 1 topological generations, and there are as many as the longest path needs.

    >>> longest_path("&BP?"), longest_path("&BP_")
    (2, None)
    """
    found = digraph_of(graph)
    if found is None or not nx.is_directed_acyclic_graph(found):
        return None
    return sum(1 for _ in nx.topological_generations(found)) - 1


def acyclic_share(graph: DigraphLike | None) -> float:
    """Share of the arcs that lie on no cycle, which are those between two strongly connected components; 1 without arcs.

    0 where there is no graph.

    >>> acyclic_share("&BP?"), acyclic_share("&BP_"), acyclic_share("&BT?")  # the last is 0 <-> 1 -> 2
    (1.0, 0.0, 0.3333333333333333)
    """
    found = digraph_of(graph)
    if found is None:
        return 0.0
    part = {node: k for k, nodes in enumerate(nx.strongly_connected_components(found)) for node in nodes}
    apart = [part[i] != part[j] for i, j in found.edges]
    return sum(apart) / len(apart) if apart else 1.0


def has_digraph_shape(graph: DigraphLike | None, shape: DigraphShape) -> bool:
    """Whether a graph is valid: ``dag``, acyclic and weakly connected, or ``connected``, weakly connected alone.

    Raises:
        KeyError: for another shape.
    """
    return DIGRAPH_SHAPES[shape](graph)


DIGRAPH_SHAPES: Mapping[DigraphShape, Callable[[DigraphLike | None], bool]] = {
    "dag": lambda graph: is_acyclic(graph) and is_weakly_connected(graph),
    "connected": is_weakly_connected,
}
"""The test that makes a graph valid, by name."""
