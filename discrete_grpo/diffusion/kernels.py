"""Kernels: how the network's prediction of the clean class becomes one reverse step, and the posterior of D3PM.

Notation as in the papers: z is the current class, k the next one and c a candidate clean class; ``t`` is the current time and
``s <= t`` the next, with t = 0 data and t = 1 noise. p̂ is the network's distribution over clean classes. Every kernel holds the
noise process that its network was trained with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from discrete_grpo.core.checks import check_range
from discrete_grpo.diffusion.noise import Noise, NoiseProcess, nest_noise

__all__ = ["D3PM", "Kernel", "chain_law", "check_times"]


@runtime_checkable
class Kernel(Protocol):
    """Interface of a reverse step: from a network that predicts clean classes to a sampler that needs transitions."""

    @property
    def noise(self) -> NoiseProcess:
        """The noise process that the step reverses."""
        ...

    def transition(
        self, p_clean: Float[Tensor, "batch *site clean"], state: Int[Tensor, "batch ..."], t: Tensor, s: Tensor
    ) -> Float[Tensor, "batch *site state"]:
        """p(x_s = k | x_t = z) = Σ_c p̂(c) q(k | z, c): normalised, in O(C) per site."""
        ...

    def table(self, t: float, s: float) -> Float[Tensor, "state clean state"]:
        """q(x_s = k | x_t = z, x_0 = c) as [z, c, k], float64: the brute-force oracle of ``transition``."""
        ...


@dataclass(frozen=True)
class D3PM:
    """Reverse step of categorical diffusion: the posterior q(x_s | x_t, x_0), averaged over p̂(x_0).

    With D_t(c,z) = q(x_t=z | x_0=c) = ᾱ_t δ(c,z) + (1-ᾱ_t) m(z) and α = ᾱ_t/ᾱ_s, Bayes' rule gives the posterior
    q(x_s=k | z, c) = [α δ(k,z) + (1-α) m(z)] [ᾱ_s δ(c,k) + (1-ᾱ_s) m(k)] / D_t(c,z).

    A clean class that cannot have led to z (D_t(c,z) = 0) is left out and the rest of p̂ renormalised. A state that no clean
    class with p̂ > 0 can have led to keeps its class.

    Source: Austin et al. (2021), arXiv 2107.03006; Vignac et al. (2022), Eq. 4-6, arXiv 2209.14734.

    Attributes:
        noise: m, ᾱ(t) and the number of clean classes.
    """

    noise: Noise

    upgrade_args = staticmethod(nest_noise)

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
        noise = self.noise
        bar_t, bar_s = (noise.kept(x, p_clean.ndim) for x in (t, s))
        alpha = torch.where(bar_s > bar_t, bar_t / bar_s, 1.0)  # for t = s no class changes, also at t = s = 1 (0/0)
        same = noise.one_hot(state, p_clean.dtype)
        m = noise.prior_on(p_clean.device, p_clean.dtype)
        m_z = m[state].unsqueeze(-1)
        d = (bar_t.to(p_clean) * same + (1 - bar_t).to(p_clean) * m_z)[..., : noise.num_clean]  # D_t(c, z), c along the last axis
        possible = d > 0
        w = torch.where(possible, p_clean / torch.where(possible, d, 1.0), 0.0)
        total = w.sum(-1, keepdim=True)
        forward = alpha.to(p_clean) * same + (1 - alpha).to(p_clean) * m_z
        weights = forward * (bar_s.to(p_clean) * noise.pad(w) + (1 - bar_s).to(p_clean) * m * total)
        mass = weights.sum(-1, keepdim=True)
        gone = mass == 0  # not of NaN, which stays
        return torch.where(gone, same, weights / torch.where(gone, 1.0, mass))

    def table(self, t: float, s: float) -> Float[Tensor, "state clean state"]:
        """The posterior q(x_s=k | z, c) as [z, c, k] from explicit [K, K] noise matrices, float64.

        A row is zero where D_t(c,z) = 0.

        Raises:
            ValueError: unless 0 <= s <= t <= 1.
        """
        check_times(t, s)
        states, clean = self.noise.num_states, self.noise.num_clean
        bar_t, bar_s = (float(self.noise.schedule.alpha_bar(torch.tensor(x, dtype=torch.float64))) for x in (t, s))
        m = self.noise.initial()
        eye = torch.eye(states, dtype=torch.float64)

        def q_of(keep: float) -> Tensor:
            return keep * eye + (1 - keep) * m.expand(states, -1)

        step, to_s, to_t = q_of(bar_t / bar_s if bar_s > bar_t else 1.0), q_of(bar_s), q_of(bar_t)
        joint = torch.einsum("ck,kz->zck", to_s[:clean], step)
        whole = to_t[:clean].T.unsqueeze(-1)
        return torch.where(whole > 0, joint / torch.where(whole > 0, whole, 1.0), 0.0)


def check_times(t: float, s: float) -> None:
    """Raise ValueError unless 0 <= s <= t <= 1."""
    check_range("t", t, least=0, most=1)
    check_range("s", s, least=0, most=t, note=" (t)")


def chain_law(kernel: Kernel, grid: Float[Tensor, " point"]) -> Float[Tensor, "point clean state"]:
    """Law of x_t at every grid point of the chain that ``kernel`` runs for a known clean class c, as [point, c, state], float64.

    π_0(.|c) is the initial law and π_{k+1}(j|c) = Σ_z π_k(z|c) q(j | z, c) with the rows of :meth:`Kernel.table`. For a
    posterior or an interpolation this is q(x_t | x_0 = c); an Euler step whose rows are clamped or guided has another law.

    Args:
        kernel: the reverse step.
        grid: falling times from 1 to 0.
    """
    law = [kernel.noise.initial().double().expand(kernel.noise.num_clean, -1)]
    for t, s in zip(grid[:-1].tolist(), grid[1:].tolist(), strict=True):
        law.append(torch.einsum("cz,zck->ck", law[-1], kernel.table(t, s)))
    return torch.stack(law)
