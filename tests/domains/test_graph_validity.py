"""The validity tests of synthetic graphs."""

import importlib.util
import itertools

import networkx as nx
import numpy as np
import pytest
from scipy.stats import chi2

from discrete_grpo.datasets.synthetic_graphs import stochastic_block_model
from discrete_grpo.domains import graph_validity
from discrete_grpo.domains.graph6 import adjacency, graph6
from discrete_grpo.domains.graph_validity import (
    SHAPES,
    block_p_value,
    has_shape,
    is_block_model,
    is_connected,
    is_planar,
    is_tree,
    louvain_blocks,
    num_components,
)
from tests.domains.test_graph_statistics import SMALL
from tests.domains.test_isomorphism import shuffled


@pytest.mark.parametrize("graph", [*SMALL, nx.empty_graph(1), nx.path_graph(2), nx.star_graph(6), nx.petersen_graph()])
def test_shapes_by_networkx(graph: nx.Graph) -> None:
    assert num_components(adjacency(graph)) == nx.number_connected_components(graph)
    for given in (graph, graph6(graph), shuffled(graph)):
        assert is_connected(given) is nx.is_connected(graph)
        assert is_tree(given) is nx.is_tree(graph)
        assert is_planar(given) is (nx.is_connected(graph) and nx.check_planarity(graph)[0])


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_no_graph_has_no_shape(shape: str) -> None:
    assert [has_shape(s, shape) for s in (None, "", "CCO!", "?")] == [False] * 4  # type: ignore[arg-type]
    with pytest.raises((ValueError, TypeError), match="shape"):  # TypeError: the beartype run
        has_shape("Bg", "cubic")  # type: ignore[arg-type]


def test_block_p_value_by_loops() -> None:
    graph, blocks = nx.gnp_random_graph(12, 0.4, seed=0), np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 1])
    ps = []
    for r, s in itertools.product(range(3), repeat=2):
        mine, other = (np.flatnonzero(blocks == k).tolist() for k in (r, s))
        joined = sum(graph.has_edge(u, v) for u in mine for v in other)
        pairs = len(mine) * (len(mine) - 1) if r == s else len(mine) * len(other)
        share, p = joined / (pairs + 1e-6), 0.3 if r == s else 0.005
        ps.append(chi2.sf((share - p) ** 2 / (share * (1 - share) + 1e-6), 1))
    assert block_p_value(adjacency(graph), blocks) == pytest.approx(float(np.mean(ps)))


def test_block_models_are_told_from_others() -> None:
    generator = np.random.default_rng(0)
    passed = [is_block_model(stochastic_block_model(generator)) for _ in range(10)]
    assert sum(passed) >= 7  # not all: a pair of blocks without an edge between them fails, as in the published test
    assert not any(is_block_model(nx.gnp_random_graph(100, 0.08, seed=k)) for k in range(3))
    assert not is_block_model(stochastic_block_model(generator, communities=(6, 6), sizes=(20, 22)))
    assert not is_block_model(stochastic_block_model(generator, sizes=(10, 15)))
    assert not is_block_model(nx.empty_graph(100))
    assert not is_block_model(nx.complete_graph(60))
    with pytest.raises((ValueError, TypeError), match="method"):  # TypeError: the beartype run
        is_block_model(nx.empty_graph(100), "spectral")  # type: ignore[arg-type]


def test_louvain_finds_blocks_whatever_the_numbering() -> None:
    graph = stochastic_block_model(np.random.default_rng(1), communities=(3, 3), sizes=(25, 25))
    blocks = louvain_blocks(adjacency(graph))
    assert sorted(np.bincount(blocks)) == [25, 25, 25]
    for k in range(3):
        assert len(set(blocks[25 * k : 25 * k + 25])) == 1
    for seed in range(3):
        other = adjacency(shuffled(graph, seed))
        assert block_p_value(other, louvain_blocks(other)) == pytest.approx(block_p_value(adjacency(graph), blocks))


def test_graph_tool_where_it_is_installed() -> None:
    if importlib.util.find_spec("graph_tool") is None:
        with pytest.raises(ImportError, match="needs the library graph-tool"):
            is_block_model(nx.cycle_graph(60), "graph_tool")
    else:
        assert is_block_model(stochastic_block_model(np.random.default_rng(3)), "graph_tool")


def test_louvain_does_not_see_the_numbering_where_blocks_are_blurred() -> None:
    for k in range(4):
        graph = stochastic_block_model(np.random.default_rng(k), communities=(5, 5), sizes=(20, 22), p_in=0.2, p_out=0.04)
        matrix = adjacency(graph)
        order = np.random.default_rng(k).permutation(len(matrix))
        blocks, other = louvain_blocks(matrix), louvain_blocks(matrix[np.ix_(order, order)])
        assert len(set(zip(blocks[order].tolist(), other.tolist(), strict=True))) == blocks.max() + 1 == other.max() + 1


@pytest.mark.parametrize(
    ("sizes", "p_value", "passes"),
    [
        ([20, 20], 0.91, True),
        ([20, 20], 0.9, False),
        ([40] * 5, 1.0, True),
        ([19, 21], 1.0, False),
        ([20, 41], 1.0, False),
        ([40], 1.0, False),
        ([20] * 6, 1.0, False),
        ([20, 20, 20, 20, 20], 1.0, True),
    ],
)
def test_block_models_have_blocks_of_the_stated_number_and_sizes(
    sizes: list[int], p_value: float, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = np.repeat(np.arange(len(sizes)), sizes)
    monkeypatch.setattr(graph_validity, "louvain_blocks", lambda matrix: blocks)
    monkeypatch.setattr(graph_validity, "block_p_value", lambda matrix, found: p_value)
    assert is_block_model(nx.cycle_graph(len(blocks))) is passes
