"""Restarts from a finished graph: re-noise it to a time of the grid and regenerate from there.

x_t ~ q(x_t | x_0) at grid point k_0 is drawn by the kernel and not by the policy, so the steps before k_0 have no log-prob;
given x_t the log-prob of the rest, Σ_{k >= k_0} log p_θ(x_{k+1} | x_k), is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from discrete_grpo.core.checks import check_range, check_whole, plain_number
from discrete_grpo.core.rollout import Context, Rollout
from discrete_grpo.domains.graphs import GraphBatch, node_mask, num_pairs, symmetrise

__all__ = ["Restart", "Restarts", "asked_nodes", "grid_point", "restart_graphs", "restarts_of"]


@dataclass(frozen=True)
class Restart:
    """A finished graph and the point of the sampler's grid from which it is regenerated: the ``restart`` column of a context.

    Attributes:
        nodes: clean class of every node, at least one.
        pairs: clean class of every pair, in the order (0,1), (0,2), (1,2), (0,3), ...
        step: k_0, the first step to be redrawn; 0 redraws the whole trajectory.

    Raises:
        ValueError: if the numbers are inconsistent.
    """

    nodes: tuple[int, ...]
    pairs: tuple[int, ...]
    step: int

    def __post_init__(self) -> None:
        for name in ("nodes", "pairs"):
            if hasattr(classes := getattr(self, name), "tolist"):  # an array or a tensor
                object.__setattr__(self, name, tuple(classes.tolist()))
        if not self.nodes or len(self.pairs) != num_pairs(len(self.nodes)):
            wanted = f"at least 1 node and {num_pairs(len(self.nodes))} pairs"
            raise ValueError(f"restart: {len(self.nodes)} nodes and {len(self.pairs)} pairs, expected {wanted}")
        check_whole("step of restart", self.step, least=0)

    @property
    def num_nodes(self) -> int:
        """Nodes of the graph."""
        return len(self.nodes)


@dataclass(frozen=True)
class Restarts:
    """The restarts of a batch of contexts.

    Attributes:
        step: k_0 of every row [B], 0 where it starts from noise.
        graphs: the graphs to start from; zeros where a row starts from noise.
    """

    step: Int[Tensor, " batch"]
    graphs: GraphBatch


def _restart(context: Context) -> Restart | None:
    found = context.columns.get("restart")
    if found is not None and not isinstance(found, Restart):
        raise ValueError(f"restart: {found!r}, expected a Restart")
    return found


def asked_nodes(context: Context) -> int | None:
    """The node count a context asks for by ``num_nodes`` or by the graph it restarts from; None if it does not.

    Raises:
        ValueError: if it is not an integer, or the two differ.
    """
    size, restart = plain_number(context.columns.get("num_nodes")), context.columns.get("restart")
    if restart is not None and not isinstance(getattr(restart, "num_nodes", None), int):
        raise ValueError(f"restart: {restart!r}, expected a Restart")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int)):
        raise ValueError(f"num_nodes: {size!r}, expected a whole number")
    if restart is None:
        return size
    if size not in (None, restart.num_nodes):
        raise ValueError(f"num_nodes: {size}, expected {restart.num_nodes} as in restart")
    return restart.num_nodes


def restart_graphs(
    contexts: Sequence[Context], num_nodes: int, node_classes: int, edge_classes: int, num_steps: int
) -> Restarts | None:
    """Graph that every context restarts from, padded to ``num_nodes``; None if none does.

    Raises:
        ValueError: if two contexts of a group differ in it, or a class or a step is unknown.
    """
    found = [_restart(c) for c in contexts]
    if not any(found):
        return None
    by_group: dict[int, Restart | None] = {}
    step = torch.zeros(len(contexts), dtype=torch.long)
    sizes = torch.zeros(len(contexts), dtype=torch.long)
    nodes = torch.zeros(len(contexts), num_nodes, dtype=torch.long)
    pairs = torch.zeros(len(contexts), num_pairs(num_nodes), dtype=torch.long)
    for b, (context, restart) in enumerate(zip(contexts, found, strict=True)):
        if by_group.setdefault(context.group, restart) != restart:
            raise ValueError(f"restart: differs within group {context.group}, expected one per group")
        if restart is None:
            continue
        _check(restart, node_classes, edge_classes, num_steps)
        step[b], sizes[b] = restart.step, restart.num_nodes
        nodes[b, : restart.num_nodes] = torch.tensor(restart.nodes)
        pairs[b, : len(restart.pairs)] = torch.tensor(restart.pairs, dtype=torch.long)
    return Restarts(step, GraphBatch(nodes, symmetrise(pairs, num_nodes), node_mask(sizes, num_nodes)))


def _check(restart: Restart, node_classes: int, edge_classes: int, num_steps: int) -> None:
    for kind, classes, count in (("node", restart.nodes, node_classes), ("edge", restart.pairs, edge_classes)):
        for c in classes:
            check_whole(f"{kind} class in restart", c, least=0, most=count - 1)
    check_range("step of restart", restart.step, least=0, most=num_steps - 1)


def grid_point(grid: Float[Tensor, " point"], time: float) -> int:
    """Number of the point of a falling grid nearest to ``time``, except the end t = 0; ties go to the noisier point.

    Raises:
        ValueError: if ``time`` is not above 0 and at most 1.

    >>> grid_point(torch.tensor([1.0, 0.75, 0.5, 0.25, 0.0]), 0.6)
    2
    """
    check_range("time", time, above=0, most=1)
    return int((grid[:-1] - time).abs().argmin())


def restarts_of(rollout: Rollout, rows: Int[Tensor, " row"], step: int) -> list[dict[str, Any]]:
    """The column ``restart`` for the finished graphs of some rows; states as :class:`GraphPolicy` stores them."""
    found = []
    for b in rows.tolist():
        n = int(rollout.size[b])
        nodes, pairs = (rollout.states[name][b, -1].tolist() for name in ("nodes", "pairs"))
        found.append({"restart": Restart(tuple(nodes[:n]), tuple(pairs[: num_pairs(n)]), step)})
    return found
