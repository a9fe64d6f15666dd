"""Metrics of directed graphs, against counts by hand, networkx, and loops."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from discrete_grpo.datasets.own_digraphs import own_digraphs
from discrete_grpo.datasets.own_graphs import labelled_splits
from discrete_grpo.datasets.synthetic_graphs import GraphSplits
from discrete_grpo.domains.named_graphs import named_graph, to_line
from discrete_grpo.metrics.digraphs import DigraphReference, digraph_shape, distances, evaluate, sample_metrics
from discrete_grpo.metrics.graph_classes import class_distances, class_shares
from discrete_grpo.rewards.digraphs import Depth, acyclic, acyclic_share, dag_valid
from tests.directed_sets import dags, renamed

PATH, BACK, CYCLE, LONE = "&BP?", "&BO_", "&BP_", "&BO?"


def reference(count: int = 12) -> DigraphReference:
    own = own_digraphs(dags(count, seed=1))
    return DigraphReference(labelled_splits(own, 0.5), labels=own.labels)


def test_shares_by_hand() -> None:
    a, b = "&AO nodes=a,b edges=x", "&AG nodes=b,a edges=x"  # the same graph twice
    turned, other = "&AG nodes=a,b edges=x", "&AO nodes=a,b edges=y"
    found = evaluate([a, b, turned, other, CYCLE, LONE, None, "Bg"])
    assert (found["num_samples"], found["valid"], found["unique"]) == (8.0, 4 / 8, 3 / 4)
    assert (found["acyclic"], found["connected"], found["undecided"]) == (5 / 8, 5 / 8, 0.0)
    assert (found["nodes"], found["edges"], found["longest_path"]) == (14 / 6, 8 / 6, 1.0)
    assert "novel" not in found
    assert evaluate([CYCLE, PATH], shape="connected")["valid"] == 1.0
    assert sample_metrics([None]) == {"valid": 0.0, "unique": 0.0, "acyclic": 0.0}
    assert math.isnan(evaluate([None])["nodes"])


def test_novelty_keeps_directions_and_classes() -> None:
    known = reference()
    lines = [to_line(g) for g in known.splits.train]
    assert evaluate(lines, known)["novel"] == 0.0
    arcs = [to_line(nx.DiGraph(g).reverse()) for g in known.splits.train]
    fresh = evaluate(arcs, known)
    wanted = [
        not any(
            nx.is_isomorphic(
                nx.reverse(g), t, node_match=lambda a, b: a["label"] == b["label"], edge_match=lambda a, b: a["label"] == b["label"]
            )
            for t in known.splits.train
        )
        for g in known.splits.train
    ]
    assert fresh["novel"] * fresh["unique"] * len(arcs) == pytest.approx(sum(wanted))
    assert fresh["vun"] == pytest.approx(fresh["valid"] * fresh["unique"] * fresh["novel"])
    plain = DigraphReference(labelled_splits(own_digraphs([nx.DiGraph([(0, 1)])])))
    assert evaluate(["&AO nodes=a,b edges=x"], plain)["novel"] == 0.0, "without labels classes do not matter"


def test_distances_by_another_library() -> None:
    known, samples = reference(), [to_line(renamed(g)) for g in dags(10, seed=7)]
    found = distances([*samples, None, CYCLE], known)
    own = [*map(renamed, dags(10, seed=7)), nx.DiGraph([(0, 1), (1, 2), (2, 0)])]
    test = known.splits.test
    wanted = {
        "w1_in_degree": wasserstein_distance([d for g in own for _, d in g.in_degree], [d for g in test for _, d in g.in_degree]),
        "w1_out_degree": wasserstein_distance(
            [d for g in own for _, d in g.out_degree], [d for g in test for _, d in g.out_degree]
        ),
        "w1_longest_path": wasserstein_distance(
            [nx.dag_longest_path_length(g) for g in own[:-1]], [nx.dag_longest_path_length(g) for g in test]
        ),
    }
    assert found == pytest.approx(wanted)
    assert len({round(x, 6) for x in found.values()}) == 3
    same = evaluate([to_line(g) for g in test], known)
    assert [same[name] for name in (*wanted, "tv_node_class", "tv_edge_class", "tv_edge_given_ends")] == pytest.approx([0.0] * 6)
    assert np.isnan(distances([CYCLE], known)["w1_longest_path"])


def test_classes_of_arcs_are_given_their_ends_in_order() -> None:
    first, second = "&AO nodes=a,b edges=x", "&AG nodes=a,b edges=x"
    assert class_distances([first], [second]) == {"tv_node_class": 0.0, "tv_edge_class": 0.0, "tv_edge_given_ends": 1.0}
    assert class_distances([first], ["&AG nodes=b,a edges=x"])["tv_edge_given_ends"] == 0.0
    assert class_shares([first, PATH])["edge_class_x"] == 1.0


def test_the_data_decide_what_is_valid() -> None:
    assert (digraph_shape([PATH, BACK]), digraph_shape([PATH, CYCLE])) == ("dag", "connected")
    with pytest.raises(ValueError, match="shape: 'tree', expected one of dag, connected with directed graphs"):
        DigraphReference(reference().splits, "tree")  # type: ignore[arg-type]


def test_rewards_of_known_graphs() -> None:
    both = nx.DiGraph([(0, 1), (1, 0), (1, 2), (2, 3), (3, 4), (4, 2)])  # 0 <-> 1 -> {2, 3, 4} in a ring
    samples = [PATH, CYCLE, LONE, to_line(both), "&B??", None, "Bg", "nothing"]
    assert acyclic(samples) == [1, 0, 1, 0, 1, 0, 0, 0]
    assert dag_valid(samples) == [1, 0, 0, 0, 0, 0, 0, 0]
    assert acyclic_share(samples) == pytest.approx([1, 0, 1, 1 / 6, 1, 0, 0, 0])
    assert Depth(4)(samples) == [0.5, 0, 0.25, 0, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="scale: 0"):
        Depth(0)


def test_without_labels_the_classes_of_training_graphs_do_not_matter_either() -> None:
    own = own_digraphs(dags(4, seed=3))
    lines = [to_line(g) for g in labelled_splits(own, 0.5).train]
    assert any(" nodes=" in line for line in lines)
    assert evaluate(lines, DigraphReference(labelled_splits(own, 0.5)))["novel"] == 0.0


def test_what_is_not_decided_is_no_novel_graph_and_is_counted() -> None:
    def both_ways(graph: nx.Graph) -> nx.DiGraph:
        found = nx.DiGraph()
        found.add_edges_from((int(a), int(b)) for a, b in nx.convert_node_labels_to_integers(graph).to_directed().edges)
        return found

    rook = both_ways(nx.line_graph(nx.complete_bipartite_graph(4, 4)))
    steps = ((0, 1), (1, 0), (1, 1))
    shrikhande = both_ways(nx.Graph([((i, j), ((i + a) % 4, (j + b) % 4)) for i in range(4) for j in range(4) for a, b in steps]))
    path = nx.DiGraph([(0, 1), (1, 2)])
    known = DigraphReference(GraphSplits((rook,), (), (path,)), "connected", budget=5)
    found = evaluate([to_line(shrikhande), to_line(path), to_line(path), CYCLE, LONE], known)  # strongly regular alike
    assert found["undecided"] == 1 / 5
    assert (found["valid"], found["unique"], found["novel"], found["vun"]) == (4 / 5, 3 / 4, 2 / 3, 2 / 5)
    assert (found["acyclic"], found["connected"]) == (3 / 5, 4 / 5)
    other = DigraphReference(GraphSplits((path,), (), (path,)), "connected", budget=5)
    assert evaluate([to_line(rook), to_line(shrikhande)], other)["undecided"] == 1 / 2


def test_a_node_without_arcs_counts_where_there_are_no_labels() -> None:
    known = DigraphReference(GraphSplits((named_graph(LONE),), (), (named_graph(PATH),)), "connected")
    assert evaluate(["&AO"], known)["novel"] == 1.0
