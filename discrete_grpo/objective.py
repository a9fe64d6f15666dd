"""The GRPO objective, a formula per function.

Shapes: B trajectories, S steps, U sites a step. A *unit* is what one importance ratio covers; its values broadcast over
the sites it covers, and every loss is a sum over sites of fixed weights times values. The weights are computed from
counts alone before any forward pass, so any split of the batch, of the steps or of both gives one and the same gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from discrete_grpo.categorical import Scores

__all__ = ["Loss", "clipped_surrogate", "grpo_loss", "kl_units", "log_ratio", "row_weights"]

Level = Literal["token", "step", "step_mean", "sequence"]
MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to ± this, so that no ratio overflows; far outside any clip range."""


def row_weights(
    units: Int[Tensor, "batch step"],
    loss_type: Literal["grpo", "dapo", "dr_grpo"],
    max_units: int,
    counted: Bool[Tensor, " batch"] | None = None,
) -> Float[Tensor, " batch"]:
    """Weight of one site of each trajectory, float64; times the site mask it makes the loss a weighted sum.

    grpo: 1/(B n_i), the mean of each trajectory's mean; dapo: 1/Σ_i n_i; dr_grpo: 1/(B n_max).
    n_i is the number of sites of trajectory i among the steps used.

    Args:
        units: sites at each step used [B, S].
        loss_type: see above.
        max_units: n_max, the most sites a trajectory can have among the steps used.
        counted: trajectories that take part; the others get weight 0 and are not counted in B or Σ.

    Source: grpo: Shao et al. (2024), Eq. 3, arXiv 2402.03300; dapo: Yu et al. (2025), Eq. 8, arXiv 2503.14476;
    dr_grpo: Liu et al. (2025), section 3.2, arXiv 2503.20783.
    """
    n = units.sum(-1).double()
    on = torch.ones_like(n) if counted is None else counted.double()
    rows = on.sum().clamp_min(1)
    if loss_type == "grpo":
        weight = 1 / (rows * n.clamp_min(1))
    elif loss_type == "dapo":
        weight = (1 / (n * on).sum().clamp_min(1)).expand_as(n)
    else:
        weight = (1 / (rows * max_units)).expand_as(n)
    return weight * on


def log_ratio(
    logp: Float[Tensor, "batch step site"],
    old_logp: Float[Tensor, "batch step site"],
    mask: Bool[Tensor, "batch step site"],
    level: Level,
) -> Float[Tensor, "batch unit_step unit_site"]:
    """log π_θ/π_old of each unit: [B,S,U] for token, [B,S,1] for step and step_mean, [B,1,1] for sequence.

    step sums a step's sites (the step's true ratio), step_mean and sequence average theirs (a geometric mean of ratios).
    Source: sequence: Zheng et al. (2025), GSPO, Eq. 7, arXiv 2507.18071.
    """
    difference = torch.where(mask, logp - old_logp, 0.0)  # before exp: inf at a masked site must not become NaN
    if level == "step":
        difference = difference.sum(-1, keepdim=True)
    elif level == "step_mean":
        difference = difference.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp_min(1)
    elif level == "sequence":
        difference = difference.sum((-2, -1), keepdim=True) / mask.sum((-2, -1), keepdim=True).clamp_min(1)
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def clipped_surrogate(
    ratio: Float[Tensor, "*#unit"], advantage: Float[Tensor, "*#unit"], epsilon: float, epsilon_high: float
) -> Float[Tensor, "*unit"]:
    """min(r A, clip(r, 1-ε, 1+ε_high) A), to be maximised.

    Source: Schulman et al. (2017), Eq. 7, arXiv 1707.06347; asymmetric: Yu et al. (2025), Eq. 10, arXiv 2503.14476.

    >>> clipped_surrogate(torch.tensor([2.0, 2.0]), torch.tensor([1.0, -1.0]), 0.2, 0.2)
    tensor([ 1.2000, -2.0000])
    """
    return torch.minimum(ratio * advantage, ratio.clamp(1 - epsilon, 1 + epsilon_high) * advantage)


def kl_units(kl: Float[Tensor, "batch step site"], level: Level) -> Float[Tensor, "batch step unit_site"]:
    """The KL of each unit: a step's ratio covers all its sites, so level ``step`` takes their sum; else each site's own."""
    return kl.sum(-1, keepdim=True) if level == "step" else kl


@dataclass(frozen=True)
class Loss:
    """A (partial) loss and what is worth logging of it.

    Attributes:
        loss: to minimise; partial losses of one update add up to the whole.
        sums: plain sums over sites, to be added over parts and divided by ``sums["sites"]``.
    """

    loss: Tensor
    sums: dict[str, Tensor]


def grpo_loss(
    scores: Scores,
    old_logp: Float[Tensor, "batch step site"] | None,
    advantage: Float[Tensor, " batch"],
    weight: Float[Tensor, " batch"],
    *,
    level: Level = "token",
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    beta: float = 0.0,
) -> Loss:
    """L = -Σ_sites w · min(r A, clip(r, 1-ε, 1+ε_high) A) + β Σ_sites w · KL(π_θ ‖ π_ref).

    Args:
        scores: of the policy, with gradient; ``scores.kl`` must be there if ``beta`` > 0.
        old_logp: log π_old of the same sites; None means π_old = π_θ (ratio 1: the gradient is REINFORCE's).
        advantage: A, one a trajectory.
        weight: from :func:`row_weights`.
        level: what one ratio covers.
        epsilon: ε.
        epsilon_high: ε_high; None means ε.
        beta: β.

    Raises:
        ValueError: if ``beta`` > 0 and the scores have no KL, or shapes differ.
    """
    b = scores.logp.shape[0]
    if advantage.shape != (b,) or weight.shape != (b,):
        raise ValueError(f"advantage, weight: shapes {tuple(advantage.shape)}, {tuple(weight.shape)}, expected ({b},)")
    old = scores.logp.detach() if old_logp is None else old_logp
    ratio = torch.exp(log_ratio(scores.logp, old, scores.mask, level))
    a = advantage.to(ratio.dtype)[:, None, None]
    high = epsilon if epsilon_high is None else epsilon_high
    site_weight = scores.mask * weight.to(ratio.dtype)[:, None, None]
    policy = -(site_weight * clipped_surrogate(ratio, a, epsilon, high)).sum()
    loss = policy
    if beta > 0:
        if scores.kl is None:
            raise ValueError("beta: more than 0, expected scores with a KL to a reference")
        units = kl_units(scores.kl, level)
        unit_weight = site_weight.sum(-1, keepdim=True) if level == "step" else site_weight
        loss = loss + beta * (unit_weight * units).sum()
    return Loss(loss, _sums(scores, ratio.detach(), a, policy.detach(), epsilon, high))


@torch.no_grad()
def _sums(
    scores: Scores, ratio: Tensor, advantage: Tensor, policy: Tensor, epsilon: float, epsilon_high: float
) -> dict[str, Tensor]:
    mask = scores.mask
    low = (mask & (ratio < 1 - epsilon) & (advantage < 0)).sum()
    high = (mask & (ratio > 1 + epsilon_high) & (advantage > 0)).sum()
    sums = {"sites": mask.sum(), "policy_loss": policy, "entropy": scores.entropy.sum(), "clip_low": low, "clip_high": high}
    if scores.kl is not None and scores.kl_forward is not None:
        sums |= {"kl": scores.kl.sum(), "kl_forward": scores.kl_forward.sum()}
    return {name: value.detach().double() for name, value in sums.items()}
