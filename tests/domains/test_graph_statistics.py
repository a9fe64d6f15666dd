"""Descriptors and MMDs of graphs, against enumeration, networkx and double loops."""

import itertools
import math

import networkx as nx
import numpy as np
import pytest

from discrete_grpo.datasets.graph_splits import read_npz
from discrete_grpo.datasets.synthetic_graphs import planar, tree
from discrete_grpo.domains.graph6 import graph6
from discrete_grpo.domains.graph_statistics import (
    DESCRIPTORS,
    SIGMA,
    clustering,
    degree,
    descriptor_table,
    descriptor_tables,
    gaussian_tv_kernel,
    mean_kernel,
    mmd,
    orbit,
    orbit_counts,
    spectral,
    wavelet,
    wavelet_filters,
)
from tests.domains.test_isomorphism import shuffled
from tests.shared_data import SHARED

SMALL = [nx.gnp_random_graph(4 + k % 6, (k % 9 + 1) / 9.5, seed=k) for k in range(40)]


def orbits_by_enumeration(graph: nx.Graph) -> np.ndarray:
    """Every connected induced subgraph of 2 to 4 nodes, told apart by its edges and degrees."""
    counts = np.zeros((len(graph), 15), dtype=int)
    by_degree = {
        (2, 1): {1: 0},
        (3, 2): {1: 1, 2: 2},
        (3, 3): {2: 3},
        (4, 4): {1: 9, 2: 10, 3: 11},
        (4, 5): {2: 12, 3: 13},
        (4, 6): {3: 14},
    }
    for size in (2, 3, 4):
        for nodes in itertools.combinations(graph, size):
            part = graph.subgraph(nodes)
            if not nx.is_connected(part):
                continue
            degrees, edges = dict(part.degree()), part.number_of_edges()
            if (size, edges) == (4, 3):
                table = {1: 6, 3: 7} if 3 in degrees.values() else {1: 4, 2: 5}
            elif (size, edges) == (4, 4) and set(degrees.values()) == {2}:
                table = {2: 8}
            else:
                table = by_degree[size, edges]
            for v in nodes:
                counts[v, table[degrees[v]]] += 1
    return counts


@pytest.mark.parametrize("graph", SMALL, ids=lambda g: f"{len(g)}-{g.number_of_edges()}")
def test_orbit_counts_by_enumeration(graph: nx.Graph) -> None:
    expected = orbits_by_enumeration(graph)
    assert np.array_equal(orbit_counts(graph), expected)
    assert np.array_equal(orbit_counts(graph6(graph)), expected)
    assert orbit(graph) == pytest.approx(expected.mean(0))


def test_orbit_counts_of_every_orbit() -> None:
    assert (sum(orbits_by_enumeration(g).sum(0) for g in SMALL) > 0).all()
    assert orbit_counts(nx.complete_graph(60))[0, 14] == math.comb(59, 3)
    assert orbit_counts(nx.star_graph(50))[0, 7] == math.comb(50, 3)


@pytest.mark.parametrize("graph", [*SMALL[:12], nx.empty_graph(3), nx.cycle_graph(6), nx.star_graph(5), nx.empty_graph(1)])
def test_histograms_by_networkx(graph: nx.Graph) -> None:
    n = len(graph)
    assert degree(graph) == pytest.approx(np.array(nx.degree_histogram(graph)) / (n + 1e-6))
    bins = np.histogram(list(nx.clustering(graph).values()), bins=100, range=(0.0, 1.0))[0]
    assert clustering(graph) == pytest.approx(bins / (n + 1e-6))
    values, vectors = np.linalg.eigh(nx.normalized_laplacian_matrix(graph).toarray())
    bins = np.histogram(values.clip(0, 2), bins=200, range=(-1e-5, 2))[0] / n
    assert spectral(graph) == pytest.approx(bins / (1 + 1e-6))
    bound = wavelet_filters(np.arange(0, 2, 0.01)).max()
    filtered = [vectors @ np.diag(g) @ vectors.T for g in wavelet_filters(values)]
    counts = np.concatenate([np.histogram((f**2).sum(1), bins=100, range=(0, bound))[0] for f in filtered])
    assert wavelet(graph) == pytest.approx(counts / (counts.sum() + 1e-6))


def test_wavelet_filters() -> None:
    """The conditions that define the bank, and values of PyGSP 0.6.1's ``Abspline`` with 12 filters and lmax 2."""
    x = np.linspace(0, 2, 401)
    found = wavelet_filters(x)
    assert found.shape == (12, 401)
    at = wavelet_filters(np.array([0.05, 0.1, 0.025, 2.0, 1.0]))  # scale 20 of the first band: 1, 2, ½, 40, 20
    assert at[1] == pytest.approx([1, 1, 0.25, 4 / 1600, 4 / 400])
    assert at[11] == pytest.approx([0.025**2, 0.05**2, 0.0125**2, 1, 0.25])
    step = 1e-6
    around = wavelet_filters(np.array([0.05 - step, 0.05 + step, 0.1 - step, 0.1 + step]))[1]
    assert (around[1] - around[0]) / (2 * step) / 20 == pytest.approx(2, abs=1e-3)
    assert (around[3] - around[2]) / (2 * step) / 20 == pytest.approx(-1, abs=1e-3)
    assert found[0, 0] == pytest.approx(found[1:].max(), abs=1e-3)
    assert found[0, 12] == pytest.approx(found[0, 0] / math.e)  # x = 0.06


