"""A policy whose samples pass through a frozen decoder before rewards see them: tokens -> image, molecule or graph.

x = D(y), y ~ π_θ(y | c). D is deterministic and has no trained part, so log π_θ(y | c) is all that the objective needs: the
gradient flows through the log-probs of the tokens and never through D, which may be any function, differentiable or not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from discrete_grpo.core.categorical import Scores, Sites
from discrete_grpo.core.precision import full_precision
from discrete_grpo.core.rollout import Context, Policy, Rollout, as_module
from discrete_grpo.policies.bridging import accepts
from discrete_grpo.policies.delegation import Inner, one_line

__all__ = ["DecodedPolicy"]


class DecodedPolicy(nn.Module):
    """``policy`` with every sample y replaced by decoder(y); states, log-probs and sites are the inner policy's.

    A decoder that is an ``nn.Module`` is part of the checkpoint; it is frozen here and stays in eval mode. To be part
    of a checkpoint, any other decoder must have ``init_args()`` or be a dataclass.

    Args:
        policy: policy that draws the inputs of the decoder: texts for those of :mod:`discrete_grpo.policies.decoders`.
        decoder: maps a list of samples to as many objects, which rewards receive; None for a text that is not an object.
    """

    sites, check_condition = Inner[Callable[..., Sequence[Sites]]](), Inner[Callable[..., None]]()
    likelihood_loss, check_batch = Inner[Callable[..., dict[str, Tensor]]](), Inner[Callable[..., None]]()
    observe, observed_states, forward_kl_gradient = Inner[Callable[..., None]](), Inner[tuple[str, ...]](), Inner[bool]()
    restarts, draw_sizes = Inner[Callable[..., Sequence[Mapping[str, Any]]]](), Inner[Callable[..., list[int]]]()

    def __init__(self, policy: Policy, decoder: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        super().__init__()
        as_module(policy)
        self.policy: Any = policy
        self.decoder: Any = decoder
        if isinstance(decoder, nn.Module):
            decoder.requires_grad_(False).eval()

    def init_args(self) -> dict[str, Any]:
        """Arguments from which a checkpoint builds this policy again."""
        return {"policy": self.policy, "decoder": self.decoder}

    def __repr__(self) -> str:
        return one_line(self, self.policy, getattr(self.decoder, "__name__", type(self.decoder).__name__))

    @property
    def device(self) -> torch.device:
        """Device of the inner policy's parameters."""
        return next(self.policy.parameters()).device

    @property
    def score(self) -> Callable[..., Scores]:
        """The inner policy's scores; missing if it has none. ``reference`` is a copy of this wrapper."""
        inner = self.policy.score

        def scored(rollout: Rollout, steps: Tensor | None = None, reference: Any | None = None) -> Scores:
            found: Scores = inner(rollout, steps, None if reference is None else reference.policy)
            return found

        return scored

    @property
    def can_draw(self) -> Callable[[Any], bool]:
        """Whether the inner policy draws the text of a sample; missing if the decoder has no ``encode``."""
        encode, can_draw = self.decoder.encode, self.policy.can_draw
        return lambda sample: accepts(encode, sample) and can_draw(encode([sample])[0])

    @property
    def rollout_of(self) -> Callable[..., Rollout]:
        """The inner policy's trajectories of the texts that ``encode`` of the decoder gives; missing if it has none.

        An ``encode`` with an argument ``generator`` draws one of the texts of a sample; a text that the policy cannot draw is
        replaced by another one.
        """
        encode, rollout_of = self.decoder.encode, self.policy.rollout_of
        draws = "generator" in inspect.signature(encode).parameters

        def encoded(samples: Sequence[Any], *, generator: torch.Generator | None = None) -> Rollout:
            texts = encode(samples)
            if draws and generator is not None:
                drawn = zip(encode(samples, generator=generator), texts, strict=True)
                texts = [text if self.policy.can_draw(text) else plain for text, plain in drawn]
            return replace(rollout_of(texts, generator=generator), samples=tuple(samples))

        return encoded

    def train(self, mode: bool = True) -> DecodedPolicy:
        """Train or eval mode of the inner policy; the decoder stays in eval mode."""
        super().train(mode)
        if isinstance(self.decoder, nn.Module):
            self.decoder.eval()
        return self

    @torch.no_grad()
    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        """Draw one trajectory per context and decode its sample.

        Raises:
            ValueError: if the decoder returns a different number of objects than it received samples.
        """
        rollout = self.policy.sample(contexts, generator=generator)
        with full_precision(self.device):
            decoded = tuple(self.decoder(list(rollout.samples)))
        if len(decoded) != len(rollout):
            raise ValueError(f"decoder: gave {len(decoded)} objects for {len(rollout)} samples, expected one per sample")
        return replace(rollout, samples=decoded)
