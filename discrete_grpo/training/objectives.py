"""Objectives of learning from remembered samples: trajectory balance, augmented likelihood, likelihood, GRPO's clipped loss.

An objective maps a :class:`MemoryBatch` to a loss. Those with parameters of their own, such as log Z, are modules, whose
parameters the loop trains along with the policy's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from discrete_grpo.core.advantages import group_advantages
from discrete_grpo.core.categorical import Scores
from discrete_grpo.core.checks import check_range
from discrete_grpo.core.loss import Level, LossType, grpo_loss, row_weights, unit_counts
from discrete_grpo.core.squared_loss import augmented_likelihood_loss, group_balance_loss, trajectory_balance_loss

__all__ = ["AugmentedLikelihood", "GroupBalance", "GroupRelative", "Likelihood", "MemoryBatch", "Objective", "TrajectoryBalance"]


@dataclass(frozen=True)
class MemoryBatch:
    """Samples of one pass, scored by the policy.

    Attributes:
        scores: log π_θ of every site, differentiable.
        reward: R(x) of every sample.
        ref_logp: log π_ref(x) of every sample.
        old_logp: log π_old of every site at the beginning of the round; None in the first pass of a round, where it is π_θ.
        max_units: the most sites that a trajectory can have.
        policy_mean: mean score of what the policy drew in this round, of the draws whose score is known; NaN if none is.
    """

    scores: Scores
    reward: Float[Tensor, " batch"]
    ref_logp: Float[Tensor, " batch"]
    old_logp: Float[Tensor, "batch step site"] | None
    max_units: int
    policy_mean: float = math.nan

    @property
    def logp(self) -> Float[Tensor, " batch"]:
        """log π_θ(x) of whole samples."""
        return (self.scores.logp * self.scores.mask).sum((-2, -1))


class Objective(Protocol):
    """A function from a batch to the loss to minimise."""

    needs_old: bool
    """Whether :attr:`MemoryBatch.old_logp` is read."""

    def __call__(self, batch: MemoryBatch) -> Tensor:
        """Return the loss, a scalar."""
        ...


class TrajectoryBalance(nn.Module):
    """:func:`~discrete_grpo.core.squared_loss.trajectory_balance_loss` with a learned log Z, plus c times the mean log π_θ/π_ref.

    On remembered samples that mean is no estimate of a KL: its gradient lowers their likelihood, as in the source.

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
        sigma: σ, more than 0; 500 is what PMO found best for REINVENT.
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
    """Minus the mean log π_θ per site: the policy imitates what it is given, the loss of hill climbing."""

    needs_old = False

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

    L = -Σ_units w · surrogate(r, A) + β · mean log π_θ/π_ref per site. With baseline ``batch``, A = (R - mean R) / (std R + 1e-4)
    as in GRPO. With ``policy``, the remembered samples are compared with what the policy draws by now: A = (R - b) / rms(R - b),
    b the mean score of its draws in this round. What is better than the policy then counts as good, however it compares with the
    rest of the memory, and the advantages of a batch do not sum to 0.

    b is over draws of known score: invalid ones count 0, repeats count each time. A screen decides which new draws are scored, so b
    is biased by its choice, upwards if it chooses well. Where no score is known, the baseline is that of ``batch``.

    The last term is over remembered samples, not over draws of π_θ, and is therefore no estimate of the KL.

    Attributes:
        baseline: ``batch`` or ``policy``.
        epsilon: ε, in (0, 1).
        epsilon_high: ε_high, more than 0; None means ε. For cispo it is the cap of the ratio and must be given.
        beta: β, at least 0.
        level: sites that one ratio covers, see :func:`discrete_grpo.core.loss.unit_values`.
        loss_type: the surrogate and the weights, see :func:`discrete_grpo.core.loss.row_weights`.

    Raises:
        ValueError: for a value out of its range.
    """

    baseline: Literal["batch", "policy"] = "batch"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    beta: float = 0.0
    level: Level = "token"
    loss_type: LossType = "dapo"
    needs_old = True

    def __post_init__(self) -> None:
        check_range("epsilon", self.epsilon, above=0, below=1)
        check_range("beta", self.beta, least=0)
        choices = {"baseline": ("batch", "policy"), "level": get_args(Level), "loss_type": get_args(LossType)}
        for name, kinds in choices.items():
            if getattr(self, name) not in kinds:
                raise ValueError(f"{name}: {getattr(self, name)!r}, expected one of {', '.join(kinds)}")
        if self.epsilon_high is not None:
            check_range("epsilon_high", self.epsilon_high, above=0, note=" or None")
        elif self.loss_type == "cispo":
            raise ValueError("epsilon_high: None, expected the cap of the ratio with loss_type cispo (5.0, say)")

    def __call__(self, batch: MemoryBatch) -> Tensor:
        """Return the loss of a batch."""
        advantage = self.advantages(batch)
        sites = batch.scores.mask.sum(-1)
        weight = row_weights(sites, self.loss_type, batch.max_units, level=self.level)
        clip = {"epsilon": self.epsilon, "epsilon_high": self.epsilon_high}
        part = grpo_loss(
            batch.scores,
            batch.old_logp,
            advantage,
            weight,
            level=self.level,
            loss_type=self.loss_type,
            **clip,  # type: ignore[arg-type]
        )
        drift = (batch.logp - batch.ref_logp).sum() / unit_counts(sites, "token").sum().clamp_min(1)
        return part.loss + self.beta * drift

    def advantages(self, batch: MemoryBatch) -> Float[Tensor, " batch"]:
        """A of every sample, float64."""
        if self.baseline == "policy" and not math.isnan(batch.policy_mean):
            gap = batch.reward.double() - batch.policy_mean
            return gap / gap.square().mean().sqrt().clamp_min(1e-4)
        group = torch.zeros(len(batch.reward), dtype=torch.long, device=batch.reward.device)
        return group_advantages(batch.reward, group)
