"""Splits of plain graphs in one npz file: sizes, edges and, where they have any, classes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import networkx as nx
import numpy as np
from jaxtyping import Int

from discrete_grpo.core.checks import check_range
from discrete_grpo.datasets.arrays import read_arrays
from discrete_grpo.datasets.reading import write_arrays
from discrete_grpo.datasets.synthetic_graphs import NAMED_SETS, SPLITS, GraphSplits, make_splits
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.domains.graph6 import MAX_NODES

__all__ = ["load_splits", "read_npz", "write_npz"]

MAX_TOTAL = 50_000_000
"""Largest number of nodes, and of edges, of all graphs of a split."""


def load_splits(source: str | Path, *, max_nodes: int = MAX_NODES, max_bytes: int = MAX_BYTES) -> GraphSplits:
    """Load a named set of this project, or the splits of an npz file (:func:`read_npz`)."""
    if str(source) in NAMED_SETS:
        return make_splits(str(source))
    if not str(source).endswith(".npz"):
        return make_splits(str(source))  # which raises with the known names
    return read_npz(source, max_nodes=max_nodes, max_bytes=max_bytes)


def read_npz(path: str | Path, *, max_nodes: int = MAX_NODES, max_bytes: int = MAX_BYTES) -> GraphSplits:
    """Read splits from an npz file: ``<split>_num_nodes`` [G], ``<split>_edges`` [E, 2] and ``<split>_offsets`` [G+1].

    Where it has ``<split>_node_classes`` [sum of num_nodes] and ``<split>_edge_classes`` [E], whole numbers or text, its nodes and
    edges have them as the attribute ``label``, as text.

    Args:
        path: the file.
        max_nodes: largest number of nodes of a graph.
        max_bytes: largest size of all arrays together.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: naming the array, if one is missing, too large or does not fit, or an edge is a self-loop or leaves its graph.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"data: {path} is no file, expected an npz file of splits")
    if not is_zipfile(path):
        raise ValueError(f"data: {path} cannot be read, expected an npz file of splits")
    try:
        arrays = read_arrays(Path(path), max_bytes)
    except (ValueError, OSError, KeyError, EOFError, BadZipFile, zlib.error) as error:
        raise ValueError(f"data: {path} cannot be read ({error}), expected an npz file of splits") from error
    train, val, test = (_split(arrays, split, Path(path).name, max_nodes) for split in SPLITS)
    return GraphSplits(train, val, test, Path(path).stem)


def _split(arrays: Mapping[str, np.ndarray], split: str, file: str, max_nodes: int) -> tuple[nx.Graph, ...]:
    missing = [f"{split}_{part}" for part in ("num_nodes", "edges", "offsets") if f"{split}_{part}" not in arrays]
    if missing:
        raise ValueError(f"data: {file} has no array {missing[0]}, expected num_nodes, edges and offsets of train, val and test")
    sizes, edges, offsets = (arrays[f"{split}_{part}"] for part in ("num_nodes", "edges", "offsets"))
    _check_arrays(f"data: {file}, {split}", sizes, edges, offsets)
    _check_sizes(f"data: {file}, {split}", sizes, edges, max_nodes)
    graphs = []
    for k, n in enumerate(sizes.tolist()):
        own = edges[offsets[k] : offsets[k + 1]]
        _check_edges(f"data: {file}, {split} graph {k}", own, n)
        graph = nx.empty_graph(n)
        graph.add_edges_from(own.tolist())
        graphs.append(graph)
    _add_classes(arrays, split, file, graphs, edges)
    return tuple(graphs)


def _add_classes(
    arrays: Mapping[str, np.ndarray], split: str, file: str, graphs: Sequence[nx.Graph], edges: Int[np.ndarray, "edge 2"]
) -> None:
    """Give nodes and edges their classes, where the file has any."""
    names = [f"{split}_{part}_classes" for part in ("node", "edge")]
    if not any(name in arrays for name in names):
        return
    for name, count in zip(names, (sum(map(len, graphs)), len(edges)), strict=True):
        found = arrays.get(name)
        if found is None or found.shape != (count,) or found.dtype.kind not in "iuU":
            told = "no such array" if found is None else f"{found.dtype} of shape {found.shape}"
            raise ValueError(f"data: {file}, {name}: {told}, expected whole numbers or text of shape ({count},)")
    nodes, kinds = (iter(arrays[name].tolist()) for name in names)
    place = 0
    for graph in graphs:
        nx.set_node_attributes(graph, {v: str(next(nodes)) for v in graph}, "label")
        own = edges[place : place + graph.number_of_edges()].tolist()
        place += len(own)
        nx.set_edge_attributes(graph, {(i, j): str(next(kinds)) for i, j in own}, "label")


