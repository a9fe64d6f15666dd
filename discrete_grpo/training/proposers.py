"""Proposers: whoever suggests samples to score besides the policy, and screens, which choose among suggestions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from discrete_grpo.training.memory import ScoredMemory

__all__ = ["Proposer", "Screen"]


class Proposer(Protocol):
    """A source of samples that learns from what was scored, such as genetic operators or a fragment library."""

    @property
    def name(self) -> str:
        """Short name, by which the ledger counts the calls of its samples."""
        ...

    def propose(self, memory: ScoredMemory, count: int, generator: torch.Generator) -> list[Any]:
        """Return at most ``count`` samples, made from what the memory holds; none while it holds too little.

        Invalid, known and repeated samples are left out by the caller, and cost nothing.
        """
        ...


class Screen(Protocol):
    """A model of the score, fitted to what was scored, that ranks candidates before they are paid for."""

    def observe(self, samples: Sequence[Any], scores: Float[Tensor, " batch"]) -> None:
        """Learn from scored samples; NaN is unknown."""
        ...

    def forget(self) -> None:
        """Forget everything that was observed."""
        ...

    def merit(self, samples: Sequence[Any]) -> Float[Tensor, " batch"] | None:
        """Expected use of scoring each sample, higher is better; None as long as too little was observed."""
        ...
