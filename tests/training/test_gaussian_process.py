"""The Gaussian process screen against dense float64 algebra written out here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from discrete_grpo.training.gaussian_process import (
    LENGTHS,
    NOISES,
    WIDTH,
    Features,
    GaussianProcessScreen,
    Hyperparameters,
    _Inputs,
    tanimoto_table,
    unary_bits,
)

Sample = tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...], tuple[float, ...]]


def made(count: int, seed: int = 0) -> list[Sample]:
    """Samples with two fingerprints of few features and two numbers."""
    random = np.random.default_rng(seed)

    def counts(features: int) -> tuple[tuple[int, int], ...]:
        return tuple((int(k) + 100 * features, int(n)) for k, n in enumerate(random.integers(0, 4, features)) if n)

    return [(counts(5), counts(7), (float(random.normal(3, 2)), float(random.normal(-50, 9)))) for _ in range(count)]


def featurize(sample: Sample) -> Features:
    return Features((dict(sample[0]), dict(sample[1])), sample[2])


def test_features_have_any_whole_number_and_descriptors_are_finite() -> None:
    assert unary_bits({-1: 2, 5: 1}).tolist() == unary_bits({2**64 - 1: 2, 5: 1}).tolist()
    screen = GaussianProcessScreen(lambda x: Features(({1: 1},), (math.nan,)), generator=torch.Generator())
    with pytest.raises(ValueError, match=r"^featurize: numbers \(nan,\), expected finite ones$"):
        screen.observe(["a"], torch.tensor([0.5]))


def score(sample: Sample) -> float:
    return 0.1 * sum(n for _, n in sample[0]) + math.sin(sample[2][0] / 2) - 0.05 * len(sample[1])


def min_max(a: Mapping[int, int], b: Mapping[int, int]) -> float:
    keys = a.keys() | b.keys()
    return sum(min(a.get(k, 0), b.get(k, 0)) for k in keys) / sum(max(a.get(k, 0), b.get(k, 0)) for k in keys) if keys else 1.0


def kernel(rows: list[Sample], columns: list[Sample], seen: list[Sample], found: Hyperparameters) -> Any:
    """The covariance of the module's first lines, sample by sample; numbers are standardised over ``seen``."""
    numbers = np.array([sample[2] for sample in seen])
    mean, std = numbers.mean(0), numbers.std(0, ddof=1) + 1e-3
    table = np.empty((len(rows), len(columns)))
    for i, j in product(range(len(rows)), range(len(columns))):
        a, b = rows[i], columns[j]
        first, second = (min_max(dict(a[k]), dict(b[k])) for k in (0, 1))  # type: ignore[arg-type]
        distance = (((np.array(a[2]) - mean) / std - (np.array(b[2]) - mean) / std) ** 2).sum()
        gaussian = math.exp(-distance / (2 * found.length**2))
        parts = (first, second, gaussian, first * gaussian, second * gaussian)
        table[i, j] = sum(w * part for w, part in zip(found.weights, parts, strict=True))
    return table


def log_likelihood(z: Any, prior: Any, found: Hyperparameters) -> float:
    covariance = found.scale * (prior + found.noise * np.eye(len(z)))
    return float(-0.5 * z @ np.linalg.solve(covariance, z) - 0.5 * np.linalg.slogdet(covariance)[1])


def fitted(count: int, seed: int = 0, **options: Any) -> tuple[GaussianProcessScreen, list[Sample]]:
    seen = made(count, seed)
    screen = GaussianProcessScreen(featurize, start=2, **options)
    screen.observe(seen, torch.tensor([score(sample) for sample in seen], dtype=torch.float64))
    return screen, seen


# -- kernels


