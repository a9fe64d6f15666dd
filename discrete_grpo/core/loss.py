"""The GRPO loss, one function per factor of the equation, in its order.

    L = -Σ_units w · surrogate(r, A) + β Σ_units w · KL(π_θ ‖ π_ref),    r = π_θ/π_old

Shapes: B trajectories, S steps, U sites per step. A *unit* is a step at level ``step`` and a site at all other levels; see
:func:`unit_mask`. The weights w are computed from counts of units before any forward pass, so that every split of the batch, of
the steps or of both has the same gradient. :func:`grpo_loss` at the end of the file puts the factors together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from discrete_grpo.core.categorical import Scores
from discrete_grpo.core.own_surrogate import SurrogateFunc, own_surrogate
from discrete_grpo.core.precision import widen

__all__ = [
    "Level",
    "Loss",
    "LossType",
    "cispo_surrogate",
    "clipped_surrogate",
    "grpo_loss",
    "kl_units",
    "log_ratio",
    "off_policy_rows",
    "policy_surrogate",
    "row_weights",
    "sapo_surrogate",
    "unit_counts",
    "unit_mask",
    "unit_values",
]

Level = Literal["token", "step", "step_mean", "sequence"]
LossType = Literal["grpo", "dapo", "dr_grpo", "cispo", "sapo"]
MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to ± this, so that no ratio overflows; far outside any clip range."""


# -- units


def unit_counts(sites: Int[Tensor, "*batch step"], level: Level) -> Int[Tensor, "*batch step"]:
    """Number of units at each step, given the number of sites: 1 per step that has a site at level ``step``, else the sites.

    >>> unit_counts(torch.tensor([1, 6, 0]), "step").tolist(), unit_counts(torch.tensor([1, 6, 0]), "token").tolist()
    ([1, 1, 0], [1, 6, 0])
    """
    return (sites > 0).to(sites.dtype) if level == "step" else sites


def unit_mask(mask: Bool[Tensor, "batch step site"], level: Level) -> Bool[Tensor, "batch step unit_site"]:
    """True for units that have a site where ``mask`` is True: [B,S,1] for level step, else [B,S,U].

    At level ``step`` the unit is the step: its ratio has the score Σ_sites ∇ log π once. At ``step_mean`` and ``sequence`` the
    ratio is a geometric mean over n sites, with 1/n of that score; it stands at each of the n sites, so that their sum has
    the score once as well. At r = 1 all levels then have the gradient Σ_units w A ∇ log π.
    """
    return mask.any(-1, keepdim=True) if level == "step" else mask


def unit_values(
    values: Float[Tensor, "batch step site"], mask: Bool[Tensor, "batch step site"], level: Level
) -> Float[Tensor, "batch unit_step unit_site"]:
    """Log-probs, or their differences, of each unit: [B,S,U] for token, [B,S,1] for step and step_mean, [B,1,1] for sequence.

    Level step sums over the sites of a step; step_mean and sequence average over their sites. Masked sites are ignored.
    """
    values = torch.where(mask, values, 0.0)  # before exp: inf at a masked site must not become NaN
    if level == "step":
        return values.sum(-1, keepdim=True)
    if level == "step_mean":
        return values.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp_min(1)
    if level == "sequence":
        return values.sum((-2, -1), keepdim=True) / mask.sum((-2, -1), keepdim=True).clamp_min(1)
    return values


# -- r


def log_ratio(
    logp: Float[Tensor, "batch step site"],
    old_logp: Float[Tensor, "batch step site"],
    mask: Bool[Tensor, "batch step site"],
    level: Level,
) -> Float[Tensor, "batch unit_step unit_site"]:
    """log π_θ/π_old of each unit, see :func:`unit_values`; clamped to ± 20.

    step is the step's true ratio, step_mean and sequence a geometric mean of ratios.
    Source: sequence: Zheng et al. (2025), GSPO, Eq. 7, arXiv 2507.18071.
    """
    return unit_values(logp - old_logp, mask, level).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


# -- surrogate(r, A)


