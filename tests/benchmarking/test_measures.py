"""Numbers of a row and the table, against hand-made ledgers and independent computations."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

import pytest
from rdkit import Chem, DataStructs
from rdkit.Chem import AllChem

from discrete_grpo.benchmarking.measures import best_calls, curve, measure, pairwise_diversity
from discrete_grpo.benchmarking.table import (
    cell_text,
    column_name,
    make_table,
    mean_and_spread,
    published_rows,
    rank_methods,
    total_text,
)
from discrete_grpo.domains.molecule_properties import sa_score
from discrete_grpo.rewards.auc import auc_top_k
from discrete_grpo.rewards.ledger import Ledger, molecule_key
from tests.benchmarking.parts import CARBONS

# -- rows


def test_the_curve_is_that_of_the_area() -> None:
    scores = [((7 * k) % 101) / 101 for k in range(300)]
    points = dict(curve(scores, budget=400))
    assert points[0] == 0.0
    assert points[400] == pytest.approx(statistics.mean(sorted(scores)[-10:]))
    for place, value in points.items():
        best = sorted(scores[:place])[-10:]
        assert value == pytest.approx(sum(best) / len(best) if best else 0.0)
    assert len(points) < 40  # or the chart of the page would smooth it
    assert list(points) == sorted(points)


def test_unknown_scores_are_no_best_ones() -> None:
    assert best_calls([math.nan, 0.1, 0.3, 0.3], 3) == [2, 3, 1]
    assert curve([math.nan, 0.5], budget=2, k=1) == [(0, 0.0), (1, 0.0), (2, 0.5)]


def test_diversity_is_that_of_tdc() -> None:
    smiles = ["CCO", "CCN", "c1ccccc1", "CC(=O)Oc1ccccc1C(=O)O"]
    prints = [AllChem.GetMorganFingerprintAsBitVect(Chem.MolFromSmiles(s), 2, nBits=2048) for s in smiles]  # type: ignore[attr-defined]
    pairs = [1 - DataStructs.TanimotoSimilarity(a, b) for a, b in itertools.combinations(prints, 2)]
    assert pairwise_diversity(smiles) == pytest.approx(statistics.mean(pairs))


def test_a_row_counts_every_call_by_its_source() -> None:
    ledger = Ledger(key=molecule_key, max_oracle_calls=4)
    ledger.score([CARBONS], ["C", "CC", "C.C", None], source="screen")
    ledger.score([CARBONS], ["CC", "CCCC", "OC", "CCCCCC"], source=["policy", "children", "policy", "policy"])
    row = measure(ledger, 4, "molecules", "carbons")
    scores = [0.05, 0.1, 0.2, 0.05]
    assert (row["calls"], row["sources"]) == (4, {"children": 1, "policy": 1, "screen": 2})
    assert (row["asked"], row["valid_share"]) == (8, 0.75)
    assert row["auc_top10"] == auc_top_k(scores, 10, 4, 1)
    assert row["auc_top1"] == auc_top_k(scores, 1, 4, 1)
    assert (row["top1"], row["top10"]) == (0.2, pytest.approx(0.1))
    assert row["best"][:2] == [["CCCC", 0.2], ["CC", 0.1]]
    assert row["sa_top10"] == pytest.approx(statistics.mean(sa_score(Chem.MolFromSmiles(s)) for s in ("C", "CC", "CCCC", "CO")))
    assert row["diversity_top100"] == pairwise_diversity(["C", "CC", "CCCC", "CO"])


def test_a_row_without_calls_has_no_numbers() -> None:
    row = measure(Ledger(key=molecule_key), 10, "molecules", "carbons")
    assert (row["calls"], row["auc_top10"], row["top10"], row["diversity_top100"], row["valid_share"]) == (0, 0.0, None, None, None)


# -- the table


def about(**more: Any) -> dict[str, Any]:
    tasks = {"one": {"published": {"A": 0.4}}, "two": {"published": {"A": 0.5, "B": 0.1}, "published_prescreened": {"C": 0.9}}}
    return {"tasks": tasks, "methods": {"x": {}, "y": {}}, "seeds": [0, 1], **more}


def row(task: str, method: str, seed: int, value: float) -> dict[str, Any]:
    return {"task": task, "method": method, "seed": seed, "auc_top10": value}


ROWS = [
    row("one", "x", 0, 0.5),
    row("one", "x", 1, 0.7),
    row("two", "x", 0, 0.2),
    row("two", "x", 1, 0.4),
    row("one", "y", 0, 0.9),
    row("one", "y", 1, 0.9),
    row("two", "y", 0, 1.0),
]


def test_missing_cells_are_said_and_never_filled() -> None:
    failed = [{"task": "two", "method": "y", "seed": 1, "error": "KeyError: x"}]
    table = make_table(about(), ROWS, failed)
    assert cell_text(table.cells["one", "x"]) == "0.600 ± 0.141"
    assert cell_text(table.cells["two", "y"]) == "1.000 (1 of 2 seeds)"

    assert table.cells["two", "y"].failures == ("seed 1: KeyError: x",)
    assert table.common == ("one",)
    assert table.ranks == {"x": 2.0, "y": 1.0}  # over task one alone
    assert total_text(table.totals["x"]) == "0.900 ± 0.283 (2)"
    assert total_text(table.totals["y"]) == "0.900 ± 0.000 (1)"
    assert (table.common_totals["x"].mean, table.common_totals["x"].tasks) == (0.6, 1)
    three = make_table(about(methods={"x": {}, "y": {}, "z": {}}), ROWS, [])
    assert three.ranks == {"x": 2.0, "y": 1.0, "z": None}  # a method without results does not take the others' ranks
    assert total_text(three.common_totals["z"]) == "– (0)"
    empty = make_table(about(), [], failed)
    assert [cell_text(empty.cells["two", method]) for method in ("x", "y")] == ["missing", "failed"]
    assert empty.ranks == {"x": None, "y": None}
    assert total_text(empty.totals["x"]) == "– (0)"


def test_mean_spread_and_ranks() -> None:
    assert mean_and_spread([0.1, 0.4, 0.7]) == pytest.approx((0.4, statistics.stdev([0.1, 0.4, 0.7])))
    assert mean_and_spread([0.1]) == (0.1, None)
    assert mean_and_spread([]) == (None, None)
    assert rank_methods({"a": 0.1, "b": 0.3, "c": 0.3, "d": 0.2}) == {"a": 4.0, "b": 1.5, "c": 1.5, "d": 3.0}


def test_published_rows_say_what_they_did_not_count() -> None:
    found = published_rows(about())
    assert [(one.name, dict(one.scores)) for one in found] == [
        ("A", {"one": 0.4, "two": 0.5}),
        ("B", {"two": 0.1}),
        ("C*", {"two": 0.9}),
    ]
    assert "prescreen" in found[2].uncounted
    assert "prescreen" not in found[0].uncounted


def test_a_method_that_was_asked_for_fewer_seeds_is_whole_with_them() -> None:
    told = {"tasks": ["one"], "methods": {"x": {"seeds": [0]}, "y": {}}, "seeds": [0, 1]}
    rows = [{"task": "one", "method": m, "seed": s, "auc_top10": v} for m, s, v in (("x", 0, 0.5), ("y", 0, 0.25), ("y", 1, 0.75))]
    rows.append({"task": "one", "method": "x", "seed": 1, "auc_top10": 0.9})  # nobody asked for it
    table = make_table(told, rows, [])
    assert (cell_text(table.cells["one", "x"]), total_text(table.totals["x"])) == ("0.500", "0.500 (1)")
    assert total_text(table.common_totals["y"]) == "0.500 ± 0.354 (1)"
    assert table.ranks == {"x": 1.5, "y": 1.5}
    assert [column_name(told, name) for name in ("x", "y")] == ["x (seed 0)", "y"]


def test_the_accessibility_of_a_row_is_that_of_its_ten_best() -> None:
    ledger = Ledger(key=molecule_key)
    ledger.score([CARBONS], ["C" * count for count in range(1, 15)])
    row = measure(ledger, 14, "molecules", "carbons")
    best = [sa_score(Chem.MolFromSmiles("C" * count)) for count in range(5, 15)]
    assert row["sa_top10"] == pytest.approx(statistics.mean(best))
    assert row["top10"] == pytest.approx(statistics.mean(count / 20 for count in range(5, 15)))
