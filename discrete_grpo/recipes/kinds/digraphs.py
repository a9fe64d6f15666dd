"""Directed graphs as a kind of samples: lines that begin with ``&``, followed by classes if there are any, and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

from discrete_grpo.core.checks import told_as
from discrete_grpo.core.description import innermost
from discrete_grpo.core.sample_metrics import SampleMetrics
from discrete_grpo.datasets.own_digraphs import holds_directed, own_digraphs
from discrete_grpo.datasets.own_graphs import is_own, labelled_splits
from discrete_grpo.datasets.text_files import column_of, filled_cells, header_cells, suffix_of
from discrete_grpo.domains.digraph6 import is_digraph6
from discrete_grpo.domains.digraph_validity import DIGRAPH_SHAPES, DigraphShape, digraph_of, has_digraph_shape, longest_path
from discrete_grpo.domains.named_digraphs import EDGE, NODE, batch_to_lines, lines_to_batch
from discrete_grpo.domains.named_graphs import to_line
from discrete_grpo.metrics import digraphs as metrics
from discrete_grpo.metrics.graph_classes import check_classes, class_shares
from discrete_grpo.metrics.graphs import read_graphs
from discrete_grpo.recipes.families import Columns, Family, FileOptions
from discrete_grpo.recipes.kinds.graph_identity import graph_identity
from discrete_grpo.recipes.kinds.graph_objects import lines_of
from discrete_grpo.recipes.kinds.graphs import (
    LINES,
    labels_of,
    own_options,
    reference_of_run,
    reference_or_note,
    run_metadata,
    view_of,
    writers_of,
)
from discrete_grpo.recipes.reward_kinds import check_kind
from discrete_grpo.runs.report.graphs import render_graph
from discrete_grpo.runs.serialization import CheckpointError

__all__ = ["digraph_family", "load_reference", "reference_of"]


def reference_of(metadata: Columns) -> metrics.DigraphReference | None:
    """The set that a checkpoint was trained on, as a reference for its samples; None, with a note, if it is no longer available."""
    data = metadata.get("data")
    return reference_or_note(data, lambda: _trained_on(data, metadata)) if isinstance(data, Mapping) else None


def _trained_on(data: Columns, metadata: Columns) -> metrics.DigraphReference:
    """The reference of a set as a policy was trained on it."""
    labels = labels_of(metadata)
    if labels is None:
        raise CheckpointError("labels: none in the checkpoint, expected names of classes")
    attributes = {name: data.get(name) for name in ("node_attribute", "edge_attribute")}
    own = own_digraphs(str(data.get("source")), labels=labels, **attributes)
    splits = labelled_splits(own, float(data["test_share"]))
    return metrics.DigraphReference(splits, metadata.get("shape", "dag"), None if labels.plain else labels)


def load_reference(options: FileOptions) -> metrics.DigraphReference:
    """The set that samples of a file are compared with: a file or folder of directed graphs, all of them both parts.

    A run folder stands for the set of its policy, in the parts of its training.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it holds no directed graphs, for a shape of undirected graphs, or if the set of a run is not here.
    """
    source = str(options.reference)
    if (metadata := run_metadata(source, "digraphs")) is not None:
        return reference_of_run(source, reference_of(metadata), options)
    if not is_own(source):
        raise ValueError(f"reference: {source!r}, expected a file or folder of directed graphs")
    with told_as("reference"):
        own = own_digraphs(source, **own_options(options))
    splits = labelled_splits(own)
    shape = cast(DigraphShape, options.shape) or metrics.digraph_shape(splits.train)
    return metrics.DigraphReference(splits, shape, None if own.labels.plain else own.labels)


def _sizes(samples: Sequence[str | None]) -> dict[str, list[int | None]]:
    """Numbers of nodes and arcs and the longest path of every sample: the property columns of tables."""
    graphs = [digraph_of(s) for s in samples]
    return {
        "nodes": [None if g is None else g.number_of_nodes() for g in graphs],
        "edges": [None if g is None else g.number_of_edges() for g in graphs],
        "longest_path": [longest_path(g) for g in graphs],
    }


def _decode(policy: Any, metadata: Columns) -> None:
    """Make the policy decode to lines, with the names of the classes in the checkpoint."""
    labels, inner = labels_of(metadata), innermost(policy)
    if labels is None:
        raise CheckpointError("checkpoint: it has no labels, expected the names of the classes of a policy of kind digraphs")
    fields = {field.name: field.kernel.noise.num_clean for field in (*inner.node_fields, *inner.edge_fields)}
    wanted = {NODE: len(labels.nodes), EDGE: 2 if labels.plain else len(labels.edges)}
    if fields != wanted:
        told = f"{wanted[NODE]} names of node classes and {wanted[EDGE]} of arc classes"
        raise CheckpointError(f"checkpoint: it has {told}, expected those of the fields of its policy, {fields}")
    inner.decode, inner.encode = partial(batch_to_lines, labels=labels), partial(lines_to_batch, labels=labels)


# -- files


def _holds(path: Path, first: str) -> bool:
    """Whether a file is of directed graphs: by its first line, its first graph in a table, or any graph of other formats."""
    kind = suffix_of(path)
    if kind in LINES:
        return is_digraph6(first)
    if kind == ".csv":
        column = column_of(header_cells(first), "graph", "sample")
        return column is not None and any(map(is_digraph6, filled_cells(path, column, 1)))
    return is_own(path) and holds_directed(path)


def _read(file: str, options: FileOptions) -> tuple[Sequence[Any], Mapping[str, Sequence[Any]]]:
    """The graphs of lines, of a csv file with a column ``graph``, or of any other file or folder of directed graphs."""
    from discrete_grpo.recipes.left_out import report_broken

    if is_own(file) and suffix_of(Path(file)) not in LINES:
        own = own_digraphs(file, **own_options(options))
        return [to_line(graph) for graph in own.networkx(range(len(own)))], {}
    found = read_graphs(file, max_nodes=options.max_nodes, max_bytes=options.max_bytes, directed=True)
    report_broken(file, found.broken, len(found.graphs), "digraph6")
    return found.samples, {}


def _compare(samples: Sequence[Any], columns: Mapping[str, Sequence[Any]], options: FileOptions) -> Mapping[str, float]:
    """V.U.N., distances and classes against a set; without a set, the metrics that need none."""
    reference = None if options.reference is None else load_reference(options)
    labels = None if reference is None else reference.labels
    samples = lines_of(samples, options, labels, "digraphs")
    if labels is not None:
        check_classes(samples, labels)
    shape = cast(DigraphShape, options.shape) or "dag"
    if shape not in DIGRAPH_SHAPES:
        raise ValueError(f"shape: {shape!r}, expected one of {', '.join(DIGRAPH_SHAPES)} with directed graphs")
    return metrics.evaluate(samples, reference, shape) | class_shares(samples)


def digraph_family(metadata: Columns) -> Family:
    """Directed graphs, measured against the set their policy was trained on."""
    shape, labels = metadata.get("shape", "dag"), labels_of(metadata)
    named = None if labels is None or labels.plain else labels
    reference = cache(lambda: reference_of(metadata))

    def evaluate(samples: Sequence[Any]) -> Mapping[str, float]:
        return metrics.evaluate(samples, reference(), shape) | class_shares(samples)

    return Family(
        name="digraphs",
        column="graph",
        sample_metrics=SampleMetrics(partial(metrics.signatures, shape=shape), metrics.metrics_of_signatures),
        evaluate=evaluate,
        table=_sizes,
        identity=graph_identity(partial(has_digraph_shape, shape=shape)),
        draw=partial(render_graph, labels=named),
        writers=writers_of(named),
        lines=LINES,
        reward_view=view_of(named),
        decode=_decode,
        check_rewards=lambda policy, rewards: check_kind(rewards, "digraphs"),
        holds=_holds,
        read=_read,
        compare=_compare,
        options=("reference", "shape", "max_nodes", "suite", "node_attribute", "edge_attribute"),
    )