def clipped_surrogate(
    ratio: Float[Tensor, "*#unit"],
    advantage: Float[Tensor, "*#unit"],
    epsilon: float,
    epsilon_high: float,
    delta: float | None = None,
) -> Float[Tensor, "*unit"]:
    """min(min(r, δ) A, clip(r, 1-ε, 1+ε_high) A), to be maximised.

    Without δ the term of a negative advantage has no bound in r; with δ > 1+ε_high it is constant above δ.

    Source: Schulman et al. (2017), Eq. 7, arXiv 1707.06347; asymmetric: Yu et al. (2025), Eq. 10, arXiv 2503.14476;
    δ: Prime Intellect (2025), INTELLECT-2, arXiv 2505.07291.

    >>> clipped_surrogate(torch.tensor([2.0, 2.0]), torch.tensor([1.0, -1.0]), 0.2, 0.2)
    tensor([ 1.2000, -2.0000])
    >>> clipped_surrogate(torch.tensor([9.0]), torch.tensor([-1.0]), 0.2, 0.2, delta=4.0)
    tensor([-4.])
    """
    free = ratio if delta is None else ratio.clamp(max=delta)
    return torch.minimum(free * advantage, ratio.clamp(1 - epsilon, 1 + epsilon_high) * advantage)


def cispo_surrogate(
    log_prob: Float[Tensor, "*#unit"], ratio: Float[Tensor, "*#unit"], advantage: Float[Tensor, "*#unit"], epsilon_high: float
) -> Float[Tensor, "*unit"]:
    """sg(min(r, ε_high)) A log π_θ, to be maximised: REINFORCE with a capped importance weight, so no unit loses its gradient.

    ε_high is the cap itself, not its distance from 1: 5.0 is usual, and 0.2 would scale every gradient by 0.2.

    Source: MiniMax (2025), MiniMax-M1, section 3.1, arXiv 2506.13585; ε_high 5.0: Khatri et al. (2025), ScaleRL, arXiv 2510.13786.

    >>> cispo_surrogate(torch.tensor([-1.0]), torch.tensor([7.0]), torch.tensor([2.0]), 5.0)
    tensor([-10.])
    """
    return ratio.detach().clamp(max=epsilon_high) * advantage * log_prob


def sapo_surrogate(
    ratio: Float[Tensor, "*#unit"], advantage: Float[Tensor, "*#unit"], temperature_pos: float, temperature_neg: float
) -> Float[Tensor, "*unit"]:
    """(4/τ) σ(τ (r - 1)) A, to be maximised; τ is τ_pos where A > 0, else τ_neg. It is a soft clip with slope A at r = 1.

    Source: Gao et al. (2025), SAPO, arXiv 2511.20347, as in TRL.

    >>> sapo_surrogate(torch.tensor([1.0]), torch.tensor([1.0]), 1.0, 1.05)
    tensor([2.])
    """
    tau = torch.where(advantage > 0, advantage.new_tensor(temperature_pos), advantage.new_tensor(temperature_neg))
    return torch.sigmoid(tau * (ratio - 1)) * 4 / tau * advantage


def policy_surrogate(
    loss_type: LossType,
    log_prob: Float[Tensor, "*#unit"],
    ratio: Float[Tensor, "*#unit"],
    advantage: Float[Tensor, "*#unit"],
    epsilon: float,
    epsilon_high: float | None = None,
    delta: float | None = None,
    temperatures: tuple[float, float] = (1.0, 1.05),
) -> Float[Tensor, "*unit"]:
    """Surrogate of each unit by type of loss: that of cispo or of sapo, and the clipped one for all others.

    Raises:
        ValueError: if cispo has no ``epsilon_high``.
    """
    if loss_type == "cispo":
        if epsilon_high is None:
            raise ValueError("epsilon_high: None, expected the cap of the ratio with loss_type cispo (5.0, say)")
        return cispo_surrogate(log_prob, ratio, advantage, epsilon_high)
    if loss_type == "sapo":
        return sapo_surrogate(ratio, advantage, *temperatures)
    return clipped_surrogate(ratio, advantage, epsilon, epsilon if epsilon_high is None else epsilon_high, delta)


# -- w


def row_weights(
    sites: Int[Tensor, "batch step"],
    loss_type: LossType,
    max_units: int,
    counted: Bool[Tensor, " batch"] | None = None,
    level: Level = "token",
) -> Float[Tensor, " batch"]:
    """Weight of one unit of each trajectory, float64; it makes the loss a weighted sum over units.

    grpo, sapo: 1/(B n_i), the mean of each trajectory's mean; dapo, cispo: 1/Σ_i n_i; dr_grpo: 1/(B n_max).
    n_i is the number of units of trajectory i among the steps used. The rows are those of one optimiser update, however many
    forward passes it takes. Only 1/(B n_max) does not depend on what was drawn, so only dr_grpo has the gradient of the
    expected reward where n_i differs between the trajectories of a group.

    Args:
        sites: number of sites at each step used [B, S].
        loss_type: one of the types above.
        max_units: n_max, a constant of policy and settings: the most units that a trajectory can have in all of its steps, times
            the share of its steps that is used.
        counted: trajectories that take part; the others get weight 0 and are not counted in B or Σ.
        level: decides what a unit is, see :func:`unit_counts`.

    Source: grpo: Shao et al. (2024), Eq. 3, arXiv 2402.03300; dapo: Yu et al. (2025), Eq. 8, arXiv 2503.14476;
    dr_grpo: Liu et al. (2025), section 3.2, arXiv 2503.20783; cispo: MiniMax (2025), section 3.1, arXiv 2506.13585.
    """
    n = widen(unit_counts(sites, level).sum(-1))
    on = torch.ones_like(n) if counted is None else widen(counted)
    rows = on.sum().clamp_min(1)
    if loss_type in ("grpo", "sapo"):
        weight = 1 / (rows * n.clamp_min(1))
    elif loss_type in ("dapo", "cispo"):
        weight = (1 / (n * on).sum().clamp_min(1)).expand_as(n)
    else:
        weight = (1 / (rows * max_units)).expand_as(n)
    return weight * on


