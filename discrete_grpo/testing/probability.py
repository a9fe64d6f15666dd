"""Laws of probability: tables sum to one, trajectories sum to one, and draws follow the scored probabilities."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from discrete_grpo.core.categorical import Scores, Sites, gather, kl_divergence
from discrete_grpo.core.gaussian import GaussianSites
from discrete_grpo.core.precision import widen
from discrete_grpo.core.rollout import Rollout, is_scorer
from discrete_grpo.testing.case import LOG_PROB_TOLERANCE, ROUND, Case, Measured, Skip, claims, gap

__all__ = [
    "RARE",
    "calibration",
    "frequencies",
    "gaussian_sites",
    "probabilities",
    "probabilities_bf16",
    "rarity",
    "shapes",
    "total_mass",
]

RARE = 4.0
"""-log10 of the smallest p-value that passes."""
LEAST = 5.0
"""Cells with a smaller expected count are merged."""
SKEW = 0.1
"""Σ E|f - E f|³ / (Σ Var f)^1.5 up to which a sum is taken as normal."""
NO_SPACE = "no space given"
NO_TABLES = "no categorical sites"


def _shape_claims(kind: int, sites: Sites, rollout: Rollout) -> dict[str, bool]:
    table, action, mask = sites.log_probs, sites.action, sites.mask
    name = f"kind {kind}: "
    found = {
        name + "log_probs [B, S, U, C]": table.dim() == 4 and table.shape[:2] == rollout.logp.shape,
        name + "log_probs float32 or float64": table.dtype in (torch.float32, torch.float64),
        name + "action [B, S, U]": action.shape == table.shape[:3],
        name + "action an integer": not action.is_floating_point(),
        name + "mask [B, S, U]": mask.shape == table.shape[:3],
        name + "mask bool": mask.dtype == torch.bool,
    }
    if not all(found.values()):
        return found
    drawn, inside = table[mask], action[mask]
    found[name + "no NaN or +inf in a table"] = bool((drawn < torch.inf).all())
    found[name + "action in range"] = in_range = bool(((inside >= 0) & (inside < table.shape[-1])).all())
    if in_range:
        found[name + "finite log-prob of what was drawn"] = bool(gather(drawn, inside).isfinite().all())
    return found


def _gaussian_claims(kind: int, sites: GaussianSites, rollout: Rollout) -> dict[str, bool]:
    mean, mask = sites.mean, sites.mask
    name = f"kind {kind}: "
    return {
        name + "mean [B, S, U, D]": mean.shape[:2] == rollout.logp.shape,
        name + "mean float32 or float64": mean.dtype in (torch.float32, torch.float64),
        name + "mean and points are finite": bool((mean[mask].isfinite() & sites.action[mask].isfinite()).all()),
        name + "deviations are finite and more than 0": bool((sites.std[mask].isfinite() & (sites.std[mask] > 0)).all()),
    }


def _score_claims(scores: Scores, rollout: Rollout) -> dict[str, bool]:
    logp, spread, mask = scores.logp, scores.entropy, scores.mask
    found = {
        "logp [B, S, U]": logp.dim() == 3 and logp.shape[:2] == rollout.logp.shape,
        "entropy and mask [B, S, U]": spread.shape == mask.shape == logp.shape,
        "logp and entropy float32 or float64": {logp.dtype, spread.dtype} <= {torch.float32, torch.float64},
        "mask bool": mask.dtype == torch.bool,
    }
    if all(found.values()):
        found["finite under the mask"] = bool((logp[mask].isfinite() & spread[mask].isfinite()).all())
        found["0 where the mask is False"] = not bool(logp[~mask].any() or spread[~mask].any())
    return found


@torch.no_grad()
def shapes(case: Case) -> Measured:
    """Tables [B, S, U, C], action and mask [B, S, U] of the right kind; what was drawn has mass; the same of own scores.

    Of Gaussian sites: means [B, S, U, D] and points that are finite, and deviations more than 0.
    """
    found, notes = dict[str, bool](), list[str]()
    if is_scorer(case.policy):
        scores = case.replay(case.rollout)
        found |= _score_claims(scores, case.rollout)
        notes.append(f"scores {[*scores.logp.shape]}")
    if not case.no_sites:
        sites = case.policy.sites(case.rollout)
        found |= {"at least one kind of site": len(sites) > 0}
        for kind, one in enumerate(sites):
            if isinstance(one, GaussianSites):
                found |= _gaussian_claims(kind, one, case.rollout)
            else:
                found |= _shape_claims(kind, cast(Sites, one), case.rollout)
        notes += [str([*one.shape]) for one in sites]
    return claims(found, "; ".join(notes))


@torch.no_grad()
def probabilities(case: Case) -> Measured | Skip:
    """Σ_c p_c = 1 at every site."""
    tables = [s.log_probs[s.mask] for s in case.categoricals(case.rollout)]
    if not tables:
        return Skip(NO_TABLES)
    error = max(gap(table.cpu().double().exp().sum(-1), torch.ones(len(table))) for table in tables)
    return Measured(error, max(LOG_PROB_TOLERANCE.get(t.dtype, math.nan) for t in tables) / 10, f"{sum(map(len, tables))} tables")


@torch.no_grad()
def probabilities_bf16(case: Case) -> Measured | Skip:
    """Σ_c p_c = 1 under bfloat16 autocast too, and no site has a negative KL to its table without autocast."""
    plain = [s.log_probs[s.mask] for s in case.categoricals(case.rollout)]
    if not plain:
        return Skip(NO_TABLES)
    with torch.autocast(case.device.type, torch.bfloat16):
        tables = [s.log_probs[s.mask] for s in case.categoricals(case.rollout)]
    error = max(gap(table.cpu().double().exp().sum(-1), torch.ones(len(table))) for table in tables)
    for table, other in zip(tables, plain, strict=True):
        below = -kl_divergence(table.cpu().double(), other.cpu().double())
        error = max(error, float(below.nan_to_num(nan=torch.inf).max()) if below.numel() else 0.0)
    return Measured(error, max(LOG_PROB_TOLERANCE.get(t.dtype, math.nan) for t in tables) / 10, f"{sum(map(len, tables))} tables")


def gaussian_sites(case: Case) -> Measured:
    """log N(y; Bᵀμ, σ² I) of all sites of a step, y = Bᵀx and B an orthonormal basis of the space they move in, in float64.

    Where the sites of a step count d < D dimensions each, that space is the subspace of zero mean, of D (n - 1) dimensions; x and μ
    must lie in it. Otherwise it is the whole space.
    """
    error, rows = 0.0, 0
    for sites in case.gaussians(case.rollout):
        logp = sites.score().logp.sum(-1)
        for b, s in sites.mask.any(-1).nonzero().tolist():
            error = max(error, _step_error(sites, b, s, float(logp[b, s])))
            rows += 1
    return Measured(error, case.close, f"{rows} steps")


def _step_error(sites: GaussianSites, b: int, s: int, logp: float) -> float:
    """Relative gap of the log-density of a step, or the distance from the subspace where that is larger."""
    on = sites.mask[b, s]
    x, mean, std = (value[b, s][on].cpu().double() for value in (sites.action, sites.mean, sites.std))
    count, width = x.shape
    basis, outside = torch.eye(count, dtype=torch.float64), 0.0
    if sites.dimension is not None and float(sites.dimension[b, s][on].sum()) < count * width - 0.5:
        ones = torch.ones(count, 1, dtype=torch.float64)
        basis = torch.linalg.qr(torch.cat([ones, basis[:, 1:]], 1)).Q[:, 1:]
        outside = max(float(value.mean(0).abs().max() / (1 + value.abs().max())) for value in (x, mean))
    y, centre = basis.T @ x, basis.T @ mean
    own = std[0].expand_as(centre) if len(basis.T) < count else std.reshape(count, -1).expand_as(centre)  # equal on a subspace
    wanted = float(torch.distributions.Normal(centre, own).log_prob(y).sum())
    return max(abs(wanted - logp) / max(1.0, abs(wanted)), outside)


def _space_log_probs(case: Case, space: Rollout) -> Float[Tensor, " batch"]:
    """Log π of every trajectory of the space, float64."""
    rows = torch.arange(len(space), device=space.group.device).split(ROUND)
    return torch.cat([case.drawn_log_probs(space.index(part)).cpu().double().sum((1, 2)) for part in rows])


def total_mass(case: Case) -> Measured | Skip:
    """Σ_τ π(τ) = 1 over all trajectories τ of each start."""
    if case.space is None:
        return Skip(NO_SPACE)
    mass = _space_log_probs(case, case.space).exp()
    starts, where = torch.unique(case.space.group.cpu(), return_inverse=True)
    total = torch.zeros(len(starts), dtype=mass.dtype).index_add(0, where, mass)
    note = f"{len(mass)} trajectories of {len(starts)} start{'s' * (len(starts) > 1)}"
    return Measured(gap(total, torch.ones_like(total)), case.close, note)


# -- counts against probabilities


def _actions(case: Case, rollout: Rollout) -> list[tuple[Hashable, ...]]:
    """Return the actions of each trajectory, independent of the padding."""
    rows: list[tuple[Hashable, ...]] = [()] * len(rollout)
    for sites in case.categoricals(rollout):
        for b, (action, mask) in enumerate(zip(sites.action, sites.mask, strict=True)):
            steps, places = mask.nonzero().T.tolist()
            rows[b] += (*steps, *places, *action[mask].tolist())
    return rows


def _stored(rollout: Rollout, names: Sequence[str]) -> list[tuple[Hashable, ...]]:
    flat = [rollout.states[name].flatten(1) if rollout.states[name].dim() > 1 else rollout.states[name][:, None] for name in names]
    return [tuple(row) for row in torch.cat(flat, 1).tolist()] if flat else [()] * len(rollout)


def _layout(rollout: Rollout) -> dict[str, tuple[int, ...]]:
    return {name: tuple(v.shape[1:]) for name, v in rollout.states.items() if not v.is_floating_point()}


def _count(case: Case, space: Rollout) -> Float[Tensor, " batch"]:
    """Count how often each trajectory of the space is drawn; actions and integer states tell them apart."""
    counts = torch.zeros(len(space), dtype=torch.float64)
    listed = [
        key
        for part in torch.arange(len(space), device=space.group.device).split(ROUND)
        for key in _actions(case, space.index(part))
    ]
    layout = _layout(space)
    for drawn in case.draws(case.contexts[:1], 1):
        names = [name for name, shape in _layout(drawn).items() if layout.get(name) == shape]
        where = {key: k for k, key in enumerate(zip(listed, _stored(space, names), strict=True))}
        if len(where) < len(space):
            raise ValueError(f"space: {len(space)} trajectories, only {len(where)} of them distinct")
        for key in zip(_actions(case, drawn), _stored(drawn, names), strict=True):
            if key not in where:
                raise ValueError(f"drew a trajectory outside the space: {str(key)[:60]}")
            counts[where[key]] += 1
    return counts


def _merged(expected: list[float], counts: list[float]) -> list[tuple[float, float]]:
    """Cells in ascending order of expectation, joined until each expects ``LEAST``."""
    cells = [(0.0, 0.0)]
    for e, n in sorted(zip(expected, counts, strict=True)):
        last = cells[-1]
        if last[0] < LEAST:
            cells[-1] = (last[0] + e, last[1] + n)
        else:
            cells.append((e, n))
    if len(cells) > 1 and cells[-1][0] < LEAST:
        rest = cells.pop()
        cells[-1] = (cells[-1][0] + rest[0], cells[-1][1] + rest[1])
    return cells


def frequencies(case: Case) -> Measured | Skip:
    """χ² = Σ (count - N π(τ))² / (N π(τ)) of drawn trajectories, each start on its own; the error is -log10 of its p-value."""
    if case.space is None:
        return Skip(NO_SPACE)
    counts, mass = _count(case, case.space), _space_log_probs(case, case.space).exp().cpu()
    if bool((counts[mass == 0] > 0).any()):
        return Measured(math.inf, RARE, "drew a trajectory of probability 0")
    square, free = 0.0, 0
    for start in torch.unique(case.space.group).tolist():
        at = (case.space.group == start).cpu()
        cells = _merged((counts[at].sum() * mass[at]).tolist(), counts[at].tolist())
        if len(cells) > 1:
            square += sum((n - e) ** 2 / e for e, n in cells)
            free += len(cells) - 1
    if free == 0:
        return Skip(f"{case.samples} samples fill no two cells")
    p = float(torch.special.gammaincc(torch.tensor(free / 2, dtype=torch.float64), torch.tensor(square / 2, dtype=torch.float64)))
    return Measured(rarity(p), RARE, f"{case.samples} draws: chi2 {square:.0f}, {free} degrees of freedom, p {p:.2g}")


def rarity(p: float) -> float:
    """-log10 of a p-value, at most 300."""
    return -math.log10(min(1.0, max(p, 1e-300))) + 0.0


# -- the same without a space


def _moments(sites: Sites) -> Float[Tensor, "4 step site statistic"]:
    """Σ (f(a) - E f), Σ Var f, Σ E|f - E f|³ and what the first may be by rounding, over the rows, of each step and site.

    f: is it class c (C statistics), and log p (one). At a uniform table the variance of log p is that of its rounding alone.
    """
    rounding = 8 * torch.finfo(sites.log_probs.dtype).eps
    on = sites.mask.unsqueeze(-1)
    log_p = torch.where(on, widen(sites.log_probs), 0.0)
    p = log_p.exp()
    drawn = torch.nn.functional.one_hot(torch.where(sites.mask, sites.action.long(), 0), p.shape[-1])
    spread = p * (1 - p)
    log_p = torch.where(p > 0, log_p, 0.0)
    slack = rounding * p * (1 + log_p.abs().amax(-1, keepdim=True))
    classes = torch.stack([drawn - p, spread, spread * (p**2 + (1 - p) ** 2), slack])
    off = log_p - (p * log_p).sum(-1, keepdim=True)
    surprise = torch.stack([drawn * off, p * off**2, p * off.abs() ** 3, slack]).sum(-1, keepdim=True)
    return torch.where(on, torch.cat([classes, surprise], -1), 0.0).sum(1)


def _gaussian_moments(sites: GaussianSites) -> Float[Tensor, "4 step site statistic"]:
    """The same of |x - μ|²/σ², a χ² of d degrees of freedom, and of μ·(x - μ)/σ², normal of variance |μ|²/σ²."""
    on = sites.mask
    mean, point = (widen(torch.where(on.unsqueeze(-1), x, 0.0)) for x in (sites.mean, sites.action))
    std = widen(torch.where(on, sites.std, 1.0))
    d = torch.full_like(std, mean.shape[-1]) if sites.dimension is None else widen(sites.dimension)
    z, m = (point - mean) / std.unsqueeze(-1), mean / std.unsqueeze(-1)
    long = m.square().sum(-1)
    none = torch.zeros_like(d)
    squares = torch.stack([z.square().sum(-1) - d, 2 * d, (12 * d**2 + 48 * d) ** 0.75, none])
    along = torch.stack([(m * z).sum(-1), long, 2 * math.sqrt(2 / math.pi) * long**1.5, none])
    return torch.where(on.unsqueeze(-1), torch.stack([squares, along], -1), 0.0).sum(1)


def _joined(old: Tensor | None, new: Tensor) -> Tensor:
    """The sum of the moments of two batches, which may differ in their numbers of steps and sites."""
    if old is None:
        return new
    steps, sites = (max(one, other) for one, other in zip(old.shape[1:3], new.shape[1:3], strict=True))
    padded = (torch.nn.functional.pad(x, (0, 0, 0, sites - x.shape[2], 0, steps - x.shape[1])) for x in (old, new))
    return torch.stack([*padded]).sum(0)


@torch.no_grad()
def calibration(case: Case) -> Measured | Skip:
    """z = Σ (f(a) - E_p f) / √Σ Var_p f by step and by site, of each class and of log p; the error is -log10 of the least p-value.

    Of Gaussian sites f is |x - μ|²/σ² and μ·(x - μ)/σ². Given the state before a step, its sites are independent, so each z is a
    martingale sum and near normal; the least p-value is multiplied by the number of sums.
    """
    sums: dict[int, Tensor] = {}
    for rollout in case.draws(case.contexts, 2):
        for kind, sites in enumerate(case.policy.sites(rollout)):
            new = _gaussian_moments(sites) if isinstance(sites, GaussianSites) else _moments(cast(Sites, sites))
            sums[kind] = _joined(sums.get(kind), new)
    every = [part.flatten(1) for x in sums.values() for part in (x.sum(2), x.sum(1), x.sum((1, 2)))]  # each step, each site, all
    off, var, third, rounding = found = torch.cat(every, 1)
    if not found.isfinite().all():
        return Measured(math.inf, RARE, "sums over the draws that are not finite, such as of tables with NaN")
    off = (off.abs() - rounding).clamp_min(0)
    normal = (var > 0) & (third <= SKEW * var**1.5)
    count = int(normal.sum())
    if count == 0:
        return Skip(f"{case.samples} samples are too few")
    z = float((off[normal] / var[normal].sqrt()).max())
    p = count * math.erfc(z / math.sqrt(2))
    return Measured(rarity(p), RARE, f"{case.samples} draws: largest of {count} z-scores {z:.1f}")
