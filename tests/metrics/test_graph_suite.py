"""The suite of plain graphs: the values of the plain evaluation, with intervals, folds and the value of fresh graphs."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import networkx as nx
import numpy as np
import pytest

from discrete_grpo.datasets.graph_splits import load_splits
from discrete_grpo.datasets.synthetic_graphs import GraphSplits
from discrete_grpo.domains.graph6 import graph6
from discrete_grpo.metrics import graph_suite
from discrete_grpo.metrics.graph_suite import graphs
from discrete_grpo.metrics.graphs import GraphReference, evaluate, evaluate_folds
from discrete_grpo.metrics.polygraph import pgd
from discrete_grpo.metrics.suite import SuiteOptions
from tests.domains.test_isomorphism import rook, shrikhande

SPLITS = load_splits("tree-16")
REFERENCE = GraphReference(GraphSplits(SPLITS.train[:12], (), SPLITS.test[:10], "tree-16"), "tree")
TREES = [*SPLITS.val[:8], *SPLITS.train[:3], SPLITS.val[0], nx.cycle_graph(5)]
SAMPLES: list[str | None] = [*map(graph6, TREES), None, "~bad", "B?"]
OPTIONS = SuiteOptions(bootstrap=30, folds=2)


def test_values_are_those_of_the_plain_evaluation() -> None:
    plain = evaluate(SAMPLES, REFERENCE)
    found = graphs(SAMPLES, REFERENCE, OPTIONS)
    assert set(plain) - set(found.metrics) == {"num_samples"}
    for name, estimate in found.metrics.items():
        assert estimate.value == pytest.approx(plain[name], abs=1e-12), name
        assert not estimate.low > estimate.value + 1e-12
        assert not estimate.high < estimate.value - 1e-12
    assert found.metrics["vun"].value == 8 / 16  # one repeated, three of the training set, one no tree, three no tree at all
    assert found.settings == {"test_graphs": 10, "shape": "tree"}


def test_folds_are_those_of_the_plain_evaluation() -> None:
    plain = evaluate_folds(SAMPLES, REFERENCE, 2)
    for name, estimate in graphs(SAMPLES, REFERENCE, OPTIONS).metrics.items():
        assert (estimate.mean, estimate.deviation) == pytest.approx(plain[name], abs=1e-12), name
    with pytest.raises(ValueError, match="folds: 3 of 16 samples"):
        graphs(SAMPLES, REFERENCE, SuiteOptions(folds=3))


def test_a_fold_without_a_valid_graph_counts_as_zero() -> None:
    samples = [*map(graph6, SPLITS.val[:4]), None, None, None, None]
    plain, found = evaluate_folds(samples, REFERENCE, 2), graphs(samples, REFERENCE, OPTIONS).metrics
    for name in ("unique", "novel"):
        assert (found[name].mean, found[name].deviation) == plain[name] == (0.5, 0.5)


def test_the_perfect_generator() -> None:
    found = graphs(SAMPLES, REFERENCE, OPTIONS).metrics
    train, test = ([graph6(g) for g in part] for part in (REFERENCE.splits.train, REFERENCE.splits.test))
    as_samples = evaluate(train, REFERENCE)
    for name in ("mmd_degree", "mmd_orbit", "mmd_spectral", "ratio"):
        assert found[name].perfect == pytest.approx(as_samples[name], rel=1e-9)
    assert found["ratio"].perfect == pytest.approx(1.0, rel=0.1)  # but for the rounding of its denominators
    assert found["vun"].perfect == evaluate(test, REFERENCE)["vun"]
    assert found["nodes"].perfect == 16.0


def test_a_reference_in_one_part_is_not_compared_with_itself() -> None:
    test = SPLITS.test[:10]
    whole = GraphReference(GraphSplits(tuple(g.copy() for g in test), (), test), "tree")
    result = graphs(SAMPLES, whole, SuiteOptions(bootstrap=0))
    ideal = {name: estimate.perfect for name, estimate in result.metrics.items()}
    assert {name for name, value in ideal.items() if math.isnan(value)} >= {"mmd_degree", "mmd_wavelet", "ratio", "novel", "vun"}
    assert (ideal["valid"], ideal["nodes"]) == (1.0, 16.0)
    assert any(note.startswith("perfect: left out for distances, novel and vun") for note in result.notes)
    halves = GraphReference(GraphSplits(SPLITS.train[:10], (), test), "tree")  # as many, but others
    assert not any(note.startswith("perfect") for note in graphs(SAMPLES, halves, SuiteOptions(bootstrap=0)).notes)
    assert result.metrics["mmd_degree"].value == graphs(SAMPLES, REFERENCE, OPTIONS).metrics["mmd_degree"].value


def test_intervals_are_reproducible_and_can_be_left_out() -> None:
    first, second = (graphs(SAMPLES, REFERENCE, OPTIONS).metrics for _ in range(2))
    assert repr(first) == repr(second)
    assert all(math.isnan(e.low) for e in graphs(SAMPLES, REFERENCE, SuiteOptions(bootstrap=0)).metrics.values())


@pytest.mark.parametrize("samples", [[], [None, "~bad"], [graph6(nx.path_graph(4))]])
def test_few_or_no_samples(samples: list[str | None]) -> None:
    found = graphs(samples, REFERENCE, SuiteOptions(bootstrap=2)).metrics
    plain = evaluate(samples, REFERENCE)
    for name, estimate in found.items():
        assert estimate.value == pytest.approx(plain[name], abs=1e-12, nan_ok=True), name
    with pytest.raises(ValueError, match="reference: 1 test graphs, expected at least 2"):
        graphs(samples, GraphReference(GraphSplits(SPLITS.train, (), SPLITS.test[:1])))


def test_the_block_test_by_graph_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = GraphReference(REFERENCE.splits, "sbm")
    asked: list[str] = []
    monkeypatch.setattr(graph_suite, "is_block_model", lambda graph, method: asked.append(method))
    assert graphs(SAMPLES, reference, SuiteOptions(bootstrap=0)).settings["sbm_method"] == "louvain"
    assert set(asked) == {"louvain"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="sbm_method: 'graph-tool' needs the library graph-tool"):
        graphs(SAMPLES, reference, SuiteOptions(sbm_method="graph-tool"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    graphs(SAMPLES, reference, SuiteOptions(bootstrap=0, sbm_method="graph-tool"))
    assert asked[-1] == "graph_tool"


def test_polygraph_discrepancy_by_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    class StandardPGD:
        def __init__(self, reference: list[nx.Graph]) -> None:
            self.reference = reference

        def compute(self, generated: list[nx.Graph]) -> dict[str, Any]:
            return {"pgd": np.float64(len(generated) / 100), "pgd_descriptor": "orbit4", "subscores": {}}

    package, metrics = ModuleType("polygraph"), ModuleType("polygraph.metrics")
    metrics.StandardPGD = StandardPGD  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "polygraph", package)
    monkeypatch.setitem(sys.modules, "polygraph.metrics", metrics)
    found = graphs(SAMPLES, REFERENCE, SuiteOptions(bootstrap=0))
    assert found.metrics["pgd"].value == 14 / 100  # all that can be read
    assert found.metrics["pgd"].perfect == 12 / 100
    assert found.notes == ()
    monkeypatch.setitem(sys.modules, "polygraph.metrics", None)
    said = "pgd: left out, it needs polygraph-benchmark; pip install 'discrete-grpo[polygraph]'"
    assert graphs(SAMPLES, REFERENCE, SuiteOptions(bootstrap=0)).notes == (said,)
    with pytest.raises(ImportError, match="polygraph-benchmark"):
        pgd([], [])


@pytest.mark.parametrize("train", [rook(), nx.path_graph(4)])
def test_what_is_not_decided_counts_as_in_the_plain_evaluation(train: nx.Graph) -> None:
    """The first training graph may be equal to a sample, which is drawn twice; the second is none, and two samples may be equal."""
    reference = GraphReference(GraphSplits((train,), (), SPLITS.test[:3]), budget=5)
    samples = [graph6(shrikhande()), graph6(nx.path_graph(3)), graph6(rook()), graph6(shrikhande())]
    plain, found = evaluate(samples, reference), graphs(samples, reference, SuiteOptions(bootstrap=0)).metrics
    assert plain["undecided"] > 0
    for name in ("unique", "novel", "vun", "undecided"):
        assert found[name].value == pytest.approx(plain[name], abs=1e-12), name
