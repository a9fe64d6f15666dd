"""PyG data as lists of class names; see :mod:`~discrete_grpo.datasets.own_graphs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch_geometric.utils import contains_self_loops, is_undirected

from discrete_grpo.domains.named_graphs import ABSENT

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = ["check_attributes", "is_directed", "listed"]


def is_directed(data: Data) -> bool:
    """Whether an edge is listed in one direction only."""
    index = data.edge_index
    return index is not None and not is_undirected(index, num_nodes=data.num_nodes)


def check_attributes(graphs: Sequence[Data], node_attribute: str | None, edge_attribute: str | None) -> None:
    """Raise ValueError if some graphs have a usual attribute of classes and others do not; a graph without items needs none."""
    for name, wanted, first in (("x", node_attribute, _first_node), ("edge_attr", edge_attribute, _first_edge)):
        places = [(k, place, getattr(graph, name, None)) for k, graph in enumerate(graphs) if (place := first(graph))]
        lacking = [f"data: graph {k}, {place} has no attribute {name!r}" for k, place, value in places if value is None]
        if wanted is None and lacking and len(lacking) < len(places):
            raise ValueError(f"{lacking[0]}, expected one at each")


def _first_node(data: Data) -> str | None:
    return "node 0" if data.num_nodes else None


def _first_edge(data: Data) -> str | None:
    index = data.edge_index
    return None if index is None or not index.numel() else f"edge ({int(index[0, 0])}, {int(index[1, 0])})"


def listed(
    data: Data, name: str, node_attribute: str | None, edge_attribute: str | None, directed: bool = False
) -> tuple[list[str], list[tuple[int, int]], list[str]]:
    """Class names of the nodes, the edges as pairs i < j, and their class names; those of plain graphs if there is no attribute.

    With ``directed`` the edges are all arcs as they are listed, each from its first node to its second.

    Raises:
        ValueError: beginning with ``name``, for a self-loop, an edge that stands twice, two classes in its two directions, an
            attribute that does not exist, or one that holds neither integers nor one-hot rows.
    """
    n = int(data.num_nodes or 0)
    index = torch.zeros(2, 0, dtype=torch.long) if data.edge_index is None else data.edge_index.cpu()
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < n:
        raise ValueError(f"{name} has edges of nodes {int(index.min())} to {int(index.max())}, expected 0 to {n - 1}")
    if contains_self_loops(index):
        raise ValueError(f"{name}, node {int(index[0][index[0] == index[1]][0])} has a self-loop, expected none")
    nodes = _classes(data, node_attribute, "x", n, f"{name}: ")
    edges = _classes(data, edge_attribute, "edge_attr", index.shape[1], f"{name}: ")
    kept = torch.ones_like(index[0], dtype=torch.bool) if directed else index[0] < index[1]
    if len(index.T.unique(dim=0)) < index.shape[1]:
        raise ValueError(f"{name} has an edge twice, expected each once{'' if directed else ' in both directions'}")
    if not directed and edges is not None and not is_undirected(index, edges, num_nodes=n):
        raise ValueError(f"{name} has an edge with another class in the other direction, expected undirected graphs")
    names = [ABSENT[0]] * n if nodes is None else list(map(str, nodes.tolist()))
    kinds = [ABSENT[1]] * int(kept.sum()) if edges is None else list(map(str, edges[kept].tolist()))
    return names, [(int(i), int(j)) for i, j in index[:, kept].T.tolist()], kinds


def _classes(data: Data, wanted: str | None, usual: str, count: int, where: str) -> Int[Tensor, " item"] | None:
    """The classes of an attribute [count], the usual one by default; None if it does not exist and was not requested."""
    attribute = wanted or usual
    value: Any = getattr(data, attribute, None)
    if value is None and wanted is None:
        return None
    if not isinstance(value, Tensor):
        part = "node" if usual == "x" else "edge"
        raise ValueError(f"{part}_attribute: {attribute!r}, expected one of {', '.join(sorted(data.keys()))}")
    value = value.cpu()
    if not count and value.dim() and not len(value):  # such as the attributes [0, 0] of no edges
        return torch.zeros(0, dtype=torch.long)
    found = value[:, 0] if value.dim() == 2 and value.shape[1] == 1 else value
    if found.dim() == 2 and bool(((found == 0) | (found == 1)).all() and (found.sum(1) == 1).all()):
        found = found.long().argmax(1)
    if found.shape != (count,) or found.is_complex() or not torch.equal(found, found.long().to(found.dtype)):
        shape = f"{value.dtype} of shape {list(value.shape)}"
        raise ValueError(f"{where}{attribute} is {shape}, expected whole numbers [{count}] or one-hot rows [{count}, classes]")
    return found.long()
