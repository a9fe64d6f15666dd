"""Graph-GRPO's reverse step, which clamps the expected rate, as a kernel to compare with.

It is no kernel of the toolkit: where the clamp acts, a class gets probability exactly 0 under one network and not under another,
so the KL to a reference is infinite and its gradient is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from discrete_grpo.diffusion.flow import check_rates
from discrete_grpo.diffusion.kernels import check_prior, check_times, noise_towards, over_sites
from discrete_grpo.diffusion.schedules import Schedule

__all__ = ["FlowExpectedRate"]


@dataclass(frozen=True)
class FlowExpectedRate:
    """Graph-GRPO's step: the rate is averaged over the clean class first, and its Euler row is clamped afterwards.

    With a(c) = p̂(c)/Z(c), A = Σ_c a(c), p_0(z) > 0 and k ≠ z,
    R(k) = [a(k)(1 + p_0(z) - p_0(k) + ω) + (A - a(z) - a(k)) ReLU(p_0(z) - p_0(k)) 1[p_0(k) > 0]] / ((1-κ) p_0(z))
    + η [p̂(k)(κ + (1-κ) p_0(k)) + (1 - p̂(k)) (1-κ) p_0(k)]; where p_0(z) = 0, R(k) = η p̂(z) (1-κ) p_0(k).
    p(k) = R(k)(κ_s - κ_t), p(z) = max(0, 1 - Σ), divided by the sum. Where a row given some c would exceed 1 this is not what a
    sampler that draws c does (:class:`FlowEuler` is), and it depends on p̂ otherwise than linearly: there is no table.

    Source: Graph-GRPO (2026), Proposition 3.1, arXiv 2603.10395, with η, ω and priors of partial support added.

    Attributes:
        prior: p_0, one probability a state; the states beyond ``num_clean`` only noise can have.
        schedule: κ = ᾱ(t).
        num_clean: how many leading classes the data can have.
        eta: stochasticity, at least 0.
        omega: target guidance, at least 0.

    Raises:
        ValueError: for an argument out of its range.
    """

    prior: tuple[float, ...]
    schedule: Schedule
    num_clean: int
    eta: float = 0.0
    omega: float = 0.0

    def __post_init__(self) -> None:
        check_prior(self.prior, self.num_clean)
        check_rates(self.eta, self.omega)

    @property
    def num_states(self) -> int:
        """Classes a noisy element can have."""
        return len(self.prior)

    def initial(self) -> Float[Tensor, " state"]:
        """The distribution at t = 1, p_0."""
        return torch.tensor(self.prior, dtype=torch.float64)

    def noise(self, x0: Int[Tensor, "batch ..."], t: Tensor, generator: torch.Generator | None = None) -> Int[Tensor, "batch ..."]:
        """A draw of x_t: x_0 with probability κ, else a class of p_0."""
        return noise_towards(self.initial(), self.schedule.alpha_bar(t), x0, generator)

    def transition(
        self, p_clean: Float[Tensor, "batch *site clean"], state: Int[Tensor, "batch ..."], t: Tensor, s: Tensor
    ) -> Float[Tensor, "batch *site state"]:
        """p(k|z) in O(C) an element; the step that reaches κ = 1 is p̂."""
        now, later = (over_sites(self.schedule.alpha_bar(x), p_clean.ndim).to(p_clean) for x in (t, s))
        same = torch.nn.functional.one_hot(state, self.num_states).to(p_clean.dtype)
        clean = torch.nn.functional.pad(p_clean / p_clean.sum(-1, keepdim=True), (0, self.num_states - self.num_clean))
        off = torch.where(same > 0, 0.0, self.rate(clean, state, now) * (later - now))
        row = off + (1 - off.sum(-1, keepdim=True)).clamp_min(0) * same
        return torch.where(later >= 1, clean, row / row.sum(-1, keepdim=True))

    def rate(
        self, clean: Float[Tensor, "batch *site state"], state: Int[Tensor, "batch ..."], now: Tensor
    ) -> Float[Tensor, "batch *site state"]:
        """E_{c ~ p̂} R(k|z,c) of every k; the entry of z itself means nothing."""
        p0 = self.initial().to(clean)
        at_z = p0[state].unsqueeze(-1)
        a = clean / ((p0 > 0).sum() + (p0 == 0).to(clean.dtype))
        a_z, p_z = (x.gather(-1, state.unsqueeze(-1)) for x in (a, clean))
        others = (a.sum(-1, keepdim=True) - a_z - a) * (at_z - p0).clamp_min(0) * (p0 > 0)
        left = torch.where((at_z > 0) & (now < 1), (1 - now) * at_z, 1.0)
        star = (a * (1 + at_z - p0 + self.omega) + others) / left
        mixed = clean * (now + (1 - now) * p0) + (1 - clean) * (1 - now) * p0
        return torch.where(at_z > 0, star + self.eta * mixed, self.eta * p_z * (1 - now) * p0)

    def table(self, t: float, s: float) -> Float[Tensor, "state clean state"]:
        """The rows of single clean classes, [z, c, k]; ``transition`` is not their mixture.

        Raises:
            ValueError: unless 0 <= s <= t <= 1.
        """
        check_times(t, s)
        states, clean = self.num_states, self.num_clean
        sure = torch.eye(clean, dtype=torch.float64).expand(states, -1, -1)
        at = torch.arange(states)[:, None].expand(-1, clean)
        when = [torch.full((states,), x, dtype=torch.float64) for x in (t, s)]
        return self.transition(sure, at, *when)
