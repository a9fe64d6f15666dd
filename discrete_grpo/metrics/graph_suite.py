"""The suite of plain graphs: V.U.N., the five MMDs and their ratio with intervals, and the PolyGraph discrepancy.

The definitions are those of :mod:`discrete_grpo.metrics.graphs`, and the values are the same.
"""

from __future__ import annotations

import importlib.util
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
from jaxtyping import Bool, Float, Int
from networkx.utils import graphs_equal

from discrete_grpo.core.checks import check_samples
from discrete_grpo.domains.graph6 import GraphLike, from_graph6
from discrete_grpo.domains.graph_statistics import (
    DESCRIPTORS,
    SIGMA,
    Descriptor,
    descriptor_tables,
    gaussian_tv_kernel,
    mean_kernel,
)
from discrete_grpo.domains.graph_validity import BlockMethod, has_shape, is_block_model, matrix_of, num_components
from discrete_grpo.domains.isomorphism import Form, isomorphic
from discrete_grpo.domains.named_graphs import graph_of, labelled_form
from discrete_grpo.metrics import polygraph
from discrete_grpo.metrics.graph_classes import class_distances
from discrete_grpo.metrics.graphs import GraphReference, ratio
from discrete_grpo.metrics.resampling import Estimate, Statistic, whole
from discrete_grpo.metrics.suite import SuiteOptions, SuiteResult, estimates

__all__ = ["graphs"]

Rows: TypeAlias = Int[np.ndarray, " row"]
_METHODS: Mapping[str, BlockMethod] = {"louvain": "louvain", "graph-tool": "graph_tool"}


def graphs(samples: Sequence[GraphLike | None], reference: GraphReference, options: SuiteOptions | None = None) -> SuiteResult:
    """Evaluate a generator of plain graphs against a set.

    Args:
        samples: graph6 lines, graphs, or None, one per generated object.
        reference: the set; MMDs are to its test graphs, novelty is over its training graphs.
        options: of intervals and folds, and how the block-model test finds its blocks.

    Returns:
        The metrics of :func:`discrete_grpo.metrics.graphs.evaluate`, ``num_samples`` left out, and ``pgd``, without an interval,
        where its package is installed; classes are compared without intervals too. The perfect value of the MMDs, of their ratio
        and of ``pgd`` is that of the training graphs, of the others that of the test graphs. Where these are the same, as those
        of a file without splits, these distances, ``novel`` and ``vun`` have none, and a note says so.

    Raises:
        ImportError: if the block-model test asks for graph-tool and it is not installed.
        ValueError: if the reference has fewer than 2 test graphs, or the folds do not divide the samples.
    """
    options = options or SuiteOptions()
    check_samples(samples)
    if len(reference.splits.test) < 2:
        raise ValueError(f"reference: {len(reference.splits.test)} test graphs, expected at least 2")
    if options.sbm_method == "graph-tool" and importlib.util.find_spec("graph_tool") is None:
        raise ImportError("sbm_method: 'graph-tool' needs the library graph-tool, which is not installed; 'louvain' does not")
    facts = _facts(samples, reference, options.sbm_method)
    distances = _Distances(samples, reference)
    train, test = reference.splits.train, reference.splits.test
    undivided = len(train) == len(test) and all(map(graphs_equal, train, test))

    def perfect() -> dict[str, float]:
        fresh = _facts(reference.splits.test, reference, options.sbm_method)
        found = _counts(fresh, np.arange(len(fresh.valid)))
        if undivided:
            return {name: whole(statistic) for name, statistic in found.items() if name not in ("novel", "vun")}
        found |= _Distances(reference.splits.train, reference).statistics()
        return {name: whole(statistic) for name, statistic in found.items()}

    found = estimates(lambda rows: _counts(facts, rows) | distances.statistics(rows), len(samples), perfect, options)
    if reference.labels is not None:
        found |= {name: Estimate(value) for name, value in class_distances(samples, reference.splits.test).items()}
    notes = ["perfect: left out for distances, novel and vun, as the reference has one part alone"] if undivided else []
    if missing := polygraph.missing():
        notes.append(missing)
    else:
        found["pgd"] = _discrepancy(samples, reference, perfect=not undivided)
    settings: dict[str, float | str] = {"test_graphs": len(reference.splits.test), "shape": reference.shape}
    if reference.shape == "sbm":
        settings["sbm_method"] = options.sbm_method
    return SuiteResult(found, tuple(notes), settings)


def _discrepancy(samples: Sequence[GraphLike | None], reference: GraphReference, perfect: bool) -> Estimate:
    readable = [from_graph6(s) if isinstance(s, str) else s for s in samples if s is not None and matrix_of(s) is not None]
    test, train = list(reference.splits.test), list(reference.splits.train)
    value = polygraph.pgd(readable, test) if len(readable) > 1 else math.nan
    return Estimate(value, perfect=polygraph.pgd(train, test) if perfect and len(train) > 1 else math.nan)


# -- validity, uniqueness, novelty


@dataclass(frozen=True)
class _Facts:
    """Properties of every sample.

    Attributes:
        valid: whether it has the shape of the set.
        kind: number of its isomorphism class, -1 where it is not valid.
        new: whether it is valid and its class is not in the training set.
        undecided: whether one of its isomorphism tests reached its limit; it then counts as known.
        connected: whether it is connected.
        size: numbers of nodes and edges; NaN where it cannot be read.
    """

    valid: Bool[np.ndarray, " sample"]
    kind: Int[np.ndarray, " sample"]
    new: Bool[np.ndarray, " sample"]
    undecided: Bool[np.ndarray, " sample"]
    connected: Bool[np.ndarray, " sample"]
    size: Float[np.ndarray, "sample 2"]


