"""Case under test, results of laws, and functions that several laws use."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from discrete_grpo.core.categorical import Scores, SiteKind, Sites, score_sites
from discrete_grpo.core.gaussian import GaussianSites
from discrete_grpo.core.rollout import Context, Policy, Reward, Rollout, as_module, is_scorer
from discrete_grpo.domains.sample_text import sample_text
from discrete_grpo.training.config import GRPOConfig

__all__ = ["Case", "Change", "Law", "Measured", "Skip", "claims", "gap", "per_step", "same", "why_no_sites", "with_other_weights"]

LOG_PROB_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Largest relative difference of two ways to compute the same log-prob, by dtype of the weights."""
LOG_PROB_TOLERANCE_HALF = 5e-2
"""The same for 16-bit weights."""
ROUND = 256
"""Number of trajectories that are drawn or scored in one batch."""
SHIFT = 0.05
"""Standard deviation of the noise added to each weight of a reference."""

Change = Callable[[Rollout, torch.Generator], Rollout]


@dataclass(frozen=True)
class Measured:
    """Measurement of a law, which holds if error <= tolerance."""

    error: float
    tolerance: float
    note: str = ""


@dataclass(frozen=True)
class Skip:
    """Reason why a law was not measured."""

    note: str


@dataclass(frozen=True)
class Case:
    """Policy under test with the arguments of the test; fields as in :func:`~discrete_grpo.testing.check_policy`.

    Attributes:
        rollout: one draw of ``contexts``, which most laws replay.
        no_sites: reason why the policy has no categorical tables (a :class:`~discrete_grpo.core.rollout.Scorer`); else empty.
    """

    policy: Policy
    contexts: Sequence[Context]
    rollout: Rollout
    space: Rollout | None
    permute: Change | None
    pad: Change | None
    reward: Reward | None
    trusted: Sequence[str]
    samples: int
    seed: int
    seconds: float
    learning: GRPOConfig
    no_sites: str = ""

    @property
    def module(self) -> nn.Module:
        """The policy as a module."""
        return as_module(self.policy)

    @property
    def device(self) -> torch.device:
        """Device of the parameters of the policy."""
        return next(self.module.parameters()).device

    @property
    def close(self) -> float:
        """Tolerance for one log-prob computed in two ways."""
        return LOG_PROB_TOLERANCE.get(next(self.module.parameters()).dtype, LOG_PROB_TOLERANCE_HALF)

    def generator(self, offset: int = 0) -> torch.Generator:
        """Return a new generator on the device of the policy; equal offsets give equal draws."""
        return torch.Generator(self.device).manual_seed(self.seed + offset)

    def scores(self, rollout: Rollout, steps: Int[Tensor, "batch step"] | None = None, reference: Policy | None = None) -> Scores:
        """Compute the scores of stored steps as the trainer does, with gradients: from sites, or by ``score`` of the policy."""
        if is_scorer(self.policy):
            return self.policy.score(rollout, steps, reference)
        own = self.policy.sites(rollout, steps)
        if reference is None:
            return score_sites(own)
        with torch.no_grad():
            other = reference.sites(rollout, steps)
        return score_sites(own, other)

    def kinds(self, rollout: Rollout) -> Sequence[SiteKind]:
        """Sites of all stored steps, without gradient."""
        with torch.no_grad():
            return self.policy.sites(rollout)

    def categoricals(self, rollout: Rollout) -> list[Sites]:
        """The categorical ones of :meth:`kinds`."""
        return [one for one in self.kinds(rollout) if isinstance(one, Sites)]

    def gaussians(self, rollout: Rollout) -> list[GaussianSites]:
        """The Gaussian ones of :meth:`kinds`."""
        return [one for one in self.kinds(rollout) if isinstance(one, GaussianSites)]

    def replay(self, rollout: Rollout, steps: Int[Tensor, "batch step"] | None = None) -> Scores:
        """Compute the scores of stored steps without gradient."""
        with torch.no_grad():
            return self.scores(rollout, steps)

    def drawn_log_probs(self, rollout: Rollout) -> Float[Tensor, "batch step site"]:
        """Log π of the drawn classes; for a policy without sites, its own scores."""
        if self.no_sites:
            return self.replay(rollout).logp
        with torch.no_grad():
            return score_sites(self.policy.sites(rollout)).logp

    def draws(self, contexts: Sequence[Context], offset: int) -> Iterator[Rollout]:
        """Yield batches of ``samples`` trajectories in all, of ``contexts`` in turn, each with its own group."""
        generator = self.generator(offset)
        for start in range(0, self.samples, ROUND):
            rows = range(start, min(start + ROUND, self.samples))
            yield self.policy.sample([replace(contexts[k % len(contexts)], group=k) for k in rows], generator=generator)

    def many(self) -> Rollout:
        """Draw the first ``ROUND`` of :meth:`draws`: enough rows to meet states that are rare among those of ``rollout``."""
        return next(self.draws(self.contexts, 2))

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        """Context manager that sets train or eval mode and restores the previous mode."""
        before = self.module.training
        self.module.train(training)
        try:
            yield
        finally:
            self.module.train(before)


