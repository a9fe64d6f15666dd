"""Gaussian diffusion of positions in the subspace of zero mean: noise, reverse step and its exact law.

Notation as in the papers: x_0 are clean positions, x_t = sqrt(ᾱ_t) x_0 + sqrt(1 - ᾱ_t) ε with ε standard normal of zero mean over
the nodes, t = 0 data and t = 1 noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from discrete_grpo.core.checks import check_range
from discrete_grpo.core.gaussian import normal
from discrete_grpo.core.precision import place
from discrete_grpo.diffusion.schedules import Schedule

__all__ = ["GaussianDiffusion"]


@dataclass(frozen=True)
class GaussianDiffusion:
    """Variance-preserving noise of positions and the reverse step of a network that predicts x_0.

    p(x_s | x_t) = N(c_t x_t + c_0 x̂_0, σ²) with β = 1 - ᾱ_t/ᾱ_s, c_t = sqrt(ᾱ_t/ᾱ_s) (1-ᾱ_s)/(1-ᾱ_t),
    c_0 = sqrt(ᾱ_s) β/(1-ᾱ_t), and σ² between β̃ = β (1-ᾱ_s)/(1-ᾱ_t), the variance of q(x_s | x_t, x_0), and β:
    log σ² = (1-v) log β̃ + v log β.

    σ is never less than ``min_std``, so that the last step, whose β̃ is 0, has a density.

    Source: Ho et al. (2020), Eq. 6-7, arXiv 2006.11239; v: Nichol and Dhariwal (2021), Eq. 15, arXiv 2102.09672; the subspace of
    zero mean: Xu et al. (2022), arXiv 2203.02923.

    Attributes:
        schedule: ᾱ(t).
        min_std: least σ, in the units of the positions, more than 0.

    Raises:
        ValueError: if ``min_std`` is not more than 0.
    """

    schedule: Schedule
    min_std: float = 0.01

    def __post_init__(self) -> None:
        check_range("min_std", self.min_std, above=0)

    def initial(
        self, mask: Bool[Tensor, "batch node"], generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "batch node 3"]:
        """Draw x_1: standard normal of zero mean over the nodes; 0 at padding."""
        still = torch.zeros(*mask.shape, 3, device=mask.device, dtype=dtype)
        return normal(still, still[..., 0] + 1, mask, generator, zero_mean=True)

    def sample(
        self,
        clean: Float[Tensor, "batch node 3"],
        t: Float[Tensor, " batch"],
        mask: Bool[Tensor, "batch node"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "batch node 3"]:
        """Draw x_t from q(x_t | x_0) = N(sqrt(ᾱ_t) x_0, (1-ᾱ_t)) on the subspace; ``clean`` has zero mean."""
        kept = place(self.schedule.alpha_bar(t), clean.device)[:, None]
        std = (1 - kept).sqrt().to(clean).expand(mask.shape)
        return normal(kept.sqrt().to(clean).unsqueeze(-1) * clean, std, mask, generator, zero_mean=True)

    def step(
        self,
        clean: Float[Tensor, "batch node 3"],
        state: Float[Tensor, "batch node 3"],
        t: Float[Tensor, " batch"],
        s: Float[Tensor, " batch"],
        interpolation: Float[Tensor, " batch"] | float = 0.0,
    ) -> tuple[Float[Tensor, "batch node 3"], Float[Tensor, " batch"]]:
        """Mean and deviation of p(x_s | x_t).

        Args:
            clean: x̂_0, of zero mean.
            state: x_t.
            t: current times in [0, 1].
            s: next times, 0 <= s < t.
            interpolation: v in [0, 1], one number or one per graph.
        """
        bar_t, bar_s = (self.schedule.alpha_bar(x) for x in (t, s))
        alpha = torch.where(bar_s > bar_t, bar_t / bar_s, 1.0)  # as in D3PM: 0/0 where a schedule rounds s to t = 1
        beta = 1 - alpha
        c_t, c_0 = alpha.sqrt() * (1 - bar_s) / (1 - bar_t), bar_s.sqrt() * beta / (1 - bar_t)
        least = torch.full_like(beta, self.min_std).square()
        narrow, wide = torch.maximum(beta * (1 - bar_s) / (1 - bar_t), least), torch.maximum(beta, least)
        v = interpolation.to(state) if isinstance(interpolation, Tensor) else narrow.new_full((), interpolation).to(state)
        narrow, wide, c_t, c_0 = (place(x, state.device).to(state) for x in (narrow, wide, c_t, c_0))
        std = torch.exp(0.5 * torch.lerp(narrow.log(), wide.log(), v.expand_as(narrow)))
        return c_t[:, None, None] * state + c_0[:, None, None] * clean, std
