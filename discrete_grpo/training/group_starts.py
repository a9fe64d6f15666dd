"""Starts of the groups of a generation: noise or an elite, with the columns of a condition."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from discrete_grpo.core.rollout import Rollout
from discrete_grpo.training.elites import EliteBuffer

__all__ = ["GroupStart", "group_starts", "seen_columns"]


@dataclass(frozen=True)
class GroupStart:
    """The start of one group: noise, or an elite.

    Attributes:
        columns: columns of the contexts of the group.
        origin: number of its condition; None without conditions.
        added: names of the columns that do not belong to its condition: those of a restart, and a size that was dealt to it.
        refined: whether it starts from an elite.
        asked: names of the columns of all conditions, also of other groups.
    """

    columns: Mapping[str, Any]
    origin: int | None = None
    added: frozenset[str] = frozenset()
    refined: bool = False
    asked: tuple[str, ...] = ()

    def of_size(self, size: int) -> GroupStart:
        """Return the start with a given size."""
        return replace(self, columns={**self.columns, "num_nodes": size}, added=self.added | {"num_nodes"})


def group_starts(
    count: int,
    conditions: Sequence[Mapping[str, Any]] | None,
    elites: EliteBuffer | None = None,
    fraction: float = 0.0,
    generator: torch.Generator | None = None,
) -> list[GroupStart]:
    """``count`` starts with conditions in shuffled order; the last round(fraction · count) are elites once there are any."""
    good = elites.draw(round(fraction * count), generator) if elites is not None else []
    given: Sequence[Mapping[str, Any]] = [{}] if conditions is None else conditions
    asked = tuple(dict.fromkeys(name for condition in given for name in condition))
    again = [
        GroupStart({**given[g.origin or 0], **g.restart}, g.origin, frozenset(g.restart), refined=True, asked=asked) for g in good
    ]
    fresh = count - len(again)
    if conditions is None or not fresh:
        return [GroupStart({})] * fresh + again
    device = "cpu" if generator is None else generator.device
    rounds = math.ceil(fresh / len(conditions))
    order = torch.cat([torch.randperm(len(conditions), generator=generator, device=device) for _ in range(rounds)])
    return [GroupStart(conditions[k], k, asked=asked) for k in order[:fresh].tolist()] + again


def seen_columns(rollout: Rollout, starts: Sequence[GroupStart]) -> Mapping[str, tuple[Any, ...]]:
    """Return the columns that rewards receive: those of all conditions, None where a sample has none, without the added ones."""
    added = {name for start in starts for name in start.added}
    own = {name for start in starts for name in (*start.columns.keys() - start.added, *start.asked)}
    absent = dict.fromkeys(sorted(own - rollout.columns.keys()), (None,) * len(rollout))
    return {name: value for name, value in rollout.columns.items() if name not in added - own} | absent
