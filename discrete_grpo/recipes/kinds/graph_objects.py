"""Conversion of networkx graphs and PyG data to the lines that metrics and policies read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import networkx as nx

from discrete_grpo.core.checks import told_as
from discrete_grpo.datasets.own_digraphs import OwnDigraphs, read_own
from discrete_grpo.datasets.own_graphs import OwnGraphs
from discrete_grpo.domains.named_graphs import Labels, to_line
from discrete_grpo.domains.spatial_molecules import SpatialMolecule
from discrete_grpo.recipes.families import FileOptions
from discrete_grpo.runs.console import print_notes

__all__ = ["is_networkx", "kind_of_samples", "lines_of"]

CLASS = "label"
"""The attribute that holds the class in graphs drawn by a policy."""


def lines_of(samples: Sequence[Any], options: FileOptions, labels: Labels | None, kind: str) -> list[str | None]:
    """Replace each graph object among samples by a line of graph6 or digraph6; lines and None are kept.

    Args:
        samples: lines, networkx graphs, PyG ``Data`` or None.
        options: attributes that hold the classes.
        labels: classes of the reference; None if it has none. Without a reference attributes are read as in a file. Those that
            cannot be read as classes, and beside a reference without classes those other than ``label``, are left out, and a line
            says so.
        kind: graphs or digraphs.

    Raises:
        ValueError: naming the sample, for directed graphs where undirected ones are expected and the reverse, self-loops, several
            edges between two nodes, or an attribute that does not exist.
    """
    places = [place for place, sample in enumerate(samples) if sample is not None and not isinstance(sample, str)]
    found = list(samples)
    if not places:
        return found
    objects = [found[place] for place in places]
    read: dict[str, Any] = {"node_attribute": options.node_attribute, "edge_attribute": options.edge_attribute}
    if labels is not None:
        read = {"node_attribute": labels.node_attribute, "edge_attribute": labels.edge_attribute}
        read = {name: value if value in _attributes(objects, name) else None for name, value in read.items()}
    with told_as("samples"):
        own = read_own(objects, **read) if labels is not None or any(read.values()) else _own(objects, options)
    if isinstance(own, OwnGraphs) is not (kind == "graphs"):
        one, other = ("directed", "digraphs") if kind == "graphs" else ("undirected", "graphs")
        raise ValueError(f"samples: graph {places[0]} is {one}, expected kind={other!r} for such graphs")
    for place, graph in zip(places, own.networkx(range(len(own))), strict=True):
        found[place] = to_line(graph)
    return found


def is_networkx(value: Any) -> bool:
    """Whether a value is one networkx graph, which would be read as a list of its nodes."""
    return isinstance(value, nx.Graph)


def kind_of_samples(samples: Sequence[Any]) -> str:
    """The kind of samples if their type identifies it; molecules for all others."""
    first = next((sample for sample in samples if sample is not None), None)
    if isinstance(first, nx.Graph):
        return "digraphs" if first.is_directed() else "graphs"
    if isinstance(first, SpatialMolecule) or (isinstance(first, str) and " |(" in first):
        return "spatial"
    named = isinstance(first, str) and " nodes=" in first
    if named and str(first).startswith("&"):
        return "digraphs"
    return "graphs" if named or hasattr(first, "edge_index") else "molecules"


def _own(objects: Sequence[Any], options: FileOptions) -> OwnGraphs | OwnDigraphs:
    """Read graphs with the classes that their attributes hold; prints a line if attributes are left out."""
    used = sorted({str(name) for graph in objects for name in _used(graph)})
    why = "the reference has no classes" if used and options.reference is not None else ""
    if not why:
        try:
            return read_own(objects)
        except ValueError as error:
            if not used:
                raise
            why = f"they cannot be read as classes ({str(error).removeprefix('data: ')})"
    own = read_own([_without(graph) for graph in objects])
    print_notes([f"samples: the attributes {', '.join(used)} of the graphs are left out: {why}"])
    return own


def _used(graph: Any) -> set[Any]:
    """The names of the attributes that would be read as classes, other than ``label``."""
    if isinstance(graph, nx.Graph):
        return {*_names([graph], "node_attribute"), *_names([graph], "edge_attribute")} - {CLASS}
    return {name for name in ("x", "edge_attr") if getattr(graph, name, None) is not None}


def _without(graph: Any) -> Any:
    """A graph without attributes other than ``label``."""
    if not isinstance(graph, nx.Graph):
        return graph if not hasattr(graph, "edge_index") else type(graph)(edge_index=graph.edge_index, num_nodes=graph.num_nodes)
    bare = graph.__class__()
    bare.add_nodes_from((node, {k: v for k, v in values.items() if k == CLASS}) for node, values in graph.nodes(data=True))
    bare.add_edges_from((a, b, {k: v for k, v in values.items() if k == CLASS}) for a, b, values in graph.edges(data=True))
    return bare


def _attributes(objects: Sequence[Any], name: str) -> set[Any]:
    """The names of the attributes of networkx graphs; none of PyG data, whose attributes have names of their own."""
    return set(_names(objects, name))


def _names(objects: Sequence[Any], name: str) -> Iterator[Any]:
    for graph in objects:
        if isinstance(graph, nx.Graph):
            parts = graph.nodes(data=True) if name == "node_attribute" else graph.edges(data=True)
            for part in parts:
                yield from part[-1]
