"""Group-relative advantages: the reward of each sample compared with the rewards of its group.

Everything is computed in float64. A group whose rewards are all equal up to rounding has advantages of exactly 0. A sample whose
reward is unknown (NaN) is left out of every mean and deviation and has advantage 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = [
    "EPS",
    "ROUNDING",
    "advantages",
    "constant_groups",
    "group_advantages",
    "groups_without_signal",
    "kl_advantages",
    "normalize_then_sum",
    "sum_magnitudes",
    "sum_rewards",
]

EPS = 1e-4
"""Constant added to every standard deviation before a division, as in TRL."""
ROUNDING = 1e-12
"""Rewards of a group are equal if they differ by at most this times the largest magnitude that was summed for any of them.

One float64 operation rounds to 1.1e-16 of its result, so sums of the same terms in another order differ by far less."""
LARGEST = 1e150
"""Largest magnitude of a reward: the squares of larger ones are infinite in float64."""


def _group_numbers(group: Tensor) -> tuple[Tensor, int]:
    numbers = torch.unique(group, return_inverse=True)[1]
    return numbers, int(numbers.max()) + 1 if numbers.numel() else 0


def _sum_by(values: Tensor, numbers: Tensor, count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.float64, device=values.device).index_add(0, numbers, values)


def _extremes(reward: Tensor, known: Tensor, numbers: Tensor, count: int) -> tuple[Tensor, Tensor]:
    low = torch.full((count,), torch.inf, dtype=torch.float64, device=reward.device)
    high = -low
    low = low.scatter_reduce(0, numbers, torch.where(known, reward, torch.inf), "amin")
    return low, high.scatter_reduce(0, numbers, torch.where(known, reward, -torch.inf), "amax")


def constant_groups(
    reward: Float[Tensor, " batch"], group: Int[Tensor, " batch"], magnitude: Float[Tensor, " batch"] | None = None
) -> Bool[Tensor, " batch"]:
    """True for samples whose group's known rewards are all equal up to rounding (or unknown): they carry no signal.

    Equal means that the largest and the smallest differ by at most :data:`ROUNDING` times the largest magnitude in the group.

    Args:
        reward: one reward per sample; NaN means unknown.
        group: any integers.
        magnitude: total magnitude of the terms of each reward, see :func:`sum_magnitudes`; None takes that of the reward.

    >>> constant_groups(torch.tensor([0.1, 0.1, 0.0, 1.0]), torch.tensor([5, 5, 2, 2])).tolist()
    [True, True, False, False]
    >>> constant_groups(torch.tensor([0.1 + 0.2, 0.3], dtype=torch.float64), torch.tensor([0, 0])).tolist()
    [True, True]
    """
    numbers, count = _group_numbers(group)
    reward = reward.double()
    known = ~reward.isnan()
    low, high = _extremes(reward, known, numbers, count)
    size = torch.where(known, (reward if magnitude is None else magnitude.double()).abs(), 0.0)
    largest = torch.zeros_like(high).scatter_reduce(0, numbers, size, "amax")
    return ~(high - low > ROUNDING * largest)[numbers]


def _std(reward: Tensor, known: Tensor, numbers: Tensor, count: int) -> Tensor:
    """Bessel-corrected standard deviation of each group's known rewards; 0 for fewer than two."""
    n = _sum_by(known.double(), numbers, count)
    filled = torch.where(known, reward, 0.0)
    mean = _sum_by(filled, numbers, count) / n.clamp_min(1)
    square = torch.where(known, (reward - mean[numbers]) ** 2, 0.0)
    return (_sum_by(square, numbers, count) / (n - 1).clamp_min(1)).sqrt()


