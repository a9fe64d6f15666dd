"""Metrics of generated directed graphs: V.U.N., distances of degrees and of longest paths to a reference, and classes.

Samples are lines that begin with ``&``, with classes of nodes and arcs or without, or None. Two samples are the same when they are
isomorphic, by a map that keeps directions and classes; where the test reached its limit they count as the same, and
``undecided`` is the share of such samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx
import numpy as np
from jaxtyping import Float

from discrete_grpo.datasets.synthetic_graphs import GraphSplits
from discrete_grpo.domains.digraph6 import DigraphLike
from discrete_grpo.domains.digraph_validity import (
    DIGRAPH_SHAPES,
    DigraphShape,
    digraph_of,
    has_digraph_shape,
    is_acyclic,
    is_weakly_connected,
    longest_path,
)
from discrete_grpo.domains.isomorphism import BUDGET, GraphSet, Signature, signature
from discrete_grpo.domains.named_graphs import Labels, labelled_form, named_graph
from discrete_grpo.metrics import graphs as plain_graphs
from discrete_grpo.metrics.distances import wasserstein
from discrete_grpo.metrics.graph_classes import class_distances

__all__ = ["DigraphReference", "digraph_shape", "distances", "evaluate", "metrics_of_signatures", "sample_metrics", "signatures"]

Samples = Sequence[str | None]
Numbers = Float[np.ndarray, " _"]


@dataclass(frozen=True)
class DigraphReference:
    """Training and test graphs with which generated directed graphs are compared.

    Attributes:
        splits: training graphs for novelty, test graphs for the distances.
        shape: the test that makes a graph valid: dag or connected.
        labels: names of the classes, which the graphs have as the attribute ``label``; None for plain graphs. Without
            labels, novelty ignores the classes of the samples.
        budget: bound on the work of an isomorphism test.

    Raises:
        ValueError: for an unknown shape.
    """

    splits: GraphSplits
    shape: DigraphShape = "dag"
    labels: Labels | None = None
    budget: int = BUDGET

    def __post_init__(self) -> None:
        if self.shape not in DIGRAPH_SHAPES:
            raise ValueError(f"shape: {self.shape!r}, expected one of {', '.join(DIGRAPH_SHAPES)} with directed graphs")

    @cached_property
    def known(self) -> GraphSet:
        """The training graphs up to isomorphism."""
        return GraphSet((labelled_form(self._compared(graph)) for graph in self.splits.train), self.budget)

    def find(self, graph: nx.DiGraph) -> bool | None:
        """Whether a graph is one of the training graphs; None if the test reached its limit."""
        return self.known.find(labelled_form(self._compared(graph)))

    def _compared(self, graph: nx.DiGraph | str) -> nx.DiGraph:
        """The graph, without its classes if there are no labels."""
        named = named_graph(graph)
        if self.labels is not None:
            return named
        plain = nx.DiGraph()
        plain.add_nodes_from(named)
        plain.add_edges_from(named.edges)
        return plain

    @cached_property
    def test(self) -> dict[str, Numbers]:
        """In-degrees, out-degrees and longest paths of the test graphs."""
        return _numbers(self.splits.test)


def digraph_shape(graphs: Iterable[DigraphLike]) -> DigraphShape:
    """The shape of valid graphs of a data set: ``dag`` if all of its graphs are acyclic, else ``connected``.

    >>> digraph_shape(["&BP?"]), digraph_shape(["&BP?", "&BP_"])
    ('dag', 'connected')
    """
    return "dag" if all(map(is_acyclic, graphs)) else "connected"


def sample_metrics(samples: Samples, shape: DigraphShape = "dag") -> dict[str, float]:
    """Compute ``valid`` (graphs of the shape / all), ``unique`` (distinct valid / valid) and ``acyclic`` (/ all).

    >>> sample_metrics(["&BP?", "&BP_", "&BP?", None])
    {'valid': 0.5, 'unique': 0.5, 'acyclic': 0.5}
    """
    return metrics_of_signatures(samples, signatures(samples, shape))


def signatures(samples: Samples, shape: DigraphShape = "dag") -> list[tuple[Signature | None, bool]]:
    """The signature of each graph of the shape, None for other samples, and whether it has no cycle."""
    return [
        (signature(labelled_form(s)) if s is not None and has_digraph_shape(s, shape) else None, is_acyclic(s)) for s in samples
    ]


def metrics_of_signatures(samples: Samples, found: Sequence[tuple[Signature | None, bool]]) -> dict[str, float]:
    """The numbers of :func:`sample_metrics` from the samples and their :func:`signatures`."""
    shares = plain_graphs.metrics_of_signatures(samples, [own for own, _ in found])
    return shares | {"acyclic": _share(sum(flag for _, flag in found), len(found))}


def distances(samples: Samples, reference: DigraphReference) -> dict[str, float]:
    """Compute the 1-Wasserstein distance of samples to test graphs of in-degrees, out-degrees and longest paths.

    Degrees are of all nodes, longest paths (numbers of arcs) of the graphs without a cycle; NaN where one side has none.
    """
    own = _numbers(samples)
    return {f"w1_{name}": wasserstein(own[name], reference.test[name]) for name in own}


def _numbers(graphs: Iterable[DigraphLike | None]) -> dict[str, Numbers]:
    found = [graph for sample in graphs if (graph := digraph_of(sample)) is not None]
    paths = [length for graph in found if (length := longest_path(graph)) is not None]
    columns = {
        "in_degree": [d for graph in found for _, d in graph.in_degree],
        "out_degree": [d for graph in found for _, d in graph.out_degree],
        "longest_path": paths,
    }
    return {name: np.array(column, dtype=np.float64) for name, column in columns.items()}


def evaluate(samples: Samples, reference: DigraphReference | None = None, shape: DigraphShape = "dag") -> dict[str, float]:
    """Evaluate a generator of directed graphs.

    Args:
        samples: lines, with classes or without, or None, one per generated object.
        reference: graphs to compare with; None leaves novelty, V.U.N. and distances out.
        shape: the test that makes a graph valid; a reference has its own.

    Returns:
        ``num_samples``; ``valid``: of the shape / all; ``unique``: distinct / valid; ``novel``: distinct and not in the training
        set / distinct; ``vun``: the product of the three; ``undecided``: samples with an isomorphism test that was given up / all;
        ``acyclic`` and ``connected`` (weakly): / all; ``nodes``, ``edges``: means over readable samples; ``longest_path``: mean
        over acyclic samples; those of :func:`distances`, and with labels those of
        :func:`~discrete_grpo.metrics.graph_classes.class_distances`.
    """
    shape = shape if reference is None else reference.shape
    budget = BUDGET if reference is None else reference.budget
    valid = [s for s in samples if s is not None and has_digraph_shape(s, shape)]
    distinct, undecided, novel = GraphSet(budget=budget), 0, 0
    for sample in valid:
        repeated, graph = distinct.add(labelled_form(sample)), digraph_of(sample)
        trained = reference.find(graph) if reference is not None and graph is not None and repeated is False else False
        novel += repeated is False and trained is False
        undecided += repeated is None or trained is None
    found = {"num_samples": float(len(samples)), "valid": _share(len(valid), len(samples))}
    found["unique"] = _share(len(distinct), len(valid))
    if reference is not None:
        found |= {"novel": _share(novel, len(distinct)), "vun": _share(novel, len(samples))}
    found |= {"undecided": _share(undecided, len(samples)), **_means(samples)}
    if reference is not None:
        found |= distances(samples, reference)
        if reference.labels is not None:
            found |= class_distances(samples, reference.splits.test)
    return found


def _means(samples: Samples) -> dict[str, float]:
    """Shares of acyclic and of connected samples, mean sizes, and the mean longest path."""
    graphs = [graph for sample in samples if (graph := digraph_of(sample)) is not None]
    columns = {
        "nodes": [len(graph) for graph in graphs],
        "edges": [graph.number_of_edges() for graph in graphs],
        "longest_path": [length for graph in graphs if (length := longest_path(graph)) is not None],
    }
    shares = {
        "acyclic": _share(sum(map(is_acyclic, samples)), len(samples)),
        "connected": _share(sum(map(is_weakly_connected, samples)), len(samples)),
    }
    return shares | {name: float(np.mean(column)) if column else math.nan for name, column in columns.items()}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
