"""Settings of optimisation in rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from discrete_grpo.core.checks import check_range, check_switch, check_whole

__all__ = ["RoundsConfig"]


@dataclass(frozen=True)
class RoundsConfig:
    """Settings of :class:`~discrete_grpo.training.rounds.Rounds`; the defaults are those of Genetic GFN, arXiv 2402.05961.

    Attributes:
        draws: number of samples that the policy draws per round, at least 1.
        children: number of samples that each proposer makes per generation, at least 0.
        generations: number of times per round that the proposers make children, at least 1: first together with the policy's
            samples, then with parents that include all samples scored in the round so far. With a screen it must be 1.
        passes: updates per round, at least 0.
        batch_size: remembered samples per update, at least 0. An update of a single sample is left out, as it has nothing to be
            compared with.
        explore: number of samples of a batch drawn uniformly from all scored samples instead of by rank, in [0, ``batch_size``];
            one that is in the batch already is not added again.
        fresh_passes: number of passes that also learn from the samples just scored in the round, in [0, ``passes``].
        learning_rate: learning rate of Adam for the weights of the policy.
        objective_learning_rate: learning rate of Adam for the objective's own parameters, such as log Z.
        max_grad_norm: norm to which the gradient of the policy's weights is clipped; None does not clip.
        take: number of candidates scored per round with a screen, at least 1; those of the policy come first until it is fitted.
        unscreened: number of these that are samples of the policy scored without the screen, in [0, ``take``].
        take_children: largest number of these that come from proposers once the screen is fitted; None, or a value above ``take``,
            sets no limit.
        patience: rounds in a row without a new sample after which the run is stale, at least 1.
        plateau: scored samples without a change of the ten best scores after which the run is stale too, at least 1; None goes on.
        when_stale: ``stop`` ends the run; ``restart`` puts back the weights that the policy began with, keeps the memory, the
            screen and the objective's own parameters, and ends the run only if nothing new, or nothing better, was scored since
            the last restart. ``islands`` begins anew, with the first weights, an empty memory and screen and the first objective,
            and at every second time with all that was scored in the memory and the screen; it ends the run only if nothing new was
            scored since the last time.
        goal: score that ends the run once the ten best samples reach it, to 1e-9; None sets no goal.
        bf16: whether the passes run under bfloat16 autocast, ``auto`` if the device has units for it; samples are drawn without.

    Raises:
        ValueError: for a value out of its range.
    """

    draws: int = 64
    children: int = 16
    generations: int = 1
    passes: int = 8
    batch_size: int = 64
    explore: int = 0
    fresh_passes: int = 0
    learning_rate: float = 5e-4
    objective_learning_rate: float = 0.1
    max_grad_norm: float | None = None
    take: int = 64
    unscreened: int = 0
    take_children: int | None = None
    patience: int = 10
    plateau: int | None = None
    when_stale: Literal["stop", "restart", "islands"] = "stop"
    goal: float | None = None
    bf16: bool | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        for name in ("draws", "generations", "take", "patience"):
            check_whole(name, getattr(self, name), least=1)
        for name in ("children", "passes", "batch_size", "explore", "unscreened"):
            check_whole(name, getattr(self, name), least=0)
        check_whole("fresh_passes", self.fresh_passes, least=0, most=self.passes, note=" (passes)")
        check_range("explore", self.explore, most=self.batch_size, note=" (batch_size)")
        check_range("unscreened", self.unscreened, most=self.take, note=" (take)")
        if self.take_children is not None:
            check_whole("take_children", self.take_children, least=0, note=" or None")
        for name in ("learning_rate", "objective_learning_rate"):
            check_range(name, getattr(self, name), above=0)
        if self.max_grad_norm is not None:
            check_range("max_grad_norm", self.max_grad_norm, above=0)
        if self.plateau is not None:
            check_whole("plateau", self.plateau, least=1, note=" or None")
        if self.goal is not None:
            check_range("goal", self.goal, note=" or None")
        check_switch("bf16", self.bf16)
        if self.when_stale not in ("stop", "restart", "islands"):
            raise ValueError(f"when_stale: {self.when_stale!r}, expected stop, restart or islands")
