"""The KL to the reference by estimator and direction: exact, or estimated from the classes that were drawn.

Both exact directions are sums over classes, computed by :func:`discrete_grpo.core.categorical.score_sites`. The estimators k1, k2
and k3 allow comparisons with other systems. d = log π_ref - log π_θ of the class drawn; r = π_θ/π_old.

Gradient of the expectation, when the estimate is a term of the loss:

========  ===============================  ==========================
estimate  samples of π_θ                   with the factor r, any π_old
========  ===============================  ==========================
k1        0: no penalty at all             ∇ KL(π_θ ‖ π_ref)
k2        ∇ KL(π_θ ‖ π_ref)                ∇ KL(π_θ ‖ π_ref)
k3        ∇ KL(π_ref ‖ π_θ)                ∇ KL(π_θ ‖ π_ref)
========  ===============================  ==========================
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from discrete_grpo.core.categorical import Scores
from discrete_grpo.core.precision import widen

__all__ = [
    "Direction",
    "Estimator",
    "forward_estimate",
    "importance_corrected",
    "k1",
    "k2",
    "k3",
    "kl_term",
    "reverse_estimate",
    "trajectory_sum",
]

Estimator = Literal["exact", "k1", "k2", "k3"]
Direction = Literal["reverse", "forward"]
MAX_GAP = 20.0
"""d is clamped to ± this value, so that a class of probability 0 under the reference gives a large finite number."""


def k1(d: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """-d = log π_θ/π_ref: unbiased, and negative where π_θ < π_ref.

    Source: Schulman (2020), Approximating KL Divergence, http://joschu.net/blog/kl-approx.html, as k2 and k3.
    """
    return -d


def k2(d: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """d²/2: never negative, of small variance; its value is biased in the third order of d, its gradient is not."""
    return d.square() / 2


def k3(d: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """e^d - d - 1: unbiased and never negative; TRL's estimate.

    >>> k3(torch.tensor([0.0, 1.0]))
    tensor([0.0000, 0.7183])
    """
    return d.exp() - d - 1


def _gap(logp: Tensor, ref_logp: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, ref_logp - logp, 0.0).clamp(-MAX_GAP, MAX_GAP)


def reverse_estimate(
    logp: Float[Tensor, "batch step site"],
    ref_logp: Float[Tensor, "batch step site"],
    mask: Bool[Tensor, "batch step site"],
    estimator: Literal["k1", "k2", "k3"],
) -> Float[Tensor, "batch step site"]:
    """KL(π_θ ‖ π_ref) of each site, estimated from the class drawn by π_θ; 0 where the mask is False.

    Args:
        logp: log π_θ of the classes drawn; gradients flow through it.
        ref_logp: log π_ref of the same classes.
        mask: which sites count.
        estimator: one of the functions above.
    """
    d = _gap(logp, ref_logp.detach(), mask)
    return {"k1": k1, "k2": k2, "k3": k3}[estimator](d)


def forward_estimate(
    logp: Float[Tensor, "batch step site"],
    ref_logp: Float[Tensor, "batch step site"],
    mask: Bool[Tensor, "batch step site"],
    estimator: Literal["k1", "k3"],
) -> Float[Tensor, "batch step site"]:
    """KL(π_ref ‖ π_θ) of each site, estimated from the class drawn by π_θ with the weight e^d = π_ref/π_θ.

    k1: e^d d; k3: e^d d - e^d + 1, never negative. Both are unbiased where π_θ can draw all that π_ref can, and their
    gradient is right with :func:`importance_corrected` only. There is no k2: its gradient would be biased either way.
    """
    d = _gap(logp, ref_logp.detach(), mask)
    return d.exp() * d if estimator == "k1" else d.exp() * d - d.exp() + 1


def importance_corrected(
    estimate: Float[Tensor, "batch step site"],
    logp: Float[Tensor, "batch step site"],
    old_logp: Float[Tensor, "batch step site"] | None,
    mask: Bool[Tensor, "batch step site"],
    estimator: Literal["k1", "k2", "k3"],
) -> Float[Tensor, "batch step site"]:
    """r·k, for k2 sg(r)·k: with samples of π_old its expected gradient is that of the KL itself.

    r is each site's own ratio, whatever the level of the loss's ratio. ``old_logp`` None means π_old = π_θ: the value is
    that of the estimate, and the gradient includes the score term that the estimate lacks.

    Source: DeepSeek-AI (2025), DeepSeek-V3.2, section 3.1, arXiv 2512.02556 (k3), as in TRL's ``use_bias_correction_kl``.
    """
    old = logp.detach() if old_logp is None else old_logp
    ratio = torch.where(mask, logp - old, 0.0).clamp(-MAX_GAP, MAX_GAP).exp()
    return (ratio.detach() if estimator == "k2" else ratio) * estimate


def trajectory_sum(values: Float[Tensor, "batch step site"], mask: Bool[Tensor, "batch step site"]) -> Float[Tensor, " batch"]:
    """Σ over all sites of all steps of each trajectory, in float64, without gradient."""
    return widen(torch.where(mask, values.detach(), 0.0)).sum((-2, -1))


def kl_term(
    estimator: Estimator,
    direction: Direction,
    scores: Scores,
    *,
    ref_logp: Float[Tensor, "batch step site"] | None = None,
    old_logp: Float[Tensor, "batch step site"] | None = None,
    corrected: bool = False,
) -> Float[Tensor, "batch step site"]:
    """The KL of each site between policy and reference, exact or estimated; 0 where the mask is False.

    Args:
        estimator: ``exact`` takes the sum over classes that ``scores`` hold; k1, k2 and k3 use the class drawn.
        direction: ``reverse`` is KL(π_θ ‖ π_ref), ``forward`` is KL(π_ref ‖ π_θ).
        scores: scores of the policy, computed with a reference if the KL is exact.
        ref_logp: log π_ref of the classes drawn; only the estimators need it.
        old_logp: log π_old of the classes drawn, for the correction; None means π_old = π_θ.
        corrected: whether an estimate is multiplied by the ratio, see :func:`importance_corrected`.

    Raises:
        ValueError: if ``scores`` have no exact KL in this direction, or an estimate has no ``ref_logp``.
    """
    if estimator == "exact":
        exact = scores.kl if direction == "reverse" else scores.kl_forward
        if exact is None:
            raise ValueError(f"kl_direction: {direction!r}, expected a policy whose scores have this KL to the reference")
        return exact
    if ref_logp is None:
        raise ValueError(f"ref_logp: None, expected log-probs of the reference with kl_estimator {estimator!r}")
    if direction == "reverse":
        values = reverse_estimate(scores.logp, ref_logp, scores.mask, estimator)
    else:
        values = forward_estimate(scores.logp, ref_logp, scores.mask, estimator)  # type: ignore[arg-type]  # the settings refuse k2
    return importance_corrected(values, scores.logp, old_logp, scores.mask, estimator) if corrected else values
