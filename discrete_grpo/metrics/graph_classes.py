"""Distances between the classes of generated graphs and those of a reference: total variation of three tables of frequencies.

Graphs are undirected or directed; the ends of an arc are ordered as tail and head.

The total variation of two tables p and q is ½ Σ |p - q|, from 0 (equal) to 1 (no class in common).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import networkx as nx

from discrete_grpo.domains.named_graphs import Labels, graph_of

__all__ = ["check_classes", "class_distances", "class_shares", "total_variation"]

Ends: TypeAlias = tuple[str, str]


def total_variation(p: Mapping[str, float], q: Mapping[str, float]) -> float:
    """½ Σ |p - q| of two tables of counts, each divided by its sum; NaN where one of them is empty.

    >>> total_variation({"red": 1, "blue": 1}, {"red": 3, "blue": 1})
    0.25
    """
    sums = sum(p.values()), sum(q.values())
    if not all(sums):
        return math.nan
    return sum(abs(p.get(k, 0) / sums[0] - q.get(k, 0) / sums[1]) for k in p.keys() | q.keys()) / 2


def class_distances(samples: Sequence[str | nx.Graph | None], reference: Iterable[str | nx.Graph]) -> dict[str, float]:
    """Compare the classes of nodes and of edges with those of a reference.

    Args:
        samples: lines with the names of classes, or graphs with the attribute ``label``; unreadable ones are left out.
        reference: likewise.

    Returns:
        ``tv_node_class`` and ``tv_edge_class``: total variation of the class frequencies of all nodes and of all edges;
        ``tv_edge_given_ends``: Σ_ab w_ab TV(class of an edge given its ends a, b), w_ab the share of the reference's edges with
        ends of the classes a and b, in either order where graphs are undirected; 1 stands for ends between which no sample has an
        edge. NaN where one side has no nodes or no edges.

    >>> first, second = "A_ nodes=a,b edges=x", "A_ nodes=a,a edges=x"
    >>> class_distances([first], [second])
    {'tv_node_class': 0.5, 'tv_edge_class': 0.0, 'tv_edge_given_ends': 1.0}
    """
    nodes, edges, given = _counts(samples)
    other_nodes, other_edges, other_given = _counts(reference)
    total = sum(other_edges.values())
    distances = ((table.total() / total, table, given.get(ends, Counter())) for ends, table in other_given.items())
    parts = [share * (total_variation(own, table) if own else 1.0) for share, table, own in distances]
    return {
        "tv_node_class": total_variation(nodes, other_nodes),
        "tv_edge_class": total_variation(edges, other_edges),
        "tv_edge_given_ends": sum(parts) if edges and total else math.nan,
    }


def _counts(samples: Iterable[str | nx.Graph | None]) -> tuple[Counter[str], Counter[str], dict[Ends, Counter[str]]]:
    """Numbers of nodes by class, of edges by class, and of edges by class given their ends' classes, sorted if undirected."""
    nodes, edges, given = Counter[str](), Counter[str](), dict[Ends, Counter[str]]()
    for sample in samples:
        if (graph := graph_of(sample)) is None:
            continue
        names = {node: str(c) for node, c in graph.nodes(data="label")}
        nodes.update(names.values())
        for i, j, c in graph.edges(data="label"):
            first, second = (names[i], names[j]) if graph.is_directed() else sorted((names[i], names[j]))
            edges[str(c)] += 1
            given.setdefault((first, second), Counter())[str(c)] += 1
    return nodes, edges, given


def class_shares(samples: Sequence[str | nx.Graph | None]) -> dict[str, float]:
    """The share of each class among the nodes and among the edges of labelled samples; nothing for plain graphs.

    >>> class_shares(["Bg nodes=0,2,0 edges=1,3", None])["edge_class_3"]
    0.5
    """
    labelled = [s for s in samples if s is not None and (not isinstance(s, str) or " " in s)]
    nodes, edges, _ = _counts(labelled)
    shares: dict[str, float] = {}
    for part, counts in (("node", nodes), ("edge", edges)):
        shares |= {f"{part}_class_{c}": counts[c] / counts.total() for c in sorted(counts) if c != "None"}
    return shares


def check_classes(samples: Sequence[str | None], labels: Labels) -> None:
    """Raise ValueError, naming the first such sample, if one has no classes or a class that ``labels`` does not have."""
    for k, sample in enumerate(samples):
        if (graph := graph_of(sample)) is None:
            continue
        if None in dict(graph.nodes(data="label")).values():
            raise ValueError(f"samples: graph {k} has no classes, expected those of the reference: {', '.join(labels.nodes[:10])}")
        try:
            for _, name in graph.nodes(data="label"):
                labels.node_class(str(name))
            for *_, name in graph.edges(data="label"):
                labels.edge_class(str(name))
        except ValueError as error:
            raise ValueError(f"samples: graph {k}: {error}, as in the reference") from None
