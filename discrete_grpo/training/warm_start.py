"""Warm start: scores given samples, such as the lines of a file, through the ledger and adds them to a memory.

Each new sample is a call like any other: a start that is not counted would make a comparison at equal budgets unfair.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from discrete_grpo.core.advantages import sum_rewards
from discrete_grpo.core.checks import check_whole
from discrete_grpo.core.rollout import Reward
from discrete_grpo.core.scoring import BudgetExhausted

__all__ = ["Memory", "SourcedLedger", "WarmStart", "warm_start"]


class Memory(Protocol):
    """A memory of scored samples, such as :class:`discrete_grpo.training.memory.ScoredMemory`."""

    def add(self, entries: Sequence[tuple[Hashable, Any, float]], source: str = "") -> int:
        """Add samples as (key, sample, total reward); returns how many entered."""
        ...


class SourcedLedger(Protocol):
    """A counter of calls that keeps where each came from, such as :class:`discrete_grpo.rewards.ledger.Ledger`."""

    @property
    def key(self) -> Any:
        """Function from a sample to its key, such as its canonical SMILES; None for an invalid sample."""
        ...

    @property
    def calls(self) -> int:
        """Number of different valid samples scored."""
        ...

    def score(
        self,
        rewards: Sequence[Reward],
        samples: Sequence[Any],
        columns: Mapping[str, Sequence[Any]] | None = None,
        source: str = "",
    ) -> Float[Tensor, "batch reward"]:
        """Score every sample by every reward; raises ``BudgetExhausted`` for new ones if the budget was used up before."""
        ...


@dataclass(frozen=True)
class WarmStart:
    """Outcome of a warm start.

    Attributes:
        read: number of samples read.
        invalid: those of them that are invalid; they cost no call and enter no memory.
        unknown: those whose reward is unknown, or for which the budget was too small; they enter no memory either.
        added: number of samples that entered the memory.
        calls: number of calls that the ledger counted for them.
    """

    read: int = 0
    invalid: int = 0
    unknown: int = 0
    added: int = 0
    calls: int = 0


def warm_start(
    samples: Iterable[Any],
    rewards: Sequence[Reward],
    ledger: SourcedLedger,
    memory: Memory,
    limit: int | None = None,
    *,
    weights: Sequence[float] | None = None,
    batch_size: int = 64,
    source: str = "file",
) -> WarmStart:
    """Score samples through the ledger, in their order, and put those with a known reward into a memory.

    It ends after ``limit`` samples, with the last sample, or with the budget of the ledger, whichever comes first. A used-up
    budget is not an error here: scoring the next new sample raises it.

    Args:
        samples: samples of the kind that the rewards take; an iterator is not read further than needed.
        rewards: one reward or several.
        ledger: ledger that counts the calls.
        memory: memory that takes the samples.
        limit: largest number of samples taken, at least 1; None takes all.
        weights: weights of the rewards in the total; None means 1 each.
        batch_size: samples per call of the rewards, at least 1.
        source: source of the calls in the ledger, and of the samples in the memory.

    Raises:
        ValueError: for an argument out of its range.
        RewardError: if a reward fails.
    """
    check_whole("batch_size", batch_size, least=1)
    if limit is not None:
        check_whole("limit", limit, least=1, note=" or None")
    if weights is not None and len(weights) != len(rewards):
        raise ValueError(f"weights: {len(weights)} given, expected one per reward ({len(rewards)})")
    before, rest, done, spent = ledger.calls, islice(iter(samples), limit), WarmStart(), False
    factors = torch.tensor((1.0,) * len(rewards) if weights is None else tuple(weights), dtype=torch.float64)
    while not spent and (batch := list(islice(rest, batch_size))):
        try:
            scores = ledger.score(rewards, batch, source=source)
        except BudgetExhausted as error:
            scores, spent = error.scores, True
        entries = list(zip(map(ledger.key, batch), batch, sum_rewards(scores, factors).tolist(), strict=True))
        valid = [entry for entry in entries if entry[0] is not None]
        known = [entry for entry in valid if not math.isnan(entry[2])]
        done = WarmStart(
            read=done.read + len(batch),
            invalid=done.invalid + len(batch) - len(valid),
            unknown=done.unknown + len(valid) - len(known),
            added=done.added + memory.add(known, source),
            calls=ledger.calls - before,
        )
    return done
