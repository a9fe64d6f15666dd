"""Laws of learning: there is a gradient, it equals that of REINFORCE at π_old = π, and a two-state reward is learned."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from discrete_grpo.core.categorical import Scores
from discrete_grpo.core.loss import grpo_loss, row_weights
from discrete_grpo.core.precision import widen
from discrete_grpo.core.rollout import Policy, Reward, group_contexts, is_scorer
from discrete_grpo.core.scoring import score_samples
from discrete_grpo.testing.case import Case, Measured, Skip, with_other_weights
from discrete_grpo.training.trainer import GRPOTrainer

__all__ = ["derivative", "gradient", "learning", "reinforce"]

GAIN = 0.2
"""Required rise of the mean reward, or half the distance to 1 if that is smaller."""
LAST = 3
"""Number of batches over which the mean reward is taken."""
GROUPS = 32
"""Groups drawn before training, to choose a property and to take its mean."""
DIFFERENCES = ((torch.float64, 1e-6, 1e-3), (None, 1e-3, 5e-2), (None, 1e-2, 5e-2))
"""Dtype (None: the policy's own), step and tolerance of the central differences that are tried in turn."""
STEEP = 3.0
"""Length of the gradient's part of the direction of differences; the noise has length 1 along any other direction."""
SAME = 0.01
"""Relative difference up to which two errors are the same."""
LEAST_SLOPE = 1e-3
"""Slope to which errors are relative where the gradient is smaller, as that of saturated tables, whose logits are rounded."""
MOST_CHANGE = 1.0
"""Largest change of a sum of log-probs or KLs to either side, so that steep ones are measured by smaller steps."""
PLACES = 48
"""Number of positions in a sample's text that are tried for a property."""
LEAST_UPDATES = 50
"""Number of updates before the limit of processor time applies, so that a slow machine does not fail the law."""
LEAST_SPREAD = 0.06
"""Smallest mean within-group variance of a property that can be learned."""


def _gradients(case: Case, loss: Callable[[Scores], Tensor], reference: Policy | None = None) -> list[Tensor]:
    """∂loss/∂parameter of every trainable parameter of a fresh replay."""
    parameters = [p for p in case.module.parameters() if p.requires_grad]
    with torch.enable_grad():
        value = loss(case.scores(case.rollout, None, reference))
        return list(torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True))


def gradient(case: Case) -> Measured:
    """∇ Σ log π is finite and not zero everywhere."""
    found = _gradients(case, lambda scores: scores.logp.sum())
    broken = sum(int((~g.isfinite()).sum()) for g in found)
    reached = sum(bool((g != 0).any()) for g in found)
    if broken:
        return Measured(float(broken), 0.0, f"{broken} entries are NaN or inf")
    return Measured(float(reached == 0), 0.0, f"reaches {reached} of {len(found)} parameters")


def derivative(case: Case) -> Measured | Skip:
    """⟨∇ f, v⟩ = [f(θ + εv) - f(θ - εv)] / 2ε along a direction v, of f = Σ log π, and of f = Σ KL(π ‖ π_ref) of scorers.

    v is noise plus the gradient's direction, so that a part of it that is missing, and another length, both show. The KL of a
    policy with sites is that of its tables. In float64 first; a policy with parts of fewer bits, or that cannot be made float64,
    is measured by larger steps.
    """
    found: Measured | Skip = Skip("weights are too coarse for differences")
    for dtype, epsilon, tolerance in DIFFERENCES:
        if dtype is None and next(case.module.parameters()).dtype not in (torch.float32, torch.float64):
            continue
        try:
            found = _derivatives(case, dtype, epsilon, tolerance)
        except Exception:
            if dtype is None:
                raise
            continue  # constants of another dtype, say
        if found.error <= found.tolerance or (dtype is not None and _well_determined(case, found, dtype, epsilon)):
            return found
    return found


def _well_determined(case: Case, found: Measured, dtype: torch.dtype, epsilon: float) -> bool:
    """Whether measurements with other steps have the same error, which is then not that of rounding."""
    others = (_derivatives(case, dtype, k * epsilon, found.tolerance).error for k in (3, 9))
    return all(abs(error - found.error) <= SAME * found.error for error in others)


def _log_prob(scores: Scores) -> Tensor:
    return scores.logp


def _kl(scores: Scores) -> Tensor:
    assert scores.kl is not None
    return scores.kl


def _norm(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(widen(x).square().sum()) for x in tensors))


def _derivatives(case: Case, dtype: torch.dtype | None, epsilon: float, tolerance: float) -> Measured:
    """The worse of the measurements of the log-prob and, if the policy gives scores, of its KL to a policy of other weights."""
    case = replace(case, policy=copy.deepcopy(case.policy))
    if dtype is not None:
        case.module.to(dtype)
        case = replace(case, rollout=case.policy.sample(case.contexts, generator=case.generator()))
    found = _derivative(case, _log_prob, None, epsilon, tolerance)
    if not is_scorer(case.policy) or not found.error <= tolerance:
        return found
    reference = with_other_weights(case)
    if case.scores(case.rollout, None, reference).kl is None:  # another law says so
        return found
    kl = _derivative(case, _kl, reference, epsilon, tolerance)
    return found if kl.error <= found.error else replace(kl, note=f"of the KL: {kl.note}")


