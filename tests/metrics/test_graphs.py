"""The table of plain graphs: V.U.N., MMDs and ratio, and the files that hold graphs."""

import gzip
import math
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from discrete_grpo.datasets.graph_splits import write_npz
from discrete_grpo.datasets.synthetic_graphs import GraphSplits, tree
from discrete_grpo.domains.graph6 import graph6
from discrete_grpo.domains.graph_statistics import DESCRIPTORS, mmd
from discrete_grpo.metrics.graphs import GraphReference, distances, evaluate, evaluate_folds, ratio, read_graphs, sample_metrics
from tests.domains.test_isomorphism import rook, shrikhande, shuffled

TRAIN = (nx.path_graph(4), nx.star_graph(3), nx.cycle_graph(4))
TREES = [tree(10, np.random.default_rng(k)) for k in range(30)]
FEW_TREES = GraphSplits(tuple(TREES[:15]), (), tuple(TREES[15:]), "few trees")
TEST = (nx.path_graph(5), nx.star_graph(4), nx.path_graph(3))
SPLITS = GraphSplits(TRAIN, (), TEST, "few")
PATH3, PATH4, PATH5 = (graph6(nx.path_graph(n)) for n in (3, 4, 5))
TRIANGLE, LONE = graph6(nx.complete_graph(3)), graph6(nx.empty_graph(3))


def test_table_by_hand() -> None:
    samples = [PATH3, graph6(shuffled(nx.path_graph(3), 1)), PATH4, PATH5, TRIANGLE, LONE, None, "no graph"]
    found = evaluate(samples, GraphReference(SPLITS, "tree"))
    expected = {"num_samples": 8, "valid": 4 / 8, "unique": 3 / 4, "novel": 2 / 3, "vun": 2 / 8, "undecided": 0, "connected": 5 / 8}
    expected |= {"nodes": 21 / 6, "edges": (2 + 2 + 3 + 4 + 3) / 6}
    assert {k: found[k] for k in expected} == pytest.approx(expected)
    assert found["vun"] == pytest.approx(found["valid"] * found["unique"] * found["novel"])
    readable = samples[:6]
    for kind in DESCRIPTORS:
        assert found[f"mmd_{kind}"] == pytest.approx(mmd(readable, TEST, kind))
    floor = {kind: round(mmd(TRAIN, TEST, kind), 4) for kind in DESCRIPTORS}
    parts = [found[f"mmd_{kind}"] / floor[kind] for kind in DESCRIPTORS if floor[kind]]
    assert found["ratio"] == pytest.approx(sum(parts) / len(parts))
    assert {k: v for k, v in found.items() if k in evaluate(samples, shape="tree")} == pytest.approx(
        evaluate(samples, shape="tree")
    )
    assert sample_metrics(samples, "tree") == pytest.approx({"valid": 4 / 8, "unique": 3 / 4})
    assert sample_metrics(samples) == pytest.approx({"valid": 5 / 8, "unique": 4 / 5})


@pytest.mark.parametrize("samples", [[], [None], [LONE]])
def test_table_of_nothing_valid(samples: list[str | None]) -> None:
    found = evaluate(samples, GraphReference(SPLITS, "tree"))
    assert [found[k] for k in ("valid", "unique", "novel", "vun")] == [0.0] * 4
    assert math.isnan(found["ratio"]) is (LONE not in samples)


def test_table_does_not_see_the_numbering() -> None:
    reference = GraphReference(FEW_TREES, "tree")
    graphs = [tree(16, np.random.default_rng(k)) for k in range(20)]
    assert evaluate([graph6(shuffled(g, k)) for k, g in enumerate(graphs)], reference) == pytest.approx(
        evaluate([graph6(g) for g in graphs], reference)
    )


def test_training_graphs_are_not_novel_and_match_the_floor() -> None:
    reference = GraphReference(FEW_TREES, "tree")
    found = evaluate([graph6(shuffled(g, k)) for k, g in enumerate(FEW_TREES.train)], reference)
    assert (found["valid"], found["novel"], found["vun"]) == (1.0, 0.0, 0.0)
    assert found["ratio"] == pytest.approx(1, abs=0.06)  # not 1, as the denominator is rounded to four digits
    assert distances([graph6(g) for g in FEW_TREES.test], reference)["spectral"] == pytest.approx(0, abs=1e-12)


def test_ratio_skips_what_is_zero() -> None:
    assert ratio({"degree": 3.0, "orbit": 1.0, "spectral": 4.0}, {"degree": 1.0, "orbit": 0.0, "spectral": 1.0}) == 3.5
    assert math.isnan(ratio({"degree": 3.0}, {"degree": 0.0}))


def test_what_is_not_decided_counts_as_the_same() -> None:
    splits = GraphSplits((rook(),), (), TEST)
    samples = [graph6(shrikhande()), PATH3, graph6(shrikhande())]
    bounded = evaluate(samples, GraphReference(splits, budget=5))
    assert (bounded["vun"], bounded["unique"], bounded["undecided"]) == pytest.approx((1 / 3, 2 / 3, 1 / 3))
    assert evaluate(samples, GraphReference(splits))["vun"] == pytest.approx(2 / 3)


def test_folds() -> None:
    reference = GraphReference(SPLITS, "tree")
    found = evaluate_folds([PATH3, PATH3, PATH5, TRIANGLE], reference, folds=2)
    assert found["vun"] == pytest.approx((0.5, 0.0))
    assert found["valid"] == pytest.approx((0.75, 0.25))
    assert found["unique"] == pytest.approx((0.75, 0.25))
    for folds, samples in ((3, [PATH3] * 4), (0, [PATH3]), (1, [])):
        with pytest.raises(ValueError, match=f"folds: {folds} of {len(samples)} samples"):
            evaluate_folds(samples, reference, folds=folds)
    with pytest.raises((ValueError, TypeError), match="shape"):  # TypeError: the beartype run
        GraphReference(SPLITS, "cubic")  # type: ignore[arg-type]


# -- files


def test_files_of_graphs(tmp_path: Path) -> None:
    text = f"{PATH3}\n\nno graph\n{TRIANGLE}\n?\n"
    (tmp_path / "a.g6").write_text(text)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("a.g6", "a.txt.gz"):
        found = read_graphs(tmp_path / name)
        assert found.graphs == (PATH3, TRIANGLE)
        assert found.broken == ((3, "no graph"), (5, "?"))
        assert found.samples == [PATH3, None, TRIANGLE, None]
    (tmp_path / "a.csv").write_text(f"step,graph\n1,{PATH3}\n1,\n2,bad\n")
    assert read_graphs(tmp_path / "a.csv").graphs == (PATH3,)
    assert read_graphs(tmp_path / "a.csv").broken == ((3, ""), (4, "bad"))
    write_npz(tmp_path / "a.npz", SPLITS)
    assert read_graphs(tmp_path / "a.npz").graphs == tuple(graph6(g) for g in TEST)


def test_files_that_hold_no_graphs(tmp_path: Path) -> None:
    files = {"a.smi": b"C", "b.g6": b"\n", "c.csv": b"smiles\nC\n", "d.txt.gz": b"plain", "e.txt": b"\xff\xfe", "f.csv": b""}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"^file: .*{name}.* expected"):
            read_graphs(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_graphs(tmp_path / "none.g6")


def test_a_sample_that_may_repeat_another_is_not_novel() -> None:
    found = evaluate([graph6(rook()), graph6(shrikhande())], GraphReference(SPLITS, budget=5))
    assert (found["unique"], found["novel"], found["vun"], found["undecided"]) == (0.5, 1.0, 0.5, 0.5)