def off_policy_rows(drift: Float[Tensor, " batch"], advantage: Float[Tensor, " batch"], threshold: float) -> Bool[Tensor, " batch"]:
    """True for trajectories whose policy term is kept: A ≥ 0, or mean_sites (log π_old - log π_θ) ≤ threshold.

    Otherwise bad samples that the policy no longer draws would have an unbounded gradient. Normalisers do not change.

    Args:
        drift: this mean over all sites of the steps used, one per trajectory.
        advantage: A.
        threshold: threshold in nats per site.

    Source: DeepSeek-AI (2025), DeepSeek-V3.2, section 3.1, arXiv 2512.02556, as in TRL's ``off_policy_mask_threshold``.

    >>> off_policy_rows(torch.tensor([0.3, 0.3, 0.1]), torch.tensor([1.0, -1.0, -1.0]), 0.2).tolist()
    [True, False, True]
    """
    return (advantage >= 0) | (drift <= threshold)


def _kept_units(
    mask: Bool[Tensor, "batch step site"], keep: Bool[Tensor, "#batch #step #site"] | None, level: Level
) -> Bool[Tensor, "batch step unit_site"]:
    """Units that have a policy term: those whose ratio covers at least one site where ``keep`` is True.

    The other sites get no gradient from the policy term. Ratios keep the value they have over all of their sites, and the KL and
    all normalisers stay as they are.
    """
    if keep is None:
        return unit_mask(mask, level)
    kept = mask & keep
    if level in ("step", "step_mean"):
        return unit_mask(mask & kept.any(-1, keepdim=True), level)
    return mask & kept.any((-2, -1), keepdim=True) if level == "sequence" else kept


# -- KL


def kl_units(kl: Float[Tensor, "batch step site"], level: Level) -> Float[Tensor, "batch step unit_site"]:
    """KL of each unit: the sum over the sites of a step at level ``step``, else the KL of the site.

    β weighs the same at every level: at r = 1 the policy term of a unit has the gradient -w A ∇ log π, and this one β w ∇ KL.
    """
    return kl.sum(-1, keepdim=True) if level == "step" else kl


# -- L


