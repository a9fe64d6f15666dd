"""Distributes the sizes of the groups of a generation so that all shards have about the same work.

The work per graph grows with its number of node pairs. If every shard drew the sizes of its own few groups, the others would
wait for the process with the largest graphs. Groups are exchangeable, so their assignment to shards does not change the law of
a generation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from discrete_grpo.core.rollout import is_size_drawer

__all__ = ["dealt", "sizes_are_dealt"]

OWN_SIZES = frozenset({"num_nodes", "fixed", "restart"})
"""Columns of a condition that influence the size of its groups."""


def sizes_are_dealt(policy: object, conditions: Sequence[Mapping[str, Any]] | None, *, shards: int, refines: bool) -> bool:
    """Whether sizes are drawn for all shards at once: there are several, and no group has a size of its own.

    Args:
        policy: the policy, which is a :class:`~discrete_grpo.core.rollout.SizeDrawer` if its groups share a size.
        conditions: columns of the conditions; None without conditions.
        shards: number of shards of the run.
        refines: whether groups can start from finished samples, whose sizes are given.
    """
    free = conditions is None or not any(OWN_SIZES & condition.keys() for condition in conditions)
    return shards > 1 and free and not refines and is_size_drawer(policy)


def dealt(sizes: Sequence[int], shards: int) -> list[list[int]]:
    """Deal the sizes of groups: as many to each shard, and about equal sums of n².

    In each round the largest sizes that are left, one per shard, are dealt: the largest to the shard that has the least so far.
    A shard keeps its sizes in the order of the draws, so that the position of a group is independent of its size.

    >>> dealt([9, 1, 2, 8, 7, 3], 2)
    [[9, 2, 3], [1, 8, 7]]

    Raises:
        ValueError: if the sizes do not divide among the shards.
    """
    if len(sizes) % shards:
        raise ValueError(f"sizes: {len(sizes)}, expected a multiple of the number of shards ({shards})")
    order = sorted(range(len(sizes)), key=lambda k: -sizes[k])
    own: list[list[int]] = [[] for _ in range(shards)]
    work = [0] * shards
    for first in range(0, len(order), shards):
        least = sorted(range(shards), key=lambda s: work[s])
        for shard, k in zip(least, order[first : first + shards], strict=True):
            own[shard].append(k)
            work[shard] += sizes[k] ** 2
    return [[sizes[k] for k in sorted(numbers)] for numbers in own]