def dense(counts: Mapping[int, int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    row = torch.zeros(WIDTH, dtype=dtype)
    row[torch.from_numpy(unary_bits(counts))] = 1
    return row


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_similarity_of_counts_is_the_sum_of_minima_over_that_of_maxima(dtype: torch.dtype) -> None:
    given = [{1: 2, 7: 1}, {1: 1, 7: 3, 9: 1}, {2**63 + 5: 4, 1: 2}, {}]
    assert [len(unary_bits(counts)) for counts in given] == [3, 5, 6, 0]  # no two bits fell together
    table = tanimoto_table(torch.stack([dense(c, dtype) for c in given]), torch.stack([dense(c, dtype) for c in given]))
    # minima over maxima: {1: 1, 7: 1} of {1: 2, 7: 3, 9: 1}; {1: 2} of {1: 2, 7: 1, big: 4}; {1: 1} of {1: 2, 7: 3, 9: 1, big: 4}
    wanted = [[1, 2 / 6, 2 / 7, 0], [2 / 6, 1, 1 / 10, 0], [2 / 7, 1 / 10, 1, 0], [0, 0, 0, 1]]
    assert table.dtype == torch.float32
    assert table.tolist() == [pytest.approx(row, abs=1e-7) for row in wanted]
    assert [min_max(given[0], c) for c in given] == pytest.approx(wanted[0])


def test_sums_over_many_bits_are_exact_in_bfloat16_too() -> None:
    random = torch.Generator().manual_seed(0)
    x, y = ((torch.rand(3, 1000, generator=random) < share).float() for share in (0.9, 0.7))
    both = x.double() @ y.double().T
    wanted = (both / (x.double().sum(1)[:, None] + y.double().sum(1) - both)).float()
    assert float(both.max()) > 512  # a plain sum in bfloat16 would round
    assert torch.equal(tanimoto_table(x.bfloat16(), y.bfloat16()), wanted)
    assert torch.equal(tanimoto_table(x, y), wanted)


def test_high_counts_are_capped_and_bits_stay_in_range() -> None:
    assert len(unary_bits({3: 1000})) == 16
    assert np.array_equal(unary_bits({3: 16}), unary_bits({3: 17}))
    many = unary_bits(dict.fromkeys(range(2000), 3))
    assert many.min() >= 0
    assert many.max() < WIDTH
    assert 0.5 * WIDTH < len(many) < 0.56 * WIDTH  # 6,000 of 8,192 bits at random: 1 - exp(-6000/8192) = 0.519


# -- the posterior


@pytest.mark.parametrize("count", [12, 40])
def test_mean_and_deviation_are_those_of_dense_algebra(count: int) -> None:
    (screen, seen), new = fitted(count, kappa=0.7), made(9, seed=1)
    merit = screen.merit(new)
    found = screen.found
    assert merit is not None
    assert found is not None
    y = np.array([score(sample) for sample in seen])
    z = (y - y.mean()) / y.std(ddof=1)
    inverse = np.linalg.inv(kernel(seen, seen, seen, found) + found.noise * np.eye(count))
    across = kernel(new, seen, seen, found)
    mean = across @ inverse @ z
    variance = found.scale * (1 - np.einsum("ij,jk,ik->i", across, inverse, across))
    wanted = (mean + 0.7 * np.sqrt(variance)) * y.std(ddof=1) + y.mean()
    assert merit.tolist() == pytest.approx(wanted.tolist(), abs=2e-5)


def test_kappa_weighs_the_deviation() -> None:
    new = made(6, seed=2)
    zero, one, two = (fitted(30, kappa=kappa)[0].merit(new) for kappa in (0.0, 1.0, 2.0))
    assert zero is not None
    assert one is not None
    assert two is not None
    assert bool((one > zero).all())
    torch.testing.assert_close(two - one, one - zero, rtol=0, atol=1e-9)


def test_hyperparameters_have_the_largest_likelihood_of_the_grid() -> None:
    screen, seen = fitted(25)
    screen.merit(seen[:1])
    found = screen.found
    assert found is not None
    y = np.array([score(sample) for sample in seen])
    z = (y - y.mean()) / y.std(ddof=1)
    ones = np.eye(5).tolist()
    pairs = [((np.eye(5)[i] + np.eye(5)[j]) / 2).tolist() for i in range(5) for j in range(i)]
    most = [(np.full(5, 0.075) + np.eye(5)[i] * 0.625).tolist() for i in range(5)]
    grid = {tuple(w) for w in [*ones, *pairs, *most, [0.2] * 5]}
    likelihood = {}
    for weights, length in product(grid, LENGTHS):
        prior = kernel(seen, seen, seen, Hyperparameters(weights, length, 0.0, 1.0))
        for noise in NOISES:
            scale = float(z @ np.linalg.solve(prior + noise * np.eye(25), z)) / 25
            one = Hyperparameters(weights, length, noise, scale)
            likelihood[one] = log_likelihood(z, prior, one)
    best = max(likelihood.values())
    prior = kernel(seen, seen, seen, found)
    assert len(likelihood) == (5 + 10 + 5 + 1) * len(LENGTHS) * len(NOISES)
    assert log_likelihood(z, prior, found) == pytest.approx(best, abs=1e-3)
    assert best - float(np.median(list(likelihood.values()))) > 1
    for factor in (0.9, 1.1):  # the closed form of the scale
        assert log_likelihood(z, prior, replace(found, scale=found.scale * factor)) < best


def test_it_knows_what_it_has_seen() -> None:
    screen, seen = fitted(60, kappa=0.0)
    new = made(60, seed=5)
    there, here = screen.merit(seen), screen.merit(new)
    assert there is not None
    assert here is not None
    y = torch.tensor([score(sample) for sample in seen], dtype=torch.float64)
    assert float((there - y).abs().max()) < 0.1 * float(y.std())
    unseen = torch.tensor([score(sample) for sample in new], dtype=torch.float64)
    assert float(torch.corrcoef(torch.stack([here, unseen]))[0, 1]) > 0.9
    surer = GaussianProcessScreen(featurize, start=2, kappa=1.0)
    surer.observe(seen, y)
    bound_there, bound_here = surer.merit(seen), surer.merit(new)
    assert bound_there is not None
    assert bound_here is not None
    assert float((bound_there - there).max()) < float((bound_here - here).mean())


# -- what it is fitted to


def test_it_says_nothing_before_it_has_seen_enough() -> None:
    seen = made(6)
    screen = GaussianProcessScreen(featurize, start=4)
    screen.observe(seen[:4], torch.tensor([0.1, math.nan, 0.2, 0.3]))
    assert screen.merit(seen) is None  # three are known
    screen.observe(seen[4:5], torch.tensor([0.4]))
    assert screen.merit([]) is None
    assert screen.merit(seen) is not None


def test_equal_scores_are_nothing_to_learn_from() -> None:
    seen = made(20)
    screen = GaussianProcessScreen(featurize, start=2, size=4)
    screen.observe(seen[:10], torch.full((10,), 0.5))
    assert screen.merit(seen) is None
    screen.observe(seen[10:15], torch.ones(5))
    for _ in range(20):  # whoever is drawn for the rest: the best and the newest are equal
        merit = screen.merit(seen)
        assert merit is None or bool(merit.isfinite().all())


def test_of_many_samples_the_best_the_newest_and_others_are_taken() -> None:
    screen = GaussianProcessScreen(featurize, start=2, size=8, generator=torch.Generator().manual_seed(0))
    seen = made(40)
    values = torch.linspace(1, 0, 40, dtype=torch.float64).roll(10)
    screen.observe(seen[:8], values[:8])
    assert screen._chosen() == list(range(8))
    screen.observe(seen[8:], values[8:])
    draws = [screen._chosen() for _ in range(30)]
    assert all(len(set(chosen)) == 8 and {10, 11, 12, 13, 38, 39} <= set(chosen) for chosen in draws)
    assert len({k for chosen in draws for k in chosen}) > 25


def test_tables_kept_from_the_last_fit_are_those_of_a_first_fit() -> None:
    samples, asked = made(90), made(7, seed=1)

    def screen() -> GaussianProcessScreen:
        return GaussianProcessScreen(featurize, start=10, size=40)

    often, once = screen(), screen()
    for first in range(0, 90, 15):
        rows = samples[first : first + 15]
        for one in (often, once):
            one.observe(rows, torch.tensor([score(row) for row in rows]))
        often.merit(asked)  # of 40 samples, other ones each time
    for one in (often, once):
        one.generator.manual_seed(5)
        one.found, one._fits = Hyperparameters((0.2, 0.1, 0.3, 0.2, 0.2), 2.0, 1e-2, 1.3), 1
    assert torch.equal(often.merit(asked), once.merit(asked))  # type: ignore[arg-type]


def test_after_forgetting_it_is_as_new() -> None:
    samples, asked = made(60), made(7, seed=1)
    used, new = GaussianProcessScreen(featurize, start=10), GaussianProcessScreen(featurize, start=10)
    used.observe(samples, torch.tensor([score(row) for row in samples]))
    used.merit(asked)
    used.forget()
    assert used.merit(asked) is None
    for one in (used, new):
        one.generator.manual_seed(3)
        one.observe(samples[30:], torch.tensor([-score(row) for row in samples[30:]]))  # none of those before
    assert torch.equal(used.merit(asked), new.merit(asked))  # type: ignore[arg-type]


def test_equal_generators_give_equal_merits_and_the_fit_is_kept_for_a_while() -> None:
    new = made(5, seed=3)
    one, two = (fitted(50, size=30, generator=torch.Generator().manual_seed(1))[0] for _ in range(2))
    for _ in range(3):
        a, b = one.merit(new), two.merit(new)
        assert a is not None
        assert b is not None
        assert torch.equal(a, b)
    found = one.found
    one.observe(made(1, seed=9), torch.tensor([9.0]))
    one.merit(new)
    assert one.found is found
    for _ in range(5):
        one.merit(new)
    assert one.found is not found


def test_features_may_be_counts_or_numbers_alone() -> None:
    seen, values = made(10), torch.linspace(0, 1, 10)
    for part in (lambda s: Features((dict(s[0]),), ()), lambda s: Features((), s[2])):
        screen = GaussianProcessScreen(part, start=2)
        screen.observe(seen, values)
        merit = screen.merit(seen)
        assert merit is not None
        assert bool(merit.isfinite().all())


@pytest.mark.parametrize(
    ("given", "said"), [({"kappa": -0.1}, "kappa: -0.1"), ({"start": 1}, "start: 1"), ({"size": 3}, "size: 3")]
)
def test_settings_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GaussianProcessScreen(featurize, **given)


@pytest.mark.parametrize("scores", [[0.0, 1e-200, 0.0, 0.0], [1e-180, 2e-180, 3e-180, 1e-180], [1e160, -1e160, 1.0, 2.0]])
def test_scores_whose_squares_no_float_holds_have_no_merit(scores: list[float]) -> None:
    samples = made(4)
    screen = GaussianProcessScreen(featurize, start=2, size=4)
    screen.observe(samples, torch.tensor(scores, dtype=torch.float64))
    assert screen.merit(samples) is None


def test_of_many_samples_hyperparameters_are_those_of_the_best_and_of_as_many_others() -> None:
    screen = GaussianProcessScreen(featurize, generator=torch.Generator().manual_seed(2))
    inputs = _Inputs.of([screen._features(sample) for sample in made(60)])
    kernels, z = inputs.kernels(inputs), torch.tensor([score(sample) for sample in made(60)], dtype=torch.float64)
    found = screen._best_hyperparameters(kernels, z, most=20)
    others = torch.randperm(60, generator=torch.Generator().manual_seed(2))[:10].tolist()
    rows = sorted({*z.argsort(descending=True)[:10].tolist(), *others})
    assert found == screen._best_hyperparameters([k[rows][:, rows] for k in kernels], z[rows])