Law = Callable[[Case], "Measured | Skip"]


def why_no_sites(policy: Policy, rollout: Rollout) -> str:
    """Return the reason why a policy with its own scores has no sites; empty for policies that have sites."""
    if not is_scorer(policy):
        return ""
    try:
        with torch.no_grad():
            cast(Any, policy).sites(rollout)
    except Exception as error:  # the trainer never calls it, so any exception is allowed
        return f"needs sites; {type(policy).__name__} gives scores only ({type(error).__name__})"
    return ""


def gap(found: Shaped[Tensor, "*any"], wanted: Shaped[Tensor, "*any"]) -> float:
    """Compute max |a - b| / max(1, |b|), with 0 for equal numbers (also -inf) and inf for NaN.

    >>> gap(torch.tensor([1.0, 22.0]), torch.tensor([1.0, 20.0]))
    0.1
    """
    if found.shape != wanted.shape:
        raise ValueError(f"shape {tuple(found.shape)}, expected {tuple(wanted.shape)}")
    a, b = found.cpu().double(), wanted.cpu().double()
    off = torch.where(a == b, 0.0, (a - b).abs() / b.abs().clamp_min(1))
    return float(off.nan_to_num(nan=torch.inf).max()) if off.numel() else 0.0


def per_step(scores: Scores) -> Float[Tensor, "batch step 3"]:
    """Log-prob, entropy and number of sites of each step."""
    return torch.stack([scores.logp.sum(-1), scores.entropy.sum(-1), scores.mask.sum(-1).to(scores.logp.dtype)], -1)


def with_other_weights(case: Case, shift: float = SHIFT) -> Policy:
    """A copy of the policy whose weights have noise of the standard deviation ``shift`` added."""
    other, generator = copy.deepcopy(case.policy), case.generator(8)
    with torch.no_grad():
        for weight in as_module(other).parameters():
            noise = torch.randn(weight.shape, generator=generator, device=generator.device)
            weight.add_(shift * noise.to(weight))
    return other


def claims(found: Mapping[str, bool], note: str = "") -> Measured:
    """Count the false statements; the note lists them."""
    wrong = [name for name, holds in found.items() if not holds]
    return Measured(float(len(wrong)), 0.0, "not so: " + "; ".join(wrong) if wrong else note)


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal to the bit, including tensors in dataclasses, mappings and sequences.

    Arrays, and objects that Python compares by identity, such as graphs of networkx and molecules of RDKit, are compared by text.
    """
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        alike = isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape
        return alike and bool(((a == b) | ((a != a) & (b != b))).all())
    if type(a) is not type(b):
        return False
    if is_dataclass(a) and not isinstance(a, type):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, Sequence) and not isinstance(a, str | bytes):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray) or cast(Any, type(a)).__eq__ is object.__eq__:
        return a is b or sample_text(a) == sample_text(b)
    return bool(a == b or (a != a and b != b))
