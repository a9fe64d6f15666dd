"""Trajectories of graphs with several fields, as a rollout stores them.

Classes are bytes, ``node NAME`` [B, S+1, N] and ``edge NAME`` [B, S+1, P] per field, with pairs in the order of
:func:`~discrete_grpo.domains.fields.pairs_of`; ``positions`` [B, S+1, N, 3] are float32 or wider. The finished graph is last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from discrete_grpo.domains.fields import FieldBatch, matrix_of, pairs_of
from discrete_grpo.domains.graphs import node_mask, num_pairs

__all__ = ["FieldLayout", "alone", "joined"]


@dataclass(frozen=True)
class FieldLayout:
    """Which states a trajectory has.

    Attributes:
        nodes: names of the fields of nodes.
        edges: names of the fields of pairs, each with whether it is directed.
        positions: whether nodes have positions.
    """

    nodes: tuple[str, ...]
    edges: tuple[tuple[str, bool], ...]
    positions: bool

    def storage(self, count: int, points: int, n: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """Empty states of ``count`` trajectories of graphs of at most ``n`` nodes."""
        found = {f"node {name}": torch.zeros(count, points, n, dtype=torch.uint8, device=device) for name in self.nodes}
        for name, directed in self.edges:
            found[f"edge {name}"] = torch.zeros(count, points, _pairs(n, directed), dtype=torch.uint8, device=device)
        if self.positions:
            found["positions"] = torch.zeros(count, points, n, 3, dtype=torch.promote_types(dtype, torch.float32), device=device)
        return found

    def store(self, states: Mapping[str, Tensor], rows: Int[Tensor, " row"], point: int, graphs: FieldBatch) -> None:
        """Write the graphs of these rows at one grid point."""
        n = graphs.num_nodes
        for name in self.nodes:
            states[f"node {name}"][rows, point, :n] = graphs.nodes[name].to(torch.uint8)
        for name, directed in self.edges:
            pairs = pairs_of(graphs.edges[name], directed=directed).to(torch.uint8)
            states[f"edge {name}"][rows, point, : pairs.shape[1]] = pairs
        if graphs.positions is not None:
            states["positions"][rows, point, :n] = graphs.positions.to(states["positions"])

    def read(
        self,
        states: Mapping[str, Tensor],
        size: Int[Tensor, " batch"],
        points: Int[Tensor, "batch step"],
        largest: int | None = None,
    ) -> FieldBatch:
        """Stored states at grid points, row b·S' + k for ``points[b, k]``; ``largest`` is the largest size, if it is known."""
        n = int(size.max()) if largest is None else largest
        row = torch.arange(len(size), device=points.device)[:, None]
        nodes = {name: states[f"node {name}"][row, points, :n].flatten(0, 1).long() for name in self.nodes}
        edges = {}
        for name, directed in self.edges:
            pairs = states[f"edge {name}"][row, points, : _pairs(n, directed)].flatten(0, 1).long()
            edges[name] = matrix_of(pairs, n, directed=directed)
        space = states["positions"][row, points, :n].flatten(0, 1) if self.positions else None
        return FieldBatch(nodes, edges, space, node_mask(size, n).repeat_interleave(points.shape[1], 0))

    def units(self, size: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """Number of sites of a step for graphs of these sizes; a lone node has no position."""
        pairs = size * (size - 1) // 2
        count = len(self.nodes) * size + sum(2 if directed else 1 for _, directed in self.edges) * pairs
        return count + torch.where(size > 1, size, 0) if self.positions else count


def _pairs(n: int, directed: bool) -> int:
    return num_pairs(n) * (2 if directed else 1)


def alone(graphs: FieldBatch) -> list[FieldBatch]:
    """Batches of one graph each, without padding."""
    return [crop(graphs.index(torch.tensor([b], device=graphs.mask.device)), n) for b, n in enumerate(graphs.sizes.tolist())]


def crop(graphs: FieldBatch, n: int) -> FieldBatch:
    """The first ``n`` places of every graph."""
    positions = None if graphs.positions is None else graphs.positions[:, :n]
    nodes = {name: value[:, :n] for name, value in graphs.nodes.items()}
    return FieldBatch(nodes, {name: value[:, :n, :n] for name, value in graphs.edges.items()}, positions, graphs.mask[:, :n])


def joined(samples: Sequence[Any]) -> FieldBatch:
    """Batches of one graph each as one batch; raises ValueError for other samples."""
    if not samples:
        raise ValueError("samples: none given, expected at least one")
    for one in samples:
        if not isinstance(one, FieldBatch) or len(one) != 1:
            raise ValueError(f"samples: {type(one).__name__}, expected batches of one graph each, the only form that is read")
    n = max(one.num_nodes for one in samples)

    def padded(values: Tensor, dims: int) -> Tensor:
        room = n - values.shape[1]
        return torch.nn.functional.pad(values, (0, room) * dims)

    first: FieldBatch = samples[0]
    nodes = {name: torch.cat([padded(one.nodes[name], 1) for one in samples]) for name in first.nodes}
    edges = {name: torch.cat([padded(one.edges[name], 2) for one in samples]) for name in first.edges}
    mask = torch.cat([padded(one.mask, 1) for one in samples])
    if first.positions is None:
        return FieldBatch(nodes, edges, None, mask)
    space = torch.cat([torch.nn.functional.pad(one.positions, (0, 0, 0, n - one.num_nodes)) for one in samples])
    return FieldBatch(nodes, edges, space, mask)
