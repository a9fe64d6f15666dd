"""Pictures of plain graphs for the report."""

from __future__ import annotations

from collections.abc import Mapping

import networkx as nx
import numpy as np
from jaxtyping import Float

from discrete_grpo.domains.graph6 import from_graph6

__all__ = ["layout", "render_graph"]

LARGEST = 400  # nodes; a picture of more shows nothing
BY_DISTANCE = 100  # nodes; placing more of them by their distances takes seconds


def render_graph(text: str, *, width: int = 220, height: int = 170) -> str | None:
    """Render a graph6 line as an SVG element: one path of all edges and one circle per node, in the page's text colour.

    Args:
        text: the graph.
        width: of the picture's own coordinates.
        height: of the picture's own coordinates; the picture fills both.

    Returns:
        The ``<svg>`` element; None if ``text`` is no graph6 line, or the graph has no nodes or more than 400.
    """
    try:
        graph = from_graph6(text)
    except ValueError:
        return None
    if not 0 < len(graph) <= LARGEST:
        return None
    radius = max(1.2, min(4.0, 24 / len(graph) ** 0.5))
    margin = np.array([1.0, 1.0]) * (radius + 2)
    at = margin + layout(graph) * (np.array([width, height]) - 2 * margin)
    lines = "".join(f"M{at[u, 0]:.1f} {at[u, 1]:.1f}L{at[v, 0]:.1f} {at[v, 1]:.1f}" for u, v in graph.edges)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>' for x, y in at)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>graph of {len(graph)} nodes and {graph.number_of_edges()} edges</title>"
        f'<path d="{lines}" fill="none" stroke="currentColor" stroke-width="0.8" stroke-opacity="0.55"/>'
        f'<g fill="#3b7dd8">{dots}</g></svg>'
    )


def layout(graph: nx.Graph) -> Float[np.ndarray, "node 2"]:
    """Compute node positions in [0, 1]² of a graph on the nodes 0..n-1, the same ones at every call.

    A graph that is planar, connected and has a cycle is laid out without crossings (:func:`networkx.planar_layout`). Positions
    of other graphs have distances close to those in the graph (:func:`networkx.kamada_kawai_layout`), or, above 100 nodes,
    follow from springs along the edges (:func:`networkx.spring_layout`), which takes less than a second.
    """
    n, m = graph.number_of_nodes(), graph.number_of_edges()
    if n <= m <= 3 * n and nx.is_connected(graph) and nx.check_planarity(graph)[0]:
        places = nx.planar_layout(graph)
        span = np.ptp(_array(places), axis=0)
    else:
        places = nx.kamada_kawai_layout(graph, dist=_distances(graph)) if n <= BY_DISTANCE else nx.spring_layout(graph, seed=0)
        span = np.ptp(_array(places), axis=0).max()  # one scale for both axes
    at = _array(places)
    return 0.5 + (at - (at.min(0) + at.max(0)) / 2) / np.maximum(span, 1e-9)


def _array(places: Mapping[int, np.ndarray]) -> Float[np.ndarray, "node 2"]:
    return np.array([places[k] for k in range(len(places))])


def _distances(graph: nx.Graph) -> dict[int, dict[int, float]]:
    """Number of edges of the shortest path; between components, one more than the longest of these."""
    paths = dict(nx.all_pairs_shortest_path_length(graph))
    apart = 1.0 + max(length for row in paths.values() for length in row.values())
    return {u: {v: float(paths[u].get(v, apart)) for v in graph} for u in graph}
