"""Kernels of discrete flow matching: a linear path from a prior to the data, and two exact reverse steps along it.

In this toolkit's time t = 0 is data; κ = ᾱ(t) is the share of the clean class, which is DeFoG's own time. The path is
p_t(z|c) = κ δ(z,c) + (1-κ) p_0(z) for any prior p_0, with zero-mass classes and a mask class allowed. A schedule that is not
linear is a time distortion. A step marginalises over the clean class analytically, p(k|z) = Σ_c p̂(c) W(k|z,c), where each
row W(.|z,c) is a distribution. The result is therefore always normalised, and equals the law of a sampler that first draws c.

Source: Qin et al. (2024), DeFoG, arXiv 2410.04263; Campbell et al. (2024), arXiv 2402.04997.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from discrete_grpo.core.checks import check_range
from discrete_grpo.core.precision import widen
from discrete_grpo.diffusion.kernels import check_times
from discrete_grpo.diffusion.noise import Noise, nest_noise

__all__ = ["FlowEuler", "FlowInterpolation", "check_rates"]

MOST_RATE = 1e5
"""Largest rate; a larger one comes from a class of almost no mass and is set to 0, as in DeFoG."""


@dataclass(frozen=True)
class FlowInterpolation:
    """Reverse step W(k|z,c) = (1-r) δ(k,z) + r δ(k,c), r = (κ_s - κ_t)/(1 - κ_t): no rates, no clamp, exact for any step.

    It carries p_t(.|c) to p_s(.|c). Averaged over c it is p(k|z) = (1-r) δ(k,z) + r p̂(k).

    Attributes:
        noise: p_0, κ = ᾱ(t) and the number of clean classes.
    """

    noise: Noise

    upgrade_args = staticmethod(nest_noise)

    def transition(
        self, p_clean: Float[Tensor, "batch *site clean"], state: Int[Tensor, "batch ..."], t: Tensor, s: Tensor
    ) -> Float[Tensor, "batch *site state"]:
        """p(k|z) = (1-r) δ(k,z) + r p̂(k)/Σp̂, in O(C) per site.

        Args:
            p_clean: p̂ [B, ..., num_clean], normalised here.
            state: z [B, ...].
            t: current times in [0, 1], a scalar or [B].
            s: next times, 0 <= s <= t.

        Returns:
            Probabilities [B, ..., num_states] in the dtype of ``p_clean``.
        """
        r = self._share(t, s, p_clean.ndim).to(p_clean)
        same = self.noise.one_hot(state, p_clean.dtype)
        clean = self.noise.pad(p_clean / p_clean.sum(-1, keepdim=True))
        return torch.lerp(same, clean, r.expand_as(same))

    def table(self, t: float, s: float) -> Float[Tensor, "state clean state"]:
        """W(k|z,c) as [z, c, k], float64.

        Raises:
            ValueError: unless 0 <= s <= t <= 1.
        """
        check_times(t, s)
        r = float(self._share(torch.tensor(t, dtype=torch.float64), torch.tensor(s, dtype=torch.float64), 0))
        eye = torch.eye(self.noise.num_states, dtype=torch.float64)
        return (1 - r) * eye[:, None, :] + r * eye[None, : self.noise.num_clean, :]

    def _share(self, t: Tensor, s: Tensor, ndim: int) -> Tensor:
        """r = (κ_s - κ_t)/(1 - κ_t), and 0 where κ_t = 1, shaped to broadcast over ``ndim`` axes."""
        now, later = (self.noise.kept(x, ndim) for x in (t, s))
        return torch.where(now < 1, (later - now) / torch.where(now < 1, 1 - now, 1.0), 0.0)


@dataclass(frozen=True)
class FlowEuler:
    """One Euler step of DeFoG's rates: each row given c is clamped and normalised, then the rows are averaged over p̂.

    For k ≠ z, with Z(c) the number of classes that have mass under p_t(.|c), and ∂p = δ(.,c) - p_0:
    R = ReLU(∂p(k) - ∂p(z)) / (Z p_t(z|c)) + η p_t(k|c) + ω δ(k,c) 1[c≠z] / (Z p_t(z|c)),
    and R = 0 where p_t(z|c) or p_t(k|c) is 0 (at κ = 0 their limit decides, so that a mask can be left in the first step).
    W(k|z,c) = R (κ_s - κ_t) and W(z|z,c) = max(0, 1 - Σ); a row that exceeds 1 is divided by its sum. The step that reaches
    κ = 1 is c itself.

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

    upgrade_args = staticmethod(nest_noise)

    def __post_init__(self) -> None:
        check_rates(self.eta, self.omega)

    def transition(
        self, p_clean: Float[Tensor, "batch *site clean"], state: Int[Tensor, "batch ..."], t: Tensor, s: Tensor
    ) -> Float[Tensor, "batch *site state"]:
        """p(k|z) = Σ_c p̂(c) W(k|z,c)/Σp̂, from one table per batch row.

        Args:
            p_clean: p̂ [B, ..., num_clean], normalised here.
            state: z [B, ...].
            t: current times in [0, 1], a scalar or [B].
            s: next times, 0 <= s <= t.

        Returns:
            Probabilities [B, ..., num_states] in the dtype of ``p_clean``.
        """
        batch = len(state)
        tables = self._tables(widen(t).expand(batch), widen(s).expand(batch)).to(p_clean)
        rows = tables[torch.arange(batch, device=state.device)[:, None], state.reshape(batch, -1)]  # [B, site, c, k]
        flat = p_clean.reshape(batch, -1, p_clean.shape[-1])
        # No matrix product: TF32 and autocast would round it, and the mixture would not sum to 1.
        mixed = (flat.unsqueeze(-1) * rows).sum(-2) / flat.sum(-1, keepdim=True)
        return mixed.view(*state.shape, self.noise.num_states)

    def table(self, t: float, s: float) -> Float[Tensor, "state clean state"]:
        """W(k|z,c) as [z, c, k], float64.

        Raises:
            ValueError: unless 0 <= s <= t <= 1.
        """
        check_times(t, s)
        return self._tables(torch.tensor([t], dtype=torch.float64), torch.tensor([s], dtype=torch.float64))[0]

    def _tables(self, t: Tensor, s: Tensor) -> Float[Tensor, "batch state clean state"]:
        now, later = (self.noise.kept(x, 4) for x in (t, s))
        p0 = self.noise.prior_on(now.device, now.dtype)
        eye = torch.eye(self.noise.num_states, dtype=now.dtype, device=now.device)
        target = eye[: self.noise.num_clean]  # δ(., c), [c, k]
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
        check_range(name, value, least=0)
