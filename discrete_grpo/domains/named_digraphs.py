"""Batches of directed graphs with one field per node and one per ordered pair, as lines with named classes and back.

The lines are those of :mod:`~discrete_grpo.domains.named_graphs` that begin with ``&``; where the labels are plain, a line has no
names. The fields are called ``node`` and ``edge``; class 0 of an ordered pair means that there is no arc.
"""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import torch

from discrete_grpo.domains import digraph6
from discrete_grpo.domains.fields import FieldBatch
from discrete_grpo.domains.named_graphs import Labels, named_graph, quoted

__all__ = ["EDGE", "NODE", "batch_to_lines", "lines_to_batch"]

NODE, EDGE = "node", "edge"
"""Names of the fields."""


def batch_to_lines(batch: FieldBatch, labels: Labels) -> list[str]:
    """Every graph of a batch as a line, with the names of its classes unless the labels are plain."""
    nodes, edges, found = batch.nodes[NODE].cpu().numpy(), batch.edges[EDGE].cpu().numpy(), []
    names = [[quoted(name) for name in part] for part in (labels.nodes, labels.edges)]
    for k, n in enumerate(batch.sizes.tolist()):
        matrix = edges[k, :n, :n]
        line = digraph6.adjacency_to_digraph6(matrix > 0)
        if not labels.plain:
            kinds = ",".join(names[0][c] for c in nodes[k, :n]), ",".join(names[1][c] for c in matrix[matrix > 0])
            line = "{} nodes={} edges={}".format(line, *kinds)
        found.append(line)
    return found


def lines_to_batch(samples: Sequence[str | nx.DiGraph], labels: Labels) -> FieldBatch:
    """Lines, or directed graphs with the attribute ``label``, as a batch padded to the largest; inverse of :func:`batch_to_lines`.

    Raises:
        ValueError: naming the graph, for a class that ``labels`` does not have, or what is no directed graph.
    """
    for b, sample in enumerate(samples):
        if not isinstance(sample, str | nx.Graph):
            raise ValueError(f"graphs[{b}]: {str(sample)[:60]!r}, expected a directed graph or its line")
    graphs = [named_graph(sample) for sample in samples]
    n = max((len(graph) for graph in graphs), default=0)
    nodes, edges = torch.zeros(len(graphs), n, dtype=torch.long), torch.zeros(len(graphs), n, n, dtype=torch.long)
    mask = torch.zeros(len(graphs), n, dtype=torch.bool)
    for b, graph in enumerate(graphs):
        digraph6.arcs(graph)  # refuses what is no simple directed graph
        place = {node: k for k, node in enumerate(graph)}
        mask[b, : len(graph)] = True
        try:
            for node, name in graph.nodes(data="label"):
                nodes[b, place[node]] = 0 if labels.plain and name is None else labels.node_class(str(name))
            for i, j, name in graph.edges(data="label"):
                edges[b, place[i], place[j]] = 1 if labels.plain and name is None else labels.edge_class(str(name))
        except ValueError as error:
            raise ValueError(f"graphs[{b}]: {error}") from None
    return FieldBatch({NODE: nodes}, {EDGE: edges}, None, mask)
