"""Graph tasks: each number against networkx, each known optimum by a graph that reaches it, each gate by graphs that fail it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest

from discrete_grpo.datasets.graph_splits import load_splits
from discrete_grpo.domains.graph6 import adjacency, from_graph6, graph6
from discrete_grpo.rewards.graph_tasks import QUANTITIES, TASKS, GraphScore, Quantity
from discrete_grpo.rewards.identity import reward_identity


def count_triangles(graph: nx.Graph) -> float:
    return sum(nx.triangles(graph).values()) / 3


def normalised_gap(graph: nx.Graph) -> float:
    return float(sorted(np.linalg.eigvalsh(nx.normalized_laplacian_matrix(graph).toarray()))[1])


ORACLES: dict[Quantity, Callable[[nx.Graph], float]] = {
    "edges": nx.Graph.number_of_edges,
    "edges_less_triangles": lambda g: g.number_of_edges() - count_triangles(g),
    "triangles": count_triangles,
    "clustering": nx.average_clustering,
    "diameter": nx.diameter,
    "wiener": nx.wiener_index,
    "binary": lambda g: sum(d in (1, 3) for _, d in g.degree) / len(g),
    "connectivity": lambda g: float(np.linalg.eigvalsh(nx.laplacian_matrix(g).toarray().astype(float))[1]),
    "spectral_gap": normalised_gap,
}


@pytest.mark.parametrize("quantity", list(QUANTITIES))
def test_numbers_are_those_of_networkx(quantity: Quantity) -> None:
    graphs = [*load_splits("planar-16").test[:5], *load_splits("tree-16").test[:5], nx.complete_graph(16), nx.path_graph(2)]
    graphs += [g for s in range(8) if nx.is_connected(g := nx.gnp_random_graph(9 + s, 0.4, seed=s))]
    assert len(graphs) > 15
    for graph in graphs:
        assert QUANTITIES[quantity](adjacency(graph)) == pytest.approx(ORACLES[quantity](graph), abs=1e-9)


def triangulation() -> nx.Graph:
    """A triangle, and node after node joined to the corners of a face."""
    graph = nx.complete_graph(3)
    faces = [(0, 1, 2)]
    for node in range(3, 16):
        a, b, c = faces.pop(0)
        graph.add_edges_from((node, corner) for corner in (a, b, c))
        faces += [(a, b, node), (a, c, node), (b, c, node)]
    return graph


def caterpillar(spine: int, nodes: int = 16) -> nx.Graph:
    """A path with the other nodes hanging from its second node."""
    graph = nx.path_graph(spine)
    graph.add_edges_from((1, k) for k in range(spine, nodes))
    return graph


def binary_tree() -> nx.Graph:
    """Seven inner nodes of degree 3 in a row, and nine leaves."""
    graph = nx.path_graph(7)
    leaves = iter(range(7, 16))
    for k in range(7):
        graph.add_edges_from((k, next(leaves)) for _ in range(3 - graph.degree[k]))
    return graph


OPTIMA: dict[str, nx.Graph] = {
    "planar_edges": triangulation(),
    "planar_triangle_free": nx.complete_bipartite_graph(2, 14),
    "planar_clustering": from_graph6("OTWP??_?O_gd_A??w@?au"),
    "planar_diameter": caterpillar(10),
    "tree_path": nx.path_graph(16),
    "tree_star": nx.star_graph(15),
    "tree_binary": binary_tree(),
    "tree_wiener": from_graph6("OO_?CA?o_?o??C?CO_?__"),
    "connected_triangles": nx.lollipop_graph(5, 11),
    "connected_gap": nx.complete_graph(16),
}


def test_every_known_optimum_is_reached() -> None:
    assert set(OPTIMA) == {name for name, task in TASKS.items() if task.optimum is not None}
    for name, graph in OPTIMA.items():
        assert TASKS[name].optimum == 1.0
        assert TASKS[name]([graph6(graph)])[0] == pytest.approx(1.0, abs=1e-12), name


def test_triangles_never_pay_in_a_planar_graph() -> None:
    """The optimum of planar_triangle_free is one: edges - triangles <= 2 n - 4, by Euler's formula."""
    graphs = [*load_splits("planar-16").train[:200], triangulation()]
    assert all(ORACLES["edges_less_triangles"](g) <= 28 for g in graphs)


def test_scores_are_between_0_and_1_and_the_bundled_policies_have_room() -> None:
    planar, trees = load_splits("planar-16").train[:100], load_splits("tree-16").train[:100]
    for name, task in TASKS.items():
        assert task.name == name
        assert (task.suite, task.kind) == ("graphs", "graphs")
        scores = task(trees if name.startswith("tree") else planar)
        assert all(0 <= s <= 1 for s in scores if s is not None), name
        assert sum(s or 0.0 for s in scores) / 100 < 0.75
        assert len(set(scores)) > 1 or name == "connected_triangles"
    assert TASKS["planar_edges"]([nx.path_graph(16)]) == [0.0]  # clipped


def test_the_formula_between() -> None:
    star, path = nx.star_graph(15), nx.path_graph(16)
    assert TASKS["tree_path"]([star]) == pytest.approx([2 / 15])
    assert TASKS["tree_wiener"]([star, path]) == pytest.approx([1 - (300 - 225) / 300, 0.0])
    assert TASKS["tree_star"]([path]) == pytest.approx([2 - 2 * math.cos(math.pi / 16)])  # the path's second eigenvalue
    assert TASKS["connected_gap"]([star]) == pytest.approx([15 / 16])
    assert GraphScore("connected", "triangles", 10, 4, nodes=3)(nx.complete_graph(3)) == 0.0
    assert GraphScore("connected", "triangles", 4, 4, nodes=3)(nx.complete_graph(3)) == 0.25


@pytest.mark.parametrize("name", list(TASKS))
def test_the_gate(name: str) -> None:
    shape = name.split("_")[0]
    parts = nx.disjoint_union(nx.path_graph(8), nx.path_graph(8))
    wrong: list[Any] = [None, "no graph", parts, nx.path_graph(15), nx.path_graph(17), nx.Graph()]
    if shape != "connected":
        wrong.append(nx.complete_graph(16))
    if shape == "tree":
        wrong.append(nx.cycle_graph(16))
    assert TASKS[name](wrong) == [0.0] * len(wrong)


def test_kept_scores_belong_to_the_task() -> None:
    assert len({reward_identity(task) for task in TASKS.values()}) == len(TASKS)
