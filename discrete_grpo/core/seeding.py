"""Random draws from torch's global generator that leave its state as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from discrete_grpo.core.checks import check_whole

__all__ = ["seeded"]


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generator for the block, and restore its state afterwards.

    Initial weights and dropout take no generator of their own, so they are drawn under this.

    Args:
        seed: the random seed.
        device: a CUDA device whose generator is restored too; None or another kind of device means the CPU's alone.

    Raises:
        ValueError: if ``seed`` is not a whole number.

    >>> with seeded(0):
    ...     first = torch.rand(3)
    >>> with seeded(0):
    ...     again = torch.rand(3)
    >>> torch.equal(first, again)
    True
    """
    check_whole("seed", seed)
    with torch.random.fork_rng([device] if device is not None and device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed those of all GPUs too
        if device is not None and device.type == "cuda":
            with torch.cuda.device(device) if torch.cuda.is_initialized() else nullcontext():  # else it waits for the first use
                torch.cuda.manual_seed(seed)
        yield
