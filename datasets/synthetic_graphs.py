"""Synthetic plain graphs: seeded generators, named sets made by this project, and the published splits.

All nodes have class 0, and edges have class 0 (none) or 1. The graphs have the distributions of the sets of the field, and
every generator draws from a ``numpy.random.Generator``. Ratios of metrics depend on the split, so only named
splits have reference values.

Sources: Martinkus et al. (2022), SPECTRE, arXiv 2204.01613 (planar, SBM, community); Bergmeister et al. (2024),
arXiv 2312.11529 (tree, and the published files).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import networkx as nx
import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from discrete_grpo.core.checks import check_range
from discrete_grpo.datasets.arrays import read_arrays
from discrete_grpo.datasets.convert import graph_classes
from discrete_grpo.datasets.graph_files import SUFFIXES
from discrete_grpo.datasets.reading import write_arrays
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.domains.graph6 import MAX_NODES
from discrete_grpo.domains.graphs import GraphBatch, PackedGraphs, pack

__all__ = [
    "NAMED_SETS",
    "GraphDataset",
    "GraphSplits",
    "GraphStatistics",
    "dataset_from_networkx",
    "erdos_renyi",
    "graph_statistics",
    "load_splits",
    "make_splits",
    "planar",
    "read_npz",
    "stochastic_block_model",
    "tree",
    "two_communities",
    "write_npz",
]

SPLITS = ("train", "val", "test")
MAX_TOTAL = 50_000_000
"""Largest number of nodes, and of edges, of all graphs of a split."""


# -- generators


def planar(num_nodes: int, generator: np.random.Generator) -> nx.Graph:
    """Draw a planar connected graph: the Delaunay triangulation of ``num_nodes`` uniform points in the unit square.

    Raises:
        ValueError: for fewer than 4 nodes.
    """
    from scipy.spatial import Delaunay

    check_range("num_nodes", num_nodes, least=4)
    triangles = Delaunay(generator.random((num_nodes, 2))).simplices
    graph = nx.empty_graph(num_nodes)
    for a, b in ((0, 1), (1, 2), (0, 2)):
        graph.add_edges_from(zip(triangles[:, a].tolist(), triangles[:, b].tolist(), strict=True))
    return graph


def tree(num_nodes: int, generator: np.random.Generator) -> nx.Graph:
    """Draw a labelled tree uniformly, by a random Prüfer sequence.

    Raises:
        ValueError: for fewer than 2 nodes.
    """
    check_range("num_nodes", num_nodes, least=2)
    return nx.from_prufer_sequence(generator.integers(num_nodes, size=num_nodes - 2).tolist())


def stochastic_block_model(
    generator: np.random.Generator,
    *,
    communities: tuple[int, int] = (2, 5),
    sizes: tuple[int, int] = (20, 40),
    p_in: float = 0.3,
    p_out: float = 0.005,
) -> nx.Graph:
    """Draw a connected graph of K ~ U{2..5} communities with U{20..40} nodes each.

    A pair is an edge with probability ``p_in`` within a community and ``p_out`` between two.
    Graphs are drawn until one is connected.

    Raises:
        ValueError: for an argument out of its range.
    """
    for name, (low, high) in (("communities", communities), ("sizes", sizes)):
        check_range(f"{name}[0]", low, least=1)
        check_range(f"{name}[1]", high, least=low, note=f" ({name}[0])")
    check_range("p_in", p_in, above=0, most=1)
    check_range("p_out", p_out, least=0, most=1)
    while True:
        blocks = generator.integers(sizes[0], sizes[1] + 1, size=generator.integers(communities[0], communities[1] + 1))
        of = np.repeat(np.arange(len(blocks)), blocks)
        graph = _random_pairs(np.where(of[:, None] == of[None, :], p_in, p_out), generator)
        if nx.is_connected(graph):
            return graph


def two_communities(num_nodes: int, generator: np.random.Generator, *, p_in: float = 0.7, p_out: float = 0.05) -> nx.Graph:
    """Draw two equal communities G(n/2, ``p_in``) with edges of probability 2 ``p_out``/(n/2) between them, at least one.

    Raises:
        ValueError: for an odd number of nodes or fewer than 4.
    """
    check_range("num_nodes", num_nodes, least=4)
    if num_nodes % 2:
        raise ValueError(f"num_nodes: {num_nodes}, expected an even number")
    check_range("p_in", p_in, least=0, most=1)
    check_range("p_out", p_out, least=0, most=1)
    half = num_nodes // 2
    of = np.repeat([0, 1], half)
    graph = _random_pairs(np.where(of[:, None] == of[None, :], p_in, min(1.0, 2 * p_out / half)), generator)
    if not any(of[u] != of[v] for u, v in graph.edges):
        graph.add_edge(int(generator.integers(half)), int(half + generator.integers(half)))
    return graph


def erdos_renyi(num_nodes: int, p: float, generator: np.random.Generator) -> nx.Graph:
    """Draw a graph G(n, p): every pair is an edge with probability ``p``.

    Raises:
        ValueError: for an argument out of its range.
    """
    check_range("num_nodes", num_nodes, least=1)
    check_range("p", p, least=0, most=1)
    return _random_pairs(np.full((num_nodes, num_nodes), p), generator)


def _random_pairs(probability: np.ndarray, generator: np.random.Generator) -> nx.Graph:
    n = len(probability)
    i, j = np.triu_indices(n, 1)
    drawn = generator.random(len(i)) < probability[i, j]
    graph = nx.empty_graph(n)
    graph.add_edges_from(zip(i[drawn].tolist(), j[drawn].tolist(), strict=True))
    return graph


# -- sets


@dataclass(frozen=True)
class GraphDataset:
    """M plain graphs, each with its own number of nodes.

    Attributes:
        graphs: packed graphs with node class 0, and pair class 1 for an edge.
        name: name of the set in reports.
    """

    graphs: PackedGraphs
    name: str = ""

    def __len__(self) -> int:
        return len(self.graphs)

    @property
    def sizes(self) -> Int[Tensor, " graph"]:
        """Number of nodes [M]."""
        return self.graphs.sizes

    def batch(self, rows: Int[Tensor, " row"] | Sequence[int] | slice) -> GraphBatch:
        """Return the graphs at ``rows``, padded to the largest of them."""
        return self.graphs.batch(rows)


@dataclass(frozen=True)
class GraphStatistics:
    """Statistics of the training set that a policy of plain graphs needs.

    Attributes:
        node_counts: share of graphs with 0, 1, 2, ... nodes.
        edge_marginal: share of pairs without and with an edge.
    """

    node_counts: tuple[float, ...]
    edge_marginal: tuple[float, float]


def graph_statistics(data: GraphDataset) -> GraphStatistics:
    """Compute the shares of node counts and the share of pairs that are edges."""
    counts = torch.bincount(data.sizes).double() / len(data)
    joined = float(data.graphs.pairs.sum(dtype=torch.float64) / (data.sizes * (data.sizes - 1) // 2).sum())
    return GraphStatistics(tuple(counts.tolist()), (1 - joined, joined))


@dataclass(frozen=True)
class GraphSplits:
    """Three disjoint lists of graphs.

    Attributes:
        train, val, test: graphs on nodes 0..n-1.
        name: name of the set.
    """

    train: tuple[nx.Graph, ...]
    val: tuple[nx.Graph, ...]
    test: tuple[nx.Graph, ...]
    name: str = ""


def dataset_from_networkx(graphs: Sequence[nx.Graph], name: str = "") -> GraphDataset:
    """Pack graphs for training.

    Raises:
        ValueError: if there are none, or one is directed or has a self-loop.
    """
    if not graphs:
        raise ValueError("graphs: none given, expected at least one")
    bare = [nx.Graph(g.edges) if g.number_of_nodes() == 0 else _bare(g) for g in graphs]
    classes = (graph_classes(graph, f"graphs[{k}]") for k, graph in enumerate(bare))  # a generator, since the matrices are large
    parts = [pack(GraphBatch(nodes[None], edges[None], torch.ones(1, len(nodes), dtype=torch.bool))) for nodes, edges in classes]
    sizes = torch.tensor([graph.number_of_nodes() for graph in bare])
    nodes, pairs = (torch.cat([part[k][0] for part in parts]) for k in (0, 1))
    return GraphDataset(PackedGraphs(nodes, pairs, sizes), name)


def _bare(graph: nx.Graph) -> nx.Graph:
    """Return the graph without attributes; a directed graph is returned as it is, since the caller refuses it by its number."""
    if graph.is_directed() or graph.is_multigraph():
        return graph
    bare = nx.empty_graph(list(graph.nodes))
    bare.add_edges_from(graph.edges)
    return bare


@dataclass(frozen=True)
class _Recipe:
    """Generator, sizes and seed of a named set."""

    draw: Callable[[np.random.Generator], nx.Graph]
    counts: tuple[int, int, int] = (128, 32, 40)
    seed: int = 0


def _community(generator: np.random.Generator) -> nx.Graph:
    return two_communities(2 * int(generator.integers(6, 11)), generator)


NAMED_SETS: dict[str, _Recipe] = {
    "planar-16": _Recipe(partial(planar, 16), (1024, 32, 40)),
    "tree-16": _Recipe(partial(tree, 16), (128, 32, 40)),
    "planar-64": _Recipe(partial(planar, 64), (2048, 32, 40)),
    "tree-64": _Recipe(partial(tree, 64), (2048, 32, 40)),
    "sbm": _Recipe(stochastic_block_model, (1024, 32, 40)),
    "community-20": _Recipe(_community),
}
"""Named sets of this project: generator and numbers of training, validation and test graphs. There are only 19,320 trees of 16
nodes up to isomorphism, so their training set is small: with 1,024 graphs one true tree in eight would not be novel."""


def make_splits(name: str) -> GraphSplits:
    """Generate a named set, which has the same graphs on every machine.

    Raises:
        ValueError: for a name that is not in ``NAMED_SETS``.
    """
    if name not in NAMED_SETS:
        raise ValueError(f"data: {name!r}, expected one of {', '.join(NAMED_SETS)}, or a file ({', '.join(SUFFIXES)}, .npz)")
    recipe = NAMED_SETS[name]
    generator = np.random.default_rng([recipe.seed, *name.encode()])
    train, val, test = (tuple(recipe.draw(generator) for _ in range(count)) for count in recipe.counts)
    return GraphSplits(train, val, test, name)


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


def write_npz(path: str | Path, splits: GraphSplits) -> None:
    """Write splits in the format of :func:`read_npz`, with the classes of graphs that have them as the attribute ``label``."""
    arrays: dict[str, Any] = {}
    labelled = any("label" in row for graph in splits.train for _, row in graph.nodes(data=True))
    for split in SPLITS:
        graphs = getattr(splits, split)
        if labelled:
            kinds = (str(g.edges[e]["label"]) for g in graphs for e in sorted((min(e), max(e)) for e in g.edges))
            arrays[f"{split}_edge_classes"] = np.array([*kinds], dtype=np.str_)
            arrays[f"{split}_node_classes"] = np.array([str(c) for g in graphs for _, c in g.nodes(data="label")], dtype=np.str_)
        edges = [np.array(sorted((min(e), max(e)) for e in g.edges), dtype=np.int32).reshape(-1, 2) for g in graphs]
        arrays[f"{split}_num_nodes"] = np.array([g.number_of_nodes() for g in graphs], dtype=np.int32)
        arrays[f"{split}_edges"] = np.concatenate([np.zeros((0, 2), np.int32), *edges])
        arrays[f"{split}_offsets"] = np.cumsum([0, *map(len, edges)], dtype=np.int64)
    write_arrays(Path(path), **arrays)