@pytest.mark.parametrize("kind", DESCRIPTORS)
def test_mmd_by_double_loops(kind: str) -> None:
    a, b = SMALL[:6], SMALL[20:29]

    def k(x: np.ndarray, y: np.ndarray) -> float:
        width = max(len(x), len(y))
        half = sum(abs((x[i] if i < len(x) else 0.0) - (y[i] if i < len(y) else 0.0)) for i in range(width)) / 2
        return math.exp(-half * half / (2 * SIGMA[kind] ** 2))  # type: ignore[index]

    describe_one = {"degree": degree, "clustering": clustering, "orbit": orbit, "spectral": spectral, "wavelet": wavelet}[kind]
    x, y = ([describe_one(g) for g in graphs] for graphs in (a, b))
    means = [sum(k(p, q) for p in one for q in two) / (len(one) * len(two)) for one, two in ((x, x), (y, y), (x, y))]
    assert mmd(a, b, kind) == pytest.approx(abs(means[0] + means[1] - 2 * means[2]), abs=1e-12)  # type: ignore[arg-type]
    assert mmd([graph6(g) for g in a], [*b, nx.empty_graph(0)], kind) == pytest.approx(mmd(a, b, kind))  # type: ignore[arg-type]
    assert mmd(a, a, kind) == pytest.approx(0, abs=1e-12)  # type: ignore[arg-type]
    assert math.isnan(mmd(a, [], kind))  # type: ignore[arg-type]
    assert math.isnan(mmd([nx.empty_graph(0)], a, kind))  # type: ignore[arg-type]


def test_kernel_pads_the_shorter() -> None:
    assert gaussian_tv_kernel(np.array([[1.0]]), np.array([[0.0, 1.0]]), 1.0) == pytest.approx(math.exp(-0.5))


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_mean_kernel_is_the_mean_over_all_pairs(rows: int) -> None:
    x = np.random.default_rng(rows).random((rows, 5))
    x[:, 3] = 0  # a bin that is empty in every row
    assert mean_kernel(x, 0.7) == pytest.approx(gaussian_tv_kernel(x, x, 0.7).mean(), abs=1e-14)


def test_tables_of_all_descriptors_are_those_of_each() -> None:
    """Graphs as graph6 lines, as objects and as matrices; those without nodes are left out."""
    graphs = [graph6(SMALL[0]), SMALL[1], nx.empty_graph(0), nx.to_numpy_array(SMALL[2], dtype=bool), nx.empty_graph(1)]
    tables = descriptor_tables(graphs)
    assert list(tables) == list(DESCRIPTORS)
    for kind, table in tables.items():
        assert np.array_equal(table, descriptor_table([*SMALL[:3], nx.empty_graph(1)], kind))
    assert {kind: t.shape for kind, t in descriptor_tables([], ("orbit", "wavelet")).items()} == {
        "orbit": (0, 0),
        "wavelet": (0, 0),
    }


@pytest.mark.parametrize("kind", DESCRIPTORS)
def test_descriptors_do_not_see_the_numbering(kind: str) -> None:
    graphs = [planar(20, np.random.default_rng(0)), tree(20, np.random.default_rng(1)), nx.gnp_random_graph(20, 0.2, seed=2)]
    assert descriptor_table([shuffled(g) for g in graphs], kind) == pytest.approx(descriptor_table(graphs, kind))  # type: ignore[arg-type]


# Of the published splits, train against test, as the tables of the field give them.
PUBLISHED = {
    "planar": {"degree": 0.0002, "clustering": 0.0310, "orbit": 0.0005, "spectral": 0.0038},
    "sbm": {"degree": 0.0008, "clustering": 0.0332, "orbit": 0.0255, "spectral": 0.0027},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_reference_values_of_the_published_splits(name: str) -> None:
    if not (SHARED / f"{name}.npz").is_file():
        pytest.skip("no shared data here")
    splits = read_npz(SHARED / f"{name}.npz")
    found = {kind: round(mmd(splits.train, splits.test, kind), 4) for kind in DESCRIPTORS if kind != "wavelet"}
    assert found == PUBLISHED[name]


def test_values_of_a_small_set() -> None:
    """Frozen, so that no change of convention goes unseen."""
    generator = np.random.default_rng(0)
    a, b = ([planar(12, generator) for _ in range(count)] for count in (10, 8))
    found = {kind: mmd(a, b, kind) for kind in DESCRIPTORS}
    expected = {"degree": 0.001003, "clustering": 0.230438, "orbit": 0.001171, "spectral": 0.050666, "wavelet": 0.01777}
    assert found == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("kind", [int, float])
def test_a_matrix_of_numbers_is_read_as_one_of_bools(kind: type) -> None:
    graph = nx.complete_graph(5)
    matrix = nx.to_numpy_array(graph, dtype=kind)
    assert orbit_counts(matrix).tolist() == orbit_counts(graph).tolist()
    for descriptor, table in descriptor_tables([matrix]).items():
        assert table.tolist() == descriptor_table([graph], descriptor).tolist()
