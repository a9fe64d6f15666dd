"""Local search with a trained policy: the best samples are re-noised, regenerated and scored, round after round."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from discrete_grpo.core.advantages import sum_rewards
from discrete_grpo.core.checks import check_function, check_whole
from discrete_grpo.core.drawing import draw, evaluating
from discrete_grpo.core.reward_arguments import checked_weights, reward_list
from discrete_grpo.core.rollout import Context, Policy, Reward
from discrete_grpo.core.scoring import Accounts, BudgetExhausted, score_samples, shown_value
from discrete_grpo.training.compatibility import check_observers
from discrete_grpo.training.elites import EliteBuffer

__all__ = ["SearchResult", "local_search"]


@dataclass(frozen=True)
class SearchResult:
    """The result of a local search.

    Attributes:
        samples: the best unique samples, best first.
        rewards: their total rewards.
        history: one line per round: ``round`` (0 is the first draw), ``drawn`` so far, ``best``, ``mean`` of the population,
            ``reward`` (mean of the samples of the round) and ``entered``, the number of samples that entered the buffer.
        scores: value of each reward per sample, without its weight.
    """

    samples: tuple[Any, ...]
    rewards: tuple[float, ...]
    history: tuple[Mapping[str, float], ...] = field(default_factory=tuple)
    scores: tuple[tuple[float, ...], ...] = ()

    @property
    def drawn(self) -> int:
        """Number of samples that were drawn; the ledger counts the calls of rewards."""
        return int(self.history[-1]["drawn"])


@dataclass(frozen=True)
class _Round:
    """Draws and scores the samples of one round."""

    policy: Policy
    rewards: Sequence[Reward]
    weights: Tensor
    columns: frozenset[str]
    batch_size: int
    generator: torch.Generator | None
    ledger: Accounts | None

    def run(self, starts: Sequence[Mapping[str, Any]], buffer: EliteBuffer) -> tuple[list[float], int]:
        """Draw one sample per start; return the known total rewards and the number of samples that entered the buffer."""
        totals, entered = [], 0
        for first in range(0, len(starts), self.batch_size):
            part = starts[first : first + self.batch_size]
            # Each sample is a group of its own, so that no two samples share what a group shares (a node count, the noise).
            added = {name for columns in part for name in columns} - self.columns
            rollout = draw(self.policy, [Context(b, c) for b, c in enumerate(part)], generator=self.generator, added=added)
            seen = {name: value for name, value in rollout.columns.items() if name in self.columns}
            scores = self._score(rollout.samples, seen)
            total = sum_rewards(scores, self.weights)
            entered += buffer.add(rollout, total, [None] * len(rollout), scores)
            totals += [r for r in total.tolist() if r == r]
        return totals, entered

    def _score(self, samples: Sequence[Any], seen: Mapping[str, Sequence[Any]]) -> Float[Tensor, "batch reward"]:
        """Rewards of the samples; NaN for those that the budget does not cover."""
        try:
            return score_samples(self.rewards, samples, seen, self.ledger, "policy")
        except BudgetExhausted as spent:
            return spent.scores


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
    on_round: Callable[[SearchResult], None] | None = None,
) -> SearchResult:
    """Search around the best samples: each round re-noises them to ``time``, regenerates, scores and keeps the best unique.

    The policy does not change, and draws in eval mode. Round 0 draws population · children samples from noise.

    Args:
        policy: policy that can start from finished samples (:class:`~discrete_grpo.core.rollout.Refinable`).
        reward_funcs: one reward or several.
        rounds: number of rounds after the first draw, at least 0.
        population: number of best samples that a round starts from.
        children: number of samples made from each of them.
        time: time to which samples are re-noised, 0 (data) < t < 1 (noise).
        keep: number of samples returned, at least ``population``; None means ``population``.
        columns: conditions of every sample.
        reward_weights: one weight per reward; None means 1 each.
        batch_size: number of samples drawn at once; it changes the memory needed.
        generator: random generator of all draws.
        ledger: counter of reward calls; the search ends with the round in which its budget is used up.
        on_round: function that is called after each round with the result so far.

    Raises:
        ValueError: if the policy cannot start from a finished sample, or for an argument out of its range.
    """
    _check_sizes(rounds, population, children, batch_size, keep)
    _check_parts(columns, reward_weights, generator, on_round)
    check_observers(None, ledger, None)
    rewards: list[Reward] = reward_list(reward_funcs)
    weights = torch.tensor(checked_weights(reward_weights, len(rewards)), dtype=torch.float64)
    given = dict(columns or {})
    worker = _Round(policy, rewards, weights, frozenset(given), batch_size, generator, ledger)
    found = None
    with evaluating(policy):
        for found in _searched(worker, EliteBuffer(policy, keep or population, time), given, rounds, population, children):
            if on_round is not None:
                on_round(found)
    return cast(SearchResult, found)  # the first draw gives one


def _check_sizes(rounds: int, population: int, children: int, batch_size: int, keep: int | None) -> None:
    check_whole("rounds", rounds, least=0)
    for name, value in {"population": population, "children": children, "batch_size": batch_size}.items():
        check_whole(name, value, least=1)
    check_whole("keep", population if keep is None else keep, least=population)


def _check_parts(columns: object, reward_weights: object, generator: object, on_round: object) -> None:
    if columns is not None and not isinstance(columns, Mapping):
        raise ValueError(f"columns: {shown_value(columns)}, expected a mapping of conditions, such as {{'num_nodes': 9}}, or None")
    if reward_weights is not None and (isinstance(reward_weights, str) or not isinstance(reward_weights, Sequence)):
        raise ValueError(f"reward_weights: {shown_value(reward_weights)}, expected a list of one number per reward, or None")
    if generator is not None and not callable(getattr(generator, "get_state", None)):
        raise ValueError(f"generator: {shown_value(generator)}, expected a torch.Generator, or None")
    if on_round is not None:
        check_function("on_round", on_round, "the result so far", 1)


def _searched(
    worker: _Round, buffer: EliteBuffer, given: Mapping[str, Any], rounds: int, population: int, children: int
) -> Iterator[SearchResult]:
    """The result after each round."""
    starts: list[Mapping[str, Any]] = [given] * (population * children)
    history: list[Mapping[str, float]] = []
    drawn = 0
    for k in range(rounds + 1):
        totals, entered = worker.run(starts, buffer)
        drawn += len(starts)
        top = [elite.reward for elite in buffer.kept[:population]]
        line = {"best": max(top, default=math.nan), "mean": _mean(top), "reward": _mean(totals)}
        history.append({"round": k, "drawn": drawn, **line, "entered": entered})
        kept = buffer.kept
        yield SearchResult(
            tuple(e.sample for e in kept), tuple(e.reward for e in kept), tuple(history), tuple(e.scores for e in kept)
        )
        starts = [{**given, **elite.restart} for elite in buffer.kept[:population] for _ in range(children)] or starts
        if worker.ledger is not None and worker.ledger.exhausted:
            return


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
