"""Pictures of graphs for the report, with arrows where they are directed, and colours and a legend where they have classes."""

from __future__ import annotations

import colorsys
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from html import escape

import networkx as nx
import numpy as np
from jaxtyping import Float

from discrete_grpo.domains.named_graphs import Labels, named_graph, ordered_names
from discrete_grpo.runs.report.arrows import arrows, bent_arcs, layers

__all__ = ["layout", "render_graph"]

LARGEST = 400  # nodes; larger graphs are not drawn, as their pictures are unreadable
BY_DISTANCE = 100  # nodes; placing more of them by their distances takes seconds
PLAIN = "#3b7dd8"
NODE_COLOURS = (PLAIN, "#e07b39", "#4aa564", "#c44e52", "#8c6bb1", "#b8860b", "#2aa5a0", "#d4679f")  # apart in light and in dark
EDGE_COLOURS = ("currentColor", "#c44e52", "#3b7dd8", "#4aa564", "#e07b39", "#8c6bb1", "#b8860b", "#2aa5a0")
DASHES = ("", "5 2", "1.5 1.5", "6 2 1.5 2")  # classes can be told apart without colours
ROW, LETTER = 11.0, 4.6  # height of a row of the legend, width of a letter


def render_graph(text: str, *, width: int = 220, height: int = 170, labels: Labels | None = None) -> str | None:
    """Render a graph6 or digraph6 line as an SVG element: a path of all edges of a class and one circle per node.

    Arcs have heads; an acyclic graph stands in layers, each arc pointing down.
    Without classes edges have the page's text colour. With classes each has a colour, edges also a pattern of dashes, and a
    legend below names those that occur.

    Args:
        text: the graph, with the names of the classes of nodes and edges or without.
        width: of the picture's own coordinates.
        height: of the picture's own coordinates, without the legend; the picture fills both.
        labels: all classes in their order, so that a class has one colour in all pictures; None takes those of this graph.

    Returns:
        The ``<svg>`` element; None if ``text`` is no line of a graph, or the graph has no nodes or more than 400.
    """
    try:
        graph = named_graph(text)
    except ValueError:
        return None
    if not 0 < len(graph) <= LARGEST:
        return None
    radius = max(1.2, min(4.0, 24 / len(graph) ** 0.5))
    margin = np.array([1.0, 1.0]) * (radius + 2)
    at = margin + layout(graph) * (np.array([width, height]) - 2 * margin)
    nodes = {v: "" if name is None else str(name) for v, name in graph.nodes(data="label")}
    edges = {(u, v): "" if name is None else str(name) for u, v, name in graph.edges(data="label")}
    known = (labels.nodes, labels.edges[1:]) if labels else (ordered_names(nodes.values()), ordered_names(edges.values()))
    labelled = any(nodes.values())
    drawn = partial(_arcs, radius=radius, bent=bent_arcs(graph)) if graph.is_directed() else _edges
    lines = "".join(
        drawn([e for e, own in edges.items() if own == name], at, name, known[1])
        for name in _used(edges.values(), known[1]) or [""]
    )
    dots = "".join(
        _nodes([v for v, own in nodes.items() if own == name], at, radius, name, known[0])
        for name in _used(nodes.values(), known[0])
    )
    legend, below = (
        _legend(_used(nodes.values(), known[0]), _used(edges.values(), known[1]), known, width, height) if labelled else ("", 0.0)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + below:g}" role="img">'
        f"<title>{_title(graph)}</title>"
        f"{lines}{dots}{legend}</svg>"
    )


def _title(graph: nx.Graph) -> str:
    kind, edges = ("directed graph", "arcs") if graph.is_directed() else ("graph", "edges")
    return f"{kind} of {len(graph)} nodes and {graph.number_of_edges()} {edges}"


def _used(names: Iterable[str], known: Sequence[str]) -> list[str]:
    """The classes that occur, in the order of the known ones."""
    found = set(names)
    return [*(name for name in known if name in found), *ordered_names(found - set(known))]


