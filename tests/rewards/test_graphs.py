"""Rewards on plain graphs, against their formulas written out."""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from discrete_grpo.core.reward_arguments import reward_name
from discrete_grpo.core.scoring import RewardError, score_samples
from discrete_grpo.datasets.graph_splits import write_npz
from discrete_grpo.datasets.synthetic_graphs import GraphSplits, planar, tree
from discrete_grpo.domains.graph6 import graph6
from discrete_grpo.domains.graph_statistics import SIGMA, clustering, degree, mmd, orbit
from discrete_grpo.rewards.graphs import (
    NovelTo,
    ShapeMatch,
    SingleMMD,
    connected,
    jensen_shannon,
    planar_valid,
    sbm_valid,
    tree_closeness,
    tree_valid,
)
from discrete_grpo.rewards.identity import reward_identity
from tests.domains.test_isomorphism import shuffled

TRAIN = tuple(planar(10, np.random.default_rng(k)) for k in range(6))
SAMPLES = [graph6(g) for g in (planar(12, np.random.default_rng(9)), nx.complete_graph(6), tree(8, np.random.default_rng(0)))]
BAD = [None, "", "no graph", "?"]


@pytest.fixture
def data(tmp_path: Path) -> str:
    write_npz(tmp_path / "few.npz", GraphSplits(TRAIN, TRAIN[:1], TRAIN[:1]))
    return str(tmp_path / "few.npz")


@pytest.fixture(params=["match", "mmd", "novel", "planar", "tree", "sbm", "connected", "closeness"])
def reward(request: pytest.FixtureRequest, data: str) -> Callable[..., list[float | None]]:
    made: dict[str, Callable[..., Any]] = {
        "match": ShapeMatch(data),
        "mmd": SingleMMD(data),
        "novel": NovelTo(ShapeMatch(data), data),
        "planar": planar_valid,
        "tree": tree_valid,
        "sbm": sbm_valid,
        "connected": connected,
        "closeness": tree_closeness,
    }
    return made[request.param]


def test_laws_of_every_reward(reward: Callable[..., list[float | None]]) -> None:
    scores = reward([*BAD, *SAMPLES], label=[0] * 7)
    assert scores[:4] == [0.0] * 4
    assert all(x is not None and 0 <= x <= 1 for x in scores)
    assert reward([]) == []
    assert reward(BAD) == [0.0] * 4
    assert score_samples([reward], [*BAD, *SAMPLES]).shape == (7, 1)
    renamed = [graph6(shuffled(g, 3)) for g in map(nx.from_graph6_bytes, map(str.encode, SAMPLES))]
    assert reward(renamed) == pytest.approx(scores[4:])
    assert reward_name(reward)


def test_validity_by_hand() -> None:
    assert planar_valid(SAMPLES) == [1.0, 0.0, 1.0]
    assert tree_valid(SAMPLES) == [0.0, 0.0, 1.0]
    assert connected([*SAMPLES, graph6(nx.empty_graph(2))]) == [1.0, 1.0, 1.0, 0.0]
    assert sbm_valid(SAMPLES) == [0.0, 0.0, 0.0]


def test_tree_closeness_counts_edits() -> None:
    graphs = [nx.path_graph(5), nx.cycle_graph(5), nx.empty_graph(5), nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(4))]
    assert tree_closeness([graph6(g) for g in graphs]) == [1, 1 / 2, 1 / 5, 1 / 4]
    for seed in range(20):
        graph = nx.gnp_random_graph(7, 0.3, seed=seed)
        kept = nx.minimum_spanning_tree(graph).number_of_edges()
        edits = (len(graph) - 1 - kept) + (graph.number_of_edges() - kept)
        assert tree_closeness([graph6(graph)]) == [1 / (1 + edits)]


def test_jensen_shannon_by_loops() -> None:
    rng = np.random.default_rng(0)
    for p, q in ((rng.random(4), rng.random(6)), (np.array([0.0, 2.0]), np.array([1.0, 0.0, 1.0]))):
        a, b = ([*(x / x.sum()), 0, 0, 0, 0][:6] for x in (p, q))
        m = [(x + y) / 2 for x, y in zip(a, b, strict=True)]
        kl = sum(x * math.log(x / z) for x, z in zip([*a, *b], [*m, *m], strict=True) if x > 0)
        assert jensen_shannon(p, q) == pytest.approx(kl / 2, abs=1e-14)
        assert jensen_shannon(q, p) == pytest.approx(kl / 2, abs=1e-14)
        assert jensen_shannon(p, 3 * p) == 0.0
    assert jensen_shannon(np.array([1.0]), np.array([0.0, 1.0])) == pytest.approx(math.log(2))