def _derivative(
    case: Case, value: Callable[[Scores], Tensor], reference: Policy | None, epsilon: float, tolerance: float
) -> Measured:
    case = replace(case, policy=copy.deepcopy(case.policy))
    weights, generator = [p for p in case.module.parameters() if p.requires_grad], case.generator(11)
    slopes = _gradients(case, lambda scores: value(scores).sum(), reference)
    noise = [torch.randn(p.shape, generator=generator, device=p.device, dtype=p.dtype) for p in weights]
    steep = STEEP / max(_norm(slopes), 1e-30)  # a direction along which a gradient of another length shows
    directions = [v + steep * g if math.isfinite(steep) else v for v, g in zip(noise, slopes, strict=True)]
    along = sum(float((widen(g) * v).sum()) for g, v in zip(slopes, directions, strict=True))
    epsilon, ends = min(epsilon, MOST_CHANGE / max(abs(along), 1e-30)), []
    for shift in (epsilon, -2 * epsilon):
        with torch.no_grad():
            for p, v in zip(weights, directions, strict=True):
                p.add_(shift * v)
            ends.append(float(value(case.scores(case.rollout, None, reference)).cpu().double().sum()))
    difference = (ends[0] - ends[1]) / (2 * epsilon)
    size = max(abs(along), _norm(slopes), LEAST_SLOPE)
    return Measured(abs(difference - along) / size, tolerance, f"{along:.3g} against {difference:.3g} by differences")


def reinforce(case: Case) -> Measured:
    """∇ L_GRPO = -Σ w A ∇ log π where π_old = π, β = 0."""
    rollout = case.rollout
    advantage = torch.randn(len(rollout), generator=case.generator(9), device=case.device)
    weight = row_weights(rollout.units, "grpo", rollout.max_units)
    old = case.replay(rollout).logp
    found = _gradients(case, lambda s: grpo_loss(s, old, advantage, weight).loss)
    wanted = _gradients(case, lambda s: -((weight * advantage).to(s.logp.dtype)[:, None, None] * s.logp).sum())
    size = max(float(g.abs().max()) for g in wanted)
    off = max(float((a - b).abs().nan_to_num(nan=math.inf).max()) for a, b in zip(found, wanted, strict=True))
    return Measured(off / max(size, 1e-30), case.close, f"largest entry {size:.2g}")


# -- learning


@dataclass(frozen=True)
class TextProperty:
    """Reward 1 where a sample's text has ``char`` at least ``least`` times, or at ``place`` a character up to ``char``."""

    char: str
    least: int = 0
    place: int | None = None

    def holds(self, text: str) -> bool:
        """Return whether one text has the property."""
        if self.place is None:
            return text.count(self.char) >= self.least
        return self.place < len(text) and text[self.place] <= self.char

    def __call__(self, samples: Sequence[Any], **columns: Any) -> list[float]:
        """Return 1 or 0 per sample."""
        return [float(self.holds(str(sample))) for sample in samples]

    def __str__(self) -> str:
        return f"{self.least} x {self.char!r}" if self.place is None else f"text[{self.place}] <= {self.char!r}"


def _candidates(texts: Sequence[str]) -> list[TextProperty]:
    found = []
    for char in sorted(set("".join(texts))):
        found += [TextProperty(char, least) for least in sorted({text.count(char) for text in texts})]
        if char.isalnum():
            found += [TextProperty(char, place=place) for place in range(PLACES)]
    return found


def text_property(samples: Sequence[Any], group_size: int) -> TextProperty | None:
    """The property of ``str(sample)`` that varies most within groups, as only that can be learned; None if none varies."""
    texts = [str(sample) for sample in samples]
    if any(" at 0x" in text for text in texts):  # an address, not a value
        return None

    def spread(candidate: TextProperty) -> float:
        share = torch.tensor([candidate.holds(text) for text in texts]).double().unflatten(0, (-1, group_size)).mean(1)
        return float((share * (1 - share)).mean())

    best = max(_candidates(texts), key=spread, default=None)
    return best if best is not None and spread(best) >= LEAST_SPREAD else None


def _not_learnable(scores: Tensor) -> str:
    """Why the law cannot be measured with a reward of these scores; empty if it can."""
    known = scores[~scores.isnan()]
    if not len(known):
        return "reward: no score of a sample is known"
    for bound in (float(known.min()), float(known.max())):
        if not 0 <= bound <= 1:
            return f"reward: {bound:g}, expected numbers from 0 to 1"
    return "reward: the same for all samples, expected one that varies" if float(known.min()) == float(known.max()) else ""


def learning(case: Case) -> Measured | Skip:
    """E[r] of a two-state reward rises by 0.2, or half the way to 1, within 50 updates or seconds of GRPO on a copy."""
    c = case.learning
    columns = [context.columns for context in case.contexts]
    starts = [columns[k % len(columns)] for k in range(GROUPS)]
    drawn = case.policy.sample(group_contexts(GROUPS, c.num_generations, starts), generator=case.generator(10))
    reward: Reward | None = case.reward or text_property(drawn.samples, c.num_generations)
    if reward is None:
        return Skip("no reward given, and no property of the samples' text varies within groups")
    scores = score_samples([reward], drawn.samples, drawn.columns)
    if why := _not_learnable(scores):
        return Skip(why)
    before = float(scores.nanmean())
    goal = before + min(GAIN, (1 - before) / 2)
    trainer = GRPOTrainer(copy.deepcopy(case.policy), reward, c, columns=columns)
    start, means, after = time.thread_time(), list[float](), -math.inf
    while after < goal and len(means) < c.max_steps:
        if len(means) >= LEAST_UPDATES and time.thread_time() - start >= case.seconds:
            break
        means += [line["reward"] for line in trainer.generation()]
        after = sum(means[-LAST:]) / LAST if len(means) >= LAST else -math.inf
    said = f" ({reward})" if isinstance(reward, TextProperty) else ""
    return Measured(max(0.0, goal - after), 0.0, f"reward {before:.2f} -> {after:.2f} in {len(means)} updates{said}")
