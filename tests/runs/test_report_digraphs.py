"""Directed graphs are drawn as SVG: layers, arrow heads at the right end, classes and legend."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import networkx as nx
import numpy as np
import pytest

from discrete_grpo.domains.named_graphs import Labels, to_line
from discrete_grpo.runs.report.arrows import bent_arcs, layers
from discrete_grpo.runs.report.graphs import render_graph
from tests.directed_sets import OPS, PORTS, dags, renamed

SPACE = "{http://www.w3.org/2000/svg}"
LABELS = Labels(OPS, ("no edge", *PORTS))
CYCLE = "&BP_ nodes=add,mul,add edges=left,left,right%20side"


def drawn(text: str) -> ET.Element:
    found = render_graph(text, labels=LABELS)
    assert found is not None
    assert found == render_graph(text, labels=LABELS)
    assert "id=" not in found
    return ET.fromstring(found)


def centres(picture: ET.Element, graph: nx.DiGraph) -> np.ndarray:
    """Places of the nodes, whose circles stand class by class."""
    order = [v for op in OPS for v in graph if graph.nodes[v]["label"] == op]
    at = np.zeros((len(graph), 2))
    for v, circle in zip(order, picture.iter(f"{SPACE}circle"), strict=True):
        at[v] = float(circle.attrib["cx"]), float(circle.attrib["cy"])
    return at


@pytest.mark.parametrize("k", range(6))
def test_heads_are_at_the_heads_and_arcs_point_down(k: int) -> None:
    graph = renamed(dags(6, seed=3)[k])
    picture = drawn(to_line(graph))
    at = centres(picture, graph)
    paths = [path.attrib["d"] for path in picture.iter(f"{SPACE}path")]
    starts = [tuple(map(float, pair)) for d in paths[::2] for pair in re.findall(r"M([\d.]+) ([\d.]+)", d)]
    tips = [tuple(map(float, pair)) for d in paths[1::2] for pair in re.findall(r"M([\d.]+) ([\d.]+)", d)]
    near = [
        tuple(int(np.linalg.norm(at - np.array(place), axis=1).argmin()) for place in pair)
        for pair in zip(starts, tips, strict=True)
    ]
    assert sorted(near) == sorted(graph.edges)
    assert all(at[u, 1] < at[v, 1] for u, v in graph.edges), "an arc points down"
    assert [path.attrib.get("fill") == "none" for path in picture.iter(f"{SPACE}path")] == [True, False] * (len(paths) // 2)
    used = {c for *_, c in graph.edges(data="label")} | {c for _, c in graph.nodes(data="label")}
    assert {text.text for text in picture.iter(f"{SPACE}text")} == used


def test_generations_are_rows_of_the_picture() -> None:
    graph = nx.DiGraph([(0, 2), (1, 2), (2, 3), (0, 3)])
    at = layers(graph)
    assert [sorted({int(v) for v in np.flatnonzero(at[:, 1] == y)}) for y in sorted(set(at[:, 1]))] == [[0, 1], [2], [3]]
    assert bent_arcs(graph) == {(0, 3)}
    assert layers(nx.empty_graph(1, create_using=nx.DiGraph)).tolist() == [[0.5, 0.0]]


def test_graphs_with_cycles_are_drawn_too() -> None:
    picture = drawn(CYCLE)
    assert len(list(picture.iter(f"{SPACE}circle"))) == 3
    assert sum(path.attrib["d"].count("Z") for path in picture.iter(f"{SPACE}path")) == 3
    title = picture.find(f"{SPACE}title")
    assert title is not None
    assert title.text == "directed graph of 3 nodes and 3 arcs"
    both = nx.DiGraph([(0, 1), (1, 0), (1, 2)])
    assert bent_arcs(both) == {(0, 1), (1, 0)}


@pytest.mark.parametrize("text", ["&", "&?", "&B", to_line(nx.empty_graph(401, create_using=nx.DiGraph))])
def test_what_cannot_be_drawn(text: str) -> None:
    assert render_graph(text) is None


def test_graphs_without_classes_or_arcs_are_drawn() -> None:
    assert (render_graph("&BP?") or "").count("<circle") == 3
    assert (render_graph("&B??") or "").count("<circle") == 3
