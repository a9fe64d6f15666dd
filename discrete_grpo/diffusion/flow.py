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
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from discrete_grpo.core.precision import widen
from discrete_grpo.diffusion.kernels import check_prior, check_times, noise_towards, over_sites
from discrete_grpo.diffusion.schedules import Schedule

__all__ = ["FlowEuler", "FlowInterpolation", "check_rates"]

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
        """p(k|z) = Σ_c p̂(c) W(k|z,c)/Σp̂, by the table of every row's times."""
        batch = len(state)
        tables = self._tables(widen(t).expand(batch), widen(s).expand(batch)).to(p_clean)
        rows = tables[torch.arange(batch, device=state.device)[:, None], state.flatten(1)]  # [B, site, c, k]
        flat = p_clean.flatten(1, -2)
        # No matrix product: TF32 and autocast would round it, and the mixture would not sum to 1.
        mixed = (flat.unsqueeze(-1) * rows).sum(-2) / flat.sum(-1, keepdim=True)
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


def check_rates(eta: float, omega: float) -> None:
    """Raise ValueError unless both are finite and at least 0."""
    for name, value in (("eta", eta), ("omega", omega)):
        if not 0 <= value < math.inf:
            raise ValueError(f"{name}: {value}, expected at least 0")


def _share(schedule: Schedule, t: Tensor, s: Tensor) -> Tensor:
    """r = (κ_s - κ_t)/(1 - κ_t); 0 where nothing is left to do."""
    now, later = schedule.alpha_bar(t), schedule.alpha_bar(s)
    return torch.where(now < 1, (later - now) / torch.where(now < 1, 1 - now, 1.0), 0.0)


def __getattr__(name: str) -> Any:
    if name == "FlowExpectedRate":
        raise AttributeError("FlowExpectedRate is no kernel of policies any more (see docs/graphs.md); FlowEuler has its arguments")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
