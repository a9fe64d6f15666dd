"""A pretend device without float64 on a machine that has none: tensors that say they are on MPS and hold their data on the CPU.

Inside :func:`pretending`, ``device="mps"`` and ``.to("mps")`` give such tensors. What a real device would refuse raises
:class:`DeviceError`: a float64 tensor on it, and an operation on tensors of both devices.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import nn

from tests import pretend_tensors
from tests.pretend_tensors import DeviceError, Machine, Pretend, PretendGenerator

__all__ = ["MPS", "DeviceError", "Pretend", "generator", "move", "pretending"]

MPS = torch.device("mps")


class _WithoutFloat64(Machine):
    def holds(self, inner: torch.Tensor) -> None:
        if inner.dtype == torch.float64:
            raise DeviceError(f"a float64 tensor {tuple(inner.shape)} on the device")


_machine = _WithoutFloat64(MPS)


def generator() -> PretendGenerator:
    """A generator of the CPU that says it is on the pretend device."""
    return PretendGenerator.of(_machine)


def move(module: nn.Module) -> nn.Module:
    """The module with its parameters and buffers on the pretend device."""
    return pretend_tensors.move(module, _machine)


def pretending() -> AbstractContextManager[None]:
    """Let tensors be made on, and moved to, the pretend device."""
    return pretend_tensors.on(_machine)
