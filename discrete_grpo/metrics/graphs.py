"""Metrics of generated graphs: V.U.N., the five MMDs and their ratio, and the classes of nodes and edges.

Samples are graph6 lines, with or without classes of nodes and edges, or None. Two samples are the same if they are isomorphic by a
map that keeps their classes. Where the test reached its limit (:mod:`discrete_grpo.domains.isomorphism`), they count as the same,
so that V.U.N. is never overstated; ``undecided`` is the share of such samples.

Sources: Martinkus et al. (2022), SPECTRE, arXiv 2204.01613; Qin et al. (2025), DeFoG, arXiv 2410.04263 (ratio).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float

from discrete_grpo.core.csv_cells import cells_of_any_length
from discrete_grpo.datasets.graph_splits import read_npz
from discrete_grpo.datasets.synthetic_graphs import GraphSplits
from discrete_grpo.datasets.text_files import MAX_BYTES, column_of, text_lines
from discrete_grpo.domains import digraph6
from discrete_grpo.domains.graph6 import MAX_NODES, GraphLike, node_count
from discrete_grpo.domains.graph_statistics import DESCRIPTORS, SIGMA, Descriptor, descriptor_tables, mmd_of
from discrete_grpo.domains.graph_validity import SHAPES, Shape, has_shape, is_connected, matrix_of
from discrete_grpo.domains.isomorphism import BUDGET, Form, GraphSet, Signature, form, num_distinct, signature
from discrete_grpo.domains.named_graphs import Labels, graph_of, labelled_form, named_graph, to_line
from discrete_grpo.metrics.graph_classes import class_distances

__all__ = [
    "GraphFile",
    "GraphReference",
    "distances",
    "evaluate",
    "evaluate_folds",
    "is_graph",
    "metrics_of_signatures",
    "ratio",
    "read_graphs",
    "sample_metrics",
    "signatures",
]

Samples = Sequence[str | None]


@dataclass(frozen=True)
class GraphReference:
    """Training and test graphs with which generated graphs are compared. Its statistics are computed once, at the first use.

    Attributes:
        splits: training graphs for novelty and for the ratio, test graphs for the MMDs.
        shape: the test that makes a graph valid.
        budget: bound on the work of an isomorphism test.
        labels: names of the classes, which the graphs have as the attribute ``label``; None for plain graphs. Without
            labels, novelty and distances ignore the classes of the samples.

    Raises:
        ValueError: for an unknown shape.
    """

    splits: GraphSplits
    shape: Shape = "connected"
    budget: int = BUDGET
    labels: Labels | None = None

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ValueError(f"shape: {self.shape!r}, expected one of {', '.join(SHAPES)}")

    @cached_property
    def known(self) -> GraphSet:
        """The training graphs up to isomorphism."""
        return GraphSet(map(self.form, self.splits.train), self.budget)

    def form(self, graph: GraphLike) -> Form:
        """Return a graph in the form for comparison with the training graphs."""
        return form(graph) if self.labels is None else labelled_form(graph)

    @cached_property
    def test(self) -> Mapping[Descriptor, Float[np.ndarray, "graph bin"]]:
        """Descriptors of the test graphs."""
        return descriptor_tables(self.splits.test)

    @cached_property
    def floor(self) -> Mapping[Descriptor, float]:
        """MMD of the training graphs to the test graphs, rounded to four digits as in the tables of the field."""
        train = descriptor_tables(self.splits.train)
        return {kind: round(mmd_of(train[kind], self.test[kind], SIGMA[kind]), 4) for kind in DESCRIPTORS}


def sample_metrics(samples: Samples, shape: Shape = "connected") -> dict[str, float]:
    """Compute ``valid`` (graphs of the shape / all samples) and ``unique`` (distinct valid / valid, 0 where none is valid).

    >>> sample_metrics(["Bg", "BW", "Bw", "B?", None])
    {'valid': 0.6, 'unique': 0.6666666666666666}
    """
    return metrics_of_signatures(samples, signatures(samples, shape))


def signatures(samples: Samples, shape: Shape = "connected") -> list[Signature | None]:
    """The signature of each graph of the shape, None for other samples."""
    return [signature(labelled_form(s)) if s is not None and fits(s, shape) else None for s in samples]


def fits(sample: GraphLike | None, shape: Shape) -> bool:
    """Whether a sample is a graph of the shape; if its line has classes, every node and edge must have one."""
    return graph_of(sample) is not None and has_shape(sample, shape)


def metrics_of_signatures(samples: Samples, found: Sequence[Signature | None]) -> dict[str, float]:
    """The numbers of :func:`sample_metrics` from the samples and their :func:`signatures`."""
    valid = [(graph, own) for graph, own in zip(samples, found, strict=True) if graph is not None and own is not None]
    distinct = num_distinct([graph for graph, _ in valid], [own for _, own in valid], labelled_form)
    return {"valid": _share(len(valid), len(samples)), "unique": _share(distinct, len(valid))}


def distances(samples: Samples, reference: GraphReference) -> dict[Descriptor, float]:
    """Compute the MMD of each statistic between the samples and the test graphs; only unreadable samples are left out."""
    own = descriptor_tables([m for m in map(matrix_of, samples) if m is not None])
    return {kind: mmd_of(own[kind], reference.test[kind], SIGMA[kind]) for kind in DESCRIPTORS}


def ratio(found: Mapping[Descriptor, float], floor: Mapping[Descriptor, float]) -> float:
    """Compute the mean over statistics of MMD(generated, test) / MMD(train, test); NaN if all denominators are 0.

    Statistics with a denominator of 0 are left out.

    >>> ratio({"degree": 0.002, "orbit": 0.4}, {"degree": 0.001, "orbit": 0.0})
    2.0
    """
    parts = [found[kind] / below for kind, below in floor.items() if below]
    return sum(parts) / len(parts) if parts else math.nan


def evaluate(samples: Samples, reference: GraphReference | None = None, shape: Shape = "connected") -> dict[str, float]:
    """Evaluate a generator of graphs.

    Args:
        samples: graph6 lines, with classes or without, or None, one per generated object.
        reference: graphs to compare with; None leaves novelty, V.U.N., MMDs and ratio out.
        shape: the test that makes a graph valid; a reference has its own.

    Returns:
        ``num_samples``; ``valid``: of the shape / all; ``unique``: distinct / valid; ``novel``: distinct and not in the training
        set / distinct; ``vun``: valid, distinct and not in the training set / all, the product of the three; ``undecided``: samples
        with an isomorphism test that was given up / all; ``connected``: / all; ``nodes``, ``edges``: means over readable
        samples; ``mmd_degree``, ``mmd_clustering``, ``mmd_orbit``, ``mmd_spectral``, ``mmd_wavelet``, ``ratio``, and with
        labels those of :func:`~discrete_grpo.metrics.graph_classes.class_distances`.
    """
    shape = shape if reference is None else reference.shape
    budget = BUDGET if reference is None else reference.budget
    valid = [s for s in samples if s is not None and fits(s, shape)]
    distinct, undecided, novel = GraphSet(budget=budget), 0, 0
    for sample in valid:
        repeated = distinct.add(labelled_form(sample))
        trained = reference.known.find(reference.form(sample)) if reference is not None and repeated is False else False
        novel += repeated is False and trained is False
        undecided += repeated is None or trained is None
    found = {"num_samples": float(len(samples)), "valid": _share(len(valid), len(samples))}
    found["unique"] = _share(len(distinct), len(valid))
    if reference is not None:
        found |= {"novel": _share(novel, len(distinct)), "vun": _share(novel, len(samples))}
    found["undecided"] = _share(undecided, len(samples))
    found["connected"] = _share(sum(map(is_connected, samples)), len(samples))
    matrices = [m for m in map(matrix_of, samples) if m is not None]
    found["nodes"] = float(np.mean([len(m) for m in matrices])) if matrices else math.nan
    found["edges"] = float(np.mean([m.sum() / 2 for m in matrices])) if matrices else math.nan
    if reference is not None:
        measured = distances(samples, reference)
        found |= {f"mmd_{kind}": value for kind, value in measured.items()}
        found["ratio"] = ratio(measured, reference.floor)
        if reference.labels is not None:
            found |= class_distances(samples, reference.splits.test)
    return found


def evaluate_folds(samples: Samples, reference: GraphReference, folds: int = 5) -> dict[str, tuple[float, float]]:
    """Compute mean and population standard deviation of :func:`evaluate` over ``folds`` equal runs of consecutive samples.

    Papers report 5 folds of 40 samples. A graph is unique within its fold.

    Raises:
        ValueError: if the number of samples is no positive multiple of ``folds``.
    """
    if folds < 1 or not samples or len(samples) % folds:
        raise ValueError(f"folds: {folds} of {len(samples)} samples, expected a divisor of a positive number of samples")
    size = len(samples) // folds
    rows = [evaluate(samples[k : k + size], reference) for k in range(0, len(samples), size)]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {name: (float(np.mean(column)), float(np.std(column))) for name, column in columns.items()}


# -- files


@dataclass(frozen=True)
class GraphFile:
    """The graphs of a file.

    Attributes:
        graphs: graph6 lines that can be read, as written.
        broken: (line number from 1, text) of those that cannot; an empty field of a table is a sample that was invalid.
        in_order: all in the order of the file, None for the broken ones.
    """

    graphs: tuple[str, ...]
    broken: tuple[tuple[int, str], ...]
    in_order: tuple[str | None, ...]

    @property
    def samples(self) -> list[str | None]:
        """All samples in the order of the file, None for the broken ones."""
        return list(self.in_order)


def read_graphs(path: str | Path, *, max_nodes: int = MAX_NODES, max_bytes: int = MAX_BYTES, directed: bool = False) -> GraphFile:
    """Read graphs from a file.

    The file has one graph6 line per graph (``.g6``, ``.d6``, ``.txt``) or a column ``graph`` or ``sample`` (``.csv``), or is an
    npz file, whose test split is read. Text may be gzipped (``.gz``). Blank lines of a list of lines are skipped.

    Args:
        path: the file.
        max_nodes: largest number of nodes of a graph.
        max_bytes: largest size that a gzipped file, or an npz file, may unpack to.
        directed: whether the lines are of directed graphs.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a graph has the other direction, the ending is another one, there is no such column, the file holds
            nothing, or something too large.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"file: {path} does not exist, expected a file of graphs")
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if path.suffix == ".npz":
        lines = list(enumerate((to_line(g) for g in read_npz(path, max_nodes=max_nodes, max_bytes=max_bytes).test), 1))
    elif kind in (".g6", ".d6", ".txt", ".csv"):
        text = text_lines(path, max_bytes, argument="file")
        numbered = _csv_column(path, text) if kind == ".csv" else ((k, line.strip()) for k, line in enumerate(text, 1))
        lines = [_checked(path, k, s, max_nodes, directed) for k, s in numbered if s or kind == ".csv"]
    else:
        raise ValueError(f"file: {str(path)!r}, expected one ending in .g6, .d6, .txt or .csv, also with .gz, or .npz")
    if not lines:
        raise ValueError(f"file: {path} holds no graphs, expected at least one")
    good = {k: is_graph(text) for k, text in lines}
    samples = tuple(s if good[k] else None for k, s in lines)
    return GraphFile(tuple(s for s in samples if s is not None), tuple((k, s) for k, s in lines if not good[k]), samples)


