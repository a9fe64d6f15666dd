"""Isomorphism by refinement and bounded search, against networkx, all small graphs and adversaries."""

import itertools
import time

import networkx as nx
import numpy as np
import pytest
from networkx.generators.atlas import graph_atlas_g

from discrete_grpo.datasets.synthetic_graphs import planar, tree
from discrete_grpo.domains.isomorphism import Form, GraphSet, form, form_of_edges, isomorphic, num_distinct, signature


def shuffled(graph: nx.Graph, seed: int = 0) -> nx.Graph:
    """The same graph, its nodes numbered in another order."""
    order = np.random.default_rng(seed).permutation(len(graph)).tolist()
    other = nx.empty_graph(len(graph))
    other.add_edges_from((order[u], order[v]) for u, v in graph.edges)
    return other


def rook() -> nx.Graph:
    return nx.convert_node_labels_to_integers(nx.line_graph(nx.complete_bipartite_graph(4, 4)))


def shrikhande() -> nx.Graph:
    steps = [(0, 1), (1, 0), (1, 1)]
    edges = [(4 * x + y, 4 * ((x + dx) % 4) + (y + dy) % 4) for x in range(4) for y in range(4) for dx, dy in steps]
    return nx.Graph(edges)


def test_all_graphs_of_up_to_six_nodes_differ() -> None:
    atlas = [g for g in graph_atlas_g() if len(g) <= 6]
    known = GraphSet()
    assert [known.add(g) for g in atlas] == [False] * len(atlas)
    assert len(known) == len(atlas) == 209
    assert [known.find(shuffled(g, seed)) for seed, g in enumerate(atlas)] == [True] * len(atlas)


def test_isomorphism_by_networkx() -> None:
    graphs = [nx.gnm_random_graph(7, 9, seed=k) for k in range(40)]
    for a, b in itertools.combinations(graphs, 2):
        assert isomorphic(a, b) is nx.is_isomorphic(a, b)


PAIRS = {
    "rook and Shrikhande": (rook(), shrikhande(), False),
    "rook": (rook(), shuffled(rook()), True),
    "Shrikhande": (shrikhande(), shuffled(shrikhande()), True),
    "empty": (nx.empty_graph(300), nx.empty_graph(300), True),
    "complete": (nx.complete_graph(200), nx.complete_graph(200), True),
    "cycles": (nx.cycle_graph(64), nx.disjoint_union(nx.cycle_graph(32), nx.cycle_graph(32)), False),
    "a cycle": (nx.cycle_graph(200), shuffled(nx.cycle_graph(200)), True),
    "matching": (
        nx.from_edgelist((2 * k, 2 * k + 1) for k in range(100)),
        shuffled(nx.disjoint_union_all([nx.path_graph(2)] * 100)),
        True,
    ),
    "regular": (nx.random_regular_graph(3, 64, seed=1), nx.random_regular_graph(3, 64, seed=2), False),
    "regular, the same": (nx.random_regular_graph(3, 64, seed=1), shuffled(nx.random_regular_graph(3, 64, seed=1)), True),
    "tree": (tree(64, np.random.default_rng(0)), shuffled(tree(64, np.random.default_rng(0))), True),
    "hypercube": (nx.convert_node_labels_to_integers(nx.hypercube_graph(6)), nx.random_regular_graph(6, 64, seed=0), False),
}


@pytest.mark.parametrize("name", PAIRS)
def test_adversaries_are_decided_promptly(name: str) -> None:
    a, b, same = PAIRS[name]
    start = time.process_time()
    assert isomorphic(a, b) is same
    assert time.process_time() - start < 3


def test_a_search_gives_up_at_its_budget() -> None:
    assert isomorphic(rook(), shrikhande(), budget=5) is None
    known = GraphSet([rook()], budget=5)
    assert known.find(shrikhande()) is None
    assert known.add(shrikhande()) is None
    assert len(known) == 1
    assert known.find(shuffled(rook())) is True


def test_form_of_a_graph_without_symmetry_is_canonical() -> None:
    graph = planar(30, np.random.default_rng(0))
    own, other = form(graph), form(shuffled(graph))
    assert own.discrete
    assert own.key == other.key
    u, v = next(nx.non_edges(graph))
    graph.add_edge(u, v)
    assert form(graph).key != own.key


def test_the_number_of_distinct_graphs_from_their_signatures() -> None:
    atlas = [g for g in graph_atlas_g() if len(g) <= 6]
    graphs = atlas + [shuffled(g, seed) for seed, g in enumerate(atlas)]
    assert num_distinct(graphs, [signature(form(g)) for g in graphs]) == len(atlas)


def test_graphs_that_refinement_cannot_tell_apart_are_compared_after_all() -> None:
    """Regular graphs of one size have one signature; those whose nodes all differ, or that stand alone, need no second look."""
    prepared = []

    def counted(graph: nx.Graph) -> Form:
        prepared.append(graph)
        return form(graph)

    regular = [rook(), shrikhande(), shuffled(rook(), 1)]
    trees = [g for g in (tree(12, np.random.default_rng(seed)) for seed in range(40)) if form(g).discrete][:2]
    graphs = [*regular, *trees, shuffled(trees[0], 2), nx.path_graph(4)]
    found = [signature(form(g)) for g in graphs]
    assert len(set(found)) == 4
    assert num_distinct(graphs, found, counted) == 5
    assert prepared == regular


def test_a_form_of_edges_is_that_of_the_graph() -> None:
    graph = planar(20, np.random.default_rng(3))
    tails, heads = np.nonzero(nx.to_numpy_array(graph, dtype=bool))
    given, wanted = form_of_edges(len(graph), tails, heads), form(graph)
    assert (given.key, given.discrete) == (wanted.key, wanted.discrete)
    assert isomorphic(given, form(shuffled(graph)))
    assert len(wanted.key) == 24  # however large the graph is
