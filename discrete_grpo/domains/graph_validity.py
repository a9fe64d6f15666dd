"""Validity tests of the synthetic graph sets: planar, tree, stochastic block model.

Graphs are graph6 lines or ``networkx.Graph``; None and text that is no graph6 line fail every test.

Sources: planar, SBM: Martinkus et al. (2022), SPECTRE, arXiv 2204.01613; tree: Bergmeister et al. (2024), arXiv 2312.11529.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import Literal

import networkx as nx
import numpy as np
from jaxtyping import Bool, Int

from discrete_grpo.domains.graph6 import GraphLike, adjacency, from_graph6
from discrete_grpo.domains.isomorphism import form

__all__ = [
    "SHAPES",
    "BlockMethod",
    "Shape",
    "block_p_value",
    "has_shape",
    "is_block_model",
    "is_connected",
    "is_planar",
    "is_tree",
    "louvain_blocks",
    "matrix_of",
    "num_components",
]

Matrix = Bool[np.ndarray, "node node"]
Blocks = Int[np.ndarray, " node"]
Shape = Literal["planar", "tree", "sbm", "connected"]
BlockMethod = Literal["louvain", "graph_tool"]


def matrix_of(graph: GraphLike | None) -> Matrix | None:
    """The adjacency matrix; None for None, for text that is no graph6 line, and for a graph without nodes."""
    if graph is None:
        return None
    try:
        matrix = adjacency(graph)
    except ValueError:
        return None
    return matrix if len(matrix) else None


def num_components(matrix: Matrix) -> int:
    """Number of connected components of a graph.

    >>> num_components(np.zeros((3, 3), dtype=bool))
    3
    """
    unseen, parts = np.ones(len(matrix), dtype=bool), 0
    while unseen.any():
        parts += 1
        front = np.arange(len(matrix)) == unseen.argmax()
        while front.any():
            unseen &= ~front
            front = matrix[front].any(0) & unseen
    return parts


def is_connected(graph: GraphLike | None) -> bool:
    """Whether the graph has at least one node and is connected."""
    matrix = matrix_of(graph)
    return matrix is not None and num_components(matrix) == 1


def is_tree(graph: GraphLike | None) -> bool:
    """Whether the graph is connected and has one edge fewer than nodes.

    >>> is_tree("Bg"), is_tree("Bw")
    (True, False)
    """
    matrix = matrix_of(graph)
    return matrix is not None and int(matrix.sum()) == 2 * (len(matrix) - 1) and num_components(matrix) == 1


def is_planar(graph: GraphLike | None) -> bool:
    """Whether the graph is connected and can be drawn without crossings.

    >>> is_planar("C~"), is_planar("D~{")  # cliques of four and five
    (True, False)
    """
    matrix = matrix_of(graph)
    if matrix is None or num_components(matrix) > 1:
        return False
    if matrix.sum() > 2 * max(3 * len(matrix) - 6, 1):  # Euler's bound, which excludes most non-planar graphs without a search
        return False
    return bool(nx.check_planarity(from_graph6(graph) if isinstance(graph, str) else graph)[0])


# -- stochastic block model


def is_block_model(graph: GraphLike | None, method: BlockMethod = "louvain") -> bool:
    """Whether a graph passes for a draw from the SBM set: 2 to 5 blocks of 20 to 40 nodes, mean p-value above 0.9.

    Args:
        graph: the graph.
        method: how the blocks are found. ``louvain``: modularity, :func:`louvain_blocks`. ``graph_tool``: the least description
            length, refined by 100 rounds of 10 merge-split sweeps, as DeFoG does; needs the library graph-tool.

    Raises:
        ValueError: for another method.
        ImportError: if graph-tool is asked for and not installed.
    """
    finders: Mapping[str, Callable[[Matrix], Blocks | None]] = {"louvain": louvain_blocks, "graph_tool": _graph_tool_blocks}
    if method not in finders:
        raise ValueError(f"method: {method!r}, expected one of {', '.join(finders)}")
    matrix = matrix_of(graph)
    if matrix is None or not (40 <= len(matrix) <= 200 and matrix.any()):  # no such blocks can exist
        return False
    blocks = finders[method](matrix)
    if blocks is None:
        return False
    sizes = np.bincount(blocks)
    fits = 2 <= len(sizes) <= 5 and sizes.min() >= 20 and sizes.max() <= 40
    return bool(fits and block_p_value(matrix, blocks) > 0.9)


def block_p_value(matrix: Matrix, blocks: Blocks, p_in: float = 0.3, p_out: float = 0.005) -> float:
    """Mean over ordered pairs of blocks of P(χ²₁ > W), W = (p̂ - p)² / (p̂ (1 - p̂) + 1e-6), the Wald statistic of an edge.

    p̂ is the share of joined pairs of nodes in a block, or between two; p is ``p_in`` or ``p_out``. W is not multiplied by the
    number of pairs, as in the published test, so it tests for near rather than for probable values.
    """
    member = np.eye(int(blocks.max()) + 1)[blocks]
    sizes = member.sum(0)
    joined = member.T @ matrix @ member
    own = np.eye(len(sizes), dtype=bool)
    pairs = np.where(own, sizes * (sizes - 1), sizes[:, None] * sizes)
    share = joined / (pairs + 1e-6)
    wald = (share - np.where(own, p_in, p_out)) ** 2 / (share * (1 - share) + 1e-6)
    return float(np.mean([math.erfc(math.sqrt(abs(w) / 2)) for w in wald.ravel()]))


def louvain_blocks(matrix: Matrix, seeds: int = 5) -> Blocks:
    """Block of every node by Louvain's greedy modularity, the best of several seeded runs.

    Nodes are first sorted by their refined colours, so that the result does not depend on their numbering.

    Source: Blondel et al. (2008), arXiv 0803.0476, as in networkx.
    """
    order = np.argsort(form(nx.from_numpy_array(matrix)).colours, kind="stable")
    graph = nx.from_numpy_array(matrix[np.ix_(order, order)])
    runs = [nx.community.louvain_communities(graph, weight=None, seed=seed) for seed in range(seeds)]
    best = max(runs, key=lambda parts: nx.community.modularity(graph, parts, weight=None))
    blocks = np.empty(len(matrix), dtype=np.int64)
    for k, part in enumerate(best):
        blocks[order[sorted(part)]] = k
    return blocks


def _graph_tool_blocks(matrix: Matrix, rounds: int = 100) -> Blocks | None:
    """Block of every node by graph-tool; None where the model cannot be fitted.

    Each edge is added in both directions, as in the published test.
    """
    try:
        gt = importlib.import_module("graph_tool.all")
    except ImportError as error:
        raise ImportError("method: 'graph_tool' needs the library graph-tool; 'louvain' does not") from error
    graph = gt.Graph()
    graph.add_vertex(len(matrix))
    graph.add_edge_list(np.argwhere(matrix))
    try:
        state = gt.minimize_blockmodel_dl(graph)
    except ValueError:
        return None
    for _ in range(rounds):
        state.multiflip_mcmc_sweep(beta=np.inf, niter=10)
    return np.unique(state.get_blocks().a, return_inverse=True)[1]


# -- any of them

SHAPES: Mapping[Shape, Callable[[GraphLike | None], bool]] = {
    "planar": is_planar,
    "tree": is_tree,
    "sbm": is_block_model,
    "connected": is_connected,
}
"""The test of each kind of set."""


def has_shape(graph: GraphLike | None, shape: Shape) -> bool:
    """Whether a graph passes the test of a kind of set.

    Raises:
        ValueError: for a shape that is not in ``SHAPES``.
    """
    if shape not in SHAPES:
        raise ValueError(f"shape: {shape!r}, expected one of {', '.join(SHAPES)}")
    return SHAPES[shape](graph)
