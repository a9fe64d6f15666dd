"""The control ``random-reward``: the own method learns from random scores, while the ledger counts and keeps the real ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods import grpo_memory

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["METHOD", "Blindfold", "random_reward"]


@dataclass(frozen=True)
class Blindfold:
    """A ledger that shows a random number in place of each score, uniform in [0, 1) and the same for equal samples.

    Attributes:
        ledger: counts the calls and keeps the real scores.
        seed: of the random numbers.
    """

    ledger: Any
    seed: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ledger, name)

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
            return self._hidden(samples, self.ledger.score(rewards, samples, columns, source))
        except BudgetExhausted as spent:
            raise BudgetExhausted(str(spent), self._hidden(samples, spent.scores)) from None

    def _hidden(self, samples: Sequence[Any], scores: Tensor) -> Tensor:
        import torch

        shown = torch.tensor([self._number(self.ledger.key(sample)) for sample in samples], dtype=torch.float64)
        return torch.where(scores.isnan(), torch.nan, shown[:, None].expand_as(scores))

    def _number(self, key: Any) -> float:
        digest = hashlib.blake2b(f"{self.seed} {key}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") / 2**64


def random_reward(task: Any, policy: Any, ledger: Any, seed: int, **settings: Any) -> None:
    """Run ``grpo-memory`` on random scores: what it gains comes from sharpening and from the operators, not from learning."""
    grpo_memory.grpo_memory(task, policy, Blindfold(ledger, seed), seed, **settings)


METHOD = Method(
    name="random-reward",
    about="control: grpo-memory learns from random scores, while the real ones are counted",
    source="",
    run=random_reward,
    settings=grpo_memory.SETTINGS,
    families=("tokens",),
    kinds=("molecules",),
    least_budget=200,
)
