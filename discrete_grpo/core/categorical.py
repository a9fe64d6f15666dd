"""Products of independent categoricals, the probability model of every policy.

A policy acts in steps, and each step draws from a product of categoricals over *sites*. The policy returns normalised
log-probability tables, the classes that it chose and a mask. Log-prob, entropy and the **exact** KL are computed here by sums over
the class axis, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

__all__ = [
    "Scores",
    "SiteKind",
    "Sites",
    "entropy",
    "gather",
    "invert",
    "kl_divergence",
    "running_sum",
    "safe_log",
    "sample",
    "score_sites",
]


MIRRORED = 1e-6
"""Largest difference of two probabilities that are regarded as mirror images."""
DISTINCT = 1e-3
"""Smallest difference of two probabilities from which tables are regarded as distinct."""
ENOUGH_PAIRS = 8
"""Number of mirrored pairs that is no coincidence even if all tables are the same."""


def _is_edge_matrix(log_probs: Tensor, action: Tensor, mask: Tensor) -> bool:
    """Whether tables [B, N, N, C] belong to all ordered pairs of N nodes, and not to N steps with N sites each.

    Mask and tables must equal their mirror images. As this also holds for tables that are the same at all sites (an untrained
    policy), tables within a row must differ. If no site is on the diagonal and the drawn classes are mirrored too, it is enough
    that tables differ within the batch, or that there are many pairs.
    """
    off = mask & ~torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
    if not bool((mask == mask.transpose(1, 2)).all() & off.any()):
        return False
    p = log_probs.exp()
    apart = torch.where(off.unsqueeze(-1), p - p.transpose(1, 2), 0.0).abs()
    if not bool((apart <= MIRRORED).all()):
        return False
    surely_pairs = bool((off == mask).all() & ((action == action.transpose(1, 2)) | ~mask).all())
    dims = (0, 1, 2) if surely_pairs else (1, 2)
    high, low = (torch.where(off.unsqueeze(-1), p, edge) for edge in (-torch.inf, torch.inf))
    distinct = bool((high.amax(dims) - low.amin(dims) > DISTINCT).any())
    return distinct or (surely_pairs and int(off.sum()) >= 2 * ENOUGH_PAIRS)


@dataclass(frozen=True)
class Sites:
    """The categoricals of some steps, and the classes drawn from them.

    Attributes:
        log_probs: normalised log-probabilities [B, S, U, C]; ``-inf`` is allowed (a class of no mass).
        action: the class drawn at every site [B, S, U].
        mask: True where the site exists and the policy chose it [B, S, U]. A fixed or padded site is False and
            contributes nothing, in value or gradient, whatever the other fields hold there.
        name: name of this kind of site in metrics; empty for none.

    An unordered pair is one site. A full edge matrix [B, N, N, C], in which it would count twice, is refused: where S = U > 1,
    the values are compared with their mirror images, which synchronises with an accelerator; other shapes cost nothing.

    Raises:
        ValueError: for other shapes or dtypes, and for a full edge matrix.
    """

    log_probs: Float[Tensor, "batch step site class"]
    action: Integer[Tensor, "batch step site"]
    mask: Bool[Tensor, "batch step site"]
    name: str = ""

    def __post_init__(self) -> None:
        """Check the shapes and dtypes, and that no pair occurs twice."""
        tables = tuple(self.log_probs.shape)
        if len(tables) != 4:
            raise ValueError(f"log_probs: shape {tables}, expected [B, S, U, C] (pairs of nodes are packed by graphs.upper)")
        for name, tensor in (("action", self.action), ("mask", self.mask)):
            if tensor.shape != tables[:3]:
                raise ValueError(f"{name}: shape {tuple(tensor.shape)}, expected {tables[:3]}, as log_probs are {tables}")
        if self.mask.dtype != torch.bool:
            raise ValueError(f"mask: dtype {self.mask.dtype}, expected torch.bool, True where a site counts")
        if self.action.is_floating_point():
            raise ValueError(f"action: dtype {self.action.dtype}, expected an integer dtype")
        if tables[1] == tables[2] > 1 and _is_edge_matrix(self.log_probs.detach(), self.action, self.mask):
            raise ValueError(
                f"log_probs: shape {tables} is a symmetric edge matrix [B, N, N, C], in which each pair counts twice, expected"
                " one site per unordered pair: pack it with discrete_grpo.domains.graphs.upper, or call discrete_grpo.posterior_kl"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """[B, S, U, C]."""
        return tuple(self.log_probs.shape)

    def score(self, reference: Any | None = None, *, forward_gradient: bool = False) -> Scores:
        """Log-prob, entropy and exact KL of every site; see :func:`score_sites`."""
        return _score_one(self, reference, forward_gradient)

    def entropy(self) -> Float[Tensor, "batch step site"]:
        """H(π_θ) of every site in nats, differentiable; 0 where the mask is False."""
        return entropy(torch.where(self.mask.unsqueeze(-1), self.log_probs, 0.0)) * self.mask


@dataclass(frozen=True)
class Scores:
    """Log-prob, entropy and KL of the sites of a trajectory, each [B, S, U]; 0 where the mask is False.

    Attributes:
        logp: log π_θ of the classes drawn, differentiable.
        entropy: H(π_θ), without gradient.
        mask: True for sites that count.
        kl: exact KL(π_θ ‖ π_ref), differentiable; None without a reference.
        kl_forward: exact KL(π_ref ‖ π_θ), which includes classes that the policy has dropped; without gradient unless
            :func:`score_sites` was called with ``forward_gradient``. None without a reference.
        kinds: name and number of sites U of each kind, in order; empty if no kind has a name.
    """

    logp: Float[Tensor, "batch step site"]
    entropy: Float[Tensor, "batch step site"]
    mask: Bool[Tensor, "batch step site"]
    kl: Float[Tensor, "batch step site"] | None = None
    kl_forward: Float[Tensor, "batch step site"] | None = None
    kinds: tuple[tuple[str, int], ...] = ()


@runtime_checkable
class SiteKind(Protocol):
    """Sites of one kind, categorical (:class:`Sites`) or continuous (:class:`~discrete_grpo.core.gaussian.GaussianSites`)."""

    @property
    def mask(self) -> Bool[Tensor, "batch step site"]:
        """True where the site exists and the policy chose it."""
        ...

    @property
    def name(self) -> str:
        """Name of this kind of site; empty for none."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """[B, S, U] and the number of classes or of coordinates."""
        ...

    def score(self, reference: Any | None = None, *, forward_gradient: bool = False) -> Scores:
        """Log-prob, entropy and exact KL to the same sites of a frozen reference; 0 where the mask is False."""
        ...

    def entropy(self) -> Float[Tensor, "batch step site"]:
        """Entropy of every site in nats, differentiable; 0 where the mask is False."""
        ...


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
    """One class from every table, by inversion of the cumulative sum: with one uniform number per site.

    A class of zero probability is never drawn. ``probs`` need not be normalised.

    >>> sample(torch.tensor([[0.0, 1.0, 0.0]]))
    tensor([1])
    """
    return invert(probs, torch.rand(probs.shape[:-1], generator=generator, device=probs.device, dtype=probs.dtype))


def invert(probs: Float[Tensor, "*any class"], uniform: Float[Tensor, "*any"]) -> Int[Tensor, "*any"]:
    """The class of every table at which the cumulative sum reaches 1 - u of the total, for u uniform in [0, 1).

    >>> invert(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([0.9, 0.1])).tolist()
    [0, 1]
    """
    cumulative = running_sum(probs)
    threshold = (1 - uniform) * cumulative[..., -1]  # in (0, total], unless it underflows: then the first class with mass
    return ((cumulative < threshold.unsqueeze(-1)) | (cumulative <= 0)).sum(-1)


def running_sum(probs: Float[Tensor, "*any class"]) -> Float[Tensor, "*any class"]:
    """Σ_{k <= c} p_k of every class, added from the first class to the last.

    If torch is asked for deterministic algorithms, CUDA adds class by class, as torch has no such algorithm for ``cumsum`` there.

    >>> running_sum(torch.tensor([0.25, 0.5, 0.25])).tolist()
    [0.25, 0.75, 1.0]
    """
    if probs.device.type == "cuda" and torch.are_deterministic_algorithms_enabled():
        return torch.stack(list(accumulate(probs.unbind(-1))), -1)
    return probs.cumsum(-1)


def _score_one(sites: Sites, reference: Sites | None, forward_gradient: bool) -> Scores:
    mask = sites.mask
    # A masked site's table is replaced before any arithmetic: garbage there reaches neither value nor gradient.
    uniform = -math.log(sites.log_probs.shape[-1])
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


def score_sites(
    sites: Sequence[SiteKind], reference: Sequence[SiteKind] | None = None, *, forward_gradient: bool = False
) -> Scores:
    """Log-prob, entropy and exact KL of every site; kinds of sites (nodes, edges, positions) are concatenated along U.

    Args:
        sites: sites of the policy, one entry per kind of site; kinds may differ in U and C.
        reference: sites of the frozen reference for the same steps, or None.
        forward_gradient: whether KL(π_ref ‖ π_θ) is differentiable as well.

    Raises:
        ValueError: if there is no kind of site, or the reference has another number of kinds or other shapes than the policy.
    """
    for name, kinds in (("sites", sites), ("reference", reference)):
        if kinds is not None and not isinstance(kinds, Sequence):
            raise ValueError(f"{name}: {type(kinds).__name__}, expected a list with one entry per kind of site")
    if not sites:
        raise ValueError("sites: an empty list, expected at least one kind of site")
    if reference is not None:
        shapes, other = [s.shape for s in sites], [s.shape for s in reference]
        if shapes != other:
            raise ValueError(f"reference: tables of shapes {other}, expected {shapes}")
    others = [None] * len(sites) if reference is None else reference
    parts = [one.score(other, forward_gradient=forward_gradient) for one, other in zip(sites, others, strict=True)]
    both = [(p.kl, p.kl_forward) for p in parts if p.kl is not None and p.kl_forward is not None]
    return Scores(
        logp=torch.cat([p.logp for p in parts], -1),
        entropy=torch.cat([p.entropy for p in parts], -1),
        mask=torch.cat([p.mask for p in parts], -1),
        kl=torch.cat([k for k, _ in both], -1) if both else None,
        kl_forward=torch.cat([f for _, f in both], -1) if both else None,
        kinds=tuple((one.name, one.shape[2]) for one in sites) if any(one.name for one in sites) else (),
    )