def _facts(samples: Sequence[GraphLike | None], reference: GraphReference, method: str) -> _Facts:
    matrices = [matrix_of(s) for s in samples]
    test = (
        (lambda g: is_block_model(g, _METHODS[method])) if reference.shape == "sbm" else (lambda g: has_shape(g, reference.shape))
    )
    valid = np.array([graph_of(s) is not None and test(s) for s in samples], dtype=bool)  # also those of wrong numbers of classes
    kind, new, undecided = np.full(len(samples), -1), np.zeros(len(samples), dtype=bool), np.zeros(len(samples), dtype=bool)
    buckets: defaultdict[bytes, list[tuple[Form, int]]] = defaultdict(list)
    trained: dict[int, bool | None] = {}
    for k in np.flatnonzero(valid).tolist():
        sample = cast(GraphLike, samples[k])
        own = labelled_form(sample)
        kind[k], sure = _class_of(own, buckets[own.key], len(trained), reference.budget)
        if int(kind[k]) not in trained:
            trained[int(kind[k])] = reference.known.find(reference.form(sample))
            sure = trained[int(kind[k])] is not None
        new[k], undecided[k] = trained[int(kind[k])] is False, not sure
    connected = np.array([m is not None and num_components(m) == 1 for m in matrices], dtype=bool)
    size = np.array([(math.nan, math.nan) if m is None else (len(m), m.sum() / 2) for m in matrices]).reshape(-1, 2)
    return _Facts(valid, kind, new, undecided, connected, size)


def _class_of(own: Form, bucket: list[tuple[Form, int]], fresh: int, budget: int) -> tuple[int, bool]:
    """The class of a graph and whether all tests were decided; ``fresh`` is the number of a class that is not in the bucket yet."""
    doubtful = None
    for known, number in bucket:
        answer = isomorphic(known, own, budget)
        if answer:
            return number, True
        doubtful = number if answer is None and doubtful is None else doubtful
    if doubtful is not None:
        return doubtful, False
    bucket.append((own, fresh))
    return fresh, True


def _counts(facts: _Facts, rows: Rows) -> dict[str, Statistic]:
    """The shares and means of some samples."""

    def mean(of: Callable[[Rows], float], base: Rows, most: float = math.inf) -> Statistic:
        return Statistic(lambda part: of(base[part]), len(base), 0.0, most)

    def share(of: Callable[[Rows], float], base: Rows) -> Statistic:
        return mean(of, base, 1.0) if len(base) else Statistic(lambda part: 0.0, 1)  # a share of nothing is 0, as in `evaluate`

    def distinct(part: Rows) -> Rows:
        return np.unique(facts.kind[part], return_index=True)[1]

    def vun(part: Rows) -> float:
        return len(np.unique(facts.kind[part][facts.new[part]])) / len(part)

    valid, readable = rows[facts.valid[rows]], rows[~np.isnan(facts.size[rows, 0])]
    found = {"valid": share(lambda part: float(facts.valid[part].mean()), rows)}
    found["unique"] = share(lambda part: len(distinct(part)) / len(part), valid)
    found["novel"] = share(lambda part: float(facts.new[part][distinct(part)].mean()), valid)
    found["vun"] = share(vun, rows)
    found["undecided"] = share(lambda part: float(facts.undecided[part].mean()), rows)
    found["connected"] = share(lambda part: float(facts.connected[part].mean()), rows)
    for k, name in enumerate(("nodes", "edges")):
        found[name] = mean(lambda part, k=k: float(facts.size[part, k].mean()), readable)  # type: ignore[misc]
    return found


# -- distances


class _Distances:
    """MMDs of parts of the samples, from kernels that are computed once."""

    def __init__(self, samples: Sequence[GraphLike | None], reference: GraphReference) -> None:
        matrices = [matrix_of(s) for s in samples]
        self._readable = np.array([m is not None for m in matrices], dtype=bool)
        self._place = np.cumsum(self._readable) - 1
        self._reference = reference
        own = descriptor_tables([m for m in matrices if m is not None])
        self._kernels = {kind: self._kernel(own[kind], reference.test[kind], kind) for kind in DESCRIPTORS}

    @staticmethod
    def _kernel(
        own: Float[np.ndarray, "row bin"], test: Float[np.ndarray, "column bin2"], kind: Descriptor
    ) -> tuple[Float[np.ndarray, "row row"], Float[np.ndarray, " row"], float]:
        """k(x, x'), the mean of k(x, y) over test graphs y, and the mean of k(y, y')."""
        cross = gaussian_tv_kernel(own, test, SIGMA[kind]).mean(1) if len(own) else np.zeros(0)
        return gaussian_tv_kernel(own, own, SIGMA[kind]), cross, mean_kernel(test, SIGMA[kind])

    def _mmd(self, kind: Descriptor, rows: Rows) -> float:
        within, cross, test = self._kernels[kind]
        return abs(float(within[np.ix_(rows, rows)].mean() + test - 2 * cross[rows].mean()))

    def statistics(self, rows: Rows | None = None) -> dict[str, Statistic]:
        """The MMDs and their ratio of some samples, of all by default."""
        rows = np.arange(len(self._readable)) if rows is None else rows
        base = self._place[rows[self._readable[rows]]]

        def distance(kind: Descriptor) -> Statistic:
            return Statistic(lambda part: self._mmd(kind, base[part]), len(base), 0.0, 2.0)

        found = {f"mmd_{kind}": distance(kind) for kind in DESCRIPTORS}
        if self._reference.splits.train:

            def all_five(part: Rows) -> float:
                return ratio({kind: self._mmd(kind, base[part]) for kind in DESCRIPTORS}, self._reference.floor)

            found["ratio"] = Statistic(all_five, len(base), 0.0)
        return found
