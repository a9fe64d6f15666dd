"""Graphs as a kind of samples: graph6 lines, followed by classes where the policy has several, and files of graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast

from discrete_grpo.core.checks import told_as
from discrete_grpo.core.description import innermost
from discrete_grpo.core.sample_metrics import SampleMetrics
from discrete_grpo.datasets.graph_files import to_graphml, to_node_link
from discrete_grpo.datasets.graph_splits import load_splits
from discrete_grpo.datasets.own_graphs import OwnGraphs, is_own, labelled_splits, own_graphs
from discrete_grpo.datasets.text_files import column_of, filled_cells, header_cells, suffix_of
from discrete_grpo.domains import graph6, labelled_graphs
from discrete_grpo.domains.graph_validity import Shape
from discrete_grpo.domains.named_graphs import Labels, batch_to_lines, lines_to_batch, to_line, to_networkx
from discrete_grpo.metrics import graphs as metrics
from discrete_grpo.metrics.graph_classes import check_classes, class_shares
from discrete_grpo.metrics.suite import SuiteOptions, SuiteResult
from discrete_grpo.recipes.families import Columns, Family, FileOptions
from discrete_grpo.recipes.kinds.graph_identity import graph_identity
from discrete_grpo.recipes.kinds.graph_objects import lines_of
from discrete_grpo.recipes.kinds.graph_sources import changed_source, shape_of, tell_no_reference
from discrete_grpo.recipes.reward_kinds import check_kind
from discrete_grpo.rewards.graph_views import GraphView
from discrete_grpo.runs.checkpoint import load_metadata
from discrete_grpo.runs.checkpoint_names import find_checkpoint
from discrete_grpo.runs.folder import is_run
from discrete_grpo.runs.report.graphs import render_graph
from discrete_grpo.runs.serialization import CheckpointError
from discrete_grpo.runs.weights import WEIGHTS

__all__ = [
    "LINES",
    "graph_family",
    "labels_of",
    "load_reference",
    "own_options",
    "reference_of",
    "reference_of_run",
    "reference_or_note",
    "run_metadata",
    "view_of",
    "writers_of",
]

Reference = TypeVar("Reference", bound=Any)
LINES = (".g6", ".d6", ".txt")
"""Endings of files of lines."""
LOOKED_AT = 100
"""Number of cells of a column ``sample`` that are read to decide whether it holds graphs; a few short texts could be SMILES too."""


def labels_of(metadata: Columns) -> Labels | None:
    """The names of the classes of a checkpoint's policy; None if it has none.

    Raises:
        CheckpointError: if they cannot be read.
    """
    if metadata.get("labels") is None:
        return None
    try:
        return Labels.from_json(metadata["labels"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"labels: {str(metadata['labels'])[:60]} of the checkpoint, expected names of classes") from error


def reference_of(metadata: Columns) -> metrics.GraphReference | None:
    """The set that a checkpoint was trained on, as a reference for its samples; None, with a note, if it is no longer available."""
    data = metadata.get("data")
    if not isinstance(data, Mapping):
        return None
    return reference_or_note(data, lambda: _trained_on(str(data.get("source", data.get("name"))), data, metadata))


def reference_or_note(data: Columns, read: Callable[[], Reference]) -> Reference | None:
    """The set that ``read`` returns; None, with a note, if the data of a checkpoint have changed or cannot be read."""
    if not changed_source(data):
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError, CheckpointError):
            return read()
    tell_no_reference(data)
    return None


def _trained_on(source: str, data: Columns, metadata: Columns) -> metrics.GraphReference:
    """The reference of a set as a policy was trained on it."""
    shape = metadata.get("shape", "connected")
    if "test_share" not in data:
        return metrics.GraphReference(load_splits(source), shape)
    labels = labels_of(metadata)
    own = own_graphs(source, node_attribute=data.get("node_attribute"), edge_attribute=data.get("edge_attribute"), labels=labels)
    return metrics.GraphReference(labelled_splits(own, float(data["test_share"])), shape, labels=labels)


def own_options(options: FileOptions) -> dict[str, Any]:
    """The arguments of :func:`~discrete_grpo.datasets.own_graphs.own_graphs` that the options of a file set."""
    return {name: getattr(options, name) for name in ("node_attribute", "edge_attribute", "max_nodes", "max_bytes")}


def _own(source: str, options: FileOptions) -> OwnGraphs:
    return own_graphs(source, **own_options(options))


def load_reference(options: FileOptions) -> metrics.GraphReference:
    """The set that samples of a file are compared with: a named set, an npz file of splits, or a file or folder of own graphs.

    Graphs of a source without splits are both training and test graphs. A run folder stands for the set of its policy, in the
    parts of its training.

    Raises:
        FileNotFoundError: if there is no such file or folder.
        ValueError: if it cannot be read, or the set of a run is not here or has other content.
    """
    source = str(options.reference)
    if (metadata := run_metadata(source, "graphs")) is not None:
        return reference_of_run(source, reference_of(metadata), options)
    labels = None
    with told_as("reference"):
        if not is_own(source) and not source.endswith(".npz"):
            splits = load_splits(source, max_nodes=options.max_nodes, max_bytes=options.max_bytes)
        else:
            own = _own(source, options)
            splits, labels = labelled_splits(own), None if own.labels.plain else own.labels
    return metrics.GraphReference(splits, cast(Shape, options.shape) or shape_of(source), labels=labels)


def run_metadata(source: str, kind: str) -> Columns | None:
    """The metadata of the newest policy of a run folder, or of a policy's own folder; None for what is neither.

    Raises:
        CheckpointError: if the run has no policy yet.
        ValueError: if its samples are of another ``kind``.
    """
    policy = all((Path(source) / name).is_file() for name in WEIGHTS)
    if not policy and not is_run(source):
        return None
    with told_as("reference", "policy"):
        metadata = load_metadata(find_checkpoint(source))
    if metadata.get("kind") != kind:
        raise ValueError(f"reference: {source!r} is a run whose samples are {metadata.get('kind')}, expected one of {kind}")
    return metadata


def reference_of_run(source: str, found: Reference | None, options: FileOptions) -> Reference:
    """The reference of a run, with the shape of ``options``, if any; raises ValueError where the run has none."""
    if found is None:
        raise ValueError(
            f"reference: {source!r} is a run whose training graphs are not here, expected one that has them, or a file"
        )
    return found if options.shape is None else replace(found, shape=options.shape)


def view_of(labels: Labels | None) -> Callable[[Any, Any], GraphView]:
    """Wrap rewards that expect graphs as objects, whose classes have the names of ``labels``."""

    def seen(reward: Any, view: Any) -> GraphView:
        if view not in ("networkx", "pyg"):
            raise ValueError(f"rewards_see: {view!r}, expected text, networkx or pyg with graphs")
        return GraphView(reward, view, labels)

    return seen


def _sizes(samples: Sequence[str | None]) -> dict[str, list[int | None]]:
    """Numbers of nodes and edges of every sample: the property columns of tables."""
    graphs = [None if s is None else graph6.from_graph6(s) for s in samples]
    return {
        "nodes": [None if g is None else g.number_of_nodes() for g in graphs],
        "edges": [None if g is None else g.number_of_edges() for g in graphs],
    }


def _decode(policy: Any, metadata: Columns) -> None:
    """Make the policy decode to graph6 lines, followed by the classes if it has more than one of nodes or two of edges.

    Classes are written by name if the checkpoint has names.
    """
    inner, labels = innermost(policy), labels_of(metadata)
    if not hasattr(inner, "node_kernel"):  # a policy of sequences, whose decoder is part of it
        return
    counts = inner.node_kernel.noise.num_clean, inner.edge_kernel.noise.num_clean
    if labels is not None:
        if counts != (len(labels.nodes), len(labels.edges)):
            told = f"{len(labels.nodes)} names of node classes and {len(labels.edges)} of edge classes"
            raise CheckpointError(f"checkpoint: it has {told}, expected {counts[0]} and {counts[1]} as its policy has")
        inner.decode, inner.encode = partial(batch_to_lines, labels=labels), partial(lines_to_batch, labels=labels)
        return
    labelled = counts[0] > 1 or counts[1] > 2
    inner.decode = labelled_graphs.batch_to_lines if labelled else graph6.batch_to_graph6
    inner.encode = labelled_graphs.graphs_to_batch if labelled else graph6.graphs_to_batch


def writers_of(labels: Labels | None) -> dict[str, Callable[[Sequence[Any]], bytes]]:
    """Writers of files of graphs by their ending, with the attributes that ``labels`` names."""

    def graphs(samples: Sequence[Any]) -> Iterator[Any]:
        return (to_networkx(sample, labels) for sample in samples if sample is not None)

    return {
        ".graphml": lambda samples: to_graphml(graphs(samples)),
        ".json": lambda samples: to_node_link(graphs(samples)),
    }


# -- files


def _holds(path: Path, first: str) -> bool:
    """Whether a file contains graphs: by its ending, except for .txt and .csv, or as a table with a column ``graph``.

    A .txt file contains graphs if its first line is a graph with classes. The tables of a run have a column ``sample`` for all
    kinds; they contain graphs if its first cells do.
    """
    kind = suffix_of(path)
    if kind != ".csv":
        return kind == ".npz" or (is_own(path) and (kind != ".txt" or " nodes=" in first))
    column = column_of(header_cells(first), "graph", "sample")
    return column == "graph" or (column is not None and _graphs_alone(filled_cells(path, column, LOOKED_AT)))


def _graphs_alone(cells: Iterable[str]) -> bool:
    """Whether there are cells, and each is a graph."""
    found = [metrics.is_graph(cell) for cell in cells]
    return bool(found) and all(found)


def _read(file: str, options: FileOptions) -> tuple[Sequence[Any], Mapping[str, Sequence[Any]]]:
    """The graphs of graph6 lines, of a csv file with a column ``graph``, the test graphs of an npz file, or own graphs."""
    from discrete_grpo.recipes.left_out import report_broken

    if is_own(file) and suffix_of(Path(file)) not in LINES:
        own = _own(file, options)
        return [to_line(graph) for graph in own.networkx(range(len(own)))], {}
    found = metrics.read_graphs(file, max_nodes=options.max_nodes, max_bytes=options.max_bytes)
    report_broken(file, found.broken, len(found.graphs), "graph6")
    return found.samples, {}


def _compare(samples: Sequence[Any], columns: Mapping[str, Sequence[Any]], options: FileOptions) -> Mapping[str, float]:
    """V.U.N., MMDs, ratio and classes against a set; without a set, the metrics that need none."""
    reference = None if options.reference is None else load_reference(options)
    labels = None if reference is None else reference.labels
    samples = lines_of(samples, options, labels, "graphs")
    if labels is not None:
        check_classes(samples, labels)
    shape = cast(Shape, options.shape) or "connected"
    return metrics.evaluate(samples, reference, shape) | class_shares(samples)


def _measure(samples: Sequence[Any], options: FileOptions, settings: SuiteOptions) -> SuiteResult:
    """V.U.N., MMDs and ratio with intervals against a set."""
    from discrete_grpo.metrics.graph_suite import graphs

    if options.reference is None:
        raise ValueError("reference: None, expected a named set or a file of graphs with suite 'graphs'")
    reference = load_reference(options)
    if options.sbm_method is not None and reference.shape != "sbm":
        raise ValueError(f"sbm_method: {options.sbm_method!r}, expected none with shape {reference.shape!r}")
    return graphs(lines_of(samples, options, reference.labels, "graphs"), reference, settings)


def graph_family(metadata: Columns) -> Family:
    """Graphs, measured against the set their policy was trained on."""
    shape, labels = metadata.get("shape", "connected"), labels_of(metadata)
    reference = cache(lambda: reference_of(metadata))

    def evaluate(samples: Sequence[Any]) -> Mapping[str, float]:
        return metrics.evaluate(samples, reference(), shape) | class_shares(samples)

    return Family(
        name="graphs",
        column="graph",
        sample_metrics=SampleMetrics(partial(metrics.signatures, shape=shape), metrics.metrics_of_signatures),
        evaluate=evaluate,
        table=_sizes,
        identity=graph_identity(partial(metrics.fits, shape=shape)),
        draw=partial(render_graph, labels=labels),
        writers=writers_of(labels),
        lines=(".g6", ".txt"),
        reward_view=view_of(labels),
        decode=_decode,
        check_rewards=lambda policy, rewards: check_kind(rewards, "graphs"),
        holds=_holds,
        read=_read,
        compare=_compare,
        measure=_measure,
        options=(
            "reference",
            "shape",
            "max_nodes",
            "suite",
            "bootstrap",
            "folds",
            "sbm_method",
            "node_attribute",
            "edge_attribute",
        ),
    )