def group_advantages(
    reward: Float[Tensor, " batch"],
    group: Int[Tensor, " batch"],
    *,
    scale_rewards: Literal["group", "batch", "none"] = "group",
    baseline: Literal["mean", "leave_one_out"] = "mean",
    magnitude: Float[Tensor, " batch"] | None = None,
) -> Float[Tensor, " batch"]:
    """A_i = (r_i - b_i) / (σ + 1e-4), where b_i is the mean of the group with or without r_i; 0 in a group of equal rewards.

    Args:
        reward: one reward per sample; NaN means unknown.
        group: any integers; samples with equal numbers form a group.
        scale_rewards: σ is the Bessel-corrected standard deviation of the ``group`` or of the ``batch``; ``none`` does not divide.
        baseline: ``mean`` of the group, or of the others in it (``leave_one_out``).
        magnitude: scale of the comparison of rewards, see :func:`constant_groups`.

    Returns:
        Advantages [B], float64.

    Raises:
        ValueError: for a reward beyond :data:`LARGEST`.

    Source: Shao et al. (2024), section 4.1.1, arXiv 2402.03300; leave-one-out: Ahmadian et al. (2024), arXiv 2402.14740.

    >>> group_advantages(torch.tensor([0.0, 1.0]), torch.tensor([7, 7]))
    tensor([-0.7070,  0.7070], dtype=torch.float64)
    """
    reward = reward.double()
    if bool((far := reward.abs() > LARGEST).any()):
        raise ValueError(f"reward: {float(reward[far][0])}, expected at most {LARGEST:g} in size")
    known = ~reward.isnan()
    numbers, count = _group_numbers(group)
    n = _sum_by(known.double(), numbers, count)[numbers]
    filled = torch.where(known, reward, 0.0)
    total = _sum_by(filled, numbers, count)[numbers]
    centred = filled - total / n.clamp_min(1) if baseline == "mean" else filled - (total - filled) / (n - 1).clamp_min(1)
    if scale_rewards == "group":
        centred = centred / (_std(reward, known, numbers, count)[numbers] + EPS)
    elif scale_rewards == "batch":
        whole = torch.zeros_like(numbers)
        centred = centred / (_std(reward, known, whole, 1)[whole] + EPS)
    return torch.where(known & ~constant_groups(reward, group, magnitude), centred, 0.0)


def kl_advantages(
    kl: Float[Tensor, " batch"],
    known: Bool[Tensor, " batch"],
    group: Int[Tensor, " batch"],
    *,
    baseline: Literal["mean", "leave_one_out"] = "mean",
) -> Float[Tensor, " batch"]:
    """KL_i - b_i, where b_i is the mean KL of the group with or without KL_i; it is not divided by a standard deviation.

    A KL in the reward is subtracted with the weight β from advantages that are already scaled. β therefore has the meaning that
    it has in the loss, and a group of equal rewards has advantages of the size β·(KL_i - b_i) and not of the size 1.

    Args:
        kl: KL of each trajectory to the reference, summed over its sites.
        known: True for samples with a reward; the others get 0 and are left out of every mean.
        group: any integers.
        baseline: see :func:`group_advantages`.

    Raises:
        FloatingPointError: if the KL of a known sample is not finite.
    """
    endless = known & ~kl.isfinite()
    if bool(endless.any()):
        found = f"kl: {float(kl[endless][0])} for {int(endless.sum())} of {len(kl)} samples, expected finite numbers"
        raise FloatingPointError(f"{found}: the policy gives probability to what the reference gives none")
    return group_advantages(torch.where(known, kl.double(), torch.nan), group, scale_rewards="none", baseline=baseline)


def sum_rewards(rewards: Float[Tensor, "batch reward"], weights: Float[Tensor, " reward"]) -> Float[Tensor, " batch"]:
    """Σ_k w_k r_k; an unknown reward counts as 0 unless all of a sample's are unknown (then NaN), as in TRL."""
    unknown = rewards.isnan()
    total = (rewards.double().nan_to_num(0.0) * weights.double()).sum(-1)
    return torch.where(unknown.all(-1), torch.nan, total)


def sum_magnitudes(rewards: Float[Tensor, "batch reward"], weights: Float[Tensor, " reward"]) -> Float[Tensor, " batch"]:
    """Σ_k |w_k r_k|, the magnitude of the terms of :func:`sum_rewards`, to which the rounding error of their sum is relative."""
    return (rewards.double().nan_to_num(0.0) * weights.double()).abs().sum(-1)


