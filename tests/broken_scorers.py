"""A policy that gives scores and no tables, obeys every law, and twins of it, each with one mistake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from discrete_grpo.core.categorical import Scores, Sites, score_sites
from discrete_grpo.core.rollout import Context, Rollout
from discrete_grpo.policies.surrogate import ElboLikelihood
from tests.broken_policies import Words


class ScoredWords(nn.Module):
    """Words whose scores come from their tables, as another likelihood's would, and whose tables nobody is given."""

    def __init__(self, words: Words) -> None:
        super().__init__()
        self.words = words

    def init_args(self) -> dict[str, Any]:
        return {"words": self.words}

    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        return self.words.sample(contexts, generator=generator)

    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Sequence[Sites]:
        raise TypeError("sites: there are none, expected a call of score")

    def tables(self, rollout: Rollout, steps: Tensor | None) -> Sequence[Sites]:
        return self.words.sites(rollout, steps)

    def score(self, rollout: Rollout, steps: Tensor | None = None, reference: Any | None = None) -> Scores:
        own = self.tables(rollout, steps)
        if reference is None:
            return score_sites(own)
        with torch.no_grad():
            other = reference.tables(rollout, steps)
        return score_sites(own, other)


class FlatScores(ScoredWords):
    """Forgets the axis of sites."""

    def score(self, rollout: Rollout, steps: Tensor | None = None, reference: Any | None = None) -> Scores:
        found = super().score(rollout, steps, reference)
        return replace(found, logp=found.logp.sum(-1))


class ScoresUnderMask(ScoredWords):
    def score(self, rollout: Rollout, steps: Tensor | None = None, reference: Any | None = None) -> Scores:
        found = super().score(rollout, steps, reference)
        return replace(found, logp=found.logp - (~found.mask).to(found.logp.dtype))


class CountsPadding(ScoredWords):
    def tables(self, rollout: Rollout, steps: Tensor | None) -> Sequence[Sites]:
        return [replace(one, mask=torch.ones_like(one.mask)) for one in super().tables(rollout, steps)]


class NoisyScores(ScoredWords):
    """Estimates its score at numbers drawn again each time."""

    def score(self, rollout: Rollout, steps: Tensor | None = None, reference: Any | None = None) -> Scores:
        found = super().score(rollout, steps, reference)
        return replace(found, logp=found.logp * (1 + 0.01 * torch.rand(found.logp.shape)))


class ScoresOfTheBatch(ScoredWords):
    def score(self, rollout: Rollout, steps: Tensor | None = None, reference: Any | None = None) -> Scores:
        found = super().score(rollout, steps, reference)
        return replace(found, logp=torch.where(found.mask, found.logp - found.logp.mean(0, keepdim=True), 0.0))


class IgnoresSteps(ScoredWords):
    """Gives the first steps, whichever were asked for."""

    def tables(self, rollout: Rollout, steps: Tensor | None) -> Sequence[Sites]:
        first = None if steps is None else torch.arange(steps.shape[1]).expand_as(steps)
        return super().tables(rollout, first)


class HalfScores(ScoredWords):
    def score(self, rollout: Rollout, steps: Tensor | None = None, reference: Any | None = None) -> Scores:
        found = super().score(rollout, steps, reference)
        low = torch.bfloat16 if torch.is_autocast_enabled("cpu") else found.logp.dtype
        return replace(found, logp=found.logp.to(low))


class DetachedScores(ScoredWords):
    def score(self, rollout: Rollout, steps: Tensor | None = None, reference: Any | None = None) -> Scores:
        with torch.no_grad():
            return super().score(rollout, steps, reference)


class HalfTheGradient(ScoredWords):
    """The value is right and the gradient is not."""

    def score(self, rollout: Rollout, steps: Tensor | None = None, reference: Any | None = None) -> Scores:
        found = super().score(rollout, steps, reference)
        return replace(found, logp=0.5 * found.logp + 0.5 * found.logp.detach())


class HalfTheGradientOfTheKl(ScoredWords):
    """The KL is right and its gradient is not."""

    def score(self, rollout: Rollout, steps: Tensor | None = None, reference: Any | None = None) -> Scores:
        found = super().score(rollout, steps, reference)
        return found if found.kl is None else replace(found, kl=0.5 * found.kl + 0.5 * found.kl.detach())


class NoKl(ScoredWords):
    def score(self, rollout: Rollout, steps: Tensor | None = None, reference: Any | None = None) -> Scores:
        return super().score(rollout, steps)


class KlOfNothing(ScoredWords):
    """Holds itself against itself."""

    def score(self, rollout: Rollout, steps: Tensor | None = None, reference: Any | None = None) -> Scores:
        return super().score(rollout, steps, None if reference is None else self)


class HalfTheKl(ScoredWords):
    def score(self, rollout: Rollout, steps: Tensor | None = None, reference: Any | None = None) -> Scores:
        found = super().score(rollout, steps, reference)
        return found if found.kl is None else replace(found, kl=found.kl / 2)


class KlSquared(ScoredWords):
    def score(self, rollout: Rollout, steps: Tensor | None = None, reference: Any | None = None) -> Scores:
        found = super().score(rollout, steps, reference)
        return found if found.kl is None else replace(found, kl=found.kl.square())


class GradientOfTheEntropy(ScoredWords):
    def score(self, rollout: Rollout, steps: Tensor | None = None, reference: Any | None = None) -> Scores:
        found = super().score(rollout, steps, reference)
        return replace(found, entropy=found.entropy + 0 * found.logp)


class KlOfTheOtherDirection(ScoredWords):
    """KL(π_ref ‖ π), which is 0 where it should be and never below."""

    def score(self, rollout: Rollout, steps: Tensor | None = None, reference: Any | None = None) -> Scores:
        if reference is None:
            return super().score(rollout, steps)
        with torch.no_grad():
            other = reference.tables(rollout, steps)
        found = score_sites(self.tables(rollout, steps), other, forward_gradient=True)
        return replace(found, kl=found.kl_forward)


class KlBackwards(ScoredWords):
    """Log-ratios in the place of a KL: negative here and there."""

    def score(self, rollout: Rollout, steps: Tensor | None = None, reference: Any | None = None) -> Scores:
        found = super().score(rollout, steps, reference)
        if reference is None:
            return found
        with torch.no_grad():
            other = reference.score(rollout, steps)
        return replace(found, kl=found.logp - other.logp)


class TrainsItsReference(ScoredWords):
    def score(self, rollout: Rollout, steps: Tensor | None = None, reference: Any | None = None) -> Scores:
        found = super().score(rollout, steps, reference)
        if reference is None or found.kl is None:
            return found
        leak = reference.score(rollout, steps).logp
        return replace(found, kl=found.kl + leak - leak.detach())


class ScoresTheReference(ScoredWords):
    """Log-probs that are another's as soon as there is a reference."""

    def score(self, rollout: Rollout, steps: Tensor | None = None, reference: Any | None = None) -> Scores:
        found = super().score(rollout, steps, reference)
        return found if reference is None else replace(found, logp=reference.score(rollout, steps).logp + 0 * found.logp)


class RenoisesToScore(ElboLikelihood):
    """Draws the noisy states again when it scores, instead of once with the rollout."""

    def score(self, rollout: Rollout, steps: Tensor | None = None, reference: Any | None = None) -> Scores:
        nodes = rollout.states["nodes"].clone()
        nodes[:, :-1] = torch.randint_like(nodes[:, :-1], 3)
        return super().score(replace(rollout, states={**rollout.states, "nodes": nodes}), steps, reference)
