"""Kernels: how one element is noised, and how a predicted clean class becomes one reverse step.

Notation (as in the papers): z current class, k next class, c candidate clean class; ``t`` the current time and
``s <= t`` the next, with t = 0 data and t = 1 noise. p̂ is the network's distribution over clean classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from discrete_grpo.core.categorical import sample
from discrete_grpo.core.precision import place
from discrete_grpo.diffusion.schedules import Schedule

__all__ = ["D3PM", "Kernel", "Noising", "absorbing", "chain_law", "evidence", "marginal", "noise_law", "uniform"]


@runtime_checkable
class Kernel(Protocol):
    """The seam between a network that predicts clean classes and a sampler that needs transitions."""

    @property
    def num_clean(self) -> int:
        """Classes of the data, which the network predicts."""
        ...

    @property
    def num_states(self) -> int:
        """Classes a noisy element can have: the data's, and a mask class where there is one."""
        ...

    def initial(self) -> Float[Tensor, " state"]:
        """The distribution at t = 1."""
        ...

    def noise(self, x0: Int[Tensor, "batch ..."], t: Tensor, generator: torch.Generator | None = None) -> Int[Tensor, "batch ..."]:
        """A draw of x_t ~ q(x_t | x_0)."""
        ...

    def transition(
        self, p_clean: Float[Tensor, "batch *site clean"], state: Int[Tensor, "batch ..."], t: Tensor, s: Tensor
    ) -> Float[Tensor, "batch *site state"]:
        """p(x_s = k | x_t = z) = Σ_c p̂(c) q(k | z, c): normalised, in O(C) an element."""
        ...

    def table(self, t: float, s: float) -> Float[Tensor, "state clean state"]:
        """q(x_s = k | x_t = z, x_0 = c) as [z, c, k], float64: the brute-force oracle of ``transition``."""
        ...