def normalize_then_sum(
    rewards: Float[Tensor, "batch reward"],
    group: Int[Tensor, " batch"],
    weights: Float[Tensor, " reward"],
    *,
    baseline: Literal["mean", "leave_one_out"] = "mean",
) -> Float[Tensor, " batch"]:
    """A = (s - mean(s)) / (std(s) + 1e-4) over the batch, s_i = Σ_k w_k z_k, z_k reward k's z-score in its group.

    The scale of one reward cannot hide another. Source: Liu et al. (2026), GDPO, as in TRL's ``normalize_then_sum``.

    ``baseline`` is that of z_k. Leaving a sample out of its mean multiplies z_k by G/(G-1), G samples with a known reward k, which
    the division by std(s) cancels but for the 1e-4 where G is the same everywhere.
    """
    z = torch.stack([group_advantages(r, group, baseline=baseline) for r in rewards.unbind(-1)], -1)
    known = ~rewards.isnan().all(-1)
    s = torch.where(known, (z * weights.double()).sum(-1), torch.nan)
    return torch.where(s == 0, s, group_advantages(s, torch.zeros_like(group)))  # the mean of s is 0 but for rounding


def advantages(
    rewards: Float[Tensor, "batch reward"],
    group: Int[Tensor, " batch"],
    *,
    weights: Sequence[float] | None = None,
    multi_objective_aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = "sum_then_normalize",
    scale_rewards: Literal["group", "batch", "none"] = "group",
    baseline: Literal["mean", "leave_one_out"] = "mean",
    clip: float | None = None,
    kl: Float[Tensor, " batch"] | None = None,
    beta: float = 0.0,
) -> Float[Tensor, " batch"]:
    """Advantages of several rewards, which are summed first or normalised first, minus β times the advantage of the KL.

    Args:
        rewards: one column per reward; NaN means unknown.
        group: any integers.
        weights: one per reward; None means 1 each.
        multi_objective_aggregation: weighted sum first, or :func:`normalize_then_sum`.
        scale_rewards: see :func:`group_advantages`; not read with :func:`normalize_then_sum`, which standardises in its own way.
        baseline: see :func:`group_advantages`.
        clip: advantages are clamped to ± this.
        kl: KL of each trajectory as a penalty in the reward, see :func:`kl_advantages`; None means no penalty.
        beta: β.

    Raises:
        ValueError: if the number of ``weights`` differs from that of the rewards.
    """
    if weights is not None and len(weights) != rewards.shape[1]:
        raise ValueError(f"reward_weights: {len(weights)} weights, expected one per reward ({rewards.shape[1]})")
    w = torch.tensor([1.0] * rewards.shape[1] if weights is None else list(weights), dtype=torch.float64, device=rewards.device)
    if multi_objective_aggregation == "normalize_then_sum":
        result = normalize_then_sum(rewards, group, w, baseline=baseline)
    else:
        scaling = {"scale_rewards": scale_rewards, "baseline": baseline, "magnitude": sum_magnitudes(rewards, w)}
        result = group_advantages(sum_rewards(rewards, w), group, **scaling)  # type: ignore[arg-type]
    if kl is not None:
        result = result - beta * kl_advantages(kl, ~rewards.isnan().all(-1), group, baseline=baseline)
    return result if clip is None else result.clamp(-clip, clip)


def groups_without_signal(
    rewards: Float[Tensor, "batch reward"],
    group: Int[Tensor, " batch"],
    *,
    weights: Sequence[float] | None = None,
    multi_objective_aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = "sum_then_normalize",
) -> Bool[Tensor, " batch"]:
    """True for samples whose group has no signal: the weighted sum of the rewards, or each reward, is the same for all.

    Rewards are compared up to :data:`ROUNDING`, as rounding can keep a standard deviation from being 0. DAPO leaves such groups
    out and draws others. Source: Yu et al. (2025), section 3.2, arXiv 2503.14476.

    >>> groups_without_signal(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])).tolist()
    [True, True]
    """
    w = torch.tensor([1.0] * rewards.shape[1] if weights is None else list(weights), dtype=torch.float64, device=rewards.device)
    if multi_objective_aggregation == "sum_then_normalize":
        return constant_groups(sum_rewards(rewards, w), group, sum_magnitudes(rewards, w))
    columns = [constant_groups(r, group) for r, weight in zip(rewards.unbind(-1), w.tolist(), strict=True) if weight]
    return torch.stack([torch.ones_like(group, dtype=torch.bool), *columns]).all(0)
