"""Law of the KL: the mean of the log-ratio to a reference over the classes drawn."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from discrete_grpo.core.rollout import Policy, is_scorer
from discrete_grpo.testing.case import SHIFT, Case, Measured, Skip, with_other_weights
from discrete_grpo.testing.probability import RARE, rarity

__all__ = ["kl_mean"]

SHIFTS = tuple(SHIFT * 2**k for k in range(-2, 6))
"""Standard deviations of the noise in the weights of a reference, of which the first with a KL that is large enough is taken."""
DISTANCES = (0.05, 0.4)
"""KL per site, in nats, of two references: a KL of another scale shows at both, one of the other direction at the second."""


def _is_surrogate(policy: Any) -> bool:
    """Whether a policy, or one that it wraps, declares that its scores are not log-probabilities of its draws."""
    while policy is not None:
        if getattr(policy, "surrogate", False) is True:
            return True
        policy = getattr(policy, "policy", None)
    return False


def _reference(case: Case, distance: float) -> Policy:
    """A policy with other weights, at a KL of ``distance`` per site or more, or the largest that is finite."""
    found = with_other_weights(case)
    for shift in SHIFTS:
        other = with_other_weights(case, shift)
        scores = case.scores(case.rollout, None, other)
        kl = None if scores.kl is None else scores.kl[scores.mask]
        if kl is None or not kl.isfinite().all():
            break
        found = other
        if float(kl.mean()) >= distance:
            break
    return found


@torch.no_grad()
def kl_mean(case: Case) -> Measured | Skip:
    """E_π[log π(a) - log π_ref(a) - KL(π ‖ π_ref)] = 0 over the sites of a step; the error is -log10 of the p-value.

    Given the state before a step the expectation is 0, so the sum over draws is that of a martingale; it is divided by the root of
    its sum of squares. A :class:`~discrete_grpo.core.rollout.Scorer` is measured on all draws, and a policy with
    tables, whose KL this package computes, on some.
    """
    if _is_surrogate(case.policy):
        return Skip("scores are declared a surrogate")
    found = [_measured(case, _reference(case, distance)) for distance in DISTANCES]
    worst = max(found, key=lambda row: row.error)
    return replace(worst, error=max(0.0, worst.error - math.log10(len(found))))


def _measured(case: Case, reference: Policy) -> Measured:
    """The law with one reference; a policy without a KL breaks another law."""
    total, squares, count, size = 0.0, 0.0, 0, 0.0
    for rollout in case.draws(case.contexts, 11) if is_scorer(case.policy) else [case.many()]:
        own, other = case.scores(rollout, None, reference), replace(case, policy=reference).replay(rollout)
        if own.kl is None:
            return Measured(0.0, RARE, "no KL")
        off = torch.where(own.mask, own.logp - other.logp - own.kl, 0.0).sum(-1).cpu().double()
        if not off.isfinite().all():
            return Measured(math.inf, RARE, "log-ratios or KLs that are not finite")
        total, squares = total + float(off.sum()), squares + float(off.square().sum())
        count, size = count + int(own.mask.sum()), size + float(own.kl[own.mask].sum())
    z = abs(total) / math.sqrt(squares) if squares > 0 else 0.0
    error = rarity(math.erfc(z / math.sqrt(2)))
    note = f"per site KL {size / max(count, 1):.2g}, mean log-ratio {(size + total) / max(count, 1):.2g}"
    hint = "; a bound or an estimate declares surrogate = True" if error > RARE and is_scorer(case.policy) else ""
    return Measured(error, RARE, note + hint)
