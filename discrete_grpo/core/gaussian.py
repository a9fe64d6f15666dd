"""Isotropic Gaussians as sites of a step: exact log-density, entropy and KL, also on the subspace of zero mean.

A site is a point in D dimensions, such as the position of an atom. N points of a molecule in the subspace of zero mean have
D (N - 1) dimensions together; each of them then counts as D (N - 1) / N, so that the sum over the molecule is the log-density with
respect to the Lebesgue measure of the subspace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from discrete_grpo.core.categorical import Scores

__all__ = ["GaussianSites", "gaussian_entropy", "gaussian_kl", "log_density", "normal", "shifted"]


@dataclass(frozen=True)
class GaussianSites:
    """The Gaussians N(μ, σ² I) of some steps, and the points drawn from them.

    Attributes:
        mean: μ [B, S, U, D].
        std: σ [B, S, U], more than 0.
        action: the point drawn at every site [B, S, U, D].
        mask: True where the site exists and the policy chose it [B, S, U]; whatever the other fields hold elsewhere does not count.
        dimension: d [B, S, U], the number of dimensions of each site; None means D. For zero-mean points it is D (N - 1) / N.
        name: name of this kind of site, as in :class:`~discrete_grpo.core.categorical.Sites`.

    Raises:
        ValueError: for other shapes or dtypes.
    """

    mean: Float[Tensor, "batch step site coordinate"]
    std: Float[Tensor, "batch step site"]
    action: Float[Tensor, "batch step site coordinate"]
    mask: Bool[Tensor, "batch step site"]
    dimension: Float[Tensor, "batch step site"] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        """Check the shapes and dtypes."""
        shape = tuple(self.mean.shape)
        if len(shape) != 4:
            raise ValueError(f"mean: shape {shape}, expected [B, S, U, D]")
        wanted = {"std": shape[:3], "action": shape, "mask": shape[:3], "dimension": shape[:3]}
        for name, expected in wanted.items():
            tensor = getattr(self, name)
            if tensor is not None and tuple(tensor.shape) != expected:
                raise ValueError(f"{name}: shape {tuple(tensor.shape)}, expected {expected}, as mean is {shape}")
        if self.mask.dtype != torch.bool:
            raise ValueError(f"mask: dtype {self.mask.dtype}, expected torch.bool, True where a site counts")
        if not self.action.is_floating_point():
            raise ValueError(f"action: dtype {self.action.dtype}, expected a floating-point dtype")

    @property
    def shape(self) -> tuple[int, ...]:
        """[B, S, U, D]."""
        return tuple(self.mean.shape)

    def score(self, reference: GaussianSites | None = None, *, forward_gradient: bool = False) -> Scores:
        """Log-density, entropy and exact KL of every site; 0 where the mask is False."""
        mean, std, action, d = self._filled()
        logp = torch.where(self.mask, log_density(action, mean, std, d), 0.0)
        spread = self.entropy().detach()
        if reference is None:
            return Scores(logp, spread, self.mask)
        other, width, _, _ = reference._filled(self.mask)
        other, width = other.detach(), width.detach()
        kl = torch.where(self.mask, gaussian_kl(mean, std, other, width, d), 0.0)
        with torch.set_grad_enabled(forward_gradient and torch.is_grad_enabled()):
            forward = torch.where(self.mask, gaussian_kl(other, width, mean, std, d), 0.0)
        return Scores(logp, spread, self.mask, kl, forward)

    def entropy(self) -> Float[Tensor, "batch step site"]:
        """H(π_θ) of every site in nats, differentiable; 0 where the mask is False."""
        _, std, _, d = self._filled()
        return torch.where(self.mask, gaussian_entropy(std, d), 0.0)

    def _filled(self, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """μ, σ, x and d with 0, 1, 0 and 0 at masked sites, so that nothing there reaches a value or a gradient."""
        on = self.mask if mask is None else mask
        wide = on.unsqueeze(-1)
        d = torch.full_like(self.std, float(self.mean.shape[-1])) if self.dimension is None else self.dimension
        points = (torch.where(wide, x, 0.0) for x in (self.mean, self.action))
        mean, action = points
        return mean, torch.where(on, self.std, 1.0), action, torch.where(on, d.to(self.std), 0.0)


def log_density(
    x: Float[Tensor, "*any coordinate"],
    mean: Float[Tensor, "*any coordinate"],
    std: Float[Tensor, "*any"],
    dimension: Float[Tensor, "*any"] | float,
) -> Float[Tensor, "*any"]:
    """log N(x; μ, σ² I) = -|x - μ|² / (2 σ²) - (d/2) log(2 π σ²).

    >>> float(log_density(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor(1.0), 1.0))  # doctest: +ELLIPSIS
    -1.4189...
    """
    return -((x - mean).square().sum(-1)) / (2 * std.square()) - dimension * (std.log() + 0.5 * math.log(2 * math.pi))


def gaussian_entropy(std: Float[Tensor, "*any"], dimension: Float[Tensor, "*any"] | float) -> Float[Tensor, "*any"]:
    """H = (d/2) log(2 π e σ²) in nats; it is negative for a small σ."""
    return dimension * (std.log() + 0.5 * math.log(2 * math.pi * math.e))


def gaussian_kl(
    mean: Float[Tensor, "*any coordinate"],
    std: Float[Tensor, "*any"],
    other_mean: Float[Tensor, "*any coordinate"],
    other_std: Float[Tensor, "*any"],
    dimension: Float[Tensor, "*any"] | float,
) -> Float[Tensor, "*any"]:
    """KL(N(μ, σ² I) ‖ N(μ', σ'² I)) = |μ - μ'|² / (2 σ'²) + d [log(σ'/σ) + (σ²/σ'² - 1) / 2] in nats.

    >>> one = torch.ones(())
    >>> float(gaussian_kl(torch.tensor([1.0, 0.0]), one, torch.tensor([0.0, 0.0]), one, 2.0))
    0.5
    """
    distance = (mean - other_mean).square().sum(-1) / (2 * other_std.square())
    return distance + dimension * (other_std.log() - std.log() + ((std / other_std).square() - 1) / 2)


def normal(
    mean: Float[Tensor, "*any node 3"],
    std: Float[Tensor, "*any node"],
    mask: Bool[Tensor, "*any node"],
    generator: torch.Generator | None = None,
    *,
    zero_mean: bool = False,
) -> Float[Tensor, "*any node 3"]:
    """Draw x = μ + σ ε at the sites of the mask, 0 elsewhere.

    With ``zero_mean`` ε is projected to the subspace of zero mean over the sites, which draws from the Gaussian on that subspace if
    σ is the same at all sites of a molecule and μ lies in it.
    """
    noise = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
    return shifted(mean, std, mask, noise, zero_mean=zero_mean)


def shifted(
    mean: Float[Tensor, "*any node 3"],
    std: Float[Tensor, "*any node"],
    mask: Bool[Tensor, "*any node"],
    noise: Float[Tensor, "*any node 3"],
    *,
    zero_mean: bool = False,
) -> Float[Tensor, "*any node 3"]:
    """x = μ + σ ε of :func:`normal`, for given standard normal numbers ε.

    >>> noise = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    >>> shifted(torch.zeros(2, 3), torch.ones(2), torch.tensor([True, True]), noise, zero_mean=True).tolist()
    [[-1.0, 0.0, 1.0], [1.0, 0.0, -1.0]]
    """
    wide = mask.unsqueeze(-1)
    if zero_mean:
        count = wide.sum(-2, keepdim=True).clamp_min(1)
        noise = noise - torch.where(wide, noise, 0.0).sum(-2, keepdim=True) / count
    return torch.where(wide, mean + std.unsqueeze(-1) * noise, 0.0)
