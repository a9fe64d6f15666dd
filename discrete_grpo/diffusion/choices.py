"""Noises, kernels, schedules and time distortions by the names that recipes and the command line use.

A network learns p̂(x_0 | x_t), which depends on the noise alone. One network can therefore be sampled with every kind of
reverse step of its noise: the posterior of D3PM, the interpolation of flow matching, or an Euler step of its rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from discrete_grpo.diffusion.flow import FlowEuler, FlowInterpolation
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import Noise, absorbing, marginal, uniform
from discrete_grpo.diffusion.schedules import (
    CosDistortion,
    CosineSchedule,
    LinearSchedule,
    PolydecDistortion,
    PolyincDistortion,
    RevcosDistortion,
    Schedule,
)

__all__ = [
    "Distortion",
    "GraphKernel",
    "KernelName",
    "NoiseName",
    "ScheduleName",
    "kernel_name",
    "make_distortion",
    "make_kernel",
    "make_noise",
    "make_schedule",
]

GraphKernel = D3PM | FlowInterpolation | FlowEuler
NoiseName = Literal["uniform", "marginal", "absorbing"]
KernelName = Literal["d3pm", "flow", "flow_euler"]
ScheduleName = Literal["cosine", "linear"]
Distortion = Literal["identity", "cos", "revcos", "polyinc", "polydec"]


def make_noise(name: NoiseName, shares: Sequence[float], schedule: Schedule) -> Noise:
    """Noise over the classes of a training set.

    Args:
        name: ``uniform``, ``marginal`` (towards ``shares``) or ``absorbing`` (into a mask class: masked diffusion).
        shares: one share of the training set per class.
        schedule: ᾱ(t).

    Raises:
        ValueError: for an unknown name.
    """
    _known("noise", name, get_args(NoiseName))
    if name == "marginal":
        return marginal(shares, schedule)
    return (uniform if name == "uniform" else absorbing)(len(shares), schedule)


def kernel_name(kernel: GraphKernel) -> KernelName:
    """Name of a kernel's kind, as :func:`make_kernel` takes it."""
    names: dict[type, KernelName] = {FlowInterpolation: "flow", FlowEuler: "flow_euler"}
    return names.get(type(kernel), "d3pm")


def make_kernel(name: KernelName, noise: Noise, *, eta: float = 0.0, omega: float = 0.0) -> GraphKernel:
    """Reverse step of a noise.

    Args:
        name: ``d3pm`` (the posterior, averaged over p̂), ``flow`` (interpolation, no clamp) or ``flow_euler`` (DeFoG's clamped
            Euler rows, averaged over p̂).
        noise: the noise that the network was trained with.
        eta: stochasticity of ``flow_euler``, at least 0.
        omega: target guidance of ``flow_euler``, at least 0.

    Raises:
        ValueError: for an unknown name, a rate out of its range, or a rate of a kind that has none.
    """
    _known("kernel", name, get_args(KernelName))
    if name == "flow_euler":
        return FlowEuler(noise, eta, omega)
    for option, value in (("eta", eta), ("omega", omega)):
        if value:
            raise ValueError(f"{option}: {value}, expected 0 with kernel {name}; it belongs to flow_euler")
    return D3PM(noise) if name == "d3pm" else FlowInterpolation(noise)


def make_schedule(name: ScheduleName) -> Schedule:
    """Noise schedule ᾱ(t) by name.

    Raises:
        ValueError: for an unknown name.
    """
    _known("schedule", name, get_args(ScheduleName))
    return CosineSchedule() if name == "cosine" else LinearSchedule()


def make_distortion(name: Distortion, argument: str = "distortion") -> Schedule | None:
    """Time distortion by DeFoG's name; None for ``identity``. Errors call it ``argument``.

    Raises:
        ValueError: for an unknown name.
    """
    _known(argument, name, get_args(Distortion))
    made: dict[str, Schedule] = {
        "cos": CosDistortion(),
        "revcos": RevcosDistortion(),
        "polyinc": PolyincDistortion(),
        "polydec": PolydecDistortion(),
    }
    return made.get(name)


def _known(argument: str, name: str, known: Sequence[str]) -> None:
    """Raise ValueError unless ``name`` is among ``known``."""
    if name not in known:
        raise ValueError(f"{argument}: {name!r}, expected one of {', '.join(known)}")
