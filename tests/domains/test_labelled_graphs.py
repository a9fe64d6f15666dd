"""Graphs with classes as text: the round trip through batches and networkx, and lines that are refused."""

from __future__ import annotations

import networkx as nx
import pytest
import torch

from discrete_grpo.domains import graph6, labelled_graphs
from discrete_grpo.domains.graphs import GraphBatch, node_mask, symmetrise


def batch(seed: int, sizes: list[int], node_classes: int = 4, edge_classes: int = 5) -> GraphBatch:
    generator = torch.Generator().manual_seed(seed)
    n = max(sizes)
    mask = node_mask(torch.tensor(sizes), n)
    nodes = torch.randint(node_classes, (len(sizes), n), generator=generator) * mask
    pairs = torch.randint(edge_classes, (len(sizes), n * (n - 1) // 2), generator=generator)
    return GraphBatch(nodes, symmetrise(pairs, n) * (mask[:, None] & mask[:, :, None]), mask)


@pytest.mark.parametrize("seed", range(5))
def test_every_class_survives_the_round_trip(seed: int) -> None:
    graphs = batch(seed, [1, 2, 7, 12, 70])
    for k, (text, n) in enumerate(zip(labelled_graphs.batch_to_lines(graphs), graphs.sizes.tolist(), strict=True)):
        found = labelled_graphs.from_line(text)
        assert [label for _, label in found.nodes(data="label")] == graphs.nodes[k, :n].tolist()
        matrix = nx.to_numpy_array(found, nodelist=range(n), weight="label", dtype=int)
        assert matrix.tolist() == graphs.edges[k, :n, :n].tolist()
        assert "\n" not in text


def test_readers_of_graph6_see_the_plain_graph() -> None:
    graphs = batch(0, [5, 9])
    for text, plain in zip(labelled_graphs.batch_to_lines(graphs), graph6.batch_to_graph6(graphs), strict=True):
        assert text != plain
        assert graph6.adjacency_to_graph6(graph6.adjacency(text)) == plain
        assert graph6.node_count(text) == graph6.node_count(plain)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Bg", "expected a graph6 line followed by nodes=CLASSES edges=CLASSES"),
        ("Bg nodes=0,1 edges=1,1", "has 2 classes of nodes, expected 3"),
        ("Bg nodes=0,1,1 edges=1", "has 1 classes of edges, expected 2"),
        ("Bg nodes=0,1,1 edges=1,0", "has an edge of class 0"),
        ("Bg nodes=0,,1 edges=1,1", "expected whole numbers between commas"),
        ("B nodes=0,1,1 edges=1,1", "is no graph6 line"),
    ],
)
def test_what_is_no_labelled_graph_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        labelled_graphs.from_line(text)


def test_other_text_after_a_graph_is_no_graph6() -> None:
    with pytest.raises(ValueError, match="is no graph6 line"):
        graph6.adjacency("Bg and more")


@pytest.mark.parametrize(
    ("node", "edge", "said"),
    [
        (0, 0, "has an edge of class 0, expected at least 1"),
        (0, -1, "has an edge of class -1, expected at least 1"),
        (-1, 1, "has a node of class -1, expected at least 0"),
    ],
)
def test_graphs_of_networkx_with_other_classes_are_refused_as_lines_are(node: int, edge: int, said: str) -> None:
    graph = nx.path_graph(3)
    nx.set_node_attributes(graph, node, "label")
    nx.set_edge_attributes(graph, edge, "label")
    with pytest.raises(ValueError, match=said):
        labelled_graphs.graphs_to_batch([graph])


def test_batches_come_back_from_their_lines() -> None:
    graphs = batch(3, [4, 1, 6])
    lines = labelled_graphs.batch_to_lines(graphs)
    found = labelled_graphs.graphs_to_batch([f"{line}\n" for line in lines])
    assert found.nodes.tolist() == graphs.nodes.tolist()
    assert found.edges.tolist() == graphs.edges.tolist()
    assert found.mask.tolist() == graphs.mask.tolist()


def test_nodes_of_networkx_are_taken_in_their_order() -> None:
    graph = nx.Graph()
    graph.add_nodes_from([(2, {"label": 3}), (0, {"label": 4}), (1, {"label": 5})])
    graph.add_edge(2, 1, label=6)
    found = labelled_graphs.graphs_to_batch([graph])
    assert found.nodes.tolist() == [[3, 4, 5]]
    assert found.edges.tolist() == [[[0, 0, 6], [0, 0, 0], [6, 0, 0]]]


@pytest.mark.parametrize("part", ["nodes", "edges"])
def test_classes_that_are_no_whole_numbers_are_refused(part: str) -> None:
    graph = nx.path_graph(2)
    nx.set_node_attributes(graph, 0.5 if part == "nodes" else 1, "label")
    nx.set_edge_attributes(graph, 1.5 if part == "edges" else 1, "label")
    with pytest.raises(ValueError, match="expected a whole number as the label of every node and edge"):
        labelled_graphs.graphs_to_batch([graph])
