"""Distances between two sets of samples: Frechet, Wasserstein, Kullback-Leibler, Tanimoto.

``scipy.stats`` is imported where it is used: its import takes about as long as all that a recipe imports besides torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8

__all__ = [
    "continuous_kl",
    "discrete_kl",
    "frechet_distance",
    "frechet_to",
    "mean_similarity",
    "nearest_similarity",
    "tanimoto_matrix",
    "wasserstein",
]

Features = Float[np.ndarray, "row feature"]
Bits = UInt8[np.ndarray, "row bit"]
Values = Float[np.ndarray, " row"] | Int[np.ndarray, " row"]
BLOCK = 2048
"""Rows of a block of similarities, 16 MB each."""


def frechet_distance(x: Features, y: Features) -> float:
    """|μ_x - μ_y|² + Tr(Σ_x + Σ_y - 2 (Σ_x Σ_y)^½), covariances with the divisor n - 1; NaN with fewer than 2 rows.

    Source: Dowson and Landau (1982); on ChemNet's activations Preuer et al. (2018), doi 10.1021/acs.jcim.8b00234 (FCD).

    >>> round(frechet_distance(np.array([[0.0], [2.0]]), np.array([[1.0], [5.0]])), 6)  # 4 + (√2 - 2√2)²
    6.0
    """
    return frechet_to(y)(x)


def frechet_to(y: Features) -> Callable[[Features], float]:
    """:func:`frechet_distance` to one set, whose matrix root is computed once.

    Tr (Σ_x Σ_y)^½ is the sum of the roots of the eigenvalues of S Σ_x S, S = Σ_y^½, which are not negative; this needs no matrix
    root of a product, and holds for singular covariances too.
    """
    if len(y) < 2:
        return lambda x: math.nan
    mean, covariance = y.mean(0, dtype=np.float64), _covariance(y)
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T

    def distance(x: Features) -> float:
        if len(x) < 2:
            return math.nan
        own = _covariance(x)
        cross = np.sqrt(np.linalg.eigvalsh(root @ own @ root).clip(0)).sum()
        shift = x.mean(0, dtype=np.float64) - mean
        return max(0.0, float(shift @ shift + np.trace(own) + np.trace(covariance) - 2 * cross))

    return distance


def _covariance(x: Features) -> Float[np.ndarray, "feature feature"]:
    return np.atleast_2d(np.cov(x.astype(np.float64), rowvar=False))


def wasserstein(x: Values, y: Values) -> float:
    """∫ |F_x(t) - F_y(t)| dt, the 1-Wasserstein distance of two samples of a number; NaN where one is empty.

    >>> wasserstein(np.array([0.0, 1.0]), np.array([5.0, 6.0]))
    5.0
    """
    from scipy.stats import wasserstein_distance

    return float(wasserstein_distance(x, y)) if len(x) and len(y) else math.nan


def continuous_kl(reference: Values, sampled: Values, points: int = 1000, epsilon: float = 1e-10) -> float:
    """KL(P ‖ Q) of Gaussian kernel density estimates of the reference, P, and the samples, Q, on a grid over both ranges.

    Both are taken plus ``epsilon`` and normalised over the grid. The bandwidth is Scott's.

    Returns:
        A number of at least 0; NaN where a set has fewer than two distinct values.

    Source: Brown et al. (2019), GuacaMol, arXiv 1811.09621.
    """
    from scipy.stats import entropy, gaussian_kde

    if len(np.unique(reference)) < 2 or len(np.unique(sampled)) < 2:
        return math.nan
    both = np.concatenate([reference, sampled])
    grid = np.linspace(both.min(), both.max(), points)
    return float(entropy(gaussian_kde(reference)(grid) + epsilon, gaussian_kde(sampled)(grid) + epsilon))


def discrete_kl(reference: Values, sampled: Values, bins: int = 10, epsilon: float = 1e-10) -> float:
    """KL(P ‖ Q) of histograms with ``bins`` bins on the range of the reference, as densities plus ``epsilon``, normalised.

    Samples outside the range of the reference are left out of Q, as in the source.

    Returns:
        A number of at least 0; infinite where all samples lie outside, for which the source gives NaN; NaN where a set is empty.

    Source: Brown et al. (2019), GuacaMol, arXiv 1811.09621.
    """
    from scipy.stats import entropy

    if not len(reference) or not len(sampled):
        return math.nan
    p, edges = np.histogram(reference, bins=bins, density=True)
    counts = np.histogram(sampled, bins=edges)[0]
    if not counts.any():
        return math.inf
    q = counts / counts.sum() / np.diff(edges)
    return float(entropy(p + epsilon, q + epsilon))


# -- Tanimoto similarity of bit fingerprints


def tanimoto_matrix(x: Bits, y: Bits) -> Float[np.ndarray, "row column"]:
    """|x ∧ y| / |x ∨ y| of every pair of rows, float32; 1 for two rows without bits.

    >>> tanimoto_matrix(np.array([[1, 1, 0]], np.uint8), np.array([[1, 0, 1], [1, 1, 0]], np.uint8)).round(3).tolist()
    [[0.3330000042915344, 1.0]]
    """
    a, b = torch.from_numpy(x).float(), torch.from_numpy(y).float()
    shared = a @ b.T
    union = a.sum(1, keepdim=True) + b.sum(1) - shared
    return torch.where(union > 0, shared / union.clamp(min=1), 1.0).numpy()


def _blocks(count: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, count, BLOCK))


def nearest_similarity(x: Bits, y: Bits, *, others: bool = False) -> Float[np.ndarray, " row"]:
    """The largest Tanimoto similarity of each row of ``x`` to a row of ``y``; 0 where ``y`` is empty.

    Args:
        x: bit fingerprints.
        y: likewise.
        others: ``y`` is ``x``, and a row is compared with the others only.
    """
    found = np.zeros(len(x), dtype=np.float64)
    for rows in _blocks(len(x)):
        for columns in _blocks(len(y)):
            block = tanimoto_matrix(x[rows], y[columns])
            if others and rows == columns:
                np.fill_diagonal(block, 0)
            found[rows] = np.maximum(found[rows], block.max(1))
    return found


def mean_similarity(x: Bits, p: float = 1.0) -> Float[np.ndarray, " row"]:
    """(1/n Σ_j T_ij^p)^(1/p) for each row i, T the Tanimoto similarity to all rows, itself included."""
    found = np.zeros(len(x), dtype=np.float64)
    for rows in _blocks(len(x)):
        for columns in _blocks(len(x)):
            found[rows] += (tanimoto_matrix(x[rows], x[columns]).astype(np.float64) ** p).sum(1)
    return (found / max(len(x), 1)) ** (1 / p)
