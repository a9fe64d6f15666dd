"""Temperature, top-k and top-p as parts of a policy: one function that drawing and scoring share.

With p = softmax(z / T), a step draws from p restricted to a kept set K and renormalised, π(c) = p(c) 1[c ∈ K] / Σ_{K} p.
K is decided when a token is drawn and stored with it: a replay under other weights, and the reference, use the same K.
Otherwise a later update could give a drawn token probability 0, and the KL of two policies with different sets would be
infinite. Source: the sampling mask kept for training in DeepSeek-V3.2 (2025), arXiv 2512.02556.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from discrete_grpo.core.categorical import running_sum
from discrete_grpo.core.checks import check_range, check_whole

__all__ = ["Truncation", "check_temperature", "pack_bits", "unpack_bits"]

LEAST = 1e-30
"""Smallest temperature; division of logits by a smaller one would overflow."""


@dataclass(frozen=True)
class Truncation:
    """Temperature, top-k and top-p that turn logits into the probabilities of a policy.

    Attributes:
        temperature: divides logits; more than 0.
        top_k: keep the k most probable classes; None keeps all.
        top_p: keep the fewest classes whose probabilities sum to at least this, in (0, 1]; 1 keeps all.

    Raises:
        ValueError: for a value out of its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        if self.top_k is not None:
            check_whole("top_k", self.top_k, least=1, note=" or None")
        check_range("top_p", self.top_p, above=0, most=1)

    @property
    def restricts(self) -> bool:
        """Whether the kept set can be smaller than the allowed set."""
        return self.top_k is not None or self.top_p < 1

    def keep(self, logits: Float[Tensor, "*any class"], allowed: Bool[Tensor, "*any class"]) -> Bool[Tensor, "*any class"]:
        """K of every table: top-k, then top-p of what is left renormalised; ties go to the lower class.

        >>> z = torch.tensor([[3.0, 2.0, 1.0, 9.0]])
        >>> Truncation(top_k=2).keep(z, torch.tensor([[True, True, True, False]]))
        tensor([[ True,  True, False, False]])
        """
        kept = allowed
        if not self.restricts:
            return kept
        with torch.no_grad():
            scaled = torch.where(allowed, logits.float() / self.temperature, -torch.inf)
            order = torch.sort(scaled, dim=-1, descending=True, stable=True)
            first = torch.ones_like(kept)
            if self.top_k is not None:
                first[..., self.top_k :] = False
            if self.top_p < 1:
                probs = torch.where(first, order.values, -torch.inf).softmax(-1)
                before = running_sum(probs) - probs
                first = first & (before < self.top_p)
            return allowed & torch.zeros_like(kept).scatter(-1, order.indices, first)

    def log_probs(self, logits: Float[Tensor, "*any class"], kept: Bool[Tensor, "*any class"]) -> Float[Tensor, "*any class"]:
        """log π: z/T restricted to ``kept`` and normalised; ``-inf`` outside; at least float32.

        >>> Truncation().log_probs(torch.zeros(1, 4), torch.tensor([[True, True, False, False]])).exp()
        tensor([[0.5000, 0.5000, 0.0000, 0.0000]])
        """
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32)) / self.temperature
        return torch.where(kept, wide, -torch.inf).log_softmax(-1)


def check_temperature(temperature: float) -> None:
    """Raise ValueError unless a temperature is finite and at least :data:`LEAST`."""
    check_range("temperature", temperature, above=0)
    if temperature < LEAST:
        raise ValueError(f"temperature: {temperature}, expected at least {LEAST}, below which log-probs overflow")


def pack_bits(flags: Bool[Tensor, "*any class"]) -> UInt8[Tensor, "*any byte"]:
    """Pack eight flags per byte along the last axis, the first in the lowest bit.

    >>> pack_bits(torch.tensor([[True, False, True]]))
    tensor([[5]], dtype=torch.uint8)
    """
    missing = -flags.shape[-1] % 8
    whole = torch.nn.functional.pad(flags, (0, missing)).unflatten(-1, (-1, 8)).to(torch.uint8)
    weight = 2 ** torch.arange(8, dtype=torch.uint8, device=flags.device)
    return (whole * weight).sum(-1, dtype=torch.uint8)


def unpack_bits(packed: UInt8[Tensor, "*any byte"], count: int) -> Bool[Tensor, "*any class"]:
    """The first ``count`` flags of :func:`pack_bits`."""
    shift = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed.unsqueeze(-1) >> shift) & 1).flatten(-2)[..., :count].bool()
