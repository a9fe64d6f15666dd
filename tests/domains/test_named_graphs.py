"""Named classes: lines, networkx and PyG views, and isomorphism that keeps classes, against networkx."""

from __future__ import annotations

import random

import networkx as nx
import numpy as np
import pytest

from discrete_grpo.domains.graph6 import adjacency, graph6
from discrete_grpo.domains.isomorphism import GraphSet, isomorphic
from discrete_grpo.domains.named_graphs import (
    NO_EDGE,
    Labels,
    batch_to_lines,
    labelled_form,
    lines_to_batch,
    named_graph,
    ordered_names,
    to_line,
    to_networkx,
    to_pyg,
)

LABELS = Labels(("a", "b"), ("no edge", "x", "y"), "colour", "kind")


def drawn(generator: random.Random, n: int = 5) -> nx.Graph:
    graph = nx.gnm_random_graph(n, 5, seed=generator.randrange(1 << 30))
    nx.set_node_attributes(graph, {v: generator.choice("ab") for v in graph}, "label")
    nx.set_edge_attributes(graph, {e: generator.choice("xy") for e in graph.edges}, "label")
    return graph


def moved(graph: nx.Graph, generator: random.Random) -> nx.Graph:
    """The same graph on other numbers, its nodes in another order."""
    order = generator.sample(list(graph), len(graph))
    found = nx.Graph()
    found.add_nodes_from((k, graph.nodes[v]) for k, v in enumerate(order))
    found.add_edges_from((order.index(i), order.index(j), row) for i, j, row in graph.edges(data=True))
    return found


def test_isomorphism_keeps_classes() -> None:
    generator = random.Random(0)
    graphs = [drawn(generator) for _ in range(40)]
    graphs += [moved(g, generator) for g in graphs[:20]]
    same = {"node_match": lambda a, b: a["label"] == b["label"], "edge_match": lambda a, b: a["label"] == b["label"]}
    forms = [labelled_form(to_line(g)) for g in graphs]
    answers = [isomorphic(a, b) for a in forms for b in forms]
    assert answers == [nx.is_isomorphic(a, b, **same) for a in graphs for b in graphs]
    assert 60 + 40 <= sum(map(bool, answers)) < 60 * 60
    assert len(GraphSet(forms)) <= 40


def test_regular_graphs_of_other_colours_are_told_apart() -> None:
    """All degrees are equal, so that colours and classes of edges alone decide."""
    ring = nx.cycle_graph(6)
    lines = []
    for first, second in (("ab" * 3, "x" * 6), ("aaabbb", "x" * 6), ("ab" * 3, "xxxyyy")):
        graph = ring.copy()
        nx.set_node_attributes(graph, dict(zip(graph, first, strict=True)), "label")
        nx.set_edge_attributes(graph, dict(zip(graph.edges, second, strict=True)), "label")
        lines.append(to_line(graph))
    assert len(GraphSet(map(labelled_form, lines))) == 3
    assert len(GraphSet(lines)) == 1


def test_names_with_any_character_survive_a_line() -> None:
    graph = nx.path_graph(3)
    names = ["a b,c", "=%20 ü\n", "x"]
    nx.set_node_attributes(graph, dict(zip(graph, names, strict=True)), "label")
    nx.set_edge_attributes(graph, dict(zip(graph.edges, names, strict=False)), "label")
    line = to_line(graph)
    assert len(line.split()) == 3
    assert (adjacency(line) == adjacency(graph6(graph))).all()
    found = named_graph(line)
    assert dict(found.nodes(data="label")) == dict(graph.nodes(data="label"))
    assert sorted(found.edges(data="label")) == sorted(graph.edges(data="label"))


@pytest.mark.parametrize("seed", range(3))
def test_views_hold_the_classes(seed: int) -> None:
    graph = drawn(random.Random(seed))
    line = to_line(graph)
    found, data = to_networkx(line, LABELS), to_pyg(line, LABELS)
    assert dict(found.nodes(data="colour")) == dict(graph.nodes(data="label"))
    assert {(i, j): c for i, j, c in found.edges(data="kind")} == {(i, j): c for i, j, c in graph.edges(data="label")}
    assert data.x.tolist() == [[LABELS.nodes.index(c)] for _, c in graph.nodes(data="label")]
    pairs = {(i, j): LABELS.edges[c] for (i, j), c in zip(data.edge_index.T.tolist(), data.edge_attr.tolist(), strict=True)}
    assert pairs == {(a, b): c for i, j, c in graph.edges(data="label") for a, b in ((i, j), (j, i))}


def test_views_of_plain_graphs_and_of_graphs_without_edges() -> None:
    assert dict(to_networkx("Bg").nodes[0]) == {}
    assert to_pyg("Bg").edge_attr.tolist() == [1] * 4
    lone = to_pyg("A? nodes=a,b edges=", LABELS)
    assert (lone.x.tolist(), lone.edge_index.tolist(), lone.edge_attr.tolist(), lone.num_nodes) == ([[0], [1]], [[], []], [], 2)


