"""Restarts from a finished graph with several fields: reading and making the column ``restart``.

As in :mod:`discrete_grpo.policies.restart`, x_t ~ q(x_t | x_0) at grid point k_0 is drawn by the noise and not by the policy, so
that the steps before k_0 have no log-prob; given x_t the log-prob of the rest, Σ_{k >= k_0} log p_θ(x_{k+1} | x_k), is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from discrete_grpo.core.checks import check_range, check_whole
from discrete_grpo.core.rollout import Context, Rollout
from discrete_grpo.domains.fields import FieldBatch
from discrete_grpo.domains.graphs import node_mask
from discrete_grpo.policies.field_states import FieldLayout

__all__ = ["FieldRestart", "FieldRestarts", "field_restarts", "field_restarts_of", "sized"]


@dataclass(frozen=True)
class FieldRestart:
    """A finished graph and the point of the sampler's grid from which it is regenerated: the ``restart`` column of a context.

    Attributes:
        nodes: clean classes of all nodes, one tuple per node field in the policy's order.
        pairs: clean classes of all pairs in the order of :func:`~discrete_grpo.domains.fields.pairs_of`, one tuple per pair field.
        step: k_0, the first step to be redrawn, at least 0; 0 redraws the whole trajectory.
        positions: clean positions; None without positions.

    Raises:
        ValueError: for a negative step.
    """

    nodes: tuple[tuple[int, ...], ...]
    pairs: tuple[tuple[int, ...], ...]
    step: int
    positions: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        check_whole("step of restart", self.step, least=0)

    @property
    def num_nodes(self) -> int:
        """Nodes of the graph."""
        return len(self.nodes[0]) if self.nodes else 0


@dataclass(frozen=True)
class FieldRestarts:
    """The restarts of a batch of contexts.

    Attributes:
        step: k_0 of every row [B], 0 where it starts from noise.
        graphs: the graphs to start from; zeros where a row starts from noise.
    """

    step: Int[Tensor, " batch"]
    graphs: FieldBatch


def sized(contexts: Sequence[Context]) -> list[Context]:
    """The contexts with the node count of the graph they restart from in the place of the restart.

    Raises:
        ValueError: for a ``restart`` that is not a :class:`FieldRestart`, or a ``num_nodes`` that differs from it.
    """
    return [_sized(context) for context in contexts]


def _sized(context: Context) -> Context:
    columns = {name: value for name, value in context.columns.items() if name != "restart"}
    found = context.columns.get("restart")
    if found is None:
        return Context(context.group, columns)
    if not isinstance(found, FieldRestart):
        raise ValueError(f"restart: {found!r}, expected a FieldRestart")
    if (given := columns.get("num_nodes")) not in (None, found.num_nodes):
        raise ValueError(f"num_nodes: {given}, expected {found.num_nodes} as in restart")
    return Context(context.group, {**columns, "num_nodes": found.num_nodes})


def field_restarts(contexts: Sequence[Context], layout: FieldLayout, num_nodes: int, num_steps: int) -> FieldRestarts | None:
    """The graph that every context restarts from, padded to ``num_nodes``; None if none does. Classes are not checked.

    Raises:
        ValueError: if two contexts of a group differ in it, or it has other fields, sizes or steps than the policy.
    """
    found: list[FieldRestart | None] = [context.columns.get("restart") for context in contexts]
    if not any(one is not None for one in found):
        return None
    by_group: dict[int, FieldRestart | None] = {}
    step = torch.zeros(len(contexts), dtype=torch.long)
    sizes = torch.zeros(len(contexts), dtype=torch.long)
    states = layout.storage(len(contexts), 1, num_nodes, torch.device("cpu"), torch.float32)
    for b, (context, one) in enumerate(zip(contexts, found, strict=True)):
        if by_group.setdefault(context.group, one) != one:
            raise ValueError(f"restart: differs within group {context.group}, expected one per group")
        if one is None:
            continue
        step[b], sizes[b] = one.step, one.num_nodes
        for name, values in _tensors(one, layout, num_steps).items():
            states[name][b, 0, : len(values)] = values
    graphs = layout.read(states, sizes, torch.zeros(len(contexts), 1, dtype=torch.long))
    return FieldRestarts(step, widened(graphs, num_nodes))


def _tensors(one: FieldRestart, layout: FieldLayout, num_steps: int) -> dict[str, Tensor]:
    """The values of a restart by the names of states."""
    check_range("step of restart", one.step, least=0, most=num_steps - 1)
    n = one.num_nodes
    if len(one.nodes) != len(layout.nodes) or len(one.pairs) != len(layout.edges):
        given = f"{len(one.nodes)} node and {len(one.pairs)} pair fields"
        raise ValueError(f"restart: {given}, expected {len(layout.nodes)} and {len(layout.edges)}")
    found: dict[str, Any] = {f"node {name}": (values, n) for name, values in zip(layout.nodes, one.nodes, strict=True)}
    for (name, directed), values in zip(layout.edges, one.pairs, strict=True):
        found[f"edge {name}"] = (values, n * (n - 1) // (1 if directed else 2))
    if layout.positions != (one.positions is not None):
        raise ValueError(f"restart: positions {one.positions}, expected {'one per node' if layout.positions else 'none'}")
    if one.positions is not None:
        if wrong := [place for place in one.positions if len(place) != 3]:
            raise ValueError(f"restart: position {wrong[0]}, expected three numbers")
        found["positions"] = (one.positions, n)
    for name, (values, count) in found.items():
        if len(values) != count:
            raise ValueError(f"restart: {len(values)} values of {name}, expected {count} for {n} nodes")
        for value in () if name == "positions" else values:
            check_whole(f"class of {name} in restart", value, least=0, most=255)  # states are bytes
    return {name: torch.tensor(values) for name, (values, _) in found.items() if len(values)}


def widened(graphs: FieldBatch, num_nodes: int) -> FieldBatch:
    """The graphs with ``num_nodes`` places."""
    room = num_nodes - graphs.num_nodes
    nodes = {name: torch.nn.functional.pad(value, (0, room)) for name, value in graphs.nodes.items()}
    edges = {name: torch.nn.functional.pad(value, (0, room, 0, room)) for name, value in graphs.edges.items()}
    space = None if graphs.positions is None else torch.nn.functional.pad(graphs.positions, (0, 0, 0, room))
    return FieldBatch(nodes, edges, space, node_mask(graphs.sizes, num_nodes))


def field_restarts_of(rollout: Rollout, rows: Int[Tensor, " row"], layout: FieldLayout, step: int) -> list[dict[str, Any]]:
    """The column ``restart`` for the finished graphs of some rows; states as :class:`FieldLayout` stores them."""
    found = []
    for b in rows.tolist():
        n = int(rollout.size[b])
        last = {name: value[b, -1].tolist() for name, value in rollout.states.items() if name != "start"}
        nodes = tuple(tuple(last[f"node {name}"][:n]) for name in layout.nodes)
        pairs = tuple(tuple(last[f"edge {name}"][: n * (n - 1) // (1 if directed else 2)]) for name, directed in layout.edges)
        space = tuple(map(tuple, last["positions"][:n])) if layout.positions else None
        found.append({"restart": FieldRestart(nodes, pairs, step, space)})
    return found
