"""The area under the curve against PMO's procedure, against curves that are integrated by hand, and at the edges."""

from __future__ import annotations

import math
import random

import pytest

from discrete_grpo.rewards.auc import auc_spacing, auc_top_k


def top_auc(scores: list[float], top_n: int, freq_log: int, budget: int) -> float:
    """As PMO's own code goes (mol_opt, main/optimizer.py) at the end of a run, for scores in order of their calls."""
    total, previous, called = 0.0, 0.0, 0
    for idx in range(freq_log, min(len(scores), budget), freq_log):
        best = sorted(scores[:idx], reverse=True)[:top_n]
        now = sum(best) / len(best)
        total += freq_log * (now + previous) / 2
        previous, called = now, idx
    best = sorted(scores, reverse=True)[:top_n]
    now = sum(best) / len(best)
    total += (len(scores) - called) * (now + previous) / 2
    if len(scores) < budget:
        total += (budget - len(scores)) * now
    return total / budget


@pytest.mark.parametrize("budget", [1000, 950, 1037])
@pytest.mark.parametrize("n", [1, 9, 99, 100, 101, 250, 700, 900, 950])
@pytest.mark.parametrize("k", [1, 10, 100])
def test_auc_is_pmos(n: int, k: int, budget: int) -> None:
    drawn = random.Random(n)
    scores = [drawn.random() for _ in range(n)]
    for freq in (100, 37):
        assert auc_top_k(scores, k, budget, freq) == pytest.approx(top_auc(scores, k, freq, budget), abs=1e-12)


def test_whole_budgets_are_pmos() -> None:
    for budget in (1, 99, 100, 250, 1000):
        drawn = random.Random(budget)
        scores = [drawn.random() for _ in range(budget)]
        assert auc_top_k(scores, budget=budget) == pytest.approx(top_auc(scores, 10, 100, budget), abs=1e-12)


def test_headline_setting() -> None:
    """The ten best, 10,000 calls and a point at every 100th call are the defaults."""
    drawn = random.Random(0)
    scores = [drawn.random() ** 4 for _ in range(3210)]
    assert auc_top_k(scores) == pytest.approx(top_auc(scores, 10, 100, 10_000), abs=1e-12)
    assert auc_top_k(scores) == auc_top_k(scores, k=10, budget=10_000, freq_log=100)


def test_constant_scores() -> None:
    assert auc_top_k([1.0] * 10_000) == pytest.approx(1 - 50 / 10_000)  # only the first trapezoid rises from 0
    assert auc_top_k([0.0] * 100 + [1.0] * 100, k=1, budget=200) == pytest.approx(0.25)
    assert auc_top_k([], budget=10) == 0.0


def test_a_method_that_stops_early_keeps_its_best() -> None:
    assert auc_top_k([1.0] * 50, budget=100) == pytest.approx((50 / 2 + 50) / 100)
    # 0.5 at 100 and 150 calls: triangle, rectangle of 50, then 850 calls at the last value
    assert auc_top_k([0.5] * 150, budget=1000) == pytest.approx((25 + 25 + 425) / 1000)


def test_a_budget_between_two_points() -> None:
    # m(100) = 0.2, m(200) = 0.6, m(250) = 1: trapezoids 10, 40 and 50 * 0.8
    scores = [0.2] * 100 + [0.6] * 100 + [1.0] * 50
    assert auc_top_k(scores, k=1, budget=250) == pytest.approx((10 + 40 + 40) / 250)


def test_fewer_molecules_than_k_are_averaged_over_those_there_are() -> None:
    # m = mean(0.9, 0.3) from the second call on; one trapezoid of 2 calls, then 98 calls at 0.6
    assert auc_top_k([0.9, 0.3], k=10, budget=100) == pytest.approx((0.6 + 98 * 0.6) / 100)
    assert auc_top_k([0.9], k=100, budget=1) == pytest.approx(0.45)


def test_calls_beyond_the_budget_are_left_out() -> None:
    assert auc_top_k([0.5] * 1000 + [9.0], k=1, budget=1000) == auc_top_k([0.5] * 1000, k=1, budget=1000)


def test_unknown_scores_take_their_place_only() -> None:
    gaps = [math.nan if j % 2 else 1.0 for j in range(200)]
    assert auc_top_k(gaps, k=200, budget=200) == auc_top_k([1.0] * 200, budget=200)
    assert auc_top_k([math.nan] * 100 + [1.0] * 100, k=1, budget=200) == pytest.approx(0.25)
    assert auc_top_k([math.nan] * 7, budget=100) == 0.0
    assert auc_top_k([None, 0.5], budget=2) == auc_top_k([math.nan, 0.5], budget=2)


@pytest.mark.parametrize("name", ["k", "budget", "freq_log"])
def test_wrong_arguments(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        auc_top_k([1.0], **{name: 0})


@pytest.mark.parametrize("wrong", [{"k": 2.5}, {"budget": 10.5}, {"freq_log": 2.5}])
def test_counts_are_whole_numbers(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected a whole number, at least 1"):
        auc_top_k([1.0] * 10, **{"budget": 10, **wrong})  # type: ignore[arg-type]


def test_long_runs_have_a_point_at_every_hundredth_call_as_in_pmo() -> None:
    assert [auc_spacing(budget) for budget in (9_999, 10_000, 50_000)] == [99, 100, 100]
