"""Noise schedules ᾱ(t): the share of the clean signal left at time t, with t = 0 data and t = 1 noise.

A schedule is one function that falls from exactly 1 at t = 0 to exactly 0 at t = 1 (:class:`DigressSchedule` alone starts just
below 1). The noise of a step, α_{t|s} = ᾱ(t) / ᾱ(s), follows from it for any number of steps and any grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from discrete_grpo.core.checks import MOST_STEPS, check_range, check_whole
from discrete_grpo.core.precision import constant, widen

__all__ = [
    "CosDistortion",
    "CosineSchedule",
    "DigressSchedule",
    "DistortedSchedule",
    "LinearSchedule",
    "PolydecDistortion",
    "PolyincDistortion",
    "RevcosDistortion",
    "Schedule",
    "SquaredSchedule",
    "grid_on",
    "time_grid",
]


@runtime_checkable
class Schedule(Protocol):
    """Interface of a noise schedule ᾱ(t) on [0, 1]."""

    def alpha_bar(self, t: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """ᾱ(t), elementwise: the share of the clean signal left at time t, in [0, 1], float64."""
        ...


@dataclass(frozen=True)
class CosineSchedule:
    """Cosine schedule ᾱ(t) = g(t)/g(0), g(t) = cos²(π/2 · (t^ν + o)/(1 + o)).

    Source: Nichol & Dhariwal (2021), Eq. 17, arXiv 2102.09672; used by DiGress (arXiv 2209.14734); the exponent: Vignac et al.
    (2023), MiDi, section 3.1, arXiv 2302.09048.

    Attributes:
        offset: o, in [0, 1).
        exponent: ν, more than 0; above 1 a field loses its information later, below 1 earlier.

    >>> CosineSchedule().alpha_bar(torch.tensor([0.0, 0.5, 1.0])).tolist()
    [1.0, 0.4938..., 0.0]
    """

    offset: float = 0.008
    exponent: float = 1.0

    def __post_init__(self) -> None:
        check_range("offset", self.offset, least=0, below=1)
        check_range("exponent", self.exponent, above=0)

    def alpha_bar(self, t: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """ᾱ(t), elementwise: the share of the clean signal left at time t, in [0, 1], float64."""
        t = widen(t)
        angle = math.pi / 2 * (t.clamp_min(0) ** self.exponent + self.offset) / (1 + self.offset)
        value = torch.cos(angle) ** 2 / math.cos(math.pi / 2 * self.offset / (1 + self.offset)) ** 2
        return torch.where(t <= 0, 1.0, torch.where(t >= 1, 0.0, value))


@dataclass(frozen=True)
class LinearSchedule:
    """Linear schedule ᾱ(t) = 1 - t, the mutual-information schedule of absorbing diffusion.

    Source: Austin et al. (2021), section 3.3, arXiv 2107.03006.

    >>> LinearSchedule().alpha_bar(torch.tensor([0.0, 0.25, 1.0])).tolist()
    [1.0, 0.75, 0.0]
    """

    def alpha_bar(self, t: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """ᾱ(t), elementwise: the share of the clean signal left at time t, in [0, 1], float64."""
        return (1.0 - widen(t)).clamp(0.0, 1.0)


@dataclass(frozen=True)
class CosDistortion:
    """Time distortion ``cos`` as a schedule, ᾱ(t) = (1 - cos π(1-t))/2, with small steps at both ends.

    Source of the four time distortions f, written here as ᾱ(t) = f(1 - t): Qin et al. (2024), DeFoG, arXiv 2410.04263.

    >>> CosDistortion().alpha_bar(torch.tensor([0.0, 0.5, 1.0]))
    tensor([1.0000, 0.5000, 0.0000], dtype=torch.float64)
    """

    def alpha_bar(self, t: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """ᾱ(t), elementwise: the share of the clean signal left at time t, in [0, 1], float64."""
        return (1 - torch.cos(math.pi * _clean_time(t))) / 2


@dataclass(frozen=True)
class RevcosDistortion:
    """Time distortion ``revcos`` as a schedule, ᾱ(t) = 2u - (1 - cos πu)/2 with u = 1 - t, with large steps at both ends."""

    def alpha_bar(self, t: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """ᾱ(t), elementwise: the share of the clean signal left at time t, in [0, 1], float64."""
        u = _clean_time(t)
        return 2 * u - (1 - torch.cos(math.pi * u)) / 2


@dataclass(frozen=True)
class PolyincDistortion:
    """Time distortion ``polyinc`` as a schedule, ᾱ(t) = (1-t)², with steps that grow towards the data."""

    def alpha_bar(self, t: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """ᾱ(t), elementwise: the share of the clean signal left at time t, in [0, 1], float64."""
        return _clean_time(t) ** 2


@dataclass(frozen=True)
class PolydecDistortion:
    """Time distortion ``polydec`` as a schedule, ᾱ(t) = 2u - u² with u = 1 - t, with steps that shrink towards the data."""

    def alpha_bar(self, t: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """ᾱ(t), elementwise: the share of the clean signal left at time t, in [0, 1], float64."""
        u = _clean_time(t)
        return 2 * u - u**2


def _clean_time(t: Tensor) -> Tensor:
    """DeFoG's time u = 1 - t in [0, 1], in the widest type of the device."""
    return (1.0 - widen(t)).clamp(0.0, 1.0)


