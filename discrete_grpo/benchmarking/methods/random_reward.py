"""The control ``random-reward``: the own method learns from random scores, while the ledger counts and keeps the real ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods.grpo_memory import grpo_memory
from discrete_grpo.recipes.grpo_memory import TOKEN_SETTINGS

if TYPE_CHECKING:
    from torch import Tensor

    from discrete_grpo.rewards.ledger import History

__all__ = ["METHOD", "Blindfold", "random_reward"]


class Blindfold:
    """A ledger that shows a random number in place of each score, uniform in [0, 1) and the same for equal samples.

    It has the counts of the ledger and a history with the random numbers, and gives no access to real scores.

    Args:
        ledger: ledger that counts the calls and keeps the real scores.
        seed: of the random numbers.
    """

    _COUNTS = ("key", "calls", "exhausted", "max_oracle_calls", "asked", "invalid", "metrics", "sources", "turn", "rank")

    def __init__(self, ledger: Any, seed: int) -> None:
        self.__dict__.update(_ledger=ledger, _seed=seed)

    def __getattr__(self, name: str) -> Any:
        if name not in self._COUNTS:
            raise AttributeError(f"{name}: a ledger that hides its scores has no such attribute")
        return getattr(self._ledger, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("turn", "rank"):  # which a trainer sets
            raise AttributeError(f"{name}: a ledger that hides its scores keeps it as it is")
        setattr(self._ledger, name, value)

    def history(self) -> History:
        """Every call up to now, in order, with the numbers that were shown."""
        found: History = self._ledger.history()
        return replace(found, scores=self._hidden(found.keys, found.scores))

    def score(
        self,
        rewards: Sequence[Any],
        samples: Sequence[Any],
        columns: Mapping[str, Sequence[Any]] | None = None,
        source: str | Sequence[str] = "",
    ) -> Tensor:
        """Score samples by the ledger and show random numbers where a score is known."""
        from discrete_grpo.core.scoring import BudgetExhausted

        try:
            return self._shown(samples, self._ledger.score(rewards, samples, columns, source))
        except BudgetExhausted as spent:
            raise BudgetExhausted(str(spent), self._shown(samples, spent.scores)) from None

    def _shown(self, samples: Sequence[Any], scores: Tensor) -> Tensor:
        return self._hidden([self._ledger.key(sample) for sample in samples], scores)

    def _hidden(self, keys: Sequence[Any], scores: Tensor) -> Tensor:
        import torch

        shown = torch.tensor([self._number(key) for key in keys], dtype=torch.float64)
        return torch.where(scores.isnan(), torch.nan, shown[:, None].expand_as(scores))

    def _number(self, key: Any) -> float:
        digest = hashlib.blake2b(f"{self._seed} {key}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") / 2**64


def random_reward(task: Any, policy: Any, ledger: Any, seed: int, **settings: Any) -> None:
    """Run ``grpo-memory`` on random scores: what it gains comes from sharpening and from the operators, not from learning."""
    grpo_memory(task, policy, Blindfold(ledger, seed), seed, **{**settings, "goal": None})  # random scores would soon reach it


METHOD = Method(
    name="random-reward",
    about="control: grpo-memory learns from random scores, while the real ones are counted",
    source="",
    run=random_reward,
    settings=TOKEN_SETTINGS,
    policy_kinds=("tokens",),
    task_kinds=("molecules",),
    least_budget=200,
    warm=True,
)