def _style(name: str, known: Sequence[str]) -> str:
    """Attributes of the lines of an edge class."""
    k = known.index(name) if name in known else len(known)
    dash = DASHES[k % len(DASHES)]
    look = 'stroke-width="0.8" stroke-opacity="0.55"' if not name else 'stroke-width="1.2" stroke-opacity="0.8"'
    pattern = f' stroke-dasharray="{dash}"' if dash else ""
    return f'fill="none" stroke="{_colour(k, EDGE_COLOURS)}" {look}{pattern}'


def _colour(k: int, palette: Sequence[str]) -> str:
    """Colour of class k; beyond the palette hues a golden ratio apart."""
    if k < len(palette):
        return palette[k]
    parts = colorsys.hls_to_rgb(0.618 * k % 1, 0.5, 0.5)
    return "#" + "".join(f"{round(255 * x):02x}" for x in parts)


def _edges(pairs: Sequence[tuple[int, int]], at: Float[np.ndarray, "node 2"], name: str, known: Sequence[str]) -> str:
    path = "".join(f"M{at[u, 0]:.1f} {at[u, 1]:.1f}L{at[v, 0]:.1f} {at[v, 1]:.1f}" for u, v in pairs)
    return f'<path d="{path}" {_style(name, known)}/>'


def _arcs(
    pairs: Sequence[tuple[int, int]],
    at: Float[np.ndarray, "node 2"],
    name: str,
    known: Sequence[str],
    *,
    radius: float,
    bent: Collection[tuple[int, int]],
) -> str:
    path, heads = arrows(pairs, at, radius, bent)
    colour = _colour(known.index(name) if name in known else len(known), EDGE_COLOURS)
    return f'<path d="{path}" {_style(name, known)}/><path d="{heads}" fill="{colour}" fill-opacity="0.8"/>'


def _fill(name: str, known: Sequence[str]) -> str:
    return _colour(known.index(name) if name in known else len(known), NODE_COLOURS)


def _nodes(places: Sequence[int], at: Float[np.ndarray, "node 2"], radius: float, name: str, known: Sequence[str]) -> str:
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>' for x, y in at[list(places)])
    return f'<g fill="{_fill(name, known)}">{dots}</g>'


def _legend(
    nodes: Sequence[str], edges: Sequence[str], known: tuple[Sequence[str], Sequence[str]], width: int, top: int
) -> tuple[str, float]:
    """Names of the classes beside a mark of each, in rows below the picture, and the height of these rows."""
    parts, x, y = [], 4.0, top + ROW
    for is_node, name in [*((True, name) for name in nodes), *((False, name) for name in edges)]:
        shown = name if len(name) <= 24 else f"{name[:23]}…"
        size = (10 if is_node else 18) + LETTER * len(shown) + 8
        if x > 4 and x + size > width:
            x, y = 4.0, y + ROW
        if is_node:
            mark = f'<rect x="{x:.1f}" y="{y - 6:.1f}" width="6" height="6" rx="3" fill="{_fill(name, known[0])}"/>'
        else:
            mark = f'<line x1="{x:.1f}" y1="{y - 3:.1f}" x2="{x + 14:.1f}" y2="{y - 3:.1f}" {_style(name, known[1])}/>'
        parts.append(f'{mark}<text x="{x + (10 if is_node else 18):.1f}" y="{y:.1f}">{escape(shown)}</text>')
        x += size
    return f'<g font-size="8" font-family="sans-serif" fill="currentColor">{"".join(parts)}</g>', y + 4 - top


def layout(graph: nx.Graph) -> Float[np.ndarray, "node 2"]:
    """Compute node positions in [0, 1]² of a graph on the nodes 0..n-1, the same ones at every call.

    A graph that is planar, connected and has a cycle is laid out without crossings (:func:`networkx.planar_layout`). Positions
    of other graphs have distances close to those in the graph (:func:`networkx.kamada_kawai_layout`), or, above 100 nodes,
    follow from springs along the edges (:func:`networkx.spring_layout`), which takes less than a second. A directed graph without
    a cycle stands in layers (:func:`~discrete_grpo.runs.report.arrows.layers`), one with a cycle as without directions.
    """
    if graph.is_directed():
        return layers(graph) if nx.is_directed_acyclic_graph(graph) else layout(graph.to_undirected())
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