def test_shape_match_by_its_formula(data: str) -> None:
    pooled_degrees = np.zeros(20)
    pooled_clustering = np.zeros(100)
    for graph in TRAIN:
        for _, d in graph.degree():
            pooled_degrees[d] += 1
        pooled_clustering += np.histogram(list(nx.clustering(graph).values()), bins=100, range=(0, 1))[0]
    mean_orbit = sum(orbit(g) for g in TRAIN) / len(TRAIN)

    def expected(line: str) -> float:
        graph = nx.from_graph6_bytes(line.encode())
        found = math.exp(-5 * jensen_shannon(degree(graph), pooled_degrees))
        found += math.exp(-5 * jensen_shannon(clustering(graph), pooled_clustering))
        found += math.exp(-np.abs(orbit(graph) - mean_orbit).mean())
        return (1 + 0.2 * found) / 1.6

    assert ShapeMatch(data)(SAMPLES) == pytest.approx([expected(SAMPLES[0]), 0.0, expected(SAMPLES[2])])
    assert ShapeMatch(data, "tree")(SAMPLES) == pytest.approx([0.0, 0.0, expected(SAMPLES[2])])
    assert ShapeMatch(data, "connected")(SAMPLES)[1] == pytest.approx(expected(SAMPLES[1]))
    assert max(ShapeMatch(data)(SAMPLES)) > 0.625  # what validity alone is worth


def test_shape_match_weighs_all_training_nodes_alike(tmp_path: Path) -> None:
    write_npz(tmp_path / "two.npz", GraphSplits((nx.path_graph(2), nx.cycle_graph(8)), (), ()))
    degrees, _, orbits = ShapeMatch(str(tmp_path / "two.npz")).reference
    assert degrees == pytest.approx([0, 0.2, 0.8])
    assert orbits[0] == pytest.approx(1.5)  # graphs alike


def test_single_mmd_by_its_formula(data: str) -> None:
    for line, score, valid in zip(SAMPLES, SingleMMD(data)(SAMPLES), [1, 0, 1], strict=True):
        parts = [math.exp(-mmd([line], TRAIN, kind) / 0.01) for kind in ("degree", "clustering", "orbit")]
        assert score == pytest.approx(0.2 * sum(parts) / 3 + 0.8 * valid)
    own = SingleMMD(data)([graph6(TRAIN[0])])[0]
    assert 0.8 < own < 1
    assert SIGMA["clustering"] == 0.1


def test_a_file_that_was_written_anew_is_read_again(data: str) -> None:
    def found() -> list[Any]:
        made = (ShapeMatch(data), SingleMMD(data), NovelTo(planar_valid, data))
        return [(reward_identity(made[0]), [one([graph6(TRAIN[0])]) for one in made])]

    (before,), (same,) = found(), found()
    write_npz(Path(data), GraphSplits((nx.path_graph(3), nx.star_graph(7)), (), ()))
    ((identity, scores),) = found()
    assert before == same
    assert identity != before[0]
    assert [new != old for new, old in zip(scores, before[1], strict=True)] == [True, True, True]
    assert scores[2] == [1.0]


def test_novelty_gate(data: str) -> None:
    fresh, seen = SAMPLES[0], graph6(shuffled(TRAIN[2], 5))
    again = graph6(shuffled(nx.from_graph6_bytes(fresh.encode()), 4))
    gate = NovelTo(planar_valid, data)
    assert gate([fresh, seen, again, SAMPLES[1], None, SAMPLES[2]]) == [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    assert gate([fresh]) == [1.0]  # a batch does not remember the one before
    assert gate.name == "novel planar_valid"

    def unknown(samples: list[str | None], **columns: Any) -> list[float | None]:
        return [None if k == 0 else 2.0 for k, _ in enumerate(samples)]

    assert NovelTo(unknown, data)([fresh, again, seen, None]) == [None, 2.0, 0.0, 0.0]
    with pytest.raises(RewardError, match="returned 1 values for 2 samples"):
        NovelTo(functools.partial(lambda samples, **columns: [1.0]), data)(SAMPLES[:2])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ShapeMatch("planar16"), "data: 'planar16', expected one of planar-16"),
        (lambda: ShapeMatch("tree-16", "cubic"), "shape"),  # type: ignore[arg-type]
        (lambda: SingleMMD("tree-16", "cubic"), "shape"),  # type: ignore[arg-type]
        (lambda: NovelTo(planar_valid, "no-set"), "data: 'no-set'"),
        (lambda: NovelTo("planar_valid", "tree-16"), "reward"),  # type: ignore[arg-type]
        (lambda: NovelTo(planar_valid, None), "data"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments_are_named_when_made(make: Callable[[], object], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):  # TypeError: the beartype run
        make()


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is no file"):
        SingleMMD(str(tmp_path / "none.npz"))
