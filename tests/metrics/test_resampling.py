"""Intervals by resampling parts without replacement."""

import math

import numpy as np
import pytest

from discrete_grpo.metrics.resampling import Statistic, disjoint_halves, interval, mean_of, whole


def test_the_interval_of_a_mean_is_the_usual_one() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, size=400)
    half = 1.96 * values.std() / math.sqrt(400)
    low, high = interval(mean_of(values), 2000)
    assert low == pytest.approx(values.mean() - half, abs=0.15 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.15 * half)


def test_smaller_parts_are_rescaled_to_the_whole() -> None:
    values = np.random.default_rng(2).exponential(size=300)
    statistic = Statistic(lambda rows: float(values[rows].mean()), 300, part=30)
    widths = [high - low for low, high in (interval(s, 2000) for s in (mean_of(values), statistic))]
    assert widths[1] == pytest.approx(widths[0], rel=0.12)
    asked: list[int] = []
    interval(Statistic(lambda rows: float(asked.append(len(rows)) or 0.0), 300, part=30), 3)  # type: ignore[func-returns-value]
    assert asked == [300, 30, 30, 30]
    asked.clear()
    interval(Statistic(lambda rows: float(asked.append(len(rows)) or 0.0), 20, part=30), 2)  # type: ignore[func-returns-value]
    assert asked == [20, 10, 10]


def test_the_interval_covers_the_mean_of_the_source() -> None:
    generator = np.random.default_rng(3)
    ends = [interval(mean_of(generator.exponential(size=80)), 100, seed) for seed in range(200)]
    covered = np.mean([low <= 1.0 <= high for low, high in ends])
    assert 0.88 <= covered <= 0.99
    ends = [interval(mean_of(generator.normal(size=60)), 60, seed) for seed in range(2000)]
    covered = np.mean([low <= 0.0 <= high for low, high in ends])
    assert 0.938 <= covered <= 0.962  # 95 %, with a standard error of 0.5; quantiles of the parts as they are give 92


def test_repetition_does_not_move_a_count_of_distinct_ones() -> None:
    distinct = Statistic(lambda rows: len(np.unique(rows)) / len(rows), 50, 0.0, 1.0)
    assert interval(distinct, 20) == (1.0, 1.0)  # with replacement, parts would be 63 % distinct


def test_intervals_are_reproducible_and_within_the_range() -> None:
    flags = (np.arange(40) < 39).astype(float)
    statistic = mean_of(flags, 0.0, 1.0)
    assert interval(statistic, 50, 7) == interval(statistic, 50, 7) != interval(statistic, 50, 8)
    low, high = interval(statistic, 50)
    assert low < 39 / 40 <= high <= 1.0
    low, high = interval(mean_of(1 - flags, 0.0, 1.0), 50)
    assert 0.0 <= low <= 1 / 40 < high


def test_rows_of_a_part_are_ascending() -> None:
    seen: list[bool] = []
    interval(Statistic(lambda rows: float(seen.append(bool((np.diff(rows) > 0).all())) or 0.0), 60), 10)  # type: ignore[func-returns-value]
    assert seen == [True] * 11


@pytest.mark.parametrize(
    ("statistic", "resamples"),
    [(mean_of(np.ones(3)), 10), (mean_of(np.ones(9)), 0), (mean_of(np.zeros(0)), 10), (mean_of(np.full(9, math.nan)), 10)],
)
def test_no_interval_where_there_can_be_none(statistic: Statistic, resamples: int) -> None:
    assert all(map(math.isnan, interval(statistic, resamples)))


def test_a_part_without_a_number_leaves_no_interval() -> None:
    statistic = Statistic(lambda rows: 1.0 if len(rows) > 5 else math.nan, 8)
    assert whole(statistic) == 1.0
    assert all(map(math.isnan, interval(statistic, 5)))
    some = Statistic(lambda rows: 1.0 if 0 in rows else math.nan, 8)
    assert all(map(math.isnan, interval(some, 20)))
    whole_only = Statistic(lambda rows: math.inf if len(rows) == 8 else 1.0, 8)
    assert all(map(math.isnan, interval(whole_only, 5)))


def test_the_fewest_rows_that_have_a_number_and_an_interval() -> None:
    assert whole(mean_of(np.array([2.0]))) == 2.0
    low, high = interval(mean_of(np.arange(4.0)), 20)
    assert low < 1.5 < high


def test_bad_numbers_are_named() -> None:
    with pytest.raises(ValueError, match="bootstrap: -1, expected at least 0"):
        interval(mean_of(np.ones(9)), -1)
    with pytest.raises(ValueError, match=r"level: 1\.0, expected more than 0 and less than 1"):
        interval(mean_of(np.ones(9)), 5, level=1.0)


@pytest.mark.parametrize(
    ("size", "wanted", "counts"), [(10, 3, (3, 7)), (10, 30, (5, 5)), (3, 9, (1, 2)), (1, 1, (0, 1)), (4, 0, (0, 4))]
)
def test_halves_are_disjoint(size: int, wanted: int, counts: tuple[int, int]) -> None:
    first, second = disjoint_halves(size, wanted, seed=1)
    assert (len(first), len(second)) == counts
    assert sorted([*first.tolist(), *second.tolist()]) == list(range(size))


def test_halves_are_random_ascending_and_those_of_their_seed() -> None:
    made = [disjoint_halves(40, 20, seed)[0].tolist() for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]
    assert all(rows == sorted(rows) != list(range(20)) for rows in made)
    second = disjoint_halves(40, 20, 1)[1].tolist()
    assert second == sorted(second)
