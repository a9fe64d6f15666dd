"""A buffer of the best unique samples of a run, from which later groups can restart.

The operator is a method of the policy (:class:`~discrete_grpo.core.rollout.Refinable`): a finished sample is re-noised to time t
and regenerated. In training, a whole group restarts from one elite and its samples are compared with each other; the
regenerated steps are trained on, with their own log-probs.

Source: Graph-GRPO, arXiv 2603.10395, without the training on regenerated steps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from discrete_grpo.core.checks import check_range, check_whole
from discrete_grpo.core.rollout import Policy, Rollout, is_refinable
from discrete_grpo.runs.checkpoint import build, describe

__all__ = ["Elite", "EliteBuffer", "best_unique"]

T = TypeVar("T")


def best_unique(entries: Iterable[tuple[Hashable, float, T]], size: int) -> list[T]:
    """Return the ``size`` entries of highest reward, one per key, best first; ties go to the entry given first.

    >>> best_unique([("a", 0.5, 0), ("b", 0.7, 1), ("a", 0.9, 2), ("c", 0.7, 3)], 2)
    [2, 1]
    """
    best: dict[Hashable, T] = {}
    for key, _, entry in sorted(entries, key=lambda e: -e[1]):  # a stable sort
        best.setdefault(key, entry)
    return list(best.values())[:size]


@dataclass(frozen=True)
class Elite:
    """A sample that a group can start from.

    Attributes:
        key: identity of the sample: the number of its condition and its text, or the restart itself if samples are not text.
        reward: its total reward.
        restart: columns that make the policy start from it.
        origin: number of the condition it was drawn under; None without conditions.
        sample: the sample; None if the buffer was read from a checkpoint.
        scores: value of each reward, where it was given; empty if the buffer was read from a checkpoint.
    """

    key: str
    reward: float
    restart: Mapping[str, Any]
    origin: int | None = None
    sample: Any = None
    scores: tuple[float, ...] = ()


class EliteBuffer:
    """The best samples seen, best first, each text once: a relabelled graph is another one. Ties go to the older one.

    Args:
        policy: policy that makes the restarts.
        size: number of samples kept, at least 1.
        time: time to which a restart re-noises its sample, 0 (data) < t < 1 (noise).

    Raises:
        ValueError: if the policy cannot start from a finished sample, or for an argument out of its range.
    """

    def __init__(self, policy: Policy, size: int, time: float) -> None:
        if not is_refinable(policy):
            raise ValueError(f"policy: {type(policy).__name__} has no method restarts, expected one that can refine its samples")
        check_whole("size", size, least=1)
        check_range("time", time, above=0, below=1)
        self.policy, self.size, self.time = policy, size, time
        self.kept: list[Elite] = []

    def add(
        self,
        rollout: Rollout,
        reward: Float[Tensor, " batch"],
        origin: Sequence[int | None],
        scores: Float[Tensor, "batch reward"] | None = None,
    ) -> int:
        """Add the samples of a rollout that are among the best; unknown rewards (NaN) and invalid samples (None) are skipped.

        Args:
            rollout: the samples.
            reward: their total rewards.
            origin: number of the condition of each; None without conditions.
            scores: value of each reward, to be kept beside the total.

        Returns:
            The number of samples that entered.
        """
        least = self.kept[-1].reward if len(self.kept) == self.size else -math.inf
        totals = reward.tolist()
        rows = [b for b, r in enumerate(totals) if r == r and r > least and rollout.samples[b] is not None]
        before = {elite.key for elite in self.kept}
        if not rows:
            return 0
        restarts = self.policy.restarts(rollout, torch.tensor(rows, device=rollout.group.device), self.time)
        parts = [()] * len(totals) if scores is None else [tuple(row) for row in scores.tolist()]
        found = [
            Elite(_key(rollout.samples[b], columns, origin[b]), totals[b], columns, origin[b], rollout.samples[b], parts[b])
            for b, columns in zip(rows, restarts, strict=True)
        ]
        self.kept = best_unique(((e.key, e.reward, e) for e in [*self.kept, *found]), self.size)
        return sum(elite.key not in before for elite in self.kept)

    def draw(self, count: int, generator: torch.Generator | None = None) -> list[Elite]:
        """Draw ``count`` elites at random, none of them again before all were drawn; an empty list while the buffer is empty."""
        if not self.kept or count < 1:
            return []
        device = "cpu" if generator is None else generator.device
        rounds = math.ceil(count / len(self.kept))
        order = torch.cat([torch.randperm(len(self.kept), generator=generator, device=device) for _ in range(rounds)])
        return [self.kept[k] for k in order[:count].tolist()]

    def state(self) -> list[dict[str, Any]]:
        """Return the buffer as plain values, for a checkpoint."""
        return [{"key": e.key, "reward": e.reward, "restart": describe(e.restart), "origin": e.origin} for e in self.kept]

    def load(self, state: Iterable[Mapping[str, Any]]) -> None:
        """Restore the result of :meth:`state`; only classes of this package and of the policy's package are instantiated."""
        trusted = ("discrete_grpo", type(self.policy).__module__.split(".")[0])
        self.kept = [Elite(str(s["key"]), float(s["reward"]), build(s["restart"], trusted), s["origin"]) for s in state]


def _key(sample: Any, restart: Mapping[str, Any], origin: int | None) -> str:
    text = sample if isinstance(sample, str) else json.dumps(describe(restart))
    return text if origin is None else f"{origin} {text}"
