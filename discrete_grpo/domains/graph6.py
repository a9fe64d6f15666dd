"""Plain graphs as text: conversions between graph6 lines, adjacency matrices and ``networkx.Graph``.

A plain graph has no node or edge classes; those of a line of :mod:`~discrete_grpo.domains.labelled_graphs` or
:mod:`~discrete_grpo.domains.named_graphs` are not read here. As text it can be written to a table, compared, sent to a worker
process and used as a key; therefore rewards and metrics of plain graphs receive graph6 lines as those of molecules receive SMILES.

Source: McKay, Description of graph6, https://users.cecs.anu.edu.au/~bdm/data/formats.txt
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

import networkx as nx
import numpy as np
import torch
from jaxtyping import Bool, UInt8

from discrete_grpo.domains.graphs import GraphBatch, node_mask

__all__ = [
    "MAX_NODES",
    "GraphLike",
    "adjacency",
    "adjacency_to_graph6",
    "batch_to_graph6",
    "bits_of",
    "from_graph6",
    "graph6",
    "graphs_to_batch",
    "node_count",
    "read_codes",
    "write_codes",
]

GraphLike: TypeAlias = "nx.Graph | str"
"""A graph, or its graph6 line."""
MAX_NODES = 10_000
"""Nodes of the largest graph that is read from a file, unless a caller says otherwise."""
CLASSES = re.compile(r" nodes=\S* edges=\S*$")


def graph6(graph: nx.Graph) -> str:
    """A simple undirected graph as a graph6 line, nodes in the order in which the graph lists them.

    >>> graph6(nx.path_graph(4))
    'Ch'

    Raises:
        ValueError: if the graph is directed, a multigraph, or has a self-loop.
    """
    return adjacency_to_graph6(adjacency(graph))


def from_graph6(text: str) -> nx.Graph:
    """The graph of a graph6 line, on nodes 0..n-1.

    >>> from_graph6("Ch").edges
    EdgeView([(0, 1), (1, 2), (2, 3)])

    Raises:
        ValueError: if ``text`` is no graph6 line.
    """
    matrix = adjacency(text)
    graph = nx.empty_graph(len(matrix))
    graph.add_edges_from(np.argwhere(np.triu(matrix)).tolist())
    return graph


def adjacency(graph: GraphLike) -> Bool[np.ndarray, "node node"]:
    """The adjacency matrix of a graph or of a graph6 line, nodes in their order.

    >>> adjacency("Bg").astype(int).tolist()
    [[0, 1, 0], [1, 0, 1], [0, 1, 0]]

    Raises:
        ValueError: if the text is no graph6 line, or the graph is directed, a multigraph, or has a self-loop.
    """
    if not isinstance(graph, str):
        return nx.to_numpy_array(_simple(graph), dtype=bool, weight=None)
    codes, head, n = _header(graph)
    matrix = np.zeros((n, n), dtype=bool)
    matrix[np.tril_indices(n, -1)] = bits_of(codes[head:])[: n * (n - 1) // 2]
    return matrix | matrix.T


def node_count(text: str) -> int:
    """Number of nodes of a graph6 line, read without building the graph.

    >>> node_count("Bg")
    3

    Raises:
        ValueError: if ``text`` is no graph6 line, or is not as long as that many nodes need.
    """
    return _header(text)[2]


def _header(text: str) -> tuple[UInt8[np.ndarray, " character"], int, int]:
    return read_codes(CLASSES.sub("", text.strip()).removeprefix(">>graph6<<"), lambda n: n * (n - 1) // 2, text, "graph6")


def read_codes(body: str, num_bits: Callable[[int], int], text: str, kind: str) -> tuple[UInt8[np.ndarray, " character"], int, int]:
    """The codes of N(n) R(x), how many of them say the number of nodes n, and n.

    Args:
        body: the line without its header and its classes.
        num_bits: the number of bits of x for n nodes.
        text: the whole line, for errors.
        kind: name of the format, for errors.

    Raises:
        ValueError: if a character is invalid in the format, or the length of the line does not match n nodes.
    """
    codes = np.frombuffer(body.encode(), dtype=np.uint8) - np.uint8(63)
    if not len(codes) or codes.max() > 63:
        raise ValueError(f"graph: {text[:60]!r} is no {kind} line (it is empty, or a character is not in '?' to '~')")
    marks = 0 if codes[0] < 63 else 1 if len(codes) > 1 and codes[1] < 63 else 2
    head = (1, 4, 8)[marks]  # how many characters say how many nodes there are, marks included
    n = sum(int(c) << 6 * k for k, c in enumerate(reversed(codes[marks:head])))
    needed = head + (num_bits(n) + 5) // 6
    if len(codes) != needed:
        raise ValueError(f"graph: {text[:60]!r} is no {kind} line ({n} nodes need {needed} characters)")
    return codes, head, n


def bits_of(codes: UInt8[np.ndarray, " character"]) -> Bool[np.ndarray, " bit"]:
    """Six bits of every code, the highest first; inverse of R(x) in :func:`write_codes` up to padding."""
    return np.unpackbits(codes[:, None] << np.uint8(2), axis=1)[:, :6].ravel().astype(bool)


def write_codes(n: int, bits: Bool[np.ndarray, " bit"]) -> str:
    """N(n) R(x): the number of nodes and the bits x as characters, six bits each, filled up with 0."""
    if n < 63:
        size = [n]
    else:
        digits, prefix = (3, [63]) if n < 258048 else (6, [63, 63])
        size = prefix + [n >> 6 * k & 63 for k in reversed(range(digits))]
    padded = np.zeros(-(-len(bits) // 6) * 6, dtype=np.uint8)
    padded[: len(bits)] = bits
    codes = padded.reshape(-1, 6) @ np.array([32, 16, 8, 4, 2, 1], dtype=np.uint8)
    return bytes(63 + np.concatenate([np.array(size, dtype=np.uint8), codes])).decode("ascii")


def _simple(graph: nx.Graph) -> nx.Graph:
    """Return the graph after checking that it is simple and undirected."""
    if graph.is_directed() or graph.is_multigraph():
        kind = "directed" if graph.is_directed() else "a multigraph"
        raise ValueError(f"graph: {kind}, expected a simple undirected graph")
    looped = next(iter(nx.nodes_with_selfloops(graph)), None)
    if looped is not None:
        raise ValueError(f"graph: node {looped!r} has a self-loop, expected a simple undirected graph")
    return graph


def adjacency_to_graph6(matrix: Bool[np.ndarray, "node node"]) -> str:
    """The graph6 line of a symmetric adjacency matrix without self-loops; inverse of :func:`adjacency`."""
    return write_codes(len(matrix), matrix[np.tril_indices(len(matrix), -1)])


def batch_to_graph6(batch: GraphBatch) -> list[str]:
    """Every graph of a batch as a graph6 line; a pair of any class but 0 is an edge.

    >>> import torch
    >>> edges = torch.tensor([[[0, 1, 0], [1, 0, 1], [0, 1, 0]]])
    >>> batch_to_graph6(GraphBatch(torch.zeros(1, 3, dtype=torch.long), edges, torch.ones(1, 3, dtype=torch.bool)))
    ['Bg']
    """
    matrices, sizes = batch.edges.ne(0).cpu().numpy(), batch.sizes.tolist()
    return [adjacency_to_graph6(a[:n, :n]) for a, n in zip(matrices, sizes, strict=True)]


def graphs_to_batch(graphs: Sequence[GraphLike]) -> GraphBatch:
    """Plain graphs as a batch padded to the largest, nodes of class 0 and edges of class 1; inverse of :func:`batch_to_graph6`.

    Raises:
        ValueError: for anything but a simple graph, and for a line with classes.

    >>> graphs_to_batch(["Bg"]).edges.tolist()
    [[[0, 1, 0], [1, 0, 1], [0, 1, 0]]]
    """
    for graph in graphs:
        if not isinstance(graph, str | nx.Graph) or (isinstance(graph, str) and CLASSES.search(graph)):
            raise ValueError(f"graph: {str(graph)[:60]!r}, expected a plain graph or a graph6 line")
    matrices = [torch.from_numpy(adjacency(graph)).long() for graph in graphs]
    n = max(len(matrix) for matrix in matrices)
    edges = torch.stack([torch.nn.functional.pad(m, (0, n - len(m), 0, n - len(m))) for m in matrices])
    sizes = torch.tensor([len(m) for m in matrices])
    return GraphBatch(torch.zeros(len(matrices), n, dtype=torch.long), edges, node_mask(sizes, n))
