"""Five descriptors by which sets of synthetic graphs are compared, their kernel, and the MMD.

Graphs are graph6 lines, ``networkx.Graph`` or adjacency matrices. Every descriptor is a function of the isomorphism class.

    kernel  k(x, y) = exp(-(½ |x - y|₁)² / 2σ²)
    MMD     |E k(x, x') + E k(y, y') - 2 E k(x, y)|, pairs of a graph with itself included

Sources: You et al. (2018), GraphRNN, arXiv 1802.08773 (degree, clustering, orbit); Liao et al. (2019), GRAN, arXiv 1910.00760
(kernel, spectral); Martinkus et al. (2022), SPECTRE, arXiv 2204.01613 (wavelet). Constants as in DiGress and DeFoG.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from discrete_grpo.domains.graph6 import GraphLike, adjacency

__all__ = [
    "DESCRIPTORS",
    "SIGMA",
    "Descriptor",
    "clustering",
    "degree",
    "descriptor_table",
    "descriptor_tables",
    "gaussian_tv_kernel",
    "mean_kernel",
    "mmd",
    "mmd_of",
    "orbit",
    "orbit_counts",
    "spectral",
    "wavelet",
    "wavelet_filters",
]

Adjacency = Bool[np.ndarray, "node node"]
AnyGraph: TypeAlias = "GraphLike | Adjacency"
Spectrum: TypeAlias = tuple[Float[np.ndarray, " node"], Float[np.ndarray, "node node"]]
DescriptorVector = Float[np.ndarray, " bin"]
Descriptor = Literal["degree", "clustering", "orbit", "spectral", "wavelet"]
SIGMA: Mapping[Descriptor, float] = {"degree": 1.0, "clustering": 0.1, "orbit": 30.0, "spectral": 1.0, "wavelet": 1.0}
"""Width of the kernel of each descriptor."""
DESCRIPTORS: tuple[Descriptor, ...] = tuple(SIGMA)
EPSILON = 1e-6  # the histograms of the field are divided by their sum plus this


# -- one graph


def _read(graph: AnyGraph) -> Adjacency:
    return graph.astype(bool) if isinstance(graph, np.ndarray) else adjacency(graph)  # bool: 0/1 numbers would index nodes


def _matrix(graph: AnyGraph) -> Adjacency:
    matrix = _read(graph)
    if not len(matrix):
        raise ValueError("graph: no nodes, expected at least one")
    return matrix


def degree(graph: AnyGraph) -> DescriptorVector:
    """Share of nodes with 0, 1, 2, ... neighbours, to the largest degree.

    >>> degree("Bg").round(3)
    array([0.   , 0.667, 0.333])
    """
    return _normalised(np.bincount(_matrix(graph).sum(0)))


def clustering(graph: AnyGraph) -> DescriptorVector:
    """Histogram of c_v = 2 T_v / d_v(d_v - 1), T_v the triangles at v: 100 bins on [0, 1]; c_v = 0 where d_v < 2."""
    a = _matrix(graph).astype(np.float64)
    d = a.sum(0)
    closed = ((a @ a) * a).sum(0)  # twice the triangles
    pairs = d * (d - 1)
    found = np.divide(closed, pairs, out=np.zeros_like(d), where=pairs > 0)
    return _normalised(np.histogram(found, bins=100, range=(0.0, 1.0))[0])


def spectral(graph: AnyGraph) -> DescriptorVector:
    """Histogram of the eigenvalues of the normalised Laplacian I - D^-½ A D^-½: 200 bins on [-1e-5, 2].

    Isolated nodes have eigenvalue 0. Rounding is cut off at 2, so that bipartite graphs do not lose their last eigenvalue.
    """
    return _spectral(_spectrum(_matrix(graph)))


def wavelet(graph: AnyGraph) -> DescriptorVector:
    """For each of 12 filters g, the histogram over nodes i of |row i of U g(Λ) Uᵀ|², 100 bins on [0, max g].

    U Λ Uᵀ is the normalised Laplacian. By orthogonality the squared norm is Σ_k g(λ_k)² U_ik².
    """
    return _wavelet(_spectrum(_matrix(graph)))


def orbit(graph: AnyGraph) -> DescriptorVector:
    """Mean over nodes of :func:`orbit_counts`; no histogram, so not normalised."""
    return orbit_counts(graph).mean(0)


def orbit_counts(graph: AnyGraph) -> Int[np.ndarray, "node 15"]:
    """Count per node and orbit of the connected induced subgraphs of 2 to 4 nodes, in ORCA's order.

    Columns: 0 edge; 1, 2 end and middle of a path of 3; 3 triangle; 4, 5 end and middle of a path of 4; 6, 7 leaf and centre of a
    claw; 8 cycle of 4; 9, 10, 11 leaf, far and near triangle node of a paw; 12, 13 degree 2 and 3 in a diamond; 14 clique of 4.
    Subgraphs are first counted whether induced or not, by powers of the adjacency matrix; those inside denser ones are subtracted.

    Source: orbits as in Pržulj (2007), doi 10.1093/bioinformatics/btl301; ORCA: Hočevar and Demšar (2014).

    >>> orbit_counts("C~").tolist()[0]  # a clique of four
    [3, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    """
    matrix = _matrix(graph)
    a = matrix.astype(np.float64)
    d = a.sum(0)
    common = a @ a
    np.fill_diagonal(common, 0)
    closed = common * a  # triangles on each edge
    t = closed.sum(0) / 2

    k4 = np.array([_triangles_within(a, row) if own >= 3 else 0.0 for own, row in zip(t, matrix, strict=True)])
    diamond_low = (a @ (a * (common - 1)) * a).sum(1) / 2 - 3 * k4
    diamond_high = (closed * (closed - 1)).sum(1) / 2 - 3 * k4
    cycle = (common * (common - 1)).sum(1) / 2 - diamond_low - diamond_high - 3 * k4
    paw_leaf = a @ t - 2 * t - 2 * diamond_low - 3 * k4
    paw_far = closed @ (d - 2) - 2 * diamond_low - 2 * diamond_high - 6 * k4
    paw_near = t * (d - 2) - 2 * diamond_high - 3 * k4
    claw_leaf = a @ ((d - 1) * (d - 2)) / 2 - paw_leaf - paw_far - 2 * diamond_low - diamond_high - 3 * k4
    claw_centre = d * (d - 1) * (d - 2) / 6 - paw_near - diamond_high - k4
    within = 2 * cycle + paw_far
    path_end = common @ (d - 1) - 2 * t - within - 2 * paw_leaf - 4 * diamond_low - 2 * diamond_high - 6 * k4
    path_mid = (d - 1) * (a @ (d - 1)) - 2 * t - within - 2 * paw_near - 2 * diamond_low - 4 * diamond_high - 6 * k4

    columns = [d, a @ (d - 1) - 2 * t, d * (d - 1) / 2 - t, t, path_end, path_mid, claw_leaf, claw_centre, cycle]
    columns += [paw_leaf, paw_far, paw_near, diamond_low, diamond_high, k4]
    return np.rint(np.stack(columns, axis=1)).astype(np.int64)


def _triangles_within(a: Float[np.ndarray, "node node"], neighbours: Bool[np.ndarray, " node"]) -> float:
    inner = a[np.ix_(neighbours, neighbours)]
    return float(((inner @ inner) * inner).sum()) / 6


def _spectrum(matrix: Adjacency) -> Spectrum:
    """Eigenvalues, ascending and within [0, 2], and eigenvectors of the normalised Laplacian."""
    a = matrix.astype(np.float64)
    d = a.sum(0)
    scale = np.divide(1, np.sqrt(d), out=np.zeros_like(d), where=d > 0)
    values, vectors = np.linalg.eigh(np.diag((d > 0).astype(np.float64)) - scale[:, None] * a * scale)
    return values.clip(0, 2), vectors


def _spectral(spectrum: Spectrum) -> DescriptorVector:
    counts = np.histogram(spectrum[0], bins=200, range=(-1e-5, 2.0))[0]
    return _normalised(counts / counts.sum())


def _wavelet(spectrum: Spectrum) -> DescriptorVector:
    values, vectors = spectrum
    norms = wavelet_filters(values) ** 2 @ (vectors**2).T
    bound = _filter_bound()
    return _normalised(np.concatenate([np.histogram(row, bins=100, range=(0.0, bound))[0] for row in norms]))


# -- wavelet filters


def wavelet_filters(x: Float[np.ndarray, " value"]) -> Float[np.ndarray, "filter=12 value"]:
    """A cubic-spline filter bank on [0, 2]: a low pass and 11 band passes at logarithmic scales s = 20, ..., ½.

    Band pass g(s x) with g(x) = x² below 1, a cubic on [1, 2] with g(1) = g(2) = 1, g'(1) = 2, g'(2) = -1, and 4 x⁻² above;
    low pass max g · exp(-(x / 0.06)⁴), 0.06 = 0.6 λ_max / 20.

    Source: Hammond et al. (2011), doi 10.1016/j.acha.2010.04.005, as PyGSP's ``Abspline`` with 12 filters.
    """
    scales = np.exp(np.linspace(np.log(20), np.log(0.5), 11))
    return np.stack([_spline_peak() * np.exp(-((x / 0.06) ** 4)), *(_spline(s * x) for s in scales)])


_CUBIC = np.linalg.solve([[1, 1, 1, 1], [1, 2, 4, 8], [0, 1, 2, 3], [0, 1, 4, 12]], [1.0, 1.0, 2.0, -1.0])


def _spline(x: Float[np.ndarray, " value"]) -> Float[np.ndarray, " value"]:
    middle = ((_CUBIC[3] * x + _CUBIC[2]) * x + _CUBIC[1]) * x + _CUBIC[0]
    return np.where(x <= 1, x**2, np.where(x < 2, middle, 4 / np.maximum(x, 1) ** 2))


@functools.cache
def _spline_peak() -> float:
    """The maximum of the spline, where its cubic has slope 0 between 1 and 2."""
    roots = np.roots([3 * _CUBIC[3], 2 * _CUBIC[2], _CUBIC[1]])
    return float(max(_spline(roots.real)[(roots.real > 1) & (roots.real < 2)]))


@functools.cache
def _filter_bound() -> float:
    return float(wavelet_filters(np.arange(0, 2, 0.01)).max())


# -- sets of graphs

_OF_MATRIX: Mapping[Descriptor, Callable[[Adjacency], DescriptorVector]] = {
    "degree": degree,
    "clustering": clustering,
    "orbit": orbit,
}
_OF_SPECTRUM: Mapping[Descriptor, Callable[[Spectrum], DescriptorVector]] = {"spectral": _spectral, "wavelet": _wavelet}


def _normalised(counts: np.ndarray) -> DescriptorVector:
    return counts / (counts.sum() + EPSILON)


def descriptor_tables(
    graphs: Sequence[AnyGraph], kinds: Sequence[Descriptor] = DESCRIPTORS
) -> dict[Descriptor, Float[np.ndarray, "graph bin"]]:
    """Tables of several descriptors, see :func:`descriptor_table`; each graph is read, and its spectrum computed, once."""
    rows: dict[Descriptor, list[DescriptorVector]] = {kind: [] for kind in kinds}
    for graph in graphs:
        matrix = _read(graph)
        if not len(matrix):
            continue
        found = {kind: _OF_MATRIX[kind](matrix) for kind in kinds if kind in _OF_MATRIX}
        if len(found) < len(rows):
            spectrum = _spectrum(matrix)
            found |= {kind: _OF_SPECTRUM[kind](spectrum) for kind in kinds if kind in _OF_SPECTRUM}
        for kind, row in found.items():
            rows[kind].append(row)
    return {kind: _padded(found) for kind, found in rows.items()}


def descriptor_table(graphs: Sequence[AnyGraph], kind: Descriptor) -> Float[np.ndarray, "graph bin"]:
    """The descriptors of several graphs, padded with zeros to the longest; graphs without nodes are left out."""
    return descriptor_tables(graphs, (kind,))[kind]


def _padded(rows: Sequence[DescriptorVector]) -> Float[np.ndarray, "graph bin"]:
    width = max(map(len, rows), default=0)
    return np.array([np.pad(row, (0, width - len(row))) for row in rows]).reshape(len(rows), width)


def gaussian_tv_kernel(
    x: Float[np.ndarray, "row bin"], y: Float[np.ndarray, "column bin2"], sigma: float
) -> Float[np.ndarray, "row column"]:
    """k(x, y) = exp(-(½ |x - y|₁)² / 2σ²) of every pair of rows, the shorter ones padded with zeros."""
    width = max(x.shape[1], y.shape[1])
    a, b = (np.pad(z, ((0, 0), (0, width - z.shape[1]))) for z in (x, y))
    used = a.any(0) | b.any(0)  # most bins of a histogram of small graphs are empty everywhere
    distance = torch.cdist(torch.from_numpy(a[:, used]).double(), torch.from_numpy(b[:, used]).double(), p=1).numpy()
    return np.exp(-((distance / 2) ** 2) / (2 * sigma**2))


def mean_kernel(x: Float[np.ndarray, "row bin"], sigma: float) -> float:
    """The mean of k(x, x') over all pairs of rows, a row with itself included; each pair is computed once."""
    distance = torch.pdist(torch.from_numpy(x[:, x.any(0)]).double(), p=1).numpy()
    return float(2 * np.exp(-((distance / 2) ** 2) / (2 * sigma**2)).sum() + len(x)) / len(x) ** 2


def mmd_of(x: Float[np.ndarray, "row bin"], y: Float[np.ndarray, "column bin2"], sigma: float) -> float:
    """|mean k(x, x') + mean k(y, y') - 2 mean k(x, y)| of two sets of descriptors; NaN where one is empty."""
    if not len(x) or not len(y):
        return float("nan")
    return abs(mean_kernel(x, sigma) + mean_kernel(y, sigma) - 2 * float(gaussian_tv_kernel(x, y, sigma).mean()))


def mmd(a: Sequence[GraphLike], b: Sequence[GraphLike], kind: Descriptor) -> float:
    """Squared maximum mean discrepancy of two sets of graphs, biased, as the tables of the field give it.

    Args:
        a: graph6 lines or graphs; those without nodes are left out.
        b: likewise.
        kind: which descriptor.

    Returns:
        A number in [0, 2]; NaN where a set is empty.
    """
    return mmd_of(descriptor_table(a, kind), descriptor_table(b, kind), SIGMA[kind])
