"""Discrete flow matching kernels: a linear path from a prior to the data, and two exact reverse steps.

In this toolkit's time t = 0 is data; κ = ᾱ(t) is the share of the clean class, DeFoG's own time. The path is
p_t(z|c) = κ δ(z,c) + (1-κ) p_0(z) for any prior p_0, zero-mass classes and a mask class included. A schedule that is not
linear is a time distortion. A step marginalises over the clean class analytically, p(k|z) = Σ_c p̂(c) W(k|z,c), where each
row W(.|z,c) is a distribution; so it is always normalised, and it is what a sampler that first draws c would do.

Source: Qin et al. (2024), DeFoG, arXiv 2410.04263; Campbell et al. (2024), arXiv 2402.04997.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from discrete_grpo.diffusion.kernels import check_prior, check_times, noise_towards, over_sites
from discrete_grpo.diffusion.schedules import Schedule
from discrete_grpo.precision import widen

__all__ = ["FlowEuler", "FlowExpectedRate", "FlowInterpolation"]

MOST_RATE = 1e5
"""A rate above this is set to 0, as in DeFoG: it comes of a class that has almost no mass."""


@dataclass(frozen=True)
class FlowInterpolation:
    """W(k|z,c) = (1-r) δ(k,z) + r δ(k,c), r = (κ_s - κ_t)/(1 - κ_t): no rates, no clamp, exact for any step.

    It carries p_t(.|c) to p_s(.|c). Summed over c: p(k|z) = (1-r) δ(k,z) + r p̂(k).

    Attributes:
        prior: p_0, one probability a state; the states beyond ``num_clean`` only noise can have.
        schedule: κ = ᾱ(t).
        num_clean: how many leading classes the data can have.

    Raises:
        ValueError: if ``prior`` is no distribution or ``num_clean`` does not fit it.
    """

    prior: tuple[float, ...]
    schedule: Schedule
    num_clean: int

    def __post_init__(self) -> None:
        check_prior(self.prior, self.num_clean)

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
        """p(k|z) = (1-r) δ(k,z) + r p̂(k)/Σp̂, in O(C) an element."""
        r = over_sites(_share(self.schedule, t, s), p_clean.ndim).to(p_clean)
        same = torch.nn.functional.one_hot(state, self.num_states).to(p_clean.dtype)
        clean = torch.nn.functional.pad(p_clean / p_clean.sum(-1, keepdim=True), (0, self.num_states - self.num_clean))
        return torch.lerp(same, clean, r.expand_as(same))

    def table(self, t: float, s: float) -> Float[Tensor, "state clean state"]:
        """W(k|z,c) as [z, c, k], float64."""
        check_times(t, s)
        r = float(_share(self.schedule, torch.tensor(t, dtype=torch.float64), torch.tensor(s, dtype=torch.float64)))
        eye = torch.eye(self.num_states, dtype=torch.float64)
        return (1 - r) * eye[:, None, :] + r * eye[None, : self.num_clean, :]


@dataclass(frozen=True)
class FlowEuler:
    """One Euler step of DeFoG's rates, each row given c clamped and normalised, then averaged over p̂.

    For k ≠ z, with Z(c) classes of mass under p_t(.|c) and ∂p = δ(.,c) - p_0:
    R = ReLU(∂p(k) - ∂p(z)) / (Z p_t(z|c)) + η p_t(k|c) + ω δ(k,c) 1[c≠z] / (Z p_t(z|c)),
    0 where p_t(z|c) or p_t(k|c) is 0 (at κ = 0 the limit is meant, so that a mask can be left in the first step);
    W(k|z,c) = R (κ_s - κ_t), W(z|z,c) = max(0, 1 - Σ), and a row that exceeds 1 is divided by its sum. The step that reaches
    κ = 1 is c itself.

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
        _check_rates(self.eta, self.omega)

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
        """p(k|z) = Σ_c p̂(c) W(k|z,c)/Σp̂, by the table of every row's times."""
        batch = len(state)
        tables = self._tables(widen(t).expand(batch), widen(s).expand(batch)).to(p_clean)
        rows = tables[torch.arange(batch, device=state.device)[:, None], state.flatten(1)]  # [B, site, c, k]
        mixed = torch.einsum("bnc,bnck->bnk", p_clean.flatten(1, -2), rows) / p_clean.flatten(1, -2).sum(-1, keepdim=True)
        return mixed.view(*state.shape, self.num_states)

    def table(self, t: float, s: float) -> Float[Tensor, "state clean state"]:
        """W(k|z,c) as [z, c, k], float64."""
        check_times(t, s)
        return self._tables(torch.tensor([t], dtype=torch.float64), torch.tensor([s], dtype=torch.float64))[0]

    def _tables(self, t: Tensor, s: Tensor) -> Float[Tensor, "batch state clean state"]:
        now, later = (self.schedule.alpha_bar(x)[:, None, None, None] for x in (t, s))
        p0 = self.initial().to(now.dtype).to(now.device)
        eye = torch.eye(self.num_states, dtype=now.dtype, device=now.device)
        target = eye[: self.num_clean]  # δ(., c), [c, k]
        path = now[:, 0] * target + (1 - now[:, 0]) * p0  # p_t(.|c), [B, c, k]
        change = target - p0
        at_z, at_k = path.transpose(1, 2).unsqueeze(-1), path.unsqueeze(1)  # [B, z, c, 1], [B, 1, c, k]
        reached = (p0 > 0) | (target > 0)  # the support of p_t(.|c) for 0 < κ < 1; at κ = 0 the limit is taken, as DeFoG does
        support = reached.sum(-1)[None, None, :, None]
        star = (change.unsqueeze(0) - change.T.unsqueeze(-1)).clamp_min(0)  # ReLU(∂p(k) - ∂p(z)), [z, c, k]
        guided = star + self.omega * target  # where c = z this is on the diagonal, which is set below
        possible = (at_z > 0) & reached.unsqueeze(0)
        rate = torch.where(possible, guided / torch.where(at_z > 0, support * at_z, 1.0) + self.eta * at_k, 0.0)
        off = torch.where((rate > MOST_RATE) | (eye[:, None, :] > 0), 0.0, rate) * (later - now)
        rows = off + (1 - off.sum(-1, keepdim=True)).clamp_min(0) * eye[:, None, :]
        rows = rows / rows.sum(-1, keepdim=True)
        return torch.where(later >= 1, target.expand_as(rows), rows)


@dataclass(frozen=True)
class FlowExpectedRate:
    """Graph-GRPO's step: the rate is averaged over the clean class first, and its Euler row clamped after. For comparison only.

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
        _check_rates(self.eta, self.omega)

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


def _check_rates(eta: float, omega: float) -> None:
    for name, value in (("eta", eta), ("omega", omega)):
        if not 0 <= value < math.inf:
            raise ValueError(f"{name}: {value}, expected at least 0")


def _share(schedule: Schedule, t: Tensor, s: Tensor) -> Tensor:
    """r = (κ_s - κ_t)/(1 - κ_t); 0 where nothing is left to do."""
    now, later = schedule.alpha_bar(t), schedule.alpha_bar(s)
    return torch.where(now < 1, (later - now) / torch.where(now < 1, 1 - now, 1.0), 0.0)
