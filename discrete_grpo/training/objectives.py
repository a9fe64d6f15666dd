"""Objectives for learning from a memory of samples: squared losses, likelihood, GRPO's clipped loss and self-imitation with it.

An objective maps a :class:`MemoryBatch` to a loss. Those with parameters of their own, such as log Z, are modules, whose
parameters the loop trains along with the policy's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from discrete_grpo.core.advantages import group_advantages
from discrete_grpo.core.categorical import Scores
from discrete_grpo.core.checks import check_range
from discrete_grpo.core.loss import Level, LossType, grpo_loss, row_weights, unit_counts
from discrete_grpo.core.precision import place, widen
from discrete_grpo.core.squared_loss import augmented_likelihood_loss, group_balance_loss, trajectory_balance_loss

__all__ = [
    "Adaptive",
    "AugmentedLikelihood",
    "Draws",
    "GroupBalance",
    "GroupRelative",
    "Likelihood",
    "MemoryBatch",
    "Objective",
    "SelfImitation",
    "TrajectoryBalance",
]


TEMPERATURES = (0.001, 0.05)
"""Range of a temperature that adapts."""


@dataclass(frozen=True)
class Draws:
    """Draws of the policy in a round: the valid ones whose score is known, with repetitions.

    Attributes:
        reward: R(x) of every draw; may be empty.
        logp: log π(x) of every draw as it was drawn.
        new_share: share of different new valid samples among all draws of the round, in [0, 1].
    """

    reward: Float[Tensor, " draw"]
    logp: Float[Tensor, " draw"]
    new_share: float = 0.0


@dataclass(frozen=True)
class MemoryBatch:
    """Samples of one pass, scored by the policy.

    Attributes:
        scores: log π_θ of every site, differentiable.
        reward: R(x) of every sample.
        ref_logp: log π_ref(x) of every sample; NaN for an objective whose attribute ``needs_ref`` is False, which saves a pass.
        old_logp: log π_old of every site at the beginning of the round; None in the first pass of a round, where it is π_θ.
        max_units: the most sites that a trajectory can have.
        draws: draws of the policy in this round; None if unknown.
        max_steps: the most steps that a trajectory can have; None if steps and sites are the same.
    """

    scores: Scores
    reward: Float[Tensor, " batch"]
    ref_logp: Float[Tensor, " batch"]
    old_logp: Float[Tensor, "batch step site"] | None
    max_units: int
    draws: Draws | None = None
    max_steps: int | None = None

    @property
    def logp(self) -> Float[Tensor, " batch"]:
        """log π_θ(x) of whole samples."""
        return (self.scores.logp * self.scores.mask).sum((-2, -1))

    def most(self, level: str) -> int:
        """n_max, the most units of ``level`` that a trajectory can have."""
        return self.max_units if level != "step" or self.max_steps is None else self.max_steps


class Objective(Protocol):
    """A function from a batch to the loss to minimise."""

    needs_old: bool
    """Whether :attr:`MemoryBatch.old_logp` is read."""

    def __call__(self, batch: MemoryBatch) -> Tensor:
        """Return the loss, a scalar."""
        ...


@runtime_checkable
class Adaptive(Protocol):
    """An objective that changes from round to round."""

    def begin_round(self, draws: Draws) -> None:
        """Adapt to the draws of the policy in the round that begins."""
        ...


class TrajectoryBalance(nn.Module):
    """:func:`~discrete_grpo.core.squared_loss.trajectory_balance_loss` with a learned log Z, plus c times the mean log π_θ/π_ref.

    Over remembered samples, that mean does not estimate a KL: its gradient lowers their likelihood, as in the source.

    Args:
        beta: β, more than 0.
        log_z: log Z at the start.
        kl_coef: c, at least 0.

    Source: the loss of Genetic GFN (Kim et al. 2024), arXiv 2402.05961, with its values as defaults.
    """

    needs_old = False

    def __init__(self, beta: float = 50.0, log_z: float = 5.0, kl_coef: float = 0.01) -> None:
        super().__init__()
        check_range("beta", beta, above=0)
        check_range("kl_coef", kl_coef, least=0)
        self.beta, self.kl_coef = beta, kl_coef
        self.log_z = nn.Parameter(torch.tensor(float(log_z)))

    def forward(self, batch: MemoryBatch) -> Tensor:
        """Return the loss of a batch."""
        balance = trajectory_balance_loss(batch.logp, batch.reward, self.log_z, self.beta)
        return balance + self.kl_coef * (batch.logp - batch.ref_logp).mean()


@dataclass(frozen=True)
class AugmentedLikelihood:
    """REINVENT's loss, see :func:`~discrete_grpo.core.squared_loss.augmented_likelihood_loss`.

    Attributes:
        sigma: σ, more than 0; 500 was the best value for REINVENT in PMO.
    """

    sigma: float = 500.0
    needs_old = False

    def __post_init__(self) -> None:
        check_range("sigma", self.sigma, above=0)

    def __call__(self, batch: MemoryBatch) -> Tensor:
        """Return the loss of a batch."""
        return augmented_likelihood_loss(batch.logp, batch.reward, batch.ref_logp, self.sigma)


@dataclass(frozen=True)
class Likelihood:
    """The negative mean log π_θ per site, so that the policy imitates the samples: the loss of hill climbing."""

    needs_old = False
    needs_ref = False

    def __call__(self, batch: MemoryBatch) -> Tensor:
        """Return the loss of a batch."""
        return -batch.logp.sum() / batch.scores.mask.sum().clamp_min(1)


@dataclass(frozen=True)
class GroupBalance:
    """:func:`~discrete_grpo.core.squared_loss.group_balance_loss`, the batch being one group, plus c times the mean log π_θ/π_ref.

    A policy whose samples have several trajectories, such as one of graphs, needs α = 1: the probability of the trajectory given
    the sample, which is left out, then cancels.

    Attributes:
        beta: β, more than 0.
        alpha: α, at least 0.
        kl_coef: c, at least 0.
    """

    beta: float = 50.0
    alpha: float = 0.0
    kl_coef: float = 0.0
    needs_old = False

    def __post_init__(self) -> None:
        check_range("beta", self.beta, above=0)
        check_range("alpha", self.alpha, least=0)
        check_range("kl_coef", self.kl_coef, least=0)

    def __call__(self, batch: MemoryBatch) -> Tensor:
        """Return the loss of a batch."""
        balance = group_balance_loss(batch.logp, batch.reward, batch.ref_logp, self.beta, self.alpha)
        return balance + self.kl_coef * (batch.logp - batch.ref_logp).mean()


@dataclass(frozen=True)
class GroupRelative:
    """The clipped loss of GRPO, the batch being one group, with ratios to the policy at the beginning of the round.

    L = -Σ_units w · surrogate(r, A) + β · mean log π_θ/π_ref per site, A = (R - mean R) / (std R + 1e-4).

    The last term is a mean over remembered samples, not over draws of π_θ, and therefore does not estimate the KL.

    Attributes:
        epsilon: ε, in (0, 1).
        epsilon_high: ε_high, more than 0; None means ε. For cispo it is the cap of the ratio and must be given.
        beta: β, at least 0.
        level: sites that one ratio covers, see :func:`discrete_grpo.core.loss.unit_values`.
        loss_type: the surrogate and the weights, see :func:`discrete_grpo.core.loss.row_weights`.

    Raises:
        ValueError: for a value out of its range.
    """

    epsilon: float = 0.2
    epsilon_high: float | None = None
    beta: float = 0.0
    level: Level = "token"
    loss_type: LossType = "dapo"
    needs_old = True

    def __post_init__(self) -> None:
        check_range("epsilon", self.epsilon, above=0, below=1)
        check_range("beta", self.beta, least=0)
        for name, kinds in {"level": get_args(Level), "loss_type": get_args(LossType)}.items():
            if getattr(self, name) not in kinds:
                raise ValueError(f"{name}: {getattr(self, name)!r}, expected one of {', '.join(kinds)}")
        if self.epsilon_high is not None:
            check_range("epsilon_high", self.epsilon_high, above=0, note=" or None")
        elif self.loss_type == "cispo":
            raise ValueError("epsilon_high: None, expected the cap of the ratio with loss_type cispo (5.0, say)")

    def __call__(self, batch: MemoryBatch) -> Tensor:
        """Return the loss of a batch."""
        reward, sites = batch.reward.cpu(), batch.scores.mask.sum(-1)  # advantages are of float64, which not every device has
        advantage = place(group_advantages(reward, torch.zeros(len(reward), dtype=torch.long)), batch.reward.device)
        part = grpo_loss(
            batch.scores,
            batch.old_logp,
            advantage,
            row_weights(sites, self.loss_type, batch.most(self.level), level=self.level),
            level=self.level,
            loss_type=self.loss_type,
            epsilon=self.epsilon,
            epsilon_high=self.epsilon_high,
        )
        drift = (batch.logp - batch.ref_logp).sum() / unit_counts(sites, "token").sum().clamp_min(1)
        return part.loss + self.beta * drift


@dataclass
class SelfImitation:
    """The clipped loss of GRPO on remembered samples that are better than the policy's own draws, which form the group.

    L = -Σ_units w · min(r A, clip(r, 1-ε, 1+ε_high) A), w = 1/(B n_max), A_i = max(0, R_i - τ log π_θ(x_i) - V),
    V = mean_j (R_j - τ log π(x_j)) over the policy's valid draws j of this round whose score is known.

    A has no gradient. The term τ log π makes a sample that the policy draws often count less, so that learning ends at
    log π_θ(x) = (R(x) - V) / τ instead of at one molecule. Negative advantages are left out: lowering the probability of remembered
    samples moves it to unscored strings, most of them invalid. If no draw is known, V is the mean over the batch.

    τ can follow the share of new samples among the draws: below ``new_share`` it is multiplied by ``rate`` at the beginning of a
    round, which spreads the policy over more of the memory, otherwise divided, within ``TEMPERATURES``.

    Attributes:
        temperature: τ, the reward that a factor e of probability is worth, at least 0; if it adapts, the current value, more than
            0. A policy whose samples have several trajectories, such as one of graphs, needs 0, as log π_θ(x) is not known there.
        new_share: share of new samples that τ aims at, in [0, 1]; None leaves τ as it is.
        rate: factor by which τ changes per round, at least 1.
        epsilon: ε, in (0, 1).
        epsilon_high: ε_high, more than 0; None means ε.
        level: sites that one ratio covers, see :func:`discrete_grpo.core.loss.unit_values`.

    Raises:
        ValueError: for a value out of its range.

    Source: the entropy-regularised advantage and its positive part: Oh et al. (2018), sections 3 and 4, arXiv 1806.05635; the
    mean of a group in place of a learned value: Shao et al. (2024), arXiv 2402.03300.
    """

    temperature: float = 0.005
    new_share: float | None = None
    rate: float = 1.1
    epsilon: float = 0.2
    epsilon_high: float | None = None
    level: Level = "token"
    needs_old = True
    needs_ref = False

    def __post_init__(self) -> None:
        check_range("temperature", self.temperature, least=0)
        check_range("rate", self.rate, least=1)
        if self.new_share is not None:
            check_range("temperature", self.temperature, above=0, note=" with new_share")
            check_range("new_share", self.new_share, least=0, most=1, note=" or None")
        check_range("epsilon", self.epsilon, above=0, below=1)
        if self.epsilon_high is not None:
            check_range("epsilon_high", self.epsilon_high, above=0, note=" or None")
        if self.level not in get_args(Level):
            raise ValueError(f"level: {self.level!r}, expected one of {', '.join(get_args(Level))}")

    def __call__(self, batch: MemoryBatch) -> Tensor:
        """Return the loss of a batch."""
        weight = row_weights(batch.scores.mask.sum(-1), "dr_grpo", batch.most(self.level), level=self.level)
        clip = {"epsilon": self.epsilon, "epsilon_high": self.epsilon_high}
        return grpo_loss(batch.scores, batch.old_logp, self.advantages(batch), weight, level=self.level, **clip).loss  # type: ignore[arg-type]

    def begin_round(self, draws: Draws) -> None:
        """Adapt τ to the share of new samples."""
        if self.new_share is not None:
            least, most = TEMPERATURES
            factor = self.rate if draws.new_share < self.new_share else 1 / self.rate
            self.temperature = min(most, max(least, self.temperature * factor))

    def state_dict(self) -> dict[str, Any]:
        """Return the current τ."""
        return {"temperature": self.temperature}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore τ from a checkpoint."""
        self.temperature = float(state["temperature"])

    def advantages(self, batch: MemoryBatch) -> Float[Tensor, " batch"]:
        """A of every sample, float64 where the device has it."""
        value = self._value(batch.reward, batch.logp.detach())
        group = value
        if batch.draws is not None and len(batch.draws.reward):
            group = self._value(batch.draws.reward, batch.draws.logp)
        return (value - group.mean()).clamp_min(0)

    def _value(self, reward: Tensor, logp: Tensor) -> Tensor:
        """R - τ log π; at τ = 0 the log-probs are not read, which may be infinite or unknown."""
        return widen(reward) - self.temperature * widen(logp) if self.temperature else widen(reward)
