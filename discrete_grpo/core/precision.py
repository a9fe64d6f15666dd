"""The widest floating-point type of a device: float64, except where a device has none (Apple's MPS)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor

__all__ = ["constant", "exact_device", "full_precision", "place", "uncached_casts", "widen", "widest"]

WITHOUT_FLOAT64 = frozenset({"mps"})
"""Types of devices that do not support float64."""


def widest(device: torch.device) -> torch.dtype:
    """float64, or float32 on a device without it.

    >>> widest(torch.device("cpu")), widest(torch.device("mps"))
    (torch.float64, torch.float32)
    """
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def widen(values: Tensor) -> Tensor:
    """Convert values to the widest type of their device."""
    return values.to(widest(values.device))


def place(values: Tensor, device: torch.device) -> Tensor:
    """Move values to ``device``; float64 becomes float32 for a device without float64.

    A copy to a GPU goes through pinned memory, so that the host does not wait for it.
    """
    if values.dtype == torch.float64 and widest(device) != torch.float64:
        values = values.to(torch.float32)
    if device.type == "cuda" and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


@lru_cache(maxsize=1024)
def constant(values: tuple[float, ...], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return constant numbers as a cached tensor on a device, since every copy of a constant makes an accelerator wait.

    The result is shared by all callers, who must not change it in place.

    Args:
        values: the numbers.
        device: device of the tensor.
        dtype: its type, to which float64 is rounded; None means the widest type of the device.
    """
    with torch.inference_mode(False):  # a shared tensor must be usable in autograd later
        return torch.tensor(values, dtype=torch.float64).to(dtype or widest(device)).to(device)


def exact_device(device: torch.device) -> torch.device:
    """Device for computations in float64: ``device`` itself, or the CPU if it does not support float64."""
    return device if widest(device) == torch.float64 else torch.device("cpu")


def full_precision(device: torch.device) -> torch.autocast:
    """Disable autocast for the computations after a network, which use the type of its widened logits.

    Autocast runs matrix products in 16 bits whatever the type of their arguments, so that probabilities computed by a matrix
    product would not sum to 1.
    """
    return torch.autocast(device.type, enabled=False)


@contextmanager
def uncached_casts() -> Iterator[None]:
    """Let autocast convert weights at each use; conversions cached in a recorded CUDA graph become stale when weights change."""
    kept = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(kept)