def is_graph(text: str) -> bool:
    """Whether a line is a graph with nodes, and has a class at each node and edge or at none."""
    try:
        return len(named_graph(text)) > 0
    except ValueError:
        return False


def _checked(path: Path, number: int, text: str, max_nodes: int, directed: bool) -> tuple[int, str]:
    """Return a numbered line after checking the size and direction of its graph; unreadable lines are detected later."""
    try:
        nodes = digraph6.node_count(text) if digraph6.is_digraph6(text) else node_count(text)
    except ValueError:
        return number, text
    if digraph6.is_digraph6(text) != directed:
        found, expected = ("undirected", "directed") if directed else ("directed", "undirected")
        raise ValueError(f"file: {path} line {number} is {found}, expected {expected} graphs alone")
    if nodes > max_nodes:
        raise ValueError(f"file: {path} line {number} has {nodes:,} nodes, expected at most {max_nodes:,} (max_nodes)")
    return number, text


def _csv_column(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    reader = csv.DictReader(lines)
    try:
        with cells_of_any_length():
            names = reader.fieldnames or ()
            column = column_of(names, "graph", "sample")
            if column is None:
                raise ValueError(f"file: {path} has the columns {', '.join(names) or 'none'}, expected one named graph or sample")
            yield from ((reader.line_num, (row[column] or "").strip()) for row in reader)
    except csv.Error as error:
        raise ValueError(f"file: {path} cannot be read as a table: {error}") from None


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