def _check_arrays(name: str, sizes: np.ndarray, edges: np.ndarray, offsets: np.ndarray) -> None:
    if not all(np.issubdtype(x.dtype, np.integer) for x in (sizes, edges, offsets)):
        types = f"num_nodes {sizes.dtype}, edges {edges.dtype}, offsets {offsets.dtype}"
        raise ValueError(f"{name}: {types}, expected whole numbers")
    fits = sizes.ndim == 1 and offsets.shape == (len(sizes) + 1,) and edges.ndim == 2 and edges.shape[1] == 2
    if not fits or offsets[0] != 0 or offsets[-1] != len(edges) or (offsets[1:] < offsets[:-1]).any():
        shapes = f"num_nodes {sizes.shape}, edges {edges.shape}, offsets {offsets.shape}"
        raise ValueError(f"{name}: {shapes}, expected [G], [E, 2] and [G+1], offsets rising from 0 to E")


def _check_sizes(name: str, sizes: np.ndarray, edges: np.ndarray, max_nodes: int) -> None:
    """Raise ValueError for a graph that is too large, or for too many nodes or edges in all, before a graph is made of them."""
    if len(sizes):
        check_range(f"{name}: least num_nodes", int(sizes.min()), least=0)
        check_range(f"{name}: largest num_nodes", int(sizes.max()), most=max_nodes, note=" (max_nodes)")
    for count, kind in ((int(sizes.sum(dtype=np.int64)), "nodes"), (len(edges), "edges")):
        check_range(f"{name}: {kind} in all", count, most=MAX_TOTAL)


def _check_edges(name: str, edges: np.ndarray, num_nodes: int) -> None:
    outside = edges[(edges < 0) | (edges >= num_nodes)]
    if len(outside):
        raise ValueError(f"{name} has an edge to node {int(outside[0])}, expected 0 to {num_nodes - 1}")
    if (edges[:, 0] == edges[:, 1]).any():
        raise ValueError(f"{name} has a self-loop, expected a simple graph")
    if len(np.unique(np.sort(edges, axis=1), axis=0)) < len(edges):
        raise ValueError(f"{name} has an edge twice, expected each undirected edge once")


def _attributes(graph: nx.Graph) -> list[dict[str, Any]]:
    """The attributes of all nodes and edges."""
    return [row for _, row in graph.nodes(data=True)] + [row for *_, row in graph.edges(data=True)]


def _check_writable(name: str, graph: nx.Graph, labelled: bool) -> None:
    """Raise ``ValueError`` for a graph that a file of splits would not give back."""
    if graph.is_directed() or graph.is_multigraph() or nx.number_of_selfloops(graph):
        raise ValueError(f"splits: {name} is a {type(graph).__name__}, expected a simple undirected graph")
    if set(graph) != set(range(len(graph))):
        raise ValueError(f"splits: {name} has the nodes {sorted(map(repr, graph))[:3]}, expected 0 to {len(graph) - 1}")
    if others := sorted({str(key) for row in _attributes(graph) for key in row} - {"label"}):
        wanted = "expected label alone, which holds the classes"
        raise ValueError(f"splits: {name} has the attribute {others[0]!r}, which the file would not keep, {wanted}")
    if labelled and not all("label" in row for row in _attributes(graph)):
        raise ValueError(f"splits: {name} has a node or an edge without label, expected a label at all of them, as others have one")


def write_npz(path: str | Path, splits: GraphSplits) -> None:
    """Write splits in the format of :func:`read_npz`, with the classes of graphs that have them as the attribute ``label``.

    Raises:
        ValueError: for a graph that the format cannot hold: directed, with several edges of a pair or a self-loop, with nodes that
            are not 0, 1, 2, ..., with other attributes of nodes or edges, or with a label at some nodes and edges of the splits
            and none at others.
    """
    arrays: dict[str, Any] = {}
    every = [(f"{split} graph {k}", graph) for split in SPLITS for k, graph in enumerate(getattr(splits, split))]
    labelled = any("label" in row for _, graph in every for row in _attributes(graph))
    for name, graph in every:
        _check_writable(name, graph, labelled)
    for split in SPLITS:
        graphs = getattr(splits, split)
        if labelled:
            kinds = (str(g.edges[e]["label"]) for g in graphs for e in sorted((min(e), max(e)) for e in g.edges))
            arrays[f"{split}_edge_classes"] = np.array([*kinds], dtype=np.str_)
            named = (str(g.nodes[v]["label"]) for g in graphs for v in range(len(g)))
            arrays[f"{split}_node_classes"] = np.array([*named], dtype=np.str_)
        edges = [np.array(sorted((min(e), max(e)) for e in g.edges), dtype=np.int32).reshape(-1, 2) for g in graphs]
        arrays[f"{split}_num_nodes"] = np.array([g.number_of_nodes() for g in graphs], dtype=np.int32)
        arrays[f"{split}_edges"] = np.concatenate([np.zeros((0, 2), np.int32), *edges])
        arrays[f"{split}_offsets"] = np.cumsum([0, *map(len, edges)], dtype=np.int64)
    write_arrays(Path(path), **arrays)
