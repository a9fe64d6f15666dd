"""Entropy terms of the objective: the bonus, its adaptive coefficient, and the selection of sites with high entropy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from discrete_grpo.core.categorical import SiteKind
from discrete_grpo.core.precision import widen

__all__ = ["EntropyController", "entropy_bonus", "high_entropy", "site_entropy", "top_entropy_threshold"]

ROUNDING = 1e-5
"""Entropies that differ by less than this many nats count as equal, so that rounding does not choose between equal sites."""


def site_entropy(sites: Sequence[SiteKind]) -> Float[Tensor, "batch step site"]:
    """H(π_θ) of each site in nats, exact, differentiable; 0 where the mask is False.

    Kinds of sites are concatenated along U, as in :func:`discrete_grpo.core.categorical.score_sites`.
    """
    return torch.cat([one.entropy() for one in sites], -1)


def entropy_bonus(
    site_entropies: Float[Tensor, "batch step site"], weight: Float[Tensor, " batch"], coef: float
) -> Float[Tensor, ""]:
    """-c Σ_sites w H, a term of the loss. It is the mean over the sites of an update for the weights of ``dapo``.

    Args:
        site_entropies: from :func:`site_entropy`.
        weight: weight of one site of each trajectory.
        coef: c.

    Source: Williams and Peng (1991); as in TRL's ``entropy_coef``, which takes the mean over tokens for every ``loss_type``.
    """
    return -coef * (site_entropies * weight.to(site_entropies)[:, None, None]).sum()


class EntropyController:
    """Adaptive coefficient of the entropy bonus: c ← clip(c ± δ, c_min, c_max), with + where H ≤ target; no bonus where H > target.

    Args:
        coef: initial c, which is clipped to [c_min, c_max].
        target: target entropy in nats per site.
        delta: δ.
        low, high: c_min and c_max.

    Source: He et al. (2025), Skywork-OR1, section 3, arXiv 2505.22312, as in TRL's ``use_adaptive_entropy``.

    >>> controller = EntropyController(0.0, target=0.2, delta=0.005, low=0.0, high=1.0)
    >>> controller.observe(0.1), controller.coef_at(0.1), controller.coef_at(0.3)
    (None, 0.005, 0.0)
    """

    def __init__(self, coef: float, *, target: float, delta: float, low: float, high: float) -> None:
        self.coef = min(high, max(low, coef))
        self.target, self.delta, self.low, self.high = target, delta, low, high

    def coef_at(self, mean_entropy: float) -> float:
        """Coefficient of an update, given the mean entropy of its sites."""
        return self.coef if mean_entropy <= self.target else 0.0

    def observe(self, mean_entropy: float) -> None:
        """Adapt c for the next update."""
        step = self.delta if mean_entropy <= self.target else -self.delta
        self.coef = min(self.high, max(self.low, self.coef + step))

    def state_dict(self) -> dict[str, float]:
        """State for a checkpoint."""
        return {"coef": self.coef}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self.coef = float(state["coef"])


def top_entropy_threshold(entropies: Float[Tensor, " site"], top: float) -> Float[Tensor, ""]:
    """The (1-ρ)-quantile of the entropies of **all** sites of an update, in float64, linear between neighbours.

    A quantile per forward pass would depend on how the batch is split.

    Args:
        entropies: entropies of all sites of the update; the quantile of none is -inf.
        top: ρ, share of the sites that are selected, 0 < ρ ≤ 1.

    Source: Wang et al. (2025), Beyond the 80/20 Rule, section 5, arXiv 2506.01939, as in TRL's ``top_entropy_quantile``.

    >>> float(top_entropy_threshold(torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0]), 0.5))
    2.0
    """
    ordered = widen(entropies).sort().values  # torch.quantile refuses more than 2^24 values
    if not len(ordered):
        return torch.tensor(-torch.inf, dtype=ordered.dtype, device=entropies.device)
    place = (1 - top) * (len(ordered) - 1)
    low = int(place)
    return torch.lerp(ordered[low], ordered[min(low + 1, len(ordered) - 1)], place - low)


def high_entropy(
    entropies: Float[Tensor, "batch step site"], mask: Bool[Tensor, "batch step site"], threshold: Float[Tensor, ""]
) -> Bool[Tensor, "batch step site"]:
    """True for sites whose entropy reaches the threshold, up to rounding."""
    return mask & (widen(entropies) >= threshold - ROUNDING)
