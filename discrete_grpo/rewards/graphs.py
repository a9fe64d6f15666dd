"""Rewards on plain graphs: callables from graph6 samples to one number per sample.

None, a line that cannot be read and a graph without nodes score 0 in every reward here. Rewards that compare with a set of
graphs take it as ``data``: the name of a set of this project, such as ``planar-16``, or the path of an npz file of splits. In a
preset::

    reward:
      class_path: NovelTo
      init_args:
        data: planar-16
        reward: {class_path: discrete_grpo.rewards.graphs.ShapeMatch, init_args: {data: planar-16, shape: planar}}
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from discrete_grpo.core.reward_arguments import check_forgets, reward_name
from discrete_grpo.core.scoring import score_one
from discrete_grpo.datasets.graph_splits import load_splits
from discrete_grpo.datasets.synthetic_graphs import GraphSplits
from discrete_grpo.domains.graph_statistics import (
    SIGMA,
    Descriptor,
    clustering,
    degree,
    descriptor_tables,
    gaussian_tv_kernel,
    mean_kernel,
    orbit,
)
from discrete_grpo.domains.graph_validity import SHAPES, Shape, has_shape, matrix_of, num_components
from discrete_grpo.domains.isomorphism import BUDGET, GraphSet, form
from discrete_grpo.rewards.sources import Unidentified, file_digest

__all__ = [
    "NovelTo",
    "ShapeMatch",
    "SingleMMD",
    "connected",
    "planar_valid",
    "sbm_valid",
    "tree_closeness",
    "tree_valid",
]

Samples = Sequence[str | None]
Vector = Float[np.ndarray, "_"]


# -- validity


def planar_valid(samples: Samples, **columns: Sequence[Any]) -> list[float]:
    """Test whether a graph is planar and connected.

    Returns:
        1 for a connected planar graph, 0 for any other sample.

    >>> planar_valid(["C~", "D~{", None])  # cliques of four and five
    [1.0, 0.0, 0.0]
    """
    return [float(has_shape(s, "planar")) for s in samples]


def tree_valid(samples: Samples, **columns: Sequence[Any]) -> list[float]:
    """Test whether a graph is a tree.

    Returns:
        1 for a tree, 0 for any other sample.

    >>> tree_valid(["Bg", "Bw", None])  # a path and a triangle
    [1.0, 0.0, 0.0]
    """
    return [float(has_shape(s, "tree")) for s in samples]


def sbm_valid(samples: Samples, **columns: Sequence[Any]) -> list[float]:
    """Test whether a graph looks drawn from a stochastic block model, with blocks found by Louvain's method.

    The test is ``is_block_model`` of :mod:`discrete_grpo.domains.graph_validity`.

    Returns:
        1 for a graph that passes the test, 0 for any other sample.

    >>> sbm_valid(["Bw", None])
    [0.0, 0.0]
    """
    return [float(has_shape(s, "sbm")) for s in samples]


def connected(samples: Samples, **columns: Sequence[Any]) -> list[float]:
    """Test whether a graph is connected.

    Returns:
        1 for a connected graph, 0 for any other sample.

    >>> connected(["Bw", "B?", None])
    [1.0, 0.0, 0.0]
    """
    return [float(has_shape(s, "connected")) for s in samples]


def tree_closeness(samples: Samples, **columns: Sequence[Any]) -> list[float]:
    """Compute 1 / (1 + e), e being the number of edges to add and to remove until the graph is a tree.

    e = (components - 1) + (edges - nodes + components). The formula is this package's own, for policies that rarely draw a tree.

    Returns:
        A number in [0, 1], 1 for a tree and only for a tree; 0 for None.

    >>> tree_closeness(["Bg", "Bw", "B?", None])  # path, triangle, three isolated nodes
    [1.0, 0.5, 0.3333333333333333, 0.0]
    """
    matrices = [matrix_of(s) for s in samples]
    return [0.0 if m is None else 1 / (1 + 2 * num_components(m) - 1 + int(m.sum()) // 2 - len(m)) for m in matrices]


# -- likeness to a set


def _splits(data: str) -> GraphSplits:
    if not isinstance(data, str | PurePath):
        raise ValueError(f"data: {data!r}, expected the name of a set or an npz file")
    data = str(data)
    try:
        return _loaded(data, file_digest(data) if data.endswith(".npz") else None)
    except Unidentified:  # it cannot be read: told as what it is for
        return load_splits(data)


@functools.lru_cache(maxsize=8)
def _loaded(data: str, digest: str | None) -> GraphSplits:
    """The splits of a file with this content, so that a file that was written anew is read again."""
    return load_splits(data)


@dataclass(frozen=True)
class ShapeMatch:
    """Validity times similarity to the training graphs: valid · (1 + 0.2 s_deg + 0.2 s_clus + 0.2 s_orb) / 1.6.

    s_deg = exp(-5 JS) of the graph's degrees and those of all training nodes, s_clus is the same of clustering coefficients (JS is
    the Jensen-Shannon divergence in nats), and s_orb = exp(-mean |o - ō|) of the mean orbit counts. Validity is the test of
    ``shape``. The published code divides by 1.6 for planar graphs only, and its test of block models is weaker. Degrees above the
    largest of the training set count here; the published code ignores them.

    Args:
        data: the set, a name or an npz file; the comparison is with its training graphs.
        shape: planar, tree, sbm or connected.

    Raises:
        ValueError: for an unknown set or shape.
        FileNotFoundError: if there is no such file.

    Source: Graph-GRPO, arXiv 2603.10395, and its published code.

    >>> [round(x, 2) for x in ShapeMatch("tree-16", "tree")(["Bg", "Bw", None])]
    [0.89, 0.0, 0.0]
    """

    data: str
    shape: Shape = "planar"

    def __post_init__(self) -> None:
        _check(self.data, self.shape)

    @functools.cached_property
    def reference(self) -> tuple[Vector, Vector, Vector]:
        """Degrees and clustering of all training nodes as shares, and the mean orbit counts."""
        train = _splits(self.data).train
        sizes = np.array([len(g) for g in train])[:, None]
        tables = descriptor_tables(train, ("degree", "clustering", "orbit"))
        degrees, clusters = ((tables[kind] * sizes).sum(0) for kind in ("degree", "clustering"))
        return degrees / degrees.sum(), clusters / clusters.sum(), tables["orbit"].mean(0)

    @property
    def name(self) -> str:
        """The name in logs."""
        return f"{self.shape}_match"

    def __call__(self, samples: Samples, **columns: Sequence[Any]) -> list[float]:
        """Compute the match of each graph.

        Returns:
            A number in [0, 1] per sample, at least 1 / 1.6 for a valid graph and higher for one like the training graphs; 0 for an
            invalid one.
        """
        return [self._score(s) if s is not None and has_shape(s, self.shape) else 0.0 for s in samples]

    def _score(self, sample: str) -> float:
        degrees, coefficients, orbits = self.reference
        like = math.exp(-5 * jensen_shannon(degree(sample), degrees))
        like += math.exp(-5 * jensen_shannon(clustering(sample), coefficients))
        like += math.exp(-float(np.abs(orbit(sample) - orbits).mean()))
        return (1 + 0.2 * like) / 1.6


def jensen_shannon(p: Vector, q: Vector) -> float:
    """Compute ½ KL(p ‖ m) + ½ KL(q ‖ m), m = ½ (p + q), in [0, log 2].

    Both arguments are normalised to a sum of 1, and the shorter one is padded with zeros.

    >>> round(jensen_shannon(np.array([1.0]), np.array([0.0, 1.0])), 6)  # log 2
    0.693147
    """
    width = max(len(p), len(q))
    p, q = (np.pad(x, (0, width - len(x))) / x.sum() for x in (p, q))
    m = (p + q) / 2
    parts = [x * np.log(np.divide(x, m, out=np.ones_like(m), where=x > 0)) for x in (p, q)]
    return max(0.0, float(sum(parts).sum()) / 2)


@dataclass(frozen=True)
class SingleMMD:
    """Similarity to the training graphs by MMD, plus validity: 0.2 · mean over statistics of exp(-MMD / 0.01) + 0.8 · valid.

    The statistics are degree, clustering and orbit. MMD({g}, train) = |1 + E k(x, x') - 2 E k(x, g)| over training graphs x. An
    invalid graph keeps the first term.

    Args:
        data: the set, a name or an npz file; the comparison is with its training graphs.
        shape: planar, tree, sbm or connected.

    Raises:
        ValueError: for an unknown set or shape.
        FileNotFoundError: if there is no such file.

    Source: Liu et al. (2024), GDPO, arXiv 2402.16302, and its published code.

    >>> [round(x, 2) for x in SingleMMD("tree-16", "tree")(["Bg", "Bw", None])]
    [0.87, 0.0, 0.0]
    """

    data: str
    shape: Shape = "planar"

    def __post_init__(self) -> None:
        _check(self.data, self.shape)

    @functools.cached_property
    def reference(self) -> dict[Descriptor, tuple[Float[np.ndarray, "graph bin"], float]]:
        """Descriptors of the training graphs, and the mean kernel of their pairs."""
        kinds: tuple[Descriptor, ...] = ("degree", "clustering", "orbit")
        found = descriptor_tables(_splits(self.data).train, kinds)
        return {kind: (x, mean_kernel(x, SIGMA[kind])) for kind, x in found.items()}

    @property
    def name(self) -> str:
        """The name in logs."""
        return f"{self.shape}_single_mmd"

    def __call__(self, samples: Samples, **columns: Sequence[Any]) -> list[float]:
        """Compute the reward of each graph.

        Returns:
            A number in [0, 1] per sample, at least 0.8 for a valid graph and at most 0.2 for an invalid one; 0 for None.
        """
        graphs = {k: matrix for k, s in enumerate(samples) if (matrix := matrix_of(s)) is not None}
        like = np.zeros(len(samples))
        tables = descriptor_tables(list(graphs.values()), tuple(self.reference)) if graphs else {}
        for kind, table in tables.items():
            train, own = self.reference[kind]
            cross = gaussian_tv_kernel(table, train, SIGMA[kind]).mean(1)
            like[list(graphs)] += np.exp(-np.abs(1 + own - 2 * cross) / 0.01)
        return [0.2 * float(x) / 3 + 0.8 * has_shape(s, self.shape) for x, s in zip(like, samples, strict=True)]


# -- novelty


@dataclass(frozen=True)
class NovelTo:
    """Another reward, set to 0 for a graph isomorphic to a training graph or to an earlier sample of the batch.

    A graph whose isomorphism test reaches its limit counts as known. A 0 or None of the inner reward is kept.

    Args:
        reward: any reward on graphs.
        data: the set, a name or an npz file, whose training graphs are known.

    Raises:
        ValueError: if ``reward`` is not callable or remembers earlier samples, or the set is unknown.
        FileNotFoundError: if there is no such file.

    >>> NovelTo(tree_valid, "tree-16")(["Bg", "BW", "Bw"])  # a path, the same path, a triangle
    [1.0, 0.0, 0.0]
    """

    cached_as: ClassVar[None] = None
    """None, since it compares the samples of a batch and must not be cached."""

    reward: Callable[..., Sequence[float | None]]
    data: str

    def __post_init__(self) -> None:
        if not callable(self.reward):
            raise ValueError(f"reward: {self.reward!r}, expected a reward, a callable from samples to numbers")
        check_forgets(self.reward)
        _splits(self.data)

    @functools.cached_property
    def known(self) -> GraphSet:
        """The training graphs up to isomorphism."""
        return GraphSet(_splits(self.data).train, BUDGET)

    @property
    def name(self) -> str:
        """The name in logs."""
        return f"novel {reward_name(self.reward)}"

    @property
    def inner(self) -> tuple[Callable[..., Sequence[float | None]], ...]:
        """The reward of novel graphs, alone."""
        return (self.reward,)

    def __call__(self, samples: Samples, **columns: Sequence[Any]) -> list[float | None]:
        """Score each sample.

        Returns:
            The inner score of a novel graph, 0 of a known one; None where the inner score is unknown.

        Raises:
            RewardError: if the inner reward fails; see :func:`discrete_grpo.core.scoring.score_one`.
        """
        scores = [None if math.isnan(x) else x for x in score_one(self.reward, samples, columns).tolist()]
        seen, found = GraphSet(), list[float | None]()
        for sample, score in zip(samples, scores, strict=True):
            found.append(score if not score or self._fresh(sample, seen) else 0.0)
        return found

    def _fresh(self, sample: str | None, seen: GraphSet) -> bool:
        if sample is None or matrix_of(sample) is None:
            return False
        own = form(sample)
        return seen.add(own) is False and self.known.find(own) is False


def _check(data: str, shape: Shape) -> None:
    if shape not in SHAPES:
        raise ValueError(f"shape: {shape!r}, expected one of {', '.join(SHAPES)}")
    _splits(data)