@dataclass(frozen=True)
class Loss:
    """The loss of an update or of one of its micro-batches, with sums for the metrics.

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
    loss_type: LossType = "dapo",
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    delta: float | None = None,
    sapo_temperature_pos: float = 1.0,
    sapo_temperature_neg: float = 1.05,
    beta: float = 0.0,
    penalty: Float[Tensor, "batch step site"] | None = None,
    keep: Bool[Tensor, "#batch #step #site"] | None = None,
    surrogate_func: SurrogateFunc | None = None,
) -> Loss:
    """L = -Σ_units w · surrogate(r, A) + β Σ_units w · KL(π_θ ‖ π_ref).

    Args:
        scores: scores of the policy, with gradient; ``scores.kl`` is required if ``beta`` > 0 and no ``penalty`` is given.
        old_logp: log π_old of the same sites; None means π_old = π_θ (ratio 1: the gradient is REINFORCE's).
        advantage: A, one per trajectory.
        weight: w of each trajectory, from :func:`row_weights`.
        level: sites that one ratio covers, see :func:`unit_values`.
        loss_type: decides the surrogate, see :func:`policy_surrogate`.
        epsilon: ε.
        epsilon_high: ε_high; None means ε. For cispo it is the cap of the ratio and must be given.
        delta: δ of the clipped surrogate; None means no bound.
        sapo_temperature_pos: τ of sapo for A > 0.
        sapo_temperature_neg: τ of sapo for A ≤ 0.
        beta: β.
        penalty: another KL than ``scores.kl``, see :func:`discrete_grpo.core.kl.kl_term`.
        keep: sites whose policy term has a gradient, see :func:`_kept_units`; None means all of them.
        surrogate_func: another surrogate than that of ``loss_type``, which then decides the weights alone.

    Raises:
        ValueError: if ``beta`` > 0 and there is no KL, if cispo has no ``epsilon_high``, or shapes differ.
    """
    _check_rows(advantage, weight, scores.logp.shape[0])
    for name, given in (("old_logp", old_logp), ("penalty", penalty)):
        if given is not None and given.shape != scores.logp.shape:
            raise ValueError(f"{name}: shape {tuple(given.shape)}, expected that of the scores, {tuple(scores.logp.shape)}")
    old = scores.logp.detach() if old_logp is None else old_logp
    logp = scores.logp if keep is None else torch.where(keep, scores.logp, scores.logp.detach())
    r = torch.exp(log_ratio(logp, old, scores.mask, level))
    a, w = (x.to(r.dtype)[:, None, None] for x in (advantage, weight))
    kept = unit_values(logp if keep is None else torch.where(keep, logp, 0.0), scores.mask, level)
    bounds = (epsilon, epsilon_high, delta, (sapo_temperature_pos, sapo_temperature_neg))
    units = _kept_units(scores.mask, keep, level)
    if surrogate_func is None:
        terms = units * w * policy_surrogate(loss_type, kept, r, a, *bounds)
    else:
        terms = torch.where(units, units * w * own_surrogate(surrogate_func, kept, r, a), 0.0)
    loss = policy = -terms.sum()
    if beta > 0:
        loss = policy + beta * _kl_sum(scores, penalty, w, level)
    clipped = {} if surrogate_func is not None else _clipped(loss_type, r.detach(), a, epsilon, epsilon_high)
    sums = _sums(scores, policy, clipped) | _kind_sums(scores, old)
    return Loss(loss, sums)


def _check_rows(advantage: Tensor, weight: Tensor, count: int) -> None:
    if advantage.shape != (count,) or weight.shape != (count,):
        raise ValueError(f"advantage, weight: shapes {tuple(advantage.shape)}, {tuple(weight.shape)}, expected ({count},)")


def _kl_sum(scores: Scores, penalty: Tensor | None, weight: Tensor, level: Level) -> Float[Tensor, ""]:
    """Σ_units w · KL."""
    kl = scores.kl if penalty is None else penalty
    if kl is None:
        raise ValueError("beta: more than 0, expected scores with a KL to a reference")
    return (unit_mask(scores.mask, level) * weight * kl_units(kl, level)).sum()


def _clipped(
    loss_type: LossType, ratio: Tensor, advantage: Tensor, epsilon: float, epsilon_high: float | None
) -> dict[str, Tensor]:
    """Units whose ratio is clipped, by name of the metric; sapo clips none."""
    high = epsilon if epsilon_high is None else epsilon_high
    if loss_type == "sapo":
        return {}
    if loss_type == "cispo":
        return {"cispo_clip": (ratio > high) & (advantage > 0)}
    return {"clip_low": (ratio < 1 - epsilon) & (advantage < 0), "clip_high": (ratio > 1 + high) & (advantage > 0)}


@torch.no_grad()
def _sums(scores: Scores, policy: Tensor, clipped: dict[str, Tensor]) -> dict[str, Tensor]:
    mask = scores.mask
    sums = {"sites": mask.sum(), "policy_loss": policy, "entropy": scores.entropy.sum()}
    sums |= {name: (mask & where).sum() for name, where in clipped.items()}
    sums |= {name: value.sum() for name in ("kl", "kl_forward") if (value := getattr(scores, name)) is not None}
    return {name: widen(value.detach()) for name, value in sums.items()}


@torch.no_grad()
def _kind_sums(scores: Scores, old: Tensor) -> dict[str, Tensor]:
    """Sums over the sites of each named kind: their number, entropy, |log π_θ/π_old| and KL, as ``NAME/entropy`` and so on."""
    if not scores.kinds:
        return {}
    values = {"sites": scores.mask, "entropy": scores.entropy, "log_ratio": torch.where(scores.mask, scores.logp - old, 0.0).abs()}
    if scores.kl is not None:
        values["kl"] = scores.kl
    found: dict[str, Tensor] = {}
    for (kind, _), *parts in zip(scores.kinds, *(v.split([n for _, n in scores.kinds], -1) for v in values.values()), strict=True):
        found |= {f"{kind}/{name}": widen(part.sum()) for name, part in zip(values, parts, strict=True)}
    return found
