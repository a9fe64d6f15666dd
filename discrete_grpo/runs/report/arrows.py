"""Node positions and arrows in pictures of directed graphs, which are layered from top to bottom if they have no cycle."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import networkx as nx
import numpy as np
from jaxtyping import Float

__all__ = ["arrows", "bent_arcs", "layers"]

BEND = 0.18  # distance of a bent arc's control point from the straight line, over the arc's length
HEAD = 4.5  # length of an arrow head; its width is two thirds of that


def layers(graph: nx.DiGraph) -> Float[np.ndarray, "node 2"]:
    """Compute node positions in [0, 1]² of an acyclic graph on the nodes 0..n-1, its topological generations from top to bottom.

    Within a generation nodes stand at equal distances, in the order of the mean position of their predecessors.

    >>> layers(nx.DiGraph([(0, 1), (0, 2)])).tolist()
    [[0.5, 0.0], [0.25, 1.0], [0.75, 1.0]]
    """
    generations = [sorted(nodes) for nodes in nx.topological_generations(graph)]
    at = np.full((len(graph), 2), 0.5)
    for k, nodes in enumerate(generations):
        above = {v: float(np.mean([at[u, 0] for u in graph.predecessors(v)])) if k else 0.0 for v in nodes}
        for place, v in enumerate(sorted(nodes, key=lambda v: (above[v], v))):
            at[v] = (place + 0.5) / len(nodes), k / max(1, len(generations) - 1)
    return at


def bent_arcs(graph: nx.DiGraph) -> set[tuple[int, int]]:
    """The arcs that are drawn bent: those with a reverse arc, or past a generation whose nodes may lie on the line."""
    depth: dict[int, int] = {}
    if nx.is_directed_acyclic_graph(graph):
        depth = {v: k for k, nodes in enumerate(nx.topological_generations(graph)) for v in nodes}
    return {(u, v) for u, v in graph.edges if graph.has_edge(v, u) or (depth and depth[v] - depth[u] > 1)}


def arrows(
    arcs: Sequence[tuple[int, int]], at: Float[np.ndarray, "node 2"], radius: float, bent: Collection[tuple[int, int]]
) -> tuple[str, str]:
    """SVG paths of some arcs: their lines, from the rim of the tail's circle, and their heads, up to the rim of the head's circle.

    Args:
        arcs: tails and heads.
        at: position of each node.
        radius: of the circles.
        bent: the arcs that are drawn bent to their left.
    """
    lines, heads = [], []
    for u, v in arcs:
        along = at[v] - at[u]
        middle = (at[u] + at[v]) / 2 + (BEND * np.array([along[1], -along[0]]) if (u, v) in bent else 0.0)
        start, end = at[u] + radius * _unit(middle - at[u]), at[v] - radius * _unit(at[v] - middle)
        into = _unit(at[v] - middle)
        base, side = end - HEAD * into, HEAD / 3 * np.array([-into[1], into[0]])
        lines.append(f"M{_point(start)}Q{_point(middle)} {_point(base)}")
        heads.append(f"M{_point(end)}L{_point(base + side)}L{_point(base - side)}Z")
    return "".join(lines), "".join(heads)


def _unit(vector: Float[np.ndarray, " 2"]) -> Float[np.ndarray, " 2"]:
    return vector / max(float(np.linalg.norm(vector)), 1e-9)


def _point(place: Float[np.ndarray, " 2"]) -> str:
    return f"{place[0]:.1f} {place[1]:.1f}"
