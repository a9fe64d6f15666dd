"""Graphs as a kind of samples: graph6 lines, followed by classes where the policy has several, and files of graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from discrete_grpo.datasets.synthetic_graphs import load_splits
from discrete_grpo.domains import graph6, labelled_graphs
from discrete_grpo.domains.graph_validity import Shape
from discrete_grpo.metrics import graphs as metrics
from discrete_grpo.metrics.suite import SuiteOptions, SuiteResult
from discrete_grpo.recipes.families import Columns, Family, FileOptions, innermost
from discrete_grpo.runs.report.graphs import render_graph

__all__ = ["class_shares", "graph_family", "reference_of", "shape_of"]


def shape_of(name: str) -> Shape:
    """Return the shape that a valid graph of a named set has, by the first part of the name.

    >>> shape_of("planar-16"), shape_of("sbm"), shape_of("community-20")
    ('planar', 'sbm', 'connected')
    """
    known: dict[str, Shape] = {"planar": "planar", "tree": "tree", "sbm": "sbm"}
    return known.get(name.split("-")[0], "connected")


def reference_of(metadata: Columns) -> metrics.GraphReference | None:
    """The set that a checkpoint was trained on, to measure samples against; None where it cannot be had any more."""
    data = metadata.get("data")
    if not isinstance(data, Mapping):
        return None
    for source in (data.get("name"), data.get("source")):
        try:
            return metrics.GraphReference(load_splits(str(source)), metadata.get("shape", "connected"))
        except (FileNotFoundError, ValueError):
            continue
    return None


def _sizes(samples: Sequence[str | None]) -> dict[str, list[int | None]]:
    """Numbers of nodes and edges of every sample: the property columns of tables."""
    graphs = [None if s is None else graph6.from_graph6(s) for s in samples]
    return {
        "nodes": [None if g is None else g.number_of_nodes() for g in graphs],
        "edges": [None if g is None else g.number_of_edges() for g in graphs],
    }


def _decode(policy: Any, metadata: Columns) -> None:
    """Let rewards see graph6 lines, followed by the classes where a policy has more of them than one of nodes and two of edges."""
    inner = innermost(policy)
    labelled = inner.node_kernel.noise.num_clean > 1 or inner.edge_kernel.noise.num_clean > 2
    inner.decode = labelled_graphs.batch_to_lines if labelled else graph6.batch_to_graph6


def class_shares(samples: Sequence[str | None]) -> dict[str, float]:
    """The share of each class among the nodes and among the edges of labelled samples; nothing for plain graphs.

    >>> class_shares(["Bg nodes=0,2,0 edges=1,3", None])["edge_class_3"]
    0.5
    """
    found: dict[str, list[int]] = {"node": [], "edge": []}
    for sample in samples:
        if sample is not None and " " in sample:
            graph = labelled_graphs.from_line(sample)
            found["node"] += [label for _, label in graph.nodes(data="label")]
            found["edge"] += [label for _, _, label in graph.edges(data="label")]
    return {f"{part}_class_{c}": all_.count(c) / len(all_) for part, all_ in found.items() for c in sorted(set(all_))}


# -- files


def _holds(path: Path, first: str) -> bool:
    """Whether a file is of graphs: graph6 or npz by its ending, or a table with a column ``graph``."""
    name = str(path).removesuffix(".gz")
    return "graph" in first.split(",") if name.endswith(".csv") else name.endswith((".g6", ".npz"))


def _read(file: str, options: FileOptions) -> tuple[Sequence[Any], Mapping[str, Sequence[Any]]]:
    """The graphs of graph6 lines, of a csv file with a column ``graph``, or the test graphs of an npz file."""
    from discrete_grpo.recipes.molecules import report_broken

    found = metrics.read_graphs(file, max_nodes=options.max_nodes, max_bytes=options.max_bytes)
    report_broken(file, found.broken, len(found.graphs), "graph6")
    return found.samples, {}


def _compare(samples: Sequence[Any], columns: Mapping[str, Sequence[Any]], options: FileOptions) -> Mapping[str, float]:
    """V.U.N., MMDs and ratio against a set; without a set what can be said without one."""
    splits = None
    if options.reference is not None:
        splits = load_splits(options.reference, max_nodes=options.max_nodes, max_bytes=options.max_bytes)
    shape = cast(Shape, options.shape) or shape_of(splits.name if splits else "")
    reference = None if splits is None else metrics.GraphReference(splits, shape)
    return metrics.evaluate(samples, reference, shape) | class_shares(samples)


def _measure(samples: Sequence[Any], options: FileOptions, settings: SuiteOptions) -> SuiteResult:
    """V.U.N., MMDs and ratio with intervals against a set."""
    from discrete_grpo.metrics.graph_suite import graphs

    if options.reference is None:
        raise ValueError("reference: None, expected a named set or an npz file of splits with suite 'graphs'")
    splits = load_splits(options.reference, max_nodes=options.max_nodes, max_bytes=options.max_bytes)
    reference = metrics.GraphReference(splits, cast(Shape, options.shape) or shape_of(splits.name))
    if options.sbm_method is not None and reference.shape != "sbm":
        raise ValueError(f"sbm_method: {options.sbm_method!r}, expected none with shape {reference.shape!r}")
    return graphs(samples, reference, settings)


def graph_family(metadata: Columns) -> Family:
    """Graphs, measured against the set their policy was trained on."""
    shape = metadata.get("shape", "connected")

    def evaluate(samples: Sequence[Any]) -> Mapping[str, float]:
        return metrics.evaluate(samples, reference_of(metadata), shape) | class_shares(samples)

    return Family(
        name="graphs",
        column="graph",
        sample_metrics=partial(metrics.sample_metrics, shape=shape),
        evaluate=evaluate,
        table=_sizes,
        draw=render_graph,
        decode=_decode,
        holds=_holds,
        read=_read,
        compare=_compare,
        measure=_measure,
        options=("reference", "shape", "max_nodes", "suite", "bootstrap", "folds", "sbm_method"),
    )
