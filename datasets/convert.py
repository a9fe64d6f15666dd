"""Conversion of graph batches to PyTorch Geometric and back, and the classes of networkx graphs as matrices.

Node classes are ``x`` and edge classes ``edge_attr``, both integers; an edge that is listed has a class of at least 1,
and class 0 is "no edge". If they are missing, node classes are 0 and edge classes 1. In PyG, ``edge_index`` lists each
edge in both directions; :func:`batch_to_pyg` gives the shapes of PyG's own ZINC set, ``x`` [n, 1] and ``edge_attr`` [E].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor

from discrete_grpo.core.checks import check_range
from discrete_grpo.domains.graphs import GraphBatch, node_mask

if TYPE_CHECKING:
    import networkx as nx
    from torch_geometric.data import Data

__all__ = ["batch_to_pyg", "graph_classes", "pyg_to_batch"]


def batch_to_pyg(batch: GraphBatch) -> list[Data]:
    """Convert to one ``torch_geometric.data.Data`` per graph, without padding, with edges sorted by (i, j)."""
    from torch_geometric.data import Data

    graphs = []
    for nodes, edges, n in zip(batch.nodes, batch.edges, batch.sizes.tolist(), strict=True):
        edge_index = edges[:n, :n].nonzero().T.contiguous()
        graphs.append(Data(x=nodes[:n, None].clone(), edge_index=edge_index, edge_attr=edges[edge_index[0], edge_index[1]]))
    return graphs


def pyg_to_batch(graphs: Sequence[Data]) -> GraphBatch:
    """Inverse of :func:`batch_to_pyg`; also takes ``x`` of shape [n] and ``edge_attr`` of shape [E, 1].

    Raises:
        ValueError: naming the graph, if it is directed, has a self-loop or a repeated edge, or classes are not integers.
    """
    parts = []
    for k, data in enumerate(graphs):
        index, name = data.edge_index, f"graphs[{k}]"
        n = int(data.num_nodes)
        nodes = torch.zeros(n, dtype=torch.long) if data.x is None else _classes(data.x, n, f"{name}.x", 0)
        count = 0 if index is None else index.shape[1]
        given = data.edge_attr
        orders = torch.ones(count, dtype=torch.long) if given is None else _classes(given, count, f"{name}.edge_attr", 1)
        parts.append((nodes, _dense(n, torch.zeros(2, 0, dtype=torch.long) if index is None else index.cpu(), orders, name)))
    return _collate(parts)


def graph_classes(graph: nx.Graph, name: str) -> tuple[Int[Tensor, " node"], Int[Tensor, "node node"]]:
    """Return the node classes and the matrix of edge classes of one graph, without padding; errors begin with ``name``.

    Raises:
        ValueError: if it is directed, a multigraph, has a self-loop, or classes are not integers.
    """
    if graph.is_directed() or graph.is_multigraph():
        raise ValueError(f"{name}: a {type(graph).__name__}, expected an undirected networkx.Graph")
    place = {node: i for i, node in enumerate(graph)}
    nodes = _integers([kind for _, kind in graph.nodes(data="x", default=0)], f"{name} node attribute x")
    triples = [(place[a], place[b], order) for a, b, order in graph.edges(data="edge_attr", default=1)]
    orders = _integers([order for _, _, order in triples], f"{name} edge attribute edge_attr")
    ends = torch.tensor([(i, j) for i, j, _ in triples], dtype=torch.long).reshape(-1, 2).T
    n = len(place)
    checked = _classes(orders, len(triples), f"{name} edge attribute edge_attr", 1)
    both = torch.cat([ends, ends.flip(0)[:, ends[0] != ends[1]]], 1)
    dense = _dense(n, both, torch.cat([checked, checked[ends[0] != ends[1]]]), name)
    return _classes(nodes, n, f"{name} node attribute x", 0), dense


def _integers(values: Sequence[Any], name: str) -> Tensor:
    for value in values:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise ValueError(f"{name}: {value!r}, expected an integer class")
    return torch.tensor([int(value) for value in values], dtype=torch.long)


def _classes(values: Tensor, count: int, name: str, lowest: int) -> Int[Tensor, " item"]:
    """Return ``values`` as [count] int64, after checks."""
    flat = values.squeeze(-1) if values.dim() == 2 and values.shape[1] == 1 else values
    if flat.is_floating_point() or flat.is_complex() or flat.dtype == torch.bool or flat.shape != (count,):
        raise ValueError(f"{name}: {values.dtype} of shape {list(values.shape)}, expected integer classes of shape [{count}]")
    flat = flat.long().cpu()
    if count:
        check_range(f"{name}: lowest class", int(flat.min()), least=lowest)
    return flat


def _dense(n: int, index: Int[Tensor, "2 edge"], orders: Int[Tensor, " edge"], name: str) -> Int[Tensor, "node node"]:
    """Return the symmetric class matrix of edges that are listed in both directions.

    Raises:
        ValueError: if a node is out of range, or an edge repeats, is a self-loop, or is listed in one direction only.
    """
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < n:
        raise ValueError(f"{name}: edge ends {int(index.min())} to {int(index.max())}, expected 0 to {n - 1}")
    i, j = index
    if bool((i == j).any()):
        raise ValueError(f"{name}: self-loop at node {int(i[i == j][0])}, expected none")
    dense = torch.zeros(n, n, dtype=torch.long)
    dense[i, j] = orders
    if int((dense > 0).sum()) != index.shape[1]:
        raise ValueError(f"{name}: an edge is listed twice in the same direction, expected once")
    if not torch.equal(dense, dense.T):
        a, b = (dense != dense.T).nonzero()[0].tolist()
        raise ValueError(f"{name}: directed; edge ({a}, {b}) has class {dense[a, b]} but ({b}, {a}) has {dense[b, a]}")
    return dense


def _collate(parts: Sequence[tuple[Tensor, Tensor]]) -> GraphBatch:
    """Pad graphs, each with node classes [n] and edge classes [n, n], to one batch."""
    sizes = torch.tensor([nodes.shape[0] for nodes, _ in parts], dtype=torch.long)
    n = int(sizes.max()) if parts else 0
    node_classes = torch.zeros(len(parts), n, dtype=torch.long)
    edge_classes = torch.zeros(len(parts), n, n, dtype=torch.long)
    for b, (nodes, edges) in enumerate(parts):
        node_classes[b, : len(nodes)] = nodes
        edge_classes[b, : len(nodes), : len(nodes)] = edges
    return GraphBatch(node_classes, edge_classes, node_mask(sizes, n))
