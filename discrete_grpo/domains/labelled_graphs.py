"""Graphs with node and edge classes as text: a graph6 line followed by the classes.

``Bg nodes=0,2,1 edges=1,3`` is the path 0-1-2, ``Bg`` in graph6, with nodes of the classes 0, 2 and 1 and edges of the classes 1
and 3. The classes of edges stand in the order of graph6's pairs, (0,1), (0,2), (1,2), (0,3), ..., and only pairs that are edges
have one; class 0 of a pair means that there is no edge. Readers of graph6 see the plain graph of such a line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import networkx as nx
import numpy as np
import torch
from jaxtyping import Int

from discrete_grpo.domains import graph6
from discrete_grpo.domains.graphs import GraphBatch

__all__ = ["batch_to_lines", "from_line", "graphs_to_batch", "to_line"]

FORM = re.compile(r"(?P<graph>\S+) nodes=(?P<nodes>[\d,]*) edges=(?P<edges>[\d,]*)")


def to_line(nodes: Int[np.ndarray, " node"], edges: Int[np.ndarray, "node node"]) -> str:
    """The line of a graph from its node classes and its symmetric matrix of edge classes.

    >>> to_line(np.array([0, 2, 1]), np.array([[0, 1, 0], [1, 0, 3], [0, 3, 0]]))
    'Bg nodes=0,2,1 edges=1,3'
    """
    pairs = edges[np.tril_indices(len(nodes), -1)]
    classes = (",".join(map(str, values.tolist())) for values in (nodes, pairs[pairs > 0]))
    return "{} nodes={} edges={}".format(graph6.adjacency_to_graph6(edges > 0), *classes)


def from_line(text: str) -> nx.Graph:
    """The graph of a line, on nodes 0..n-1 that have their class as the attribute ``label``, as edges have.

    >>> from_line("Bg nodes=0,2,1 edges=1,3").edges(data="label")
    EdgeDataView([(0, 1, 1), (1, 2, 3)])

    Raises:
        ValueError: if ``text`` is no such line, or has another number of classes than nodes or edges.
    """
    found = FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"graph: {text[:60]!r}, expected a graph6 line followed by nodes=CLASSES edges=CLASSES")
    graph = graph6.from_graph6(found["graph"])
    nodes, classes = (_classes(found[name]) for name in ("nodes", "edges"))
    pairs = sorted(graph.edges, key=lambda pair: (max(pair), min(pair)))
    for name, given, wanted in (("nodes", nodes, len(graph)), ("edges", classes, len(pairs))):
        if len(given) != wanted:
            raise ValueError(f"graph: {text[:60]!r} has {len(given)} classes of {name}, expected {wanted}")
    if 0 in classes:
        raise ValueError(f"graph: {text[:60]!r} has an edge of class 0, expected at least 1")
    nx.set_node_attributes(graph, dict(enumerate(nodes)), "label")
    nx.set_edge_attributes(graph, dict(zip(pairs, classes, strict=True)), "label")
    return graph


def _classes(text: str) -> list[int]:
    try:
        return [int(c) for c in text.split(",")] if text else []
    except ValueError as error:
        raise ValueError(f"graph: {text[:60]!r}, expected whole numbers between commas") from error


def batch_to_lines(batch: GraphBatch) -> list[str]:
    """Every graph of a batch as a line with its node and edge classes."""
    nodes, edges = batch.nodes.cpu().numpy(), batch.edges.cpu().numpy()
    return [to_line(nodes[k, :n], edges[k, :n, :n]) for k, n in enumerate(batch.sizes.tolist())]


def graphs_to_batch(graphs: Sequence[graph6.GraphLike]) -> GraphBatch:
    """Graphs with classes as a batch padded to the largest; inverse of :func:`batch_to_lines`.

    Args:
        graphs: lines, or graphs whose nodes and edges have their class as the attribute ``label``.

    Raises:
        ValueError: for what is no simple graph with classes.

    >>> graphs_to_batch(["Bg nodes=0,2,1 edges=1,3"]).edges.tolist()
    [[[0, 1, 0], [1, 0, 3], [0, 3, 0]]]
    """
    parsed = [from_line(graph) if isinstance(graph, str) else graph for graph in graphs]
    plain = graph6.graphs_to_batch(parsed)
    nodes, edges = plain.nodes, torch.zeros_like(plain.edges)
    for b, graph in enumerate(parsed):
        place = {node: k for k, node in enumerate(graph)}
        labels = [*graph.nodes(data="label"), *((i, j, c) for i, j, c in graph.edges(data="label"))]
        if any(not isinstance(label[-1], int) for label in labels):
            raise ValueError(f"graph: {str(graph)[:60]!r}, expected a whole number as the label of every node and edge")
        for kind, classes, least in (("a node", graph.nodes(data="label"), 0), ("an edge", graph.edges(data="label"), 1)):
            if wrong := [label[-1] for label in classes if label[-1] < least]:
                raise ValueError(f"graph: {str(graph)[:60]!r} has {kind} of class {wrong[0]}, expected at least {least}")
        nodes[b, : len(graph)] = torch.tensor([c for _, c in graph.nodes(data="label")], dtype=torch.long)
        for i, j, c in graph.edges(data="label"):
            edges[b, place[i], place[j]] = edges[b, place[j], place[i]] = c
    return GraphBatch(nodes, edges, plain.mask)
