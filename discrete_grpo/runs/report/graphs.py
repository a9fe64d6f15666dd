"""Drawings of plain graphs for the report."""

from __future__ import annotations

import networkx as nx
import numpy as np
from jaxtyping import Float

from discrete_grpo.domains.graph6 import adjacency, from_graph6

__all__ = ["draw_graph", "layout"]

LARGEST = 400  # nodes; beyond it a drawing shows nothing and takes long


def draw_graph(text: str, *, width: int = 220, height: int = 170) -> str | None:
    """A graph6 line as an SVG element to place into a page: one path of edges, one circle a node, in the page's text colour.

    Args:
        text: the graph.
        width: of the drawing's own coordinates.
        height: likewise; the drawing fills both.

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
    """Places in [0, 1]² of a graph on nodes 0..n-1: without crossings where it is planar, connected and has a cycle.

    Those are drawn by :func:`networkx.planar_layout`, the others so that distances on the page follow distances in the graph.
    Nothing is drawn at random: a graph always looks the same.
    """
    n, m = graph.number_of_nodes(), graph.number_of_edges()
    if n <= m <= 3 * n and nx.is_connected(graph) and nx.check_planarity(graph)[0]:
        places = nx.planar_layout(graph)
        at = np.array([places[k] for k in range(n)])
        span = np.ptp(at, axis=0)
    else:
        at = _by_distance(_distances(graph))
        span = np.ptp(at, axis=0).max()  # one scale for both axes
    return 0.5 + (at - (at.min(0) + at.max(0)) / 2) / np.maximum(span, 1e-9)


def _distances(graph: nx.Graph) -> Float[np.ndarray, "node node"]:
    """Edges on the shortest path; between parts, a little more than the longest of these."""
    matrix = adjacency(graph)
    n = len(matrix)
    found = np.where(np.eye(n, dtype=bool), 0.0, np.inf)
    front, step = np.eye(n, dtype=bool), 0
    while front.any():
        step += 1
        front = ((front.astype(np.float32) @ matrix) > 0) & np.isinf(found)
        found[front] = step
    return np.where(np.isinf(found), step + 1.0, found)


def _by_distance(wanted: Float[np.ndarray, "node node"], rounds: int = 60) -> Float[np.ndarray, "node 2"]:
    """Stress majorisation Σ (|x_i - x_j| - d_ij)² / d_ij² from classical scaling; Gansner et al. (2004)."""
    n = len(wanted)
    if n == 1:
        return np.zeros((1, 2))
    centre = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-centre @ wanted**2 @ centre / 2)
    at = vectors[:, -2:] * np.sqrt(values[-2:].clip(1e-3))
    golden = np.arange(n) * np.pi * (3 - 5**0.5)  # apart, where nodes of equal distances fall together
    at = at + 0.05 * np.stack([np.cos(golden), np.sin(golden)], axis=1)
    weight = np.divide(1, wanted**2, out=np.zeros_like(wanted), where=wanted > 0)
    inverse = np.linalg.pinv(np.diag(weight.sum(1)) - weight)
    for _ in range(rounds):
        apart = np.linalg.norm(at[:, None] - at[None], axis=-1)
        pull = -np.divide(weight * wanted, apart, out=np.zeros_like(apart), where=apart > 1e-9)
        pull[np.diag_indices(n)] = -pull.sum(1)
        at = inverse @ (pull @ at)
    return at
