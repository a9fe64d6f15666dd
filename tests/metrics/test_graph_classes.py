"""Distances between classes, against sums over all nodes and edges written out."""

from __future__ import annotations

import math
import random
from itertools import combinations_with_replacement

import networkx as nx
import pytest

from discrete_grpo.datasets.synthetic_graphs import GraphSplits
from discrete_grpo.domains.named_graphs import Labels, to_line
from discrete_grpo.metrics.graph_classes import check_classes, class_distances, class_shares
from discrete_grpo.metrics.graph_suite import graphs as suite
from discrete_grpo.metrics.graphs import GraphReference, evaluate, sample_metrics
from discrete_grpo.metrics.suite import SuiteOptions
from tests.labelled_sets import COLOURS, KINDS, coloured, relabelled

FIRST, SECOND = ([relabelled(g) for g in coloured(12, seed)] for seed in (1, 2))
LABELS = Labels(COLOURS, ("no edge", *KINDS))


def shuffled(graphs: list[nx.Graph]) -> list[nx.Graph]:
    """The graphs with classes of edges drawn anew, so that the ends do not decide them."""
    generator, found = random.Random(0), [g.copy() for g in graphs]
    for graph in found:
        nx.set_edge_attributes(graph, {e: generator.choice(KINDS) for e in graph.edges}, "label")
    return found


def by_hand(a: list[nx.Graph], b: list[nx.Graph]) -> float:
    """Σ over pairs of node classes of the share in b times the total variation given these ends."""
    total = 0.0
    for ends in combinations_with_replacement(COLOURS, 2):
        tables = []
        for graphs in (a, b):
            kinds = [
                c
                for g in graphs
                for i, j, c in g.edges(data="label")
                if sorted((g.nodes[i]["label"], g.nodes[j]["label"])) == [*ends]
            ]
            tables.append(kinds)
        own, other = tables
        share = len(other) / sum(g.number_of_edges() for g in b)
        if other and own:
            total += share * sum(abs(own.count(k) / len(own) - other.count(k) / len(other)) for k in KINDS) / 2
        elif other:
            total += share
    return total


def test_distances_are_those_of_the_definition() -> None:
    samples = shuffled(FIRST)
    found = class_distances([to_line(g) for g in samples], SECOND)
    assert found["tv_edge_given_ends"] == pytest.approx(by_hand(samples, SECOND))
    assert found["tv_edge_given_ends"] > 0.2
    nodes = [[c for g in graphs for _, c in g.nodes(data="label")] for graphs in (samples, SECOND)]
    wanted = sum(abs(nodes[0].count(c) / len(nodes[0]) - nodes[1].count(c) / len(nodes[1])) for c in COLOURS) / 2
    assert found["tv_node_class"] == pytest.approx(wanted)
    assert class_distances(FIRST, FIRST) == {"tv_node_class": 0, "tv_edge_class": 0, "tv_edge_given_ends": 0}


def test_without_edges_nothing_is_said_of_them() -> None:
    found = class_distances(["A? nodes=a,b edges="], ["A? nodes=a,a edges="])
    assert found["tv_node_class"] == 0.5
    assert math.isnan(found["tv_edge_class"])
    assert math.isnan(found["tv_edge_given_ends"])
    edge = "A_ nodes=a,a edges=x"
    for sample, other in (("A? nodes=a,a edges=", edge), (edge, "A? nodes=a,a edges=")):
        found = class_distances([sample], [other])
        assert found["tv_node_class"] == 0.0
        assert math.isnan(found["tv_edge_class"])
        assert math.isnan(found["tv_edge_given_ends"])


def test_evaluation_sees_classes_where_the_reference_has_them() -> None:
    splits = GraphSplits(tuple(FIRST), (), tuple(SECOND), "coloured")
    samples = [to_line(g) for g in FIRST]
    same = evaluate(samples, GraphReference(splits, labels=LABELS))
    assert same["novel"] == 0
    repainted = [to_line(nx.relabel_nodes(g, {})) for g in shuffled(FIRST)]
    other = evaluate(repainted, GraphReference(splits, labels=LABELS))
    assert other["novel"] > 0.3
    assert evaluate(repainted, GraphReference(splits))["novel"] == 0, "a plain reference sees the shape alone"
    assert {name for name in other if name.startswith("tv_")} == {"tv_node_class", "tv_edge_class", "tv_edge_given_ends"}
    assert other["mmd_degree"] == same["mmd_degree"]
    measured = suite(repainted, GraphReference(splits, labels=LABELS), SuiteOptions(bootstrap=0)).metrics
    assert {name: measured[name].value for name in other if name in measured} == pytest.approx(
        {name: other[name] for name in other if name in measured}
    )
    assert "tv_edge_class" in measured


def test_shares_and_unknown_classes() -> None:
    assert class_shares(["Bg nodes=red,blue,red edges=thin,thick"])["node_class_red"] == pytest.approx(2 / 3)
    assert class_shares(["Bg", nx.path_graph(3)]) == {}
    check_classes([to_line(FIRST[0]), None], LABELS)
    for sample, said in (
        ("Bg nodes=blue,blue,red edges=thin,thin", "samples: graph 1: node class 'red', expected one of blue, deep red, green"),
        ("Bg nodes=blue,blue,blue edges=thin,no%20edge", "samples: graph 1: edge class 'no edge', expected one of thick, thin"),
        ("Bg", "samples: graph 1 has no classes, expected those of the reference"),
    ):
        with pytest.raises(ValueError, match=said):
            check_classes([None, sample], LABELS)


def test_a_line_with_a_wrong_number_of_classes_is_invalid() -> None:
    assert sample_metrics(["Bg nodes=a edges=b", "Bg nodes=a,a,a edges=b,b"], "tree")["valid"] == 0.5
