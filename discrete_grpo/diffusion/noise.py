"""Noise processes q(x_t | x_0): the value that every reverse step and every training loss of one network share.

Notation as in the papers: t = 0 is data and t = 1 is noise, c is a clean class, z a noisy one, ᾱ(t) the share of the clean
signal left at time t, and m the prior, the law of x_1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from discrete_grpo.core.categorical import sample
from discrete_grpo.core.checks import check_range, check_whole
from discrete_grpo.core.precision import constant
from discrete_grpo.diffusion.schedules import Schedule

__all__ = ["Noise", "NoiseProcess", "absorbing", "marginal", "nest_noise", "uniform"]


@runtime_checkable
class NoiseProcess(Protocol):
    """Interface of a noise process that acts on each site by itself: what a policy and its training loss need of it."""

    @property
    def num_clean(self) -> int:
        """Number of classes of the data, which the network predicts."""
        ...

    @property
    def num_states(self) -> int:
        """Number of classes of a noisy site: those of the data, and a mask class where there is one."""
        ...

    def initial(self) -> Float[Tensor, " state"]:
        """Law of x_t at t = 1."""
        ...

    def sample(self, x0: Int[Tensor, "batch ..."], t: Tensor, generator: torch.Generator | None = None) -> Int[Tensor, "batch ..."]:
        """Draw x_t from q(x_t | x_0)."""
        ...


@dataclass(frozen=True)
class Noise:
    """Rank-one noise q(x_t=z | x_0=c) = ᾱ(t) δ(c,z) + (1-ᾱ(t)) m(z), which keeps a class or draws it anew from the prior.

    It is the forward process of D3PM with Q_t = α_t I + (1-α_t) 1 mᵀ, and, with κ = ᾱ(t) and p_0 = m, the linear path of
    discrete flow matching. A network learns p̂(x_0 | x_t) for one noise, and any reverse step of that noise can use it.

    Source: Austin et al. (2021), arXiv 2107.03006; Campbell et al. (2024), arXiv 2402.04997.

    Attributes:
        prior: m, one probability per state. The states from number ``num_clean`` on (a mask class) never occur in the data.
        schedule: ᾱ(t).
        num_clean: number of leading classes that the data can have, from 1 to ``len(prior)``.

    Raises:
        ValueError: if ``prior`` is not a distribution, or ``num_clean`` is out of its range.

    >>> from discrete_grpo.diffusion.schedules import LinearSchedule
    >>> Noise((0.0, 0.0, 1.0), LinearSchedule(), num_clean=2).law(torch.tensor([0.25]))
    tensor([[[0.7500, 0.0000, 0.2500],
             [0.0000, 0.7500, 0.2500]]], dtype=torch.float64)
    """

    prior: tuple[float, ...]
    schedule: Schedule
    num_clean: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "prior", tuple(float(p) for p in self.prior))
        prior, num_clean = self.prior, self.num_clean
        if not prior or min(prior) < 0 or not abs(sum(prior) - 1.0) <= 1e-6:  # "not <=": NaN fails too
            raise ValueError(f"prior: {prior}, expected probabilities >= 0 that sum to 1")
        check_whole("num_clean", num_clean, least=1, most=len(prior), note=" (the number of states)")

    @property
    def num_states(self) -> int:
        """Number of classes of a noisy site."""
        return len(self.prior)

    def initial(self) -> Float[Tensor, " state"]:
        """Law of x_t at t = 1, which is m since ᾱ(1) = 0; float64."""
        return torch.tensor(self.prior, dtype=torch.float64)

    def prior_on(self, device: torch.device, dtype: torch.dtype | None = None) -> Float[Tensor, " state"]:
        """m on a device, in its widest type if none is given: a constant that is copied there once."""
        return constant(self.prior, device, dtype)

    def sample(self, x0: Int[Tensor, "batch ..."], t: Tensor, generator: torch.Generator | None = None) -> Int[Tensor, "batch ..."]:
        """Draw x_t from q(x_t | x_0): x_0 with probability ᾱ(t), else a class of m.

        Args:
            x0: clean classes [B, ...], in [0, num_clean).
            t: times in [0, 1], a scalar or [B].
            generator: source of the random numbers.

        Returns:
            Noisy classes [B, ...], in [0, num_states).
        """
        kept = self.kept(t, x0.ndim).to(x0.device, torch.float32)
        stays = torch.rand(x0.shape, generator=generator, device=x0.device) < kept
        m = self.prior_on(x0.device, torch.float32)
        return torch.where(stays, x0, sample(m.expand(*x0.shape, -1), generator))

    def law(self, grid: Float[Tensor, " point"]) -> Float[Tensor, "point clean state"]:
        """q(x_t = z | x_0 = c) at the times ``grid`` as [point, c, z], float64."""
        m = self.initial().double()
        kept = self.schedule.alpha_bar(grid)[:, None, None]
        return kept * torch.eye(len(m), dtype=torch.float64)[: self.num_clean] + (1 - kept) * m

    def evidence(self, state: Int[Tensor, "batch ..."], t: Tensor) -> Float[Tensor, "batch *site clean"]:
        """log q(x_t|x_0=c) - log q(x_t|x_0≠x_t), which is log(1 + ᾱ_t / ((1-ᾱ_t) m(x_t))) for c = x_t and 0 for all others.

        By Bayes' rule p(x_0^i = c | x_t) ∝ p(x_0^i = c | x_t without its site i) q(x_t^i | c). These values, added to logits of
        the first factor, give logits of the left side. A network whose logits get them need not learn how reliable a site is
        at each t, which matters near the data, where an error is rarer than a logit learns to express. At most log 10^30.

        Args:
            state: x_t [B, ...].
            t: times in [0, 1], a scalar or [B].

        Returns:
            Values to add to logits [B, ..., num_clean], float64.
        """
        bar = self.kept(t, state.ndim)
        chance = ((1 - bar) * self.prior_on(state.device)[state]).clamp_min(1e-30)
        gain = torch.log1p(bar / chance)
        clean = torch.arange(self.num_clean, device=state.device)
        return torch.where(state.unsqueeze(-1) == clean, gain.unsqueeze(-1), 0.0)

    # -- what reverse steps compute with

    def kept(self, t: Tensor, ndim: int) -> Tensor:
        """ᾱ(t) of times that are a scalar or [B], shaped to broadcast over a tensor of ``ndim`` axes whose first is B."""
        bar = self.schedule.alpha_bar(t)
        return bar.reshape(bar.shape + (1,) * (ndim - bar.ndim)) if bar.ndim else bar

    def one_hot(self, state: Int[Tensor, "batch ..."], dtype: torch.dtype) -> Float[Tensor, "batch *site state"]:
        """δ(k, z) of the classes z = ``state``, over all states k."""
        return torch.nn.functional.one_hot(state, self.num_states).to(dtype)

    def pad(self, values: Float[Tensor, "batch *site clean"]) -> Float[Tensor, "batch *site state"]:
        """Extend values over clean classes to all states, with 0 for the states that the data cannot have."""
        return torch.nn.functional.pad(values, (0, self.num_states - self.num_clean))


def uniform(num_classes: int, schedule: Schedule) -> Noise:
    """Noise towards the uniform distribution, m = 1/K.

    Args:
        num_classes: K, at least 1.
        schedule: ᾱ(t).
    """
    check_whole("num_classes", num_classes, least=1)
    return Noise((1.0 / num_classes,) * num_classes, schedule, num_classes)


def marginal(probabilities: Sequence[float], schedule: Schedule) -> Noise:
    """Noise towards the marginal distribution of the data (DiGress).

    Args:
        probabilities: one weight per class, normalised here; a class may have weight 0.
        schedule: ᾱ(t).
    """
    total = float(sum(probabilities))
    check_range("sum of probabilities", total, above=0)
    return Noise(tuple(float(p) / total for p in probabilities), schedule, len(probabilities))


def absorbing(num_classes: int, schedule: Schedule) -> Noise:
    """Noise into an extra mask class, number ``num_classes``, which the network never predicts (masked diffusion).

    Args:
        num_classes: number of classes of the data, at least 1.
        schedule: ᾱ(t).
    """
    check_whole("num_classes", num_classes, least=1)
    return Noise((0.0,) * num_classes + (1.0,), schedule, num_classes)


def nest_noise(args: dict[str, Any]) -> dict[str, Any]:
    """Constructor arguments of a kernel as a checkpoint stores them now, with ``noise`` as one value.

    Checkpoints of format 1 may hold ``prior``, ``schedule`` and ``num_clean`` as arguments of the kernel itself. The result is a
    new mapping; arguments that have ``noise`` already are returned as they are.

    >>> sorted(nest_noise({"prior": [1.0], "schedule": {}, "num_clean": 1, "eta": 2.0}))
    ['eta', 'noise']
    """
    if "noise" in args:
        return args
    own = {name: args[name] for name in ("prior", "schedule", "num_clean") if name in args}
    noise = {"class_path": f"{Noise.__module__}.{Noise.__qualname__}", "init_args": own}
    return {"noise": noise} | {name: value for name, value in args.items() if name not in own}