@dataclass(frozen=True)
class D3PM:
    """Categorical diffusion with rank-one noise Q_t = α_t I + (1 - α_t) 1 mᵀ.

    q(x_t=z|x_0=c) = ᾱ_t δ(c,z) + (1-ᾱ_t) m(z) =: D_t(c,z), and by Bayes
    q(x_s=k|z,c) = [α δ(k,z) + (1-α) m(z)] [ᾱ_s δ(c,k) + (1-ᾱ_s) m(k)] / D_t(c,z), α = ᾱ_t/ᾱ_s.

    A clean class that cannot have led to z (D_t(c,z) = 0) is left out and the rest of p̂ renormalised; a state that
    no clean class with p̂ > 0 can have led to stays where it is.

    Source: Austin et al. (2021), arXiv 2107.03006; Vignac et al. (2022), Eq. 4-6, arXiv 2209.14734.

    Attributes:
        prior: m, the noise distribution, one probability a state.
        schedule: ᾱ(t).
        num_clean: how many leading classes the data can have; the rest (a mask class) only noise can.

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
        """The distribution at t = 1, which is m since ᾱ(1) = 0."""
        return torch.tensor(self.prior, dtype=torch.float64)

    def noise(self, x0: Int[Tensor, "batch ..."], t: Tensor, generator: torch.Generator | None = None) -> Int[Tensor, "batch ..."]:
        """A draw of x_t: x_0 with probability ᾱ_t, else a class of m."""
        return noise_towards(self.initial(), self.schedule.alpha_bar(t), x0, generator)

    def transition(
        self, p_clean: Float[Tensor, "batch *site clean"], state: Int[Tensor, "batch ..."], t: Tensor, s: Tensor
    ) -> Float[Tensor, "batch *site state"]:
        """p(k|z) = [α δ(k,z) + (1-α) m(z)] [ᾱ_s w(k) + (1-ᾱ_s) m(k) S], w(c) = p̂(c)/D_t(c,z), S = Σ_c w(c).

        Args:
            p_clean: p̂ [B, ..., num_clean].
            state: z [B, ...].
            t: current times in [0, 1], a scalar or [B].
            s: next times, 0 <= s <= t.

        Returns:
            Probabilities [B, ..., num_states] in the dtype of ``p_clean``.
        """
        bar_t, bar_s = (over_sites(self.schedule.alpha_bar(x), p_clean.ndim) for x in (t, s))
        alpha = torch.where(bar_s > bar_t, bar_t / bar_s, 1.0)  # t = s stays where it is, also at t = s = 1 (0/0)
        same = torch.nn.functional.one_hot(state, self.num_states).to(p_clean.dtype)
        m = self.initial().to(p_clean)
        m_z = m[state].unsqueeze(-1)
        d = bar_t.to(p_clean) * same + (1 - bar_t).to(p_clean) * m_z  # D_t(c, z), c along the last axis
        possible = d[..., : self.num_clean] > 0
        w = torch.where(possible, p_clean / torch.where(possible, d[..., : self.num_clean], 1.0), 0.0)
        total = w.sum(-1, keepdim=True)
        w_all = torch.nn.functional.pad(w, (0, self.num_states - self.num_clean))
        forward = alpha.to(p_clean) * same + (1 - alpha).to(p_clean) * m_z
        weights = forward * (bar_s.to(p_clean) * w_all + (1 - bar_s).to(p_clean) * m * total)
        mass = weights.sum(-1, keepdim=True)
        return torch.where(mass > 0, weights / torch.where(mass > 0, mass, 1.0), same)

    def table(self, t: float, s: float) -> Float[Tensor, "state clean state"]:
        """q(k|z,c) as [z, c, k] from explicit [K, K] noise matrices, float64; a row of zeros where D_t(c,z) = 0."""
        check_times(t, s)
        bar_t, bar_s = (float(self.schedule.alpha_bar(torch.tensor(x, dtype=torch.float64))) for x in (t, s))
        m = self.initial()
        eye = torch.eye(self.num_states, dtype=torch.float64)

        def q_of(keep: float) -> Tensor:
            return keep * eye + (1 - keep) * m.expand(self.num_states, -1)

        step, to_s, to_t = q_of(bar_t / bar_s if bar_s > bar_t else 1.0), q_of(bar_s), q_of(bar_t)
        joint = torch.einsum("ck,kz->zck", to_s[: self.num_clean], step)
        whole = to_t[: self.num_clean].T.unsqueeze(-1)
        return torch.where(whole > 0, joint / torch.where(whole > 0, whole, 1.0), 0.0)


def check_prior(prior: Sequence[float], num_clean: int) -> None:
    """Raise ValueError unless ``prior`` is a distribution and ``num_clean`` counts its leading classes."""
    if not prior or min(prior) < 0 or not abs(sum(prior) - 1.0) <= 1e-6:  # "not <=": NaN fails too
        raise ValueError(f"prior: {prior}, expected probabilities >= 0 that sum to 1")
    if not 1 <= num_clean <= len(prior):
        raise ValueError(f"num_clean: {num_clean}, expected 1 to {len(prior)}, the number of states")


def check_times(t: float, s: float) -> None:
    """Raise ValueError unless 0 <= s <= t <= 1."""
    if not 0.0 <= s <= t <= 1.0:
        raise ValueError(f"t, s: {t}, {s}, expected 0 <= s <= t <= 1")


def noise_towards(
    prior: Float[Tensor, " state"], kept: Tensor, x0: Int[Tensor, "batch ..."], generator: torch.Generator | None = None
) -> Int[Tensor, "batch ..."]:
    """x_0 with probability ``kept`` (a scalar or [B]), else a class of ``prior``."""
    keep = over_sites(kept, x0.ndim).to(x0.device, torch.float32)
    stays = torch.rand(x0.shape, generator=generator, device=x0.device) < keep
    m = prior.to(x0.device, torch.float32)
    return torch.where(stays, x0, sample(m.expand(*x0.shape, -1), generator))


def over_sites(value: Tensor, ndim: int) -> Tensor:
    """A scalar or [B] tensor shaped to broadcast over a tensor of ``ndim`` axes whose first is B."""
    return value.reshape(value.shape + (1,) * (ndim - value.ndim)) if value.ndim else value


@runtime_checkable
class Noising(Protocol):
    """What noises each element by itself: q(x_t|x_0) = ᾱ_t δ(x_0, x_t) + (1-ᾱ_t) m(x_t)."""

    @property
    def schedule(self) -> Schedule:
        """ᾱ(t)."""
        ...

    @property
    def num_clean(self) -> int:
        """Classes of the data."""
        ...

    def initial(self) -> Float[Tensor, " state"]:
        """m."""
        ...


def chain_law(kernel: Kernel, grid: Float[Tensor, " point"]) -> Float[Tensor, "point clean state"]:
    """The law of x_t at every grid point of the chain that ``kernel`` runs for a known clean class c, float64.

    π_0(.|c) is the initial distribution and π_{k+1}(j|c) = Σ_z π_k(z|c) q(j | z, c) with the rows of :meth:`Kernel.table`. For a
    posterior or an interpolation this is q(x_t | x_0 = c); an Euler step whose rows are clamped or guided has another.

    Args:
        kernel: what makes the steps.
        grid: falling times from 1 to 0.
    """
    law = [kernel.initial().double().expand(kernel.num_clean, -1)]
    for t, s in zip(grid[:-1].tolist(), grid[1:].tolist(), strict=True):
        law.append(torch.einsum("cz,zck->ck", law[-1], kernel.table(t, s)))
    return torch.stack(law)


def noise_law(kernel: Noising, grid: Float[Tensor, " point"]) -> Float[Tensor, "point clean state"]:
    """q(x_t | x_0 = c) at every grid point, float64."""
    m = kernel.initial().double()
    kept = kernel.schedule.alpha_bar(grid)[:, None, None]
    return kept * torch.eye(len(m), dtype=torch.float64)[: kernel.num_clean] + (1 - kept) * m


def evidence(kernel: Noising, state: Int[Tensor, "batch ..."], t: Tensor) -> Float[Tensor, "batch *site clean"]:
    """log q(x_t|x_0=c) - log q(x_t|x_0≠x_t), which is log(1 + ᾱ_t / ((1-ᾱ_t) m(x_t))) for c = x_t and 0 for all others.

    By Bayes p(x_0^i = c | x_t) ∝ p(x_0^i = c | x_t without its site i) q(x_t^i | c): added to logits of the first factor this
    gives those of the whole. A network that has it need not learn how far a site can be trusted at each t, which matters near
    the data, where the chance of an error is far below what a logit is learned to. At most log 10^30.

    Args:
        kernel: the noise.
        state: x_t [B, ...].
        t: times [B] or a scalar.

    Returns:
        Logits to add [B, ..., C], float64.
    """
    bar = over_sites(kernel.schedule.alpha_bar(t), state.ndim)
    chance = ((1 - bar) * place(kernel.initial(), state.device)[state]).clamp_min(1e-30)
    gain = torch.log1p(bar / chance)
    clean = torch.arange(kernel.num_clean, device=state.device)
    return torch.where(state.unsqueeze(-1) == clean, gain.unsqueeze(-1), 0.0)


def uniform(num_classes: int, schedule: Schedule) -> D3PM:
    """D3PM that noises towards the uniform distribution, m = 1/K."""
    if num_classes < 1:
        raise ValueError(f"num_classes: {num_classes}, expected at least 1")
    return D3PM((1.0 / num_classes,) * num_classes, schedule, num_classes)


def marginal(probabilities: Sequence[float], schedule: Schedule) -> D3PM:
    """D3PM that noises towards the data's marginal (DiGress); classes of zero mass are allowed."""
    total = float(sum(probabilities))
    if total <= 0:
        raise ValueError(f"probabilities: sum {total}, expected more than 0")
    return D3PM(tuple(float(p) / total for p in probabilities), schedule, len(probabilities))


def absorbing(num_classes: int, schedule: Schedule) -> D3PM:
    """D3PM that noises into an extra mask class, number ``num_classes``, which the network never predicts."""
    if num_classes < 1:
        raise ValueError(f"num_classes: {num_classes}, expected at least 1")
    return D3PM((0.0,) * num_classes + (1.0,), schedule, num_classes)
