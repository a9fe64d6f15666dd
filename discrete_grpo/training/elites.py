"""Good samples that are started from again: a memory of the best unique ones, and local search with it.

The operator is the policy's own (:class:`~discrete_grpo.core.rollout.Refinable`): re-noise a finished sample to time t and
regenerate it. In training, whole groups restart from one good sample and are compared with each other; what is learned
from is the regenerated part, with the log-probs of its own steps. At inference the same operator searches around the best.
Source of the operator: Graph-GRPO, arXiv 2603.10395; here its steps are trained on as well.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from discrete_grpo.core.advantages import sum_rewards
from discrete_grpo.core.rollout import Context, Policy, Refinable, Reward, Rollout
from discrete_grpo.core.scoring import Accounts, BudgetExhausted, score_samples
from discrete_grpo.runs.checkpoint import build, describe

__all__ = ["Good", "Memory", "Search", "Start", "group_starts", "local_search", "seen_columns"]


@dataclass(frozen=True)
class Good:
    """A sample worth starting from.

    Attributes:
        key: what makes it the same sample: the number of its condition and its text, or for samples that are no text
            the restart itself.
        reward: its total reward.
        restart: the columns that start from it again.
        origin: number of the condition it was drawn under; None without conditions.
        sample: itself; a memory read from a checkpoint has none.
    """

    key: str
    reward: float
    restart: Mapping[str, Any]
    origin: int | None = None
    sample: Any = None


class Memory:
    """The best unique samples seen, best first; of equal ones the older.

    Args:
        policy: makes the restarts.
        size: how many are kept, at least 1.
        time: how far back a restart goes, 0 (data) < t < 1 (noise).

    Raises:
        ValueError: if the policy cannot start from a finished sample, or for an argument out of its range.
    """

    def __init__(self, policy: Policy, size: int, time: float) -> None:
        if not isinstance(policy, Refinable):
            raise ValueError(f"policy: {type(policy).__name__} has no method restarts, expected one that can refine its samples")
        if size < 1:
            raise ValueError(f"size: {size}, expected at least 1")
        if not 0 < time < 1:
            raise ValueError(f"time: {time}, expected more than 0 and less than 1")
        self.policy, self.size, self.time = policy, size, time
        self.kept: list[Good] = []

    def add(self, rollout: Rollout, reward: Float[Tensor, " batch"], origin: Sequence[int | None]) -> int:
        """Remember the best of a rollout; unknown rewards (NaN) and samples that stand for nothing (None) are left out.

        Returns:
            How many entered.
        """
        least = self.kept[-1].reward if len(self.kept) == self.size else -math.inf
        scores = reward.tolist()
        rows = [b for b, r in enumerate(scores) if r == r and r > least and rollout.samples[b] is not None]
        before = {good.key: good for good in self.kept}
        if not rows:
            return 0
        restarts = self.policy.restarts(rollout, torch.tensor(rows, device=rollout.group.device), self.time)
        found = [
            Good(_key(rollout.samples[b], columns, origin[b]), scores[b], columns, origin[b], rollout.samples[b])
            for b, columns in zip(rows, restarts, strict=True)
        ]
        best: dict[str, Good] = {}
        for good in sorted([*self.kept, *found], key=lambda g: -g.reward):  # stable: the older of equals stays first
            best.setdefault(good.key, good)
        self.kept = list(best.values())[: self.size]
        return sum(good.key not in before for good in self.kept)

    def draw(self, count: int, generator: torch.Generator | None = None) -> list[Good]:
        """``count`` of them at random, none again before all were drawn; none at all while the memory is empty."""
        if not self.kept or count < 1:
            return []
        device = "cpu" if generator is None else generator.device
        rounds = math.ceil(count / len(self.kept))
        order = torch.cat([torch.randperm(len(self.kept), generator=generator, device=device) for _ in range(rounds)])
        return [self.kept[k] for k in order[:count].tolist()]

    def state(self) -> list[dict[str, Any]]:
        """The memory as plain values, for a checkpoint."""
        return [{"key": g.key, "reward": g.reward, "restart": describe(g.restart), "origin": g.origin} for g in self.kept]

    def load(self, state: Iterable[Mapping[str, Any]]) -> None:
        """What :meth:`state` gave; classes are built from this package and from the policy's own."""
        trusted = ("discrete_grpo", type(self.policy).__module__.split(".")[0])
        self.kept = [Good(str(s["key"]), float(s["reward"]), build(s["restart"], trusted), s["origin"]) for s in state]


def _key(sample: Any, restart: Mapping[str, Any], origin: int | None) -> str:
    text = sample if isinstance(sample, str) else json.dumps(describe(restart))
    return text if origin is None else f"{origin} {text}"


@dataclass(frozen=True)
class Start:
    """What one group of a generation starts from.

    Attributes:
        columns: of its contexts.
        origin: number of its condition; None without conditions.
        added: names of the columns that start it from a good sample; none if it starts from noise.
    """

    columns: Mapping[str, Any]
    origin: int | None = None
    added: frozenset[str] = frozenset()

    @property
    def refined(self) -> bool:
        """Whether it starts from a good sample."""
        return bool(self.added)


