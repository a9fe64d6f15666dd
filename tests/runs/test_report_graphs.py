"""Plain graphs are drawn as SVG."""

import itertools
import random
import xml.etree.ElementTree as ET

import networkx as nx
import numpy as np
import pytest

from discrete_grpo.datasets.synthetic_graphs import planar, stochastic_block_model, tree
from discrete_grpo.domains.graph6 import from_graph6, graph6
from discrete_grpo.runs.report.graphs import layout, render_graph

GRAPHS = {
    "one": nx.empty_graph(1),
    "lone": nx.empty_graph(4),
    "path": nx.path_graph(3),
    "clique": nx.complete_graph(6),
    "planar": planar(16, np.random.default_rng(0)),
    "tree": tree(16, np.random.default_rng(0)),
    "block model": stochastic_block_model(np.random.default_rng(0)),
    "parts": nx.disjoint_union(nx.cycle_graph(4), nx.path_graph(3)),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_drawing_holds_every_node_and_edge(name: str) -> None:
    graph = GRAPHS[name]
    text = render_graph(graph6(graph), width=200, height=100)
    assert text is not None
    assert text == render_graph(graph6(graph), width=200, height=100)
    root = ET.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert root.get("viewBox") == "0 0 200 100"
    circles = root.findall(f".//{space}circle")
    places = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in circles]
    assert len(places) == len(graph)
    assert len(set(places)) == len(places)
    assert all(0 <= x <= 200 and 0 <= y <= 100 for x, y in places)
    path = root.find(f"{space}path")
    assert path is not None
    assert path.get("d", "").count("L") == graph.number_of_edges()
    assert "id=" not in text
    assert "class=" not in text


def crossings(graph: nx.Graph) -> int:
    at = layout(graph)

    def side(a: int, b: int, c: int) -> float:
        (x, y), (u, v) = at[b] - at[a], at[c] - at[a]
        return float(x * v - y * u)

    pairs = itertools.combinations(graph.edges, 2)
    return sum(
        side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0
        for (a, b), (c, d) in pairs
        if len({a, b, c, d}) == 4
    )


def test_planar_graphs_are_drawn_without_crossings() -> None:
    assert crossings(from_graph6(graph6(GRAPHS["planar"]))) == 0
    assert crossings(nx.complete_graph(6)) > 0


def test_distances_on_the_page_follow_those_in_the_graph() -> None:
    at = layout(nx.path_graph(9))
    far = np.linalg.norm(at[:, None] - at[None], axis=-1)
    wanted = abs(np.subtract.outer(range(9), range(9)))
    assert np.corrcoef(far.ravel(), wanted.ravel())[0, 1] > 0.95


@pytest.mark.parametrize("text", ["", "no graph", "?", graph6(nx.empty_graph(401))])
def test_what_cannot_be_drawn(text: str) -> None:
    assert render_graph(text) is None


def test_layout_does_not_depend_on_the_state_of_a_random_generator() -> None:
    for graph in (nx.complete_graph(6), GRAPHS["block model"]):
        first = layout(graph)
        random.seed(5)
        np.random.random()  # noqa: NPY002  # networkx draws from this state unless it is given a seed
        assert np.array_equal(layout(graph), first)


def test_parts_of_a_graph_lie_apart() -> None:
    at = layout(GRAPHS["parts"])
    far = np.linalg.norm(at[:, None] - at[None], axis=-1)
    assert far[:4, 4:].min() > max(far[a, b] for a, b in GRAPHS["parts"].edges) / 2