@dataclass(frozen=True)
class DistortedSchedule:
    """Schedule whose time runs as a distortion f says, ᾱ(t) = ᾱ_0(1 - f(t)), for training and sampling alike.

    Attributes:
        schedule: ᾱ_0.
        distortion: f, a time distortion as a schedule, such as :class:`PolydecDistortion`.

    >>> DistortedSchedule(LinearSchedule(), PolyincDistortion()).alpha_bar(torch.tensor([0.0, 0.5, 1.0])).tolist()
    [1.0, 0.25, 0.0]
    """

    schedule: Schedule
    distortion: Schedule

    def alpha_bar(self, t: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """ᾱ(t), elementwise: the share of the clean signal left at time t, in [0, 1], float64."""
        return self.schedule.alpha_bar(1 - self.distortion.alpha_bar(t))


def time_grid(num_steps: int) -> Float[Tensor, " point"]:
    """Times of the T + 1 states of a sampler of T steps, 1, (T-1)/T, ..., 1/T, 0, as [T + 1], float64.

    Args:
        num_steps: T, 1 to 10,000.

    >>> time_grid(4).tolist()
    [1.0, 0.75, 0.5, 0.25, 0.0]
    """
    check_whole("num_steps", num_steps, least=1, most=MOST_STEPS)
    return torch.arange(num_steps, -1, -1, dtype=torch.float64) / num_steps


def grid_on(grid: Float[Tensor, " point"], device: torch.device) -> Float[Tensor, " point"]:
    """Times of a sampler on a device, in its widest type; they are copied to it once and must not be changed in place."""
    return grid if grid.device == device else constant(tuple(grid.tolist()), device)


@dataclass(frozen=True)
class DigressSchedule:
    """Schedule of DiGress's T + 1 discrete steps, ᾱ(i/T) = g(u_{i+1})/g(0), with g as in :class:`CosineSchedule`.

    It is the product of α_i = g(u_{i+1})/g(u_i), u_i = (i/(T+1))^ν, and keeps the off-by-one of DiGress's code. A time between two
    steps is rounded to the nearer one. At t = 0 its value is ᾱ_0 and not 1 (0.99991 at T = 500), so the last draw keeps a trace
    of noise. At t = 1 its value is 0, where DiGress has 1e-9 in one place and 0 in another.

    Source: Vignac et al. (2022), arXiv 2209.14734, and its code; the exponent: Vignac et al. (2023), MiDi, arXiv 2302.09048.

    Attributes:
        steps: T of the training, at least 1.
        offset: offset o of the cosine, in [0, 1).
        exponent: ν, more than 0; MiDi has its own per field, and 1 in DiGress. The larger, the later the signal is lost.

    >>> DigressSchedule(4).alpha_bar(torch.tensor([0.0, 0.5, 1.0]))
    tensor([0.8987, 0.3408, 0.0000], dtype=torch.float64)
    """

    steps: int
    offset: float = 0.008
    exponent: float = 1.0

    def __post_init__(self) -> None:
        check_whole("steps", self.steps, least=1)
        check_range("offset", self.offset, least=0, below=1)
        check_range("exponent", self.exponent, above=0)

    def alpha_bar(self, t: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """ᾱ(t), elementwise: the share of the clean signal left at time t, in [0, 1], float64."""
        step = torch.round(widen(t).clamp(0.0, 1.0) * self.steps)
        return CosineSchedule(self.offset).alpha_bar(((step + 1) / (self.steps + 1)) ** self.exponent)


@dataclass(frozen=True)
class SquaredSchedule:
    """Schedule ᾱ(t)² of another schedule ᾱ(t).

    A Gaussian process scales clean positions by the square root of its schedule. MiDi scales them by ᾱ(t) itself, so its
    positions have the square of its cosine schedule.

    Source: Vignac et al. (2023), section 3.1, arXiv 2302.09048.

    Attributes:
        schedule: ᾱ(t).

    >>> SquaredSchedule(LinearSchedule()).alpha_bar(torch.tensor([0.0, 0.5, 1.0])).tolist()
    [1.0, 0.25, 0.0]
    """

    schedule: Schedule

    def alpha_bar(self, t: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """ᾱ(t)², elementwise: the share of the variance of the clean signal left at time t, in [0, 1], float64."""
        return self.schedule.alpha_bar(t).square()
