"""Generators of synthetic graphs, named sets and files of splits."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch

from discrete_grpo.datasets.graph_splits import load_splits, read_npz, write_npz
from discrete_grpo.datasets.synthetic_graphs import (
    NAMED_SETS,
    GraphSplits,
    dataset_from_networkx,
    graph_statistics,
    make_splits,
    planar,
    stochastic_block_model,
    tree,
    two_communities,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# -- generators


@pytest.mark.parametrize("n", [4, 16, 64])
def test_planar_graphs(n: int) -> None:
    for seed in range(5):
        graph = planar(n, rng(seed))
        assert list(graph) == list(range(n))
        assert nx.is_connected(graph)
        assert nx.check_planarity(graph)[0]
        assert graph.number_of_edges() >= 2 * n - 3  # a triangulation of a convex region


def test_trees_are_uniform() -> None:
    """All 16 labelled trees of 4 nodes, chi-square with 15 degrees of freedom."""
    draws, generator = 1600, rng()
    counts = Counter(tuple(sorted(tuple(sorted(e)) for e in tree(4, generator).edges)) for _ in range(draws))
    assert len(counts) == 16
    assert sum((c - 100) ** 2 / 100 for c in counts.values()) < 37.7  # p = 0.001
    assert all(nx.is_tree(tree(n, generator)) for n in (2, 3, 64))


def test_block_model_densities() -> None:
    generator = rng(3)
    joined, pairs = np.zeros(2), np.zeros(2)
    for _ in range(30):
        graph = stochastic_block_model(generator, communities=(2, 2), sizes=(20, 20), p_in=0.3, p_out=0.05)
        assert nx.is_connected(graph)
        assert len(graph) == 40
        inside = sum((u < 20) == (v < 20) for u, v in graph.edges)
        joined += [inside, graph.number_of_edges() - inside]
        pairs += [2 * 190, 400]
    expected = np.array([0.3, 0.05])
    assert (abs(joined / pairs - expected) < 4 * np.sqrt(expected * (1 - expected) / pairs)).all()
    sizes = {len(stochastic_block_model(generator)) for _ in range(20)}
    assert min(sizes) >= 40
    assert max(sizes) <= 200


def test_the_laws_without_arguments_are_the_published_ones() -> None:
    for seed in range(8):
        published = stochastic_block_model(rng(seed), communities=(2, 5), sizes=(20, 40), p_in=0.3, p_out=0.005)
        assert nx.utils.graphs_equal(stochastic_block_model(rng(seed)), published)
        assert nx.utils.graphs_equal(two_communities(20, rng(seed)), two_communities(20, rng(seed), p_in=0.7, p_out=0.05))
    assert {len(g) for g in make_splits("community-20").train} == {12, 14, 16, 18, 20}


def test_two_communities_have_a_bridge() -> None:
    for seed in range(30):
        graph = two_communities(12, rng(seed), p_out=0.0)
        assert sum((u < 6) != (v < 6) for u, v in graph.edges) == 1
    crossing = [sum((u < 10) != (v < 10) for u, v in two_communities(20, rng(s), p_out=0.5).edges) for s in range(200)]
    assert np.mean(crossing) == pytest.approx(100 * 2 * 0.5 / 10, abs=1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: planar(3, rng()), "num_nodes: 3, expected at least 4"),
        (lambda: tree(1, rng()), "num_nodes: 1, expected at least 2"),
        (lambda: two_communities(7, rng()), "num_nodes: 7, expected an even number"),
        (lambda: two_communities(6, rng(), p_out=-1.0), "p_out: -1.0, expected 0 to 1"),
        (lambda: stochastic_block_model(rng(), communities=(3, 2)), r"communities\[1\]: 2, expected at least 3"),
        (lambda: stochastic_block_model(rng(), p_in=0.0), "p_in: 0.0, expected more than 0"),
    ],
)
def test_arguments_out_of_range(make: Callable[[], nx.Graph], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_same_seed_same_graph() -> None:
    for make in (lambda g: planar(12, g), lambda g: tree(12, g), stochastic_block_model, lambda g: two_communities(12, g)):
        assert nx.utils.graphs_equal(make(rng(7)), make(rng(7)))
        assert not nx.utils.graphs_equal(make(rng(7)), make(rng(8)))


# -- sets


def test_named_sets_are_the_same_every_time() -> None:
    for name in ("tree-16", "community-20"):
        a, b = make_splits(name), load_splits(name)
        assert (len(a.train), len(a.val), len(a.test)) == NAMED_SETS[name].counts
        assert all(nx.utils.graphs_equal(x, y) for x, y in zip(a.train + a.test, b.train + b.test, strict=True))
    with pytest.raises(ValueError, match=r"data: 'planar16', expected one of planar-16, .*, or a file \(.graphml, .*, .npz\)$"):
        load_splits("planar16")


def test_dataset_and_statistics() -> None:
    graphs = [nx.path_graph(2), nx.complete_graph(4), nx.Graph([("b", "a", {"weight": 3.0})])]
    data = dataset_from_networkx(graphs, "few")
    assert len(data) == 3
    assert data.batch([1]).edges[0].tolist() == [[int(i != j) for j in range(4)] for i in range(4)]
    assert data.batch(slice(0, 1)).edges.tolist() == [[[0, 1], [1, 0]]]
    assert data.batch(torch.tensor([2])).edges.tolist() == [[[0, 1], [1, 0]]]
    turned = nx.Graph([(2, 0), (0, 1)])
    assert dataset_from_networkx([turned]).batch([0]).edges.tolist() == [[[0, 1, 0], [1, 0, 1], [0, 1, 0]]]
    found = graph_statistics(data)
    assert found.node_counts == pytest.approx((0, 0, 2 / 3, 0, 1 / 3))
    assert found.edge_marginal == pytest.approx((0.0, 1.0))
    with pytest.raises(ValueError, match="none given"):
        dataset_from_networkx([])
    with pytest.raises(ValueError, match=r"graphs\[1\].*DiGraph"):
        dataset_from_networkx([nx.path_graph(2), nx.DiGraph([(0, 1)])])
    with pytest.raises(ValueError, match=r"graphs\[0\].*self-loop"):
        dataset_from_networkx([nx.Graph([(0, 0), (0, 1)])])


# -- files


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    graphs = (nx.path_graph(3), nx.empty_graph(2), nx.complete_graph(4))
    write_npz(tmp_path / "few.npz", GraphSplits(graphs, graphs[:1], graphs[2:]))
    return tmp_path / "few.npz"


def changed(path: Path, **arrays: np.ndarray | None) -> Path:
    with np.load(path) as before:
        kept = {name: before[name] for name in before} | arrays
    np.savez(path.with_name("changed.npz"), **{k: v for k, v in kept.items() if v is not None})
    return path.with_name("changed.npz")


def test_npz_comes_back(stored: Path) -> None:
    found = load_splits(str(stored))
    assert found.name == "few"
    assert [(len(g), g.number_of_edges()) for g in found.train] == [(3, 2), (2, 0), (4, 6)]
    assert [len(found.val), len(found.test)] == [1, 1]
    assert nx.utils.graphs_equal(found.test[0], nx.complete_graph(4))


SIZES = (("val", "node", 3), ("val", "edge", 2), ("test", "node", 4), ("test", "edge", 6))
EDGES = np.array([[0, 1], [1, 2], [0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]])


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"val_edges": None}, "no array val_edges"),
        ({"train_offsets": np.array([0, 2, 2])}, r"train: .*expected \[G\], "),
        ({"train_edges": EDGES[:, :1]}, r"train: .*expected \[G\], "),
        ({"train_offsets": np.array([0, 2, 2, 9])}, r"train: .*expected \[G\], "),
        ({"train_edges": np.where(EDGES == 3, 4, EDGES)}, "train graph 2 has an edge to node 4, expected 0 to 3"),
        ({"train_edges": np.where(EDGES == 3, -1, EDGES)}, "train graph 2 has an edge to node -1, expected 0 to 3"),
        ({"train_edges": np.where(EDGES == 1, 0, EDGES)}, "train graph 0 has a self-loop"),
        ({"train_edges": np.concatenate([EDGES[1::-1, ::-1], EDGES[2:-1], EDGES[2:3, ::-1]])}, "train graph 2 .*twice"),
        ({"train_offsets": np.array([1, 2, 2, 8])}, r"train: .*expected \[G\], "),
        ({"train_offsets": np.array([0, 5, 2, 8])}, r"train: .*expected \[G\], "),
        ({"train_edges": EDGES.astype(float)}, r"train: .*expected whole numbers"),
        ({"test_num_nodes": np.array([-4])}, "test: least num_nodes: -4"),
        ({"train_node_classes": np.zeros(9, int)}, "train_edge_classes: no such array, expected whole numbers or text of shape"),
        ({"train_node_classes": np.zeros(8, int), "train_edge_classes": np.zeros(8, int)}, r"train_node_classes: .*\(9,\)"),
        ({"train_node_classes": np.zeros(9, int), "train_edge_classes": np.zeros(8)}, "train_edge_classes: float64"),
    ],
)
def test_broken_npz(stored: Path, arrays: dict[str, np.ndarray | None], said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        read_npz(changed(stored, **arrays))
    assert "\n" not in str(error.value)


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is no file"):
        read_npz(tmp_path / "none.npz")
    for content in (b"", b"text", b"PK\x03\x04broken"):
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"bad\.npz cannot be read"):
            read_npz(tmp_path / "bad.npz")


def test_classes_are_those_of_their_nodes_in_any_order(tmp_path: Path) -> None:
    graph = nx.Graph([(2, 0), (0, 1)])
    nx.set_node_attributes(graph, {0: "zero", 1: "one", 2: "two"}, "label")
    nx.set_edge_attributes(graph, {(2, 0): "far", (0, 1): "near"}, "label")
    write_npz(tmp_path / "few.npz", GraphSplits((graph,), (graph,), (graph,)))
    found = read_npz(tmp_path / "few.npz").train[0]
    assert dict(found.nodes(data="label")) == {0: "zero", 1: "one", 2: "two"}
    assert sorted(found.edges(data="label")) == [(0, 1, "near"), (0, 2, "far")]


def test_classes_of_edges_are_those_of_their_graph_and_row(stored: Path) -> None:
    kinds, nodes = np.array(list("abcdefgh")), np.array(list("rstuvwxyz"))
    edges = EDGES.copy()
    edges[:2] = [[2, 1], [1, 0]]
    path = changed(
        stored,
        train_edges=edges,
        train_edge_classes=kinds,
        train_node_classes=nodes,
        **{f"{split}_{part}_classes": np.array(["k"] * n) for split, part, n in SIZES},
    )
    first, _, last = read_npz(path).train
    assert {frozenset(e[:2]): e[2] for e in first.edges(data="label")} == {frozenset((1, 2)): "a", frozenset((0, 1)): "b"}
    assert [last.edges[tuple(e)]["label"] for e in EDGES[2:].tolist()] == list("cdefgh")
    assert [c for _, c in last.nodes(data="label")] == list("wxyz")


def test_graphs_of_one_node_have_statistics() -> None:
    assert graph_statistics(dataset_from_networkx([nx.empty_graph(1)])).edge_marginal == (1.0, 0.0)


def with_labels(graph: nx.Graph, *, nodes: bool = True, edges: bool = True) -> nx.Graph:
    nx.set_node_attributes(graph, "a", "label") if nodes else None
    nx.set_edge_attributes(graph, "b", "label") if edges else None
    return graph


def with_attribute(graph: nx.Graph, name: str) -> nx.Graph:
    nx.set_edge_attributes(graph, "a", name)
    return graph


UNWRITABLE = {
    "directed": (nx.DiGraph([(1, 0), (2, 1)]), "is a DiGraph, expected a simple undirected graph"),
    "several edges": (nx.MultiGraph([(0, 1), (0, 1)]), "is a MultiGraph, expected a simple undirected graph"),
    "a loop": (nx.Graph([(0, 0), (0, 1)]), "is a Graph, expected a simple undirected graph"),
    "names": (nx.Graph([("a", "b")]), r"has the nodes .*, expected 0 to 1"),
    "other numbers": (nx.Graph([(5, 6)]), r"has the nodes .*, expected 0 to 1"),
    "classes by another name": (
        with_attribute(nx.path_graph(3), "kind"),
        "has the attribute 'kind', which the file would not keep, expected label alone",
    ),
    "labels of edges only": (with_labels(nx.path_graph(3), nodes=False), "has a node or an edge without label"),
    "labels in one split only": (with_labels(nx.path_graph(3)), "train graph 0 has a node or an edge without label"),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_a_graph_that_a_file_would_not_give_back_is_not_written(case: str, tmp_path: Path) -> None:
    graph, said = UNWRITABLE[case]
    with pytest.raises(ValueError, match=f"^splits: .*{said}"):
        write_npz(tmp_path / "a.npz", GraphSplits((nx.path_graph(2),), (), (graph,), "a"))
    assert not (tmp_path / "a.npz").exists()