def test_classes_that_are_numbers_need_no_names() -> None:
    line = "Bg nodes=0,2,1 edges=1,3"
    data = to_pyg(line)
    assert data.x.tolist() == [[0], [2], [1]]
    pairs = dict(zip(map(tuple, data.edge_index.T.tolist()), data.edge_attr.tolist(), strict=True))
    ends = {frozenset(pair): int(c) for *pair, c in to_networkx(line).edges(data="label")}
    assert pairs == {(a, b): ends[frozenset((a, b))] for a, b in pairs}
    assert sorted(pairs.values()) == [1, 1, 3, 3]
    with pytest.raises(ValueError, match="labels: None with a graph of class 'red', expected the Labels of its policy"):
        to_pyg("A_ nodes=red,1 edges=1")
    with pytest.raises(ValueError, match="labels: None with a graph of class 'thin'"):
        to_pyg("A_ nodes=0,1 edges=thin")


def test_labels_are_checked_and_stored() -> None:
    assert Labels.from_json(LABELS.to_json()) == LABELS
    for nodes, edges in (((), ("no edge",)), (("a", "a"), ("no edge",)), (("a",), ("x",)), (("a",), ("no edge", "x", "x"))):
        with pytest.raises(ValueError, match=r"nodes: |edges: "):
            Labels(nodes, edges)
    with pytest.raises(ValueError, match=r"graphs\[1\]: node class 'c', expected one of a, b"):
        lines_to_batch(["Bg nodes=a,b,a edges=x,y", "Bg nodes=a,c,a edges=x,y"], LABELS)
    assert ordered_names(["-1", "10", "2"]) == ["-1", "2", "10"]
    alike = [f"{'0' * k}1" for k in range(8)]
    assert ordered_names(alike) == alike[::-1]


def test_labels_are_plain_where_they_say_nothing() -> None:
    for nodes, edges, plain in ((("0",), (), True), (("0",), ("1",), True), (("0",), ("x",), False), (("1",), ("1",), False)):
        assert Labels(nodes, ("no edge", *edges)).plain is plain


@pytest.mark.parametrize("text", ["Bg nodes=a,b edges=x,y", "Bg nodes=a,b,a edges=x", "Bg nodes=a,b,a", "B nodes=a edges=", ""])
def test_lines_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="graph: "):
        named_graph(text)


def test_forms_of_many_arcs_are_small() -> None:
    generator = np.random.default_rng(0)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(100))
    graph.add_edges_from((int(i), int(j)) for i, j in generator.integers(0, 100, (900, 2)) if i != j)
    first = labelled_form(graph)
    order = generator.permutation(100).tolist()
    assert isomorphic(first, labelled_form(nx.relabel_nodes(graph, dict(enumerate(order)))))
    assert not isomorphic(first, labelled_form(graph.reverse()))
    assert sum(part.nbytes for part in (first.neighbours, first.ends, first.colours)) + len(first.key) < 200_000
    with pytest.raises(ValueError, match="graph: a self-loop at node 3"):
        labelled_form(nx.DiGraph([(1, 2), (3, 3)]))


def test_equal_graphs_of_other_classes_are_not_isomorphic() -> None:
    one = labelled_form("A_ nodes=a,b edges=x")
    assert one.discrete  # so that the key alone decides
    for other in ("A_ nodes=a,b edges=y", "A_ nodes=c,d edges=x", "A_ nodes=a,c edges=x"):
        assert not isomorphic(one, labelled_form(other)), other
    assert isomorphic(one, labelled_form("A_ nodes=b,a edges=x"))
    alike = labelled_form("Bw nodes=a,a,a edges=x,x,x")
    assert not alike.discrete
    assert not isomorphic(alike, labelled_form("Bw nodes=b,b,b edges=x,x,x"))


def test_classes_of_edges_alone_are_classes() -> None:
    one, other = nx.path_graph(2), nx.path_graph(2)
    one.edges[0, 1]["label"], other.edges[0, 1]["label"] = "x", "y"
    assert not isomorphic(labelled_form(one), labelled_form(other))
    assert to_line(one) == "A_ nodes=, edges=x"
    assert isomorphic(labelled_form(named_graph(to_line(one))), labelled_form(one))


def test_an_empty_name_of_a_single_node_is_read_again() -> None:
    assert dict(named_graph("@ nodes= edges=").nodes(data="label")) == {0: ""}


def test_names_with_any_character_survive_a_batch() -> None:
    labels = Labels(("a b", "c,d"), (NO_EDGE, "e=f", "%20"))
    lines = ["Bg nodes=a%20b,c%2Cd,a%20b edges=e%3Df,%2520", "A? nodes=c%2Cd,c%2Cd edges="]
    assert batch_to_lines(lines_to_batch(lines, labels), labels) == lines


def test_classes_of_edges_stand_in_the_order_of_graph6() -> None:
    """By the later and then the earlier end, which is not the order of the rows of the adjacency matrix."""
    pairs = [(i, j) for j in range(4) for i in range(j)]
    line = "C~ nodes=a,a,a,a edges=e01,e02,e12,e03,e13,e23"
    graph = named_graph(line)
    assert {(min(i, j), max(i, j)): name for i, j, name in graph.edges(data="label")} == {(i, j): f"e{i}{j}" for i, j in pairs}
    assert to_line(graph) == line
    labels = Labels(("a",), (NO_EDGE, *(f"e{i}{j}" for i, j in pairs)))
    batch = lines_to_batch([line], labels)
    assert [int(batch.edges[0, i, j]) for i, j in pairs] == [1, 2, 3, 4, 5, 6]
    assert batch_to_lines(batch, labels) == [line]
