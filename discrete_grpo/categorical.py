"""Products of independent categoricals: the only probability model the core knows.

Every policy acts in steps, and each step draws a product of categoricals over *sites*. A policy hands over
normalised log-probability tables, the classes it chose and a mask; log-prob, entropy and the **exact** KL
are derived here, by sums over the class axis, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

__all__ = ["Scores", "Sites", "entropy", "gather", "kl_divergence", "safe_log", "sample", "score_sites"]


@dataclass(frozen=True)
class Sites:
    """The categoricals of some steps, and the classes drawn from them.

    Attributes:
        log_probs: normalised log-probabilities [B, S, U, C]; ``-inf`` is allowed (a class of no mass).
        action: the class drawn at every site [B, S, U].
        mask: True where the site exists and the policy chose it [B, S, U]. A fixed or padded site is False and
            contributes nothing, in value or gradient, whatever the other fields hold there.
    """

    log_probs: Float[Tensor, "batch step site class"]
    action: Integer[Tensor, "batch step site"]
    mask: Bool[Tensor, "batch step site"]


@dataclass(frozen=True)
class Scores:
    """What the objective needs of the sites of a trajectory, each [B, S, U]; 0 where the mask is False.

    Attributes:
        logp: log π_θ of the classes drawn, differentiable.
        entropy: H(π_θ), without gradient.
        mask: which sites count.
        kl: exact KL(π_θ ‖ π_ref), differentiable; None without a reference.
        kl_forward: exact KL(π_ref ‖ π_θ), which sees classes the policy has dropped; without gradient unless :func:`score_sites`
            was asked for it. None without a reference.
    """

    logp: Float[Tensor, "batch step site"]
    entropy: Float[Tensor, "batch step site"]
    mask: Bool[Tensor, "batch step site"]
    kl: Float[Tensor, "batch step site"] | None = None
    kl_forward: Float[Tensor, "batch step site"] | None = None


def safe_log(probs: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """log p with ``-inf`` at p = 0 and a zero gradient there (torch's own log would give NaN or inf).

    >>> safe_log(torch.tensor([1.0, 0.0]))
    tensor([0., -inf])
    """
    positive = probs > 0
    return torch.where(positive, torch.log(torch.where(positive, probs, 1.0)), -torch.inf)


def gather(log_probs: Float[Tensor, "*any class"], action: Integer[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """log p(action): the entry of each table that was drawn."""
    return log_probs.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)


def _p_times(log_p: Tensor, factor: Tensor) -> Tensor:
    """p * factor with 0 * (anything) = 0, also in the gradient."""
    inside = log_p > -torch.inf
    return torch.where(inside, torch.exp(torch.where(inside, log_p, 0.0)) * torch.where(inside, factor, 0.0), 0.0)


def entropy(log_probs: Float[Tensor, "*any class"]) -> Float[Tensor, "*any"]:
    """H(p) = -Σ_c p_c log p_c in nats, with 0 log 0 = 0.

    >>> entropy(safe_log(torch.tensor([0.5, 0.5, 0.0])))
    tensor(0.6931)
    """
    return -_p_times(log_probs, log_probs).sum(-1)


def kl_divergence(log_p: Float[Tensor, "*any class"], log_q: Float[Tensor, "*any class"]) -> Float[Tensor, "*any"]:
    """KL(p ‖ q) = Σ_c p_c (log p_c - log q_c) in nats, exact; 0 log 0 = 0; inf where p has mass and q has none.

    >>> p, q = torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.75])
    >>> kl_divergence(p.log(), q.log())
    tensor(0.1438)
    """
    inside = log_p > -torch.inf
    difference = torch.where(inside, log_p, 0.0) - torch.where(inside, log_q, 0.0)
    return _p_times(log_p, difference).sum(-1)


def sample(probs: Float[Tensor, "*any class"], generator: torch.Generator | None = None) -> Int[Tensor, "*any"]:
    """One class from every table, by inversion of the cumulative sum: one uniform number a site.

    A class of zero probability is never drawn. ``probs`` need not be normalised.

    >>> sample(torch.tensor([[0.0, 1.0, 0.0]]))
    tensor([1])
    """
    cumulative = probs.cumsum(-1)
    uniform = torch.rand(probs.shape[:-1], generator=generator, device=probs.device, dtype=probs.dtype)
    threshold = (1 - uniform) * cumulative[..., -1]  # in (0, total], unless it underflows: then the first class with mass
    return ((cumulative < threshold.unsqueeze(-1)) | (cumulative <= 0)).sum(-1)


def _score_one(sites: Sites, reference: Sites | None, forward_gradient: bool) -> Scores:
    mask = sites.mask
    # A masked site's table is replaced before any arithmetic: garbage there reaches neither value nor gradient.
    uniform = -torch.log(torch.tensor(float(sites.log_probs.shape[-1]), device=mask.device)).to(sites.log_probs.dtype)
    log_p = torch.where(mask.unsqueeze(-1), sites.log_probs, uniform)
    action = torch.where(mask, sites.action.long(), 0)
    logp = torch.where(mask, gather(log_p, action), 0.0)
    with torch.no_grad():
        spread = torch.where(mask, entropy(log_p), 0.0)
    if reference is None:
        return Scores(logp, spread, mask)
    log_q = torch.where(mask.unsqueeze(-1), reference.log_probs.detach(), uniform)
    kl = torch.where(mask, kl_divergence(log_p, log_q), 0.0)
    with torch.set_grad_enabled(forward_gradient and torch.is_grad_enabled()):
        forward = torch.where(mask, kl_divergence(log_q, log_p), 0.0)
    return Scores(logp, spread, mask, kl, forward)


def score_sites(sites: Sequence[Sites], reference: Sequence[Sites] | None = None, *, forward_gradient: bool = False) -> Scores:
    """Log-prob, entropy and exact KL of every site; kinds of sites (nodes, edges) are laid end to end along U.

    Args:
        sites: the policy's, one entry a kind of site; kinds may differ in U and C.
        reference: the frozen reference's for the same steps, or None.
        forward_gradient: whether KL(π_ref ‖ π_θ) is differentiable too.

    Raises:
        ValueError: if the reference gives another number of kinds or other shapes than the policy.
    """
    if reference is not None:
        shapes, other = [s.log_probs.shape for s in sites], [s.log_probs.shape for s in reference]
        if shapes != other:
            raise ValueError(f"reference: tables of shapes {[tuple(s) for s in other]}, expected {[tuple(s) for s in shapes]}")
    parts = [_score_one(s, None if reference is None else reference[k], forward_gradient) for k, s in enumerate(sites)]
    both = [(p.kl, p.kl_forward) for p in parts if p.kl is not None and p.kl_forward is not None]
    return Scores(
        logp=torch.cat([p.logp for p in parts], -1),
        entropy=torch.cat([p.entropy for p in parts], -1),
        mask=torch.cat([p.mask for p in parts], -1),
        kl=torch.cat([k for k, _ in both], -1) if both else None,
        kl_forward=torch.cat([f for _, f in both], -1) if both else None,
    )
