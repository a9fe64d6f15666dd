"""Trajectories of graphs as a rollout stores them: packed states [B, S+1, N] and [B, S+1, P], the finished graph last.

Further states, where there are any: ``properties`` [B, K]; ``free_nodes`` and ``free_pairs`` (False where a context fixes
the site); ``start`` [B], the first step that a row drew for itself: earlier steps were re-noised, or drawn once for its group.
Those steps have no units and log-prob 0, so that Σ_steps log-prob is log p(the rest of the trajectory | x at ``start``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from discrete_grpo.core.rollout import Context, Rollout
from discrete_grpo.domains.graphs import GraphBatch, node_mask, num_pairs, pair_mask, unpack
from discrete_grpo.policies.conditions import columns_of

__all__ = [
    "Moments",
    "all_steps",
    "check_alike",
    "first_own_steps",
    "first_rows",
    "graph_rollout",
    "launch_sites",
    "moments",
    "segment_buckets",
    "size_buckets",
    "step_units",
]


def all_steps(rollout: Rollout) -> Int[Tensor, "batch step"]:
    """The numbers 0..S-1 of the steps of a rollout [B, S], the same for every row."""
    return torch.arange(rollout.num_steps, device=rollout.size.device).expand(len(rollout), -1)


def check_alike(contexts: Sequence[Context], names: Sequence[str], note: str = " with shared_steps") -> None:
    """Raise ValueError, with ``note`` at its end, unless the contexts of a group agree in the columns ``names``."""
    first: dict[int, Context] = {}
    for context in contexts:
        one = first.setdefault(context.group, context)
        for name in names:
            if context.columns.get(name) != one.columns.get(name):
                raise ValueError(f"{name}: differs within group {context.group}, expected one value per group{note}")


def first_rows(groups: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """Number of the first row of each row's group; ids need not be contiguous or sorted.

    >>> first_rows(torch.tensor([7, -2, 7, 7])).tolist()
    [0, 1, 0, 0]
    """
    first = {g: i for i, g in reversed(list(enumerate(groups.tolist())))}
    return torch.tensor([first[g] for g in groups.tolist()])


def first_own_steps(groups: Int[Tensor, " batch"], start: Int[Tensor, " batch"], shared: int) -> Int[Tensor, " batch"]:
    """First step that each row draws by itself: ``shared``, if its group has other rows and starts before that, else ``start``.

    >>> first_own_steps(torch.tensor([7, -2, 7, 5, 5]), torch.tensor([0, 0, 0, 3, 3]), 2).tolist()
    [2, 0, 2, 3, 3]
    """
    _, where, count = groups.unique(return_inverse=True, return_counts=True)
    return torch.where(count[where] > 1, start.clamp_min(shared), start)


LAUNCH_SITES = 65_536
"""Number of sites that a GPU computes in the time that the launches of a step take; an estimate that affects only speed."""


def launch_sites(device: torch.device) -> int:
    """Number of sites of padding that cost less than a bucket of their own: 0 on the CPU, which launches nothing."""
    return LAUNCH_SITES if device.type == "cuda" else 0


def size_buckets(sizes: Int[Tensor, " batch"], waste: float = 0.25, launch: int = 0) -> Iterator[Int[Tensor, " row"]]:
    """Row numbers grouped by graph size, largest first; padding is at most ``waste`` of a row's sites.

    Args:
        sizes: node counts.
        waste: largest share of padding in a row.
        launch: a bucket also includes smaller graphs as long as a separate bucket would save at most this many sites.

    >>> [rows.tolist() for rows in size_buckets(torch.tensor([9, 4, 8, 9]), launch=100)]
    [[0, 3, 2, 1]]
    >>> [rows.tolist() for rows in size_buckets(torch.tensor([9, 4, 8, 9]))]
    [[0, 3, 2], [1]]
    """
    order = torch.argsort(sizes, descending=True, stable=True)
    cost = sizes[order] + sizes[order] * (sizes[order] - 1) // 2
    start = 0
    while start < len(order):
        fits = cost[start:] >= (1.0 - waste) * cost[start]
        stop = start + int(fits.sum())
        while stop < len(order) and (len(order) - stop) * int(cost[start] - cost[stop]) <= launch:
            stop += 1
        yield order[start:stop]
        start = stop


def segment_buckets(sizes: Int[Tensor, " batch"], start: Int[Tensor, " batch"], launch: int = 0) -> Iterator[Int[Tensor, " row"]]:
    """Row numbers grouped by the step they start at, and then as by :func:`size_buckets`."""
    for first in start.unique():
        rows = (start == first).nonzero()[:, 0]
        yield from (rows[part] for part in size_buckets(sizes[rows], launch=launch))


@dataclass(frozen=True)
class Moments:
    """Chosen states of stored trajectories; a row is a trajectory at a step, R = B · S' of them.

    Attributes:
        state: x_t of every row.
        properties: standardised properties of every row [R, K]; None without properties.
        chosen: which nodes [B, S', N] and pairs [B, S', P] the policy draws in that step.
    """

    state: GraphBatch
    properties: Float[Tensor, "row property"] | None
    chosen: tuple[Bool[Tensor, "batch step node"], Bool[Tensor, "batch step pair"]]


def _free(rollout: Rollout) -> tuple[Tensor, Tensor]:
    """Sites that exist and are not fixed [B, N], [B, P]."""
    states, n = rollout.states, rollout.max_size
    mask = node_mask(rollout.size, n)
    nodes, pairs = mask, pair_mask(mask)
    if "free_nodes" in states:
        nodes, pairs = nodes & states["free_nodes"][:, :n], pairs & states["free_pairs"][:, : num_pairs(n)]
    return nodes, pairs


def moments(rollout: Rollout, steps: Int[Tensor, "batch step"]) -> Moments:
    """The states that ``steps`` start from, and what is drawn in them."""
    states, count = rollout.states, steps.shape[1]
    n = rollout.max_size
    row = torch.arange(len(rollout), device=steps.device)[:, None]
    packed = states["nodes"][row, steps, :n], states["pairs"][row, steps, : num_pairs(n)]
    mask = node_mask(rollout.size, n).repeat_interleave(count, 0)
    nodes, pairs = (free.unsqueeze(1).expand(-1, count, -1) for free in _free(rollout))
    if "start" in states:
        drawn = (steps >= states["start"][:, None]).unsqueeze(-1)
        nodes, pairs = nodes & drawn, pairs & drawn
    given = states["properties"].repeat_interleave(count, 0) if "properties" in states else None
    return Moments(unpack(packed[0].flatten(0, 1), packed[1].flatten(0, 1), mask), given, (nodes, pairs))


def step_units(rollout: Rollout) -> Int[Tensor, "batch step"]:
    """Number of sites the policy draws at each step."""
    free = sum(f.sum(-1) for f in _free(rollout))
    assert isinstance(free, Tensor)
    steps = torch.arange(rollout.num_steps, device=free.device)
    start = rollout.states.get("start", torch.zeros_like(free))
    return torch.where(steps >= start[:, None], free[:, None], 0)


def graph_rollout(
    contexts: Sequence[Context],
    states: Mapping[str, Tensor],
    logp: Float[Tensor, "batch step"],
    group: Int[Tensor, " batch"],
    size: Int[Tensor, " batch"],
    *,
    max_nodes: int,
    decode: Callable[[GraphBatch], Sequence[Any]] | None,
) -> Rollout:
    """The rollout of finished trajectories, their last states decoded.

    Args:
        contexts: B of them.
        states: states as described at the top of this module.
        logp: log-prob of each step as drawn [B, S].
        group: number of each row's group [B].
        size: node count of each row [B].
        max_nodes: size of the largest graph that the policy draws.
        decode: turns finished graphs on the CPU into what rewards see; None gives batches of one graph on the device.
    """
    largest, steps = states["nodes"].shape[2], logp.shape[1]
    last = states["nodes"][:, -1], states["pairs"][:, -1], size
    nodes, pairs, sizes = last if decode is None else (x.cpu() for x in last)
    final = unpack(nodes, pairs, node_mask(sizes, largest))
    alone = [final.index(slice(b, b + 1)).crop(n) for b, n in enumerate(size.tolist())] if decode is None else []
    made = Rollout(
        states=states,
        group=group,
        logp=logp,
        units=torch.zeros_like(logp, dtype=torch.long),
        size=size,
        max_units=steps * (max_nodes + num_pairs(max_nodes)),
        max_steps=steps,
        samples=tuple(alone if decode is None else decode(final)),
        columns=columns_of(contexts),
    )
    return replace(made, units=step_units(replace(made, largest=largest)))
