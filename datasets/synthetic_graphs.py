"""Synthetic plain graphs: seeded generators, named sets made by this project, and the published splits.

All nodes have class 0, and edges have class 0 (none) or 1. The graphs have the distributions of the sets of the field, and
every generator draws from a ``numpy.random.Generator``. Ratios of metrics depend on the split, so only named
splits have reference values.

Sources: Martinkus et al. (2022), SPECTRE, arXiv 2204.01613 (planar, SBM, community); Bergmeister et al. (2024),
arXiv 2312.11529 (tree, and the published files).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import networkx as nx
import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from discrete_grpo.core.checks import check_range
from discrete_grpo.datasets.convert import graph_classes
from discrete_grpo.datasets.graph_files import SUFFIXES
from discrete_grpo.domains.graphs import GraphBatch, PackedGraphs, pack

__all__ = [
    "NAMED_SETS",
    "GraphDataset",
    "GraphSplits",
    "GraphStatistics",
    "dataset_from_networkx",
    "graph_statistics",
    "make_splits",
    "planar",
    "stochastic_block_model",
    "tree",
    "two_communities",
]

SPLITS = ("train", "val", "test")


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

    @property
    def nbytes(self) -> int:
        """Number of bytes of the packed graphs."""
        return self.graphs.nbytes

    def to(self, device: torch.device | str) -> GraphDataset:
        """Return the same with the packed graphs on ``device``, where batches of them are then made."""
        return replace(self, graphs=self.graphs.to(device))


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
    pairs = (data.sizes * (data.sizes - 1) // 2).sum().clamp_min(1)  # graphs of one node have none
    joined = float(data.graphs.pairs.sum(dtype=torch.float64) / pairs)
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
