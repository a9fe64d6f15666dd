"""Graph-GRPO's reverse step, which clamps the expected rate, as a kernel to compare with.

It is not a kernel of the toolkit: where the clamp acts, a class gets probability exactly 0 under one network and not under
another, so that the KL to a reference is infinite and its gradient is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from discrete_grpo.diffusion.flow import check_rates
from discrete_grpo.diffusion.kernels import check_times
from discrete_grpo.diffusion.noise import Noise

__all__ = ["FlowExpectedRate"]


@dataclass(frozen=True)
class FlowExpectedRate:
    """Graph-GRPO's step: the rate is averaged over the clean class first, and its Euler row is clamped afterwards.

    With a(c) = p̂(c)/Z(c), A = Σ_c a(c), p_0(z) > 0 and k ≠ z,
    R(k) = [a(k)(1 + p_0(z) - p_0(k) + ω) + (A - a(z) - a(k)) ReLU(p_0(z) - p_0(k)) 1[p_0(k) > 0]] / ((1-κ) p_0(z))
    + η [p̂(k)(κ + (1-κ) p_0(k)) + (1 - p̂(k)) (1-κ) p_0(k)]; where p_0(z) = 0, R(k) = η p̂(z) (1-κ) p_0(k).
    p(k) = R(k)(κ_s - κ_t) and p(z) = max(0, 1 - Σ), divided by the sum. Where a row given some c would exceed 1, this is not
    the law of a sampler that draws c (:class:`~discrete_grpo.diffusion.flow.FlowEuler` is), and it is not linear in p̂.

    Source: Graph-GRPO (2026), Proposition 3.1, arXiv 2603.10395, with η, ω and priors of partial support added.

    Attributes:
        noise: p_0, κ = ᾱ(t) and the number of clean classes.
        eta: η, the stochasticity, at least 0.
        omega: ω, the target guidance, at least 0.

    Raises:
        ValueError: for a rate out of its range.
    """

    noise: Noise
    eta: float = 0.0
    omega: float = 0.0

    def __post_init__(self) -> None:
        check_rates(self.eta, self.omega)

    def transition(
        self, p_clean: Float[Tensor, "batch *site clean"], state: Int[Tensor, "batch ..."], t: Tensor, s: Tensor
    ) -> Float[Tensor, "batch *site state"]:
        """p(k|z) in O(C) per site; the step that reaches κ = 1 is p̂.

        Args:
            p_clean: p̂ [B, ..., num_clean], normalised here.
            state: z [B, ...].
            t: current times in [0, 1], a scalar or [B].
            s: next times, 0 <= s <= t.

        Returns:
            Probabilities [B, ..., num_states] in the dtype of ``p_clean``.
        """
        now, later = (self.noise.kept(x, p_clean.ndim).to(p_clean) for x in (t, s))
        same = self.noise.one_hot(state, p_clean.dtype)
        clean = self.noise.pad(p_clean / p_clean.sum(-1, keepdim=True))
        off = torch.where(same > 0, 0.0, self.rate(clean, state, now) * (later - now))
        row = off + (1 - off.sum(-1, keepdim=True)).clamp_min(0) * same
        return torch.where(later >= 1, clean, row / row.sum(-1, keepdim=True))

    def rate(
        self, clean: Float[Tensor, "batch *site state"], state: Int[Tensor, "batch ..."], now: Tensor
    ) -> Float[Tensor, "batch *site state"]:
        """E_{c ~ p̂} R(k|z,c) for every k; the entry k = z has no meaning.

        Args:
            clean: p̂ padded to all states [B, ..., num_states].
            state: z [B, ...].
            now: κ_t, which broadcasts over ``clean``.
        """
        p0 = self.noise.initial().to(clean)
        at_z = p0[state].unsqueeze(-1)
        a = clean / ((p0 > 0).sum() + (p0 == 0).to(clean.dtype))
        a_z, p_z = (x.gather(-1, state.unsqueeze(-1)) for x in (a, clean))
        others = (a.sum(-1, keepdim=True) - a_z - a) * (at_z - p0).clamp_min(0) * (p0 > 0)
        left = torch.where((at_z > 0) & (now < 1), (1 - now) * at_z, 1.0)
        star = (a * (1 + at_z - p0 + self.omega) + others) / left
        mixed = clean * (now + (1 - now) * p0) + (1 - clean) * (1 - now) * p0
        return torch.where(at_z > 0, star + self.eta * mixed, self.eta * p_z * (1 - now) * p0)

    def table(self, t: float, s: float) -> Float[Tensor, "state clean state"]:
        """Rows for single clean classes as [z, c, k], float64; ``transition`` is not their mixture.

        Raises:
            ValueError: unless 0 <= s <= t <= 1.
        """
        check_times(t, s)
        states, clean = self.noise.num_states, self.noise.num_clean
        sure = torch.eye(clean, dtype=torch.float64).expand(states, -1, -1)
        at = torch.arange(states)[:, None].expand(-1, clean)
        when = [torch.full((states,), x, dtype=torch.float64) for x in (t, s)]
        return self.transition(sure, at, *when)