def group_starts(
    count: int,
    conditions: Sequence[Mapping[str, Any]] | None,
    memory: Memory | None = None,
    fraction: float = 0.0,
    generator: torch.Generator | None = None,
) -> list[Start]:
    """``count`` starts: conditions in shuffled order, the last round(fraction · count) from the memory once it holds anything."""
    good = memory.draw(round(fraction * count), generator) if memory is not None else []
    given: Sequence[Mapping[str, Any]] = [{}] if conditions is None else conditions
    again = [Start({**given[g.origin or 0], **g.restart}, g.origin, frozenset(g.restart)) for g in good]
    fresh = count - len(again)
    if conditions is None or not fresh:
        return [Start({})] * fresh + again
    device = "cpu" if generator is None else generator.device
    rounds = math.ceil(fresh / len(conditions))
    order = torch.cat([torch.randperm(len(conditions), generator=generator, device=device) for _ in range(rounds)])
    return [Start(conditions[k], k) for k in order[:fresh].tolist()] + again


def seen_columns(rollout: Rollout, starts: Sequence[Start]) -> Mapping[str, tuple[Any, ...]]:
    """The columns that rewards see: those of the conditions, without what a restart added."""
    added = {name for start in starts for name in start.added}
    own = {name for start in starts for name in start.columns.keys() - start.added}
    return {name: value for name, value in rollout.columns.items() if name not in added - own}


@dataclass(frozen=True)
class Search:
    """What a local search found.

    Attributes:
        samples: the best unique ones, best first.
        rewards: their total rewards.
        history: a line a round: ``round`` (0 is the first draw), ``scored`` so far, ``best``, ``mean`` of the population,
            ``reward`` (mean of the round's samples) and ``entered``, how many came into what is kept.
    """

    samples: tuple[Any, ...]
    rewards: tuple[float, ...]
    history: tuple[Mapping[str, float], ...] = field(default_factory=tuple)

    @property
    def scored(self) -> int:
        """Samples that the rewards were asked about."""
        return int(self.history[-1]["scored"])


def local_search(
    policy: Policy,
    reward_funcs: Reward | Sequence[Reward],
    *,
    rounds: int,
    population: int,
    children: int,
    time: float = 0.5,
    keep: int | None = None,
    columns: Mapping[str, Any] | None = None,
    reward_weights: Sequence[float] | None = None,
    batch_size: int = 256,
    generator: torch.Generator | None = None,
    ledger: Accounts | None = None,
) -> Search:
    """Search around the best samples: each round re-noises them to ``time``, regenerates, scores and keeps the best unique.

    The policy is not changed. Round 0 draws population · children samples from noise.

    Args:
        policy: one that can start from finished samples (:class:`~discrete_grpo.core.rollout.Refinable`).
        reward_funcs: one reward or several.
        rounds: rounds after the first draw, at least 0.
        population: how many of the best are started from.
        children: samples made from each.
        time: how far back, 0 (data) < t < 1 (noise).
        keep: how many are returned, at least ``population`` (None: as many).
        columns: conditions of every sample.
        reward_weights: one a reward; None means 1 each.
        batch_size: samples drawn at once; memory only.
        generator: of all draws.
        ledger: counts what is scored; the search ends with the round in which its budget is used up. None: nothing is counted.

    Raises:
        ValueError: if the policy cannot start from a finished sample, or for an argument out of its range.
    """
    least = {"rounds": (rounds, 0), "population": (population, 1), "children": (children, 1), "batch_size": (batch_size, 1)}
    for name, (value, low) in (least | {"keep": (population if keep is None else keep, population)}).items():
        if value < low:
            raise ValueError(f"{name}: {value}, expected at least {low}")
    rewards: list[Reward] = [reward_funcs] if callable(reward_funcs) else list(reward_funcs)
    weights = torch.tensor(reward_weights or [1.0] * len(rewards), dtype=torch.float64)
    memory = Memory(policy, keep or population, time)
    given = dict(columns or {})
    starts: list[Mapping[str, Any]] = [given] * (population * children)
    history: list[Mapping[str, float]] = []
    scored = 0
    for k in range(rounds + 1):
        totals, entered = [], 0
        for first in range(0, len(starts), batch_size):
            part = starts[first : first + batch_size]
            # A group each: what a group shares (a node count, the noise) must not tie one sample to another here.
            rollout = policy.sample([Context(b, c) for b, c in enumerate(part)], generator=generator)
            seen = {name: value for name, value in rollout.columns.items() if name in given}
            total = sum_rewards(_scored(rewards, rollout.samples, seen, ledger), weights)
            entered += memory.add(rollout, total, [None] * len(rollout))
            totals += [r for r in total.tolist() if r == r]
        scored += len(starts)
        top = [good.reward for good in memory.kept[:population]]
        line = {"best": max(top, default=math.nan), "mean": _mean(top), "reward": _mean(totals)}
        history.append({"round": k, "scored": scored, **line, "entered": entered})
        starts = [given | dict(good.restart) for good in memory.kept[:population] for _ in range(children)] or starts
        if ledger is not None and ledger.exhausted:
            break
    return Search(tuple(g.sample for g in memory.kept), tuple(g.reward for g in memory.kept), tuple(history))


def _scored(
    rewards: Sequence[Reward], samples: Sequence[Any], seen: Mapping[str, Sequence[Any]], ledger: Accounts | None
) -> Float[Tensor, "batch reward"]:
    """What is known of the samples; what the budget no longer pays for is unknown."""
    try:
        return score_samples(rewards, samples, seen, ledger)
    except BudgetExhausted as spent:
        return spent.scores


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
