"""Laws of replay: scores agree with the draws in any batch, with any padding and for any choice of steps."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor

from discrete_grpo.core.categorical import SiteKind, Sites, score_sites
from discrete_grpo.core.gaussian import GaussianSites
from discrete_grpo.core.rollout import Replayable, Rollout, as_module, is_replayable
from discrete_grpo.domains.sample_text import sample_text
from discrete_grpo.testing.case import Case, Measured, Skip, claims, gap, per_step, same, with_other_weights
from discrete_grpo.testing.relabelling import obstacle, relabelled

__all__ = [
    "batch_size",
    "masked_sites",
    "padding",
    "permutation",
    "ratio_bf16",
    "ratio_eval",
    "ratio_train",
    "reference",
    "replayable",
    "steps",
    "stored_log_probs",
    "units",
]

LARGE = 64
"""Number of rows of the large batch that is scored in parts."""
ALONE = 8
"""Number of rows that are scored alone."""
RELABELLINGS = 3
"""Number of relabelled copies that are scored."""


def units(case: Case) -> Measured:
    """Σ_sites mask = units of every step."""
    found = case.replay(case.rollout).mask.sum(-1)
    return Measured(float((found - case.rollout.units).abs().max()), 0.0, f"{int(case.rollout.units.sum())} sites")


def stored_log_probs(case: Case) -> Measured:
    """Σ_sites log π of each replayed step = the log-prob stored when it was drawn; without sites, Σ of the scores."""
    error, count = 0.0, 0
    for rollout in (case.rollout, case.many()):
        found = case.drawn_log_probs(rollout).sum(-1)
        error, count = max(error, gap(found, rollout.logp)), count + found.numel()
    return Measured(error, case.close, f"{count} steps")


def _ratio(case: Case, training: bool, bf16: bool = False) -> Measured:
    """Max |exp(log π - log π_old) - 1| of two replays, the first without gradient, as the trainer makes them."""
    found = []
    for with_gradient in (False, True):
        autocast = torch.autocast(case.device.type, torch.bfloat16, enabled=bf16)
        with case.mode(training), autocast, torch.set_grad_enabled(with_gradient):
            found.append(case.scores(case.rollout).logp.detach())
    old, new = found
    if new.dtype not in (torch.float32, torch.float64):
        return Measured(torch.inf, 0.0, f"log-probs are {new.dtype}, expected at least float32")
    return Measured(gap((new - old).exp(), torch.ones_like(new)), 0.0)


def ratio_eval(case: Case) -> Measured:
    """π/π_old = 1 to the bit where nothing was updated, in eval mode."""
    return _ratio(case, training=False)


def ratio_train(case: Case) -> Measured:
    """π/π_old = 1 to the bit in train mode: no dropout, no batch statistics."""
    return _ratio(case, training=True)


def ratio_bf16(case: Case) -> Measured:
    """π/π_old = 1 to the bit under bfloat16 autocast, and log-probs stay float32."""
    return _ratio(case, training=False, bf16=True)


def replayable(case: Case) -> Measured | Skip:
    """An :class:`~discrete_grpo.core.rollout.Replayable` gives its own samples trajectories like those drawn, with finite log π.

    If they use no random numbers, a sample has one trajectory, whose log π is that of the draw; unless equal samples were drawn
    along different trajectories, of which ``rollout_of`` then gives a fixed one, or a function ``decode`` maps many to one.
    """
    policy = case.policy
    if not is_replayable(policy):
        return Skip(f"{type(policy).__name__} has no rollout_of and can_draw")
    if getattr(getattr(policy, "truncation", None), "restricts", False):
        return Skip("tables depend on top-k or top-p, so that only what was drawn has a log-prob")
    own = cast(Replayable, policy)
    rows = [b for b, sample in enumerate(case.rollout.samples) if own.can_draw(sample)]
    if not rows:
        return Skip("can_draw is False for every sample drawn")
    drawn = case.rollout.index(torch.tensor(rows, device=case.device))
    generator = case.generator(9)
    made, again = (own.rollout_of(drawn.samples, generator=g) for g in (generator, case.generator(9)))
    chosen = not torch.equal(generator.get_state(), case.generator(9).get_state())  # one of the trajectories of a sample
    found = {
        "samples as given": same(made.samples, drawn.samples),
        "groups of one": len(made.group.unique()) == len(rows) == len(made),
        "logp NaN": bool(made.logp.isnan().all()),
        "equal seeds, equal states": same(dict(made.states), dict(again.states)),
        "states known to a draw": made.states.keys() <= drawn.states.keys(),
        "at most max_units sites": int(made.units.sum(-1).max()) <= made.max_units == drawn.max_units,
        "classes of a draw": bool(case.no_sites) or _classes(case, made) == _classes(case, drawn),
    }
    scores = case.replay(made)
    found["units are those of the mask"] = torch.equal(scores.mask.sum(-1), made.units)
    found["finite log-probs"] = bool(scores.logp[scores.mask].isfinite().all())
    if not chosen and not drawn.columns:
        if _many_to_one(case):
            found["probabilities of the trajectories of different samples sum to at most 1"] = _possible(case)
        else:
            logp = scores.logp.sum((-2, -1))
            found["log-probs of the draw (nothing was drawn from the generator)"] = gap(logp, drawn.logp.sum(-1)) <= case.close
    return claims(found, f"{len(rows)} samples")


def _many_to_one(case: Case) -> bool:
    """Whether a sample can come from several trajectories: by a function ``decode`` of the policy, or seen among draws."""
    decode = getattr(case.policy, "decode", None)
    if decode is not None and getattr(decode, "__self__", None) is not case.policy:  # no method of the policy, but given to it
        return True
    drawn = case.many()
    for rows in _equal(drawn.samples).values():
        if any(not torch.equal(x[a], x[rows[0]]) for a in rows[1:] for x in drawn.states.values()):
            return True
    return False


def _equal(samples: Sequence[Any]) -> dict[str, list[int]]:
    """Rows of each sample, by its text; without the invalid ones."""
    rows: dict[str, list[int]] = {}
    for b, sample in enumerate(samples):
        if sample is not None:
            rows.setdefault(sample_text(sample), []).append(b)
    return rows


def _possible(case: Case) -> bool:
    """Whether the trajectories of different samples, which exclude each other, have probabilities that sum to at most 1."""
    own, drawn = cast(Replayable, case.policy), case.many()
    samples = [drawn.samples[rows[0]] for rows in _equal(drawn.samples).values() if own.can_draw(drawn.samples[rows[0]])]
    logp = case.replay(own.rollout_of(samples, generator=case.generator(9))).logp
    return float(logp.sum((-2, -1)).double().exp().sum()) <= 1 + case.close


def _classes(case: Case, rollout: Rollout) -> list[tuple[int, torch.dtype]]:
    """Number of classes or coordinates of each kind of site, and the type of its numbers."""
    return [(one.shape[-1], _numbers(one).dtype) for one in case.kinds(rollout)]


def _numbers(sites: SiteKind) -> Tensor:
    return sites.mean if isinstance(sites, GaussianSites) else cast(Sites, sites).log_probs


def _junk_under_mask(sites: SiteKind) -> SiteKind:
    table = torch.where(sites.mask.unsqueeze(-1), _numbers(sites), torch.nan)
    if isinstance(sites, GaussianSites):
        points = torch.where(sites.mask.unsqueeze(-1), sites.action, torch.nan)
        return replace(sites, mean=table, std=torch.where(sites.mask, sites.std, -1.0), action=points)
    one = cast(Sites, sites)
    return replace(one, log_probs=table, action=torch.where(one.mask, one.action.long(), -1))


def masked_sites(case: Case) -> Measured:
    """Scores stay the same bits with NaN tables and class -1 at every masked site."""
    sites = case.kinds(case.rollout)
    with torch.no_grad():
        found = score_sites([_junk_under_mask(one) for one in sites])
    hidden = sum(int((~one.mask).sum()) for one in sites)
    return Measured(float(not same(found, score_sites(sites))), 0.0, f"{hidden} masked sites")


def padding(case: Case) -> Measured | Skip:
    """A row alone scores as in the batch, a step without units scores 0, and ``pad`` changes nothing; skipped without padding."""
    rollout = case.rollout
    whole = per_step(case.replay(rollout))
    empty = rollout.units == 0
    error = gap(whole[empty], torch.zeros_like(whole[empty]))
    rows = range(min(ALONE, len(rollout)))
    for b in rows:
        alone = per_step(case.replay(rollout.index(torch.tensor([b], device=case.device))))
        error = max(error, gap(alone, whole[b : b + 1]))
    note = f"{len(rows)} rows alone, {int(empty.sum())} empty steps"
    if case.pad is not None:
        padded = per_step(case.replay(case.pad(rollout, case.generator(3))))
        beyond = padded[:, rollout.num_steps :]
        error = max(error, gap(padded[:, : rollout.num_steps], whole), gap(beyond, torch.zeros_like(beyond)))
        note += ", more padding"
    elif error <= case.close and not empty.any() and len(rollout.size.unique()) == 1:
        return Skip("no row is padded: give contexts of several sizes, if the policy has any")
    return Measured(error, case.close, note)


def batch_size(case: Case) -> Measured:
    """Rows score the same in one batch of another order and in small ones: all in batches of 2, and 64 others in batches of 5."""
    many = case.many()
    error = 0.0
    for rollout, size in ((case.rollout, 2), (many.index(torch.arange(min(LARGE, len(many)), device=case.device)), 5)):
        whole = per_step(case.replay(rollout))
        order = torch.randperm(len(rollout), generator=case.generator(4), device=case.device)
        for rows in (order, *order.split(size)):
            error = max(error, gap(per_step(case.replay(rollout.index(rows))), whole[rows]))
    return Measured(error, case.close, f"batches of {len(case.rollout)} and {len(rollout)} in another order, and of 2 and 5")


def _some_steps(case: Case) -> Int[Tensor, "batch chosen"]:
    """Choose half of the steps per row, at least one, in ascending order, and differently per row."""
    scores = torch.rand(case.rollout.logp.shape, generator=case.generator(5), device=case.device)
    return scores.argsort(-1)[:, : (case.rollout.num_steps + 1) // 2].sort(-1).values


def steps(case: Case) -> Measured:
    """Scores of chosen steps are those steps of the scores of all, for several steps and for each alone."""
    whole = per_step(case.replay(case.rollout))
    row = torch.arange(len(whole), device=case.device)[:, None]
    chosen = _some_steps(case)
    last = torch.full_like(chosen[:, :1], case.rollout.num_steps - 1)
    error = max(gap(per_step(case.replay(case.rollout, k)), whole[row, k]) for k in (chosen, last, torch.zeros_like(last)))
    return Measured(error, case.close, f"{chosen.shape[1]} of {case.rollout.num_steps} steps, and single ones")


def permutation(case: Case) -> Measured | Skip:
    """Log π of a relabelled trajectory = log π; graphs are relabelled without ``permute`` where their states are known."""
    why_not = obstacle(case.rollout)
    if case.permute is None and why_not:
        return Skip(why_not)
    permute = case.permute or relabelled
    whole, error = per_step(case.replay(case.rollout)), -1.0
    for k in range(RELABELLINGS):
        moved = permute(case.rollout, case.generator(20 + k))
        if not same(dict(moved.states), dict(case.rollout.states)):
            error = max(error, gap(per_step(case.replay(moved)), whole))
    if error < 0:
        return Skip("relabelling changed no state")
    return Measured(error, case.close, "" if case.permute else "nodes relabelled by the kit")


def reference(case: Case) -> Measured:
    """KL(π ‖ π) = 0, KL(π ‖ π_ref) >= 0 and not 0 throughout; no gradient reaches the reference; log π does not depend on it."""
    twin, other = copy.deepcopy(case.policy), with_other_weights(case)
    with torch.enable_grad():
        own, apart = case.scores(case.rollout, None, twin), case.scores(case.rollout, None, other)
    if own.kl is None or apart.kl is None:
        return claims({"kl given with a reference": False})
    if apart.kl.shape != apart.logp.shape:
        return claims({"kl [B, S, U]": False})
    weights = [p for p in as_module(other).parameters() if p.requires_grad]
    reached: tuple[Tensor | None, ...] = ()
    if apart.kl.requires_grad:
        reached = torch.autograd.grad(apart.kl[apart.mask].sum(), weights, allow_unused=True)
    kl, alone = apart.kl.detach(), case.replay(case.rollout)
    found = {
        "kl differentiable": apart.kl.requires_grad,
        "0 to a copy of the policy": gap(own.kl.detach(), torch.zeros_like(kl)) <= case.close,
        "at least 0 to another policy": bool((kl >= -case.close).all()),
        "not 0 throughout to another policy": bool((kl[apart.mask] > 0).any()),
        "0 where the mask is False": not bool(kl[~apart.mask].any()),
        "no gradient to the reference": all(g is None or not bool(g.any()) for g in reached),
        "entropy without gradient": not own.entropy.requires_grad,
        "log-probs without the reference's": gap(apart.logp.detach(), alone.logp) <= case.close,
    }
    return claims(found, f"mean KL {float(kl[apart.mask].mean()):.2g} to a policy of other weights")
