"""Controls that are made of other methods: the same method, which learns from random scores while the true ones are counted."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.core.scoring import BudgetExhausted

if TYPE_CHECKING:
    from discrete_grpo.rewards.ledger import History, Ledger
    from discrete_grpo.rewards.task import Task

__all__ = ["random_reward"]


def random_reward(method: Method) -> Method:
    """The control of a method: it sees a random number in [0, 1] in place of each score, and its row holds the true scores.

    What it finds better than the prior is not due to the reward. Equal samples have equal numbers.

    >>> from discrete_grpo.benchmarking.methods import METHODS
    >>> random_reward(METHODS["best-of-prior"]).name
    'best-of-prior-random-reward'
    """
    about = f"control: {method.name}, which learns from random scores"
    return replace(method, name=f"{method.name}-random-reward", about=about, run=partial(_run_blind, method.run))


def _run_blind(run: Callable[..., None], task: Task, policy: Any, ledger: Ledger, seed: int, **settings: Any) -> None:
    run(task, policy, _BlindLedger(ledger, seed), seed, **settings)


class _BlindLedger:
    """A ledger that counts as usual and shows random numbers in place of the scores."""

    _ledger: Ledger
    _seed: int

    def __init__(self, ledger: Ledger, seed: int) -> None:
        vars(self).update(_ledger=ledger, _seed=seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._ledger, name, value)

    def _numbers(self, scores: torch.Tensor, keys: Sequence[str | None]) -> torch.Tensor:
        """Random numbers where a score is known; 0 for an invalid sample."""
        drawn = [0.0 if key is None else random.Random(f"{self._seed}/{key}").random() for key in keys]
        shown = torch.tensor(drawn, dtype=torch.float64).unsqueeze(-1).expand_as(scores)
        return shown.masked_fill(scores.isnan(), math.nan)

    def score(self, rewards: Sequence[Any], samples: Sequence[Any], *more: Any, **named: Any) -> torch.Tensor:
        """Count and score the samples, and return random numbers."""
        keys = [self._ledger.key(sample) for sample in samples]
        try:
            return self._numbers(self._ledger.score(rewards, samples, *more, **named), keys)
        except BudgetExhausted as over:
            over.scores = self._numbers(over.scores, keys)
            raise

    def history(self) -> History:
        """The calls with the numbers that were shown."""
        found = self._ledger.history()
        return replace(found, scores=self._numbers(found.scores, found.keys))
