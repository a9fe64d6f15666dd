"""Distances between sets, each against its definition written out."""

import math

import numpy as np
import pytest
from scipy.linalg import sqrtm

from discrete_grpo.metrics.distances import (
    continuous_kl,
    discrete_kl,
    frechet_distance,
    mean_similarity,
    nearest_similarity,
    tanimoto_matrix,
    wasserstein,
)

GENERATOR = np.random.default_rng(0)
BITS = (GENERATOR.random((30, 64)) < 0.3).astype(np.uint8)
OTHER = (GENERATOR.random((20, 64)) < 0.3).astype(np.uint8)


def similarity(a: np.ndarray, b: np.ndarray) -> float:
    one, two = set(np.flatnonzero(a).tolist()), set(np.flatnonzero(b).tolist())
    return len(one & two) / len(one | two) if one | two else 1.0


def test_frechet_distance_against_the_matrix_root_of_the_product() -> None:
    x, y = GENERATOR.normal(size=(50, 6)), GENERATOR.normal(1.0, 2.0, size=(70, 6))
    cx, cy = np.cov(x.T), np.cov(y.T)
    expected = ((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(cx + cy - 2 * sqrtm(cx @ cy).real)
    assert frechet_distance(x, y) == pytest.approx(expected)
    assert frechet_distance(y, x) == pytest.approx(expected)
    assert frechet_distance(x, x) == pytest.approx(0.0, abs=1e-9)


def test_frechet_distance_is_not_negative_and_is_computed_in_float64() -> None:
    generator = np.random.default_rng(1)
    for _ in range(20):
        x = generator.normal(size=(30, 6))
        assert frechet_distance(x, x) >= 0.0
    near, far = (generator.normal(100.0, 1.0, size=(500, 3)).astype(np.float32) for _ in range(2))
    assert frechet_distance(near, far) == pytest.approx(frechet_distance(near.astype(float), far.astype(float)), rel=1e-9)


def test_frechet_distance_of_singular_covariances() -> None:
    x, y = GENERATOR.normal(size=(5, 40)), GENERATOR.normal(size=(4, 40))
    a, b = ((z - z.mean(0)) / math.sqrt(len(z) - 1) for z in (x, y))
    nuclear = np.linalg.svd(a @ b.T, compute_uv=False).sum()  # Tr (Σx Σy)^½
    expected = ((x.mean(0) - y.mean(0)) ** 2).sum() + (a**2).sum() + (b**2).sum() - 2 * nuclear
    assert frechet_distance(x, y) == pytest.approx(expected, rel=1e-5)
    assert math.isnan(frechet_distance(x[:1], y))
    assert math.isnan(frechet_distance(x, y[:1]))


def test_wasserstein_of_equal_sizes_is_the_mean_of_sorted_differences() -> None:
    x, y = GENERATOR.normal(size=40), GENERATOR.normal(2.0, size=40)
    assert wasserstein(x, y) == pytest.approx(np.abs(np.sort(x) - np.sort(y)).mean())
    assert math.isnan(wasserstein(x, y[:0]))
    assert math.isnan(wasserstein(x[:0], y))


def density(values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    width = values.std(ddof=1) * len(values) ** (-1 / 5)  # Scott
    z = (grid[:, None] - values) / width
    return np.exp(-0.5 * z**2).sum(1) / (len(values) * width * math.sqrt(2 * math.pi))


def test_continuous_kl_against_kernel_densities_written_out() -> None:
    reference, sampled = GENERATOR.normal(size=60), GENERATOR.normal(0.5, 1.5, size=40)
    both = [*reference, *sampled]
    grid = np.linspace(min(both), max(both), 1000)
    p, q = density(reference, grid) + 1e-10, density(sampled, grid) + 1e-10
    p, q = p / p.sum(), q / q.sum()
    assert continuous_kl(reference, sampled) == pytest.approx((p * np.log(p / q)).sum())
    assert continuous_kl(reference, reference) == pytest.approx(0.0, abs=1e-12)
    assert math.isnan(continuous_kl(reference, np.ones(5)))
    assert math.isnan(continuous_kl(np.ones(5), sampled))
    assert math.isnan(continuous_kl(reference, sampled[:1]))


def test_continuous_kl_adds_epsilon_to_both_densities() -> None:
    reference, sampled = np.random.default_rng(2).normal(size=60), np.random.default_rng(3).normal(1.0, size=40)
    grid = np.linspace(min(*reference, *sampled), max(*reference, *sampled), 50)
    p, q = density(reference, grid) + 0.1, density(sampled, grid) + 0.1
    p, q = p / p.sum(), q / q.sum()
    assert continuous_kl(reference, sampled, 50, 0.1) == pytest.approx((p * np.log(p / q)).sum())
    assert math.isfinite(continuous_kl(reference, sampled + 1000.0))


def test_discrete_kl_is_of_the_reference_to_the_samples() -> None:
    reference = np.array([0.0, 0.3, 0.7, 20.0])  # ten bins of width 2: densities 3/8 and 1/8 at the ends
    sampled = np.array([1.5, 20.0, 99.0])  # 1/4 and 1/4
    assert discrete_kl(reference, sampled) == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), rel=1e-6)
    p = np.array([0.375 + 0.1, 0.125 + 0.1, *[0.1] * 8]) / 1.5
    q = np.array([0.25 + 0.1, 0.25 + 0.1, *[0.1] * 8]) / 1.5
    assert discrete_kl(reference, sampled, epsilon=0.1) == pytest.approx((p * np.log(p / q)).sum())


def test_discrete_kl_by_hand() -> None:
    reference = np.array([0, 0, 0, 10])  # ten bins of width 1: densities ¾ and ¼ at the ends
    sampled = np.array([0, 10, 10, 10, 99])  # what lies outside is left out: ¼ and ¾
    assert discrete_kl(reference, sampled) == pytest.approx(0.5 * math.log(3), rel=1e-6)
    assert discrete_kl(reference, np.array([99.0, -1.0])) == math.inf  # all outside
    assert discrete_kl(reference, np.array([4.0])) > 20.0  # within the range, where the reference has nothing
    assert math.isnan(discrete_kl(reference, np.zeros(0)))
    assert math.isnan(discrete_kl(np.zeros(0), sampled))


def test_tanimoto_similarities_over_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discrete_grpo.metrics.distances.BLOCK", 7)
    table = np.array([[similarity(a, b) for b in OTHER] for a in BITS])
    own = np.array([[similarity(a, b) for b in BITS] for a in BITS])
    assert tanimoto_matrix(BITS, OTHER) == pytest.approx(table, abs=1e-6)
    assert nearest_similarity(BITS, OTHER) == pytest.approx(table.max(1), abs=1e-6)
    assert nearest_similarity(BITS, BITS) == pytest.approx(np.ones(30))
    assert nearest_similarity(BITS, BITS, others=True) == pytest.approx((own - np.eye(30)).max(1), abs=1e-6)
    assert mean_similarity(BITS) == pytest.approx(own.mean(1), abs=1e-6)
    assert mean_similarity(BITS, 2) == pytest.approx(np.sqrt((own**2).mean(1)), abs=1e-6)


def test_rows_without_bits_are_equal() -> None:
    empty = np.zeros((2, 8), dtype=np.uint8)
    assert tanimoto_matrix(empty, empty).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert nearest_similarity(empty, empty[:0]).tolist() == [0.0, 0.0]
