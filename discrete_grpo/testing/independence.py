"""Law of independent draws: sites of a step, steps of a trajectory and rows of a batch have random numbers of their own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float
from torch import Tensor

from discrete_grpo.core.categorical import Sites
from discrete_grpo.core.precision import widen
from discrete_grpo.core.rollout import Rollout
from discrete_grpo.testing.case import ROUND, Case, Measured, Skip
from discrete_grpo.testing.probability import NO_TABLES, RARE

__all__ = ["independence"]

BATCHES = 2
"""Number of batches that are drawn; a few hundred trajectories tell common random numbers from separate ones."""


@dataclass(frozen=True)
class _Sums:
    """Sums over the sites of each step [B, S], of the deviations d and of their laws.

    Attributes:
        off: Σ d.
        squares: Σ d².
        variance: Σ Var d.
        variances: Σ (Var d)².
        sites: number of sites with a variance above 0.
    """

    off: Float[Tensor, "batch step"]
    squares: Float[Tensor, "batch step"]
    variance: Float[Tensor, "batch step"]
    variances: Float[Tensor, "batch step"]
    sites: Float[Tensor, "batch step"]

    def at(self, *index: slice) -> _Sums:
        """The sums of a part of the rows and steps."""
        return _Sums(*(getattr(self, field.name)[index] for field in fields(self)))


@dataclass(frozen=True)
class _Products:
    """Products of deviations, each of mean 0 given what was drawn before: their sum, Σ of their variances and largest value."""

    total: float
    variance: float
    largest: float


def _sums(kinds: Sequence[Sites]) -> _Sums:
    """Sums of d = F(a) - p(a)/2 - 1/2 over all sites, F the cumulative probability of the drawn class: E d = 0, |d| <= 1/2."""
    parts = []
    for sites in kinds:
        p = widen(sites.log_probs).softmax(-1).double()
        action = torch.where(sites.mask, sites.action.long(), 0).unsqueeze(-1)
        off = (p.cumsum(-1).gather(-1, action) - p.gather(-1, action) / 2).squeeze(-1) - 0.5
        variance = (1 - p.pow(3).sum(-1)).clamp_min(0) / 12
        each = torch.stack([off, off**2, variance, variance**2, (variance > 1e-12).double()])
        parts.append(torch.where(sites.mask, each, 0.0).sum(-1))
    return _Sums(*torch.stack(parts).sum(0))


def _within(x: _Sums) -> _Products:
    """Σ_{i≠j} d_i d_j over the sites of a step."""
    most = (x.sites * (x.sites - 1)).max() / 4
    return _Products(float((x.off**2 - x.squares).sum()), float(2 * (x.variance**2 - x.variances).sum()), float(most))


def _between(first: _Sums, then: _Sums) -> _Products:
    """Σ d over one step times Σ d over another that is drawn after it, or beside it."""
    most = (first.sites * then.sites).max() / 4 if first.sites.numel() else 0.0
    return _Products(float((first.off * then.off).sum()), float((first.off**2 * then.variance).sum()), float(most))


def _pairs(case: Case) -> Iterator[Rollout]:
    """Batches of groups of two trajectories."""
    generator = case.generator(4)
    for _ in range(BATCHES):
        rows = [(k // 2, case.contexts[k // 2 % len(case.contexts)]) for k in range(min(case.samples, ROUND))]
        yield case.policy.sample([replace(context, group=group) for group, context in rows], generator=generator)


def _log10_bound(sums: Sequence[_Products]) -> float:
    """-log10 of Freedman's bound 2 exp(-t² / (2 (V + M t / 3))) on the probability of a sum as far from 0."""
    t, variance, largest = abs(sum(x.total for x in sums)), sum(x.variance for x in sums), max(x.largest for x in sums)
    if t == 0:
        return 0.0
    return t**2 / (2 * (variance + largest * t / 3)) / math.log(10) - math.log10(2)


@torch.no_grad()
def independence(case: Case) -> Measured | Skip:
    """Σ d d' = 0 in the mean over pairs of sites of a step, of consecutive steps, of neighbouring rows, and of half a batch apart.

    d = F(a) - p(a)/2 - 1/2 of the class a that was drawn, F its cumulative probability. Log π of a trajectory is a sum over sites
    only if each is drawn on its own, given the state. The products are differences of a martingale, whose sum is bounded by
    Freedman (1975); four bounds are taken.
    """
    names = ("sites of a step", "consecutive steps", "neighbouring rows", "rows half a batch apart")
    found: dict[str, list[_Products]] = {name: [] for name in names}
    for rollout in _pairs(case):
        kinds = case.categoricals(rollout)
        if not kinds:
            return Skip(NO_TABLES)
        x = _sums(kinds)
        every, before, after, half = slice(None), slice(None, -1), slice(1, None), len(rollout) // 2
        steps = _between(x.at(every, before), x.at(every, after))
        rows = _between(x.at(before), x.at(after))
        apart = _between(x.at(slice(half)), x.at(slice(half, 2 * half)))
        for name, products in zip(names, (_within(x), steps, rows, apart), strict=True):
            found[name].append(products)
    bounds = {name: _log10_bound(sums) - math.log10(len(found)) for name, sums in found.items()}
    worst = max(bounds, key=lambda name: bounds[name])
    return Measured(max(0.0, bounds[worst]), RARE, f"{worst}: p at most {10 ** -max(0.0, bounds[worst]):.2g}")
