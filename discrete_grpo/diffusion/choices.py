"""The kernels a recipe can name: what is noised towards, and how a reverse step is drawn.

A network learns p̂(x_0 | x_t), which depends on the noise and the schedule alone. So one network can be driven by every kind of
reverse step of its noise: D3PM's posterior, flow matching's interpolation, its Euler step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from discrete_grpo.diffusion.flow import FlowEuler, FlowInterpolation
from discrete_grpo.diffusion.kernels import D3PM, absorbing, marginal, uniform
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
    "Noise",
    "ScheduleName",
    "distortion",
    "kernel",
    "kernel_name",
    "noise_kernel",
    "schedule",
]

GraphKernel = D3PM | FlowInterpolation | FlowEuler
Noise = Literal["uniform", "marginal", "absorbing"]
KernelName = Literal["d3pm", "flow", "flow_euler"]
ScheduleName = Literal["cosine", "linear"]
Distortion = Literal["identity", "cos", "revcos", "polyinc", "polydec"]


def noise_kernel(noise: Noise, data: Sequence[float], path: Schedule) -> D3PM:
    """D3PM over the classes of ``data`` (their shares of the training set).

    Args:
        noise: ``uniform``, ``marginal`` (the shares themselves) or ``absorbing`` (a mask class: masked diffusion).
        data: one share a class.
        path: ᾱ(t).
    """
    _known("noise", noise, get_args(Noise))
    if noise == "marginal":
        return marginal(data, path)
    return (uniform if noise == "uniform" else absorbing)(len(data), path)


def kernel_name(kind: GraphKernel) -> KernelName:
    """What a kernel is called here."""
    names: dict[type, KernelName] = {FlowInterpolation: "flow", FlowEuler: "flow_euler"}
    return names.get(type(kind), "d3pm")


def kernel(name: KernelName, like: GraphKernel, *, eta: float = 0.0, omega: float = 0.0) -> GraphKernel:
    """Another kind of reverse step for the noise and schedule of ``like``.

    Args:
        name: ``d3pm`` (the posterior, mixed over p̂), ``flow`` (interpolation, no clamp) or ``flow_euler`` (mixture of DeFoG's
            clamped Euler rows).
        like: a kernel with the noise and schedule the network was trained with.
        eta: stochasticity of ``flow_euler``.
        omega: target guidance of ``flow_euler``.

    Raises:
        ValueError: for an unknown name, or ``eta`` or ``omega`` of a kind that has none.
    """
    _known("kernel", name, get_args(KernelName))
    same = (like.prior, like.schedule, like.num_clean)
    if name == "flow_euler":
        return FlowEuler(*same, eta, omega)
    for option, value in (("eta", eta), ("omega", omega)):
        if value:
            raise ValueError(f"{option}: {value}, expected 0 with kernel {name}; it belongs to flow_euler")
    return D3PM(*same) if name == "d3pm" else FlowInterpolation(*same)


def schedule(name: ScheduleName) -> Schedule:
    """ᾱ(t) by name."""
    _known("schedule", name, get_args(ScheduleName))
    return CosineSchedule() if name == "cosine" else LinearSchedule()


def distortion(name: Distortion) -> Schedule | None:
    """A time distortion by DeFoG's name; None for ``identity``."""
    _known("distortion", name, get_args(Distortion))
    made: dict[str, Schedule] = {
        "cos": CosDistortion(),
        "revcos": RevcosDistortion(),
        "polyinc": PolyincDistortion(),
        "polydec": PolydecDistortion(),
    }
    return made.get(name)


def _known(argument: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise ValueError(f"{argument}: {name!r}, expected one of {', '.join(known)}")
