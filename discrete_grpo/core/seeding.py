"""Random draws from torch's global generator that leave its state as it was, and generators of numpy that follow torch's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["numpy_generator", "seeded"]


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generator for the block, and restore its state afterwards.

    Initial weights and dropout take no generator of their own, so they are drawn under this.

    Args:
        seed: the random seed.
        device: a CUDA device whose generator is restored too; None or another kind of device means the CPU's alone.

    >>> with seeded(0):
    ...     first = torch.rand(3)
    >>> with seeded(0):
    ...     again = torch.rand(3)
    >>> torch.equal(first, again)
    True
    """
    with torch.random.fork_rng([device] if device is not None and device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def numpy_generator(generator: torch.Generator) -> np.random.Generator:
    """A generator of numpy, seeded by a draw from ``generator``.

    >>> int(numpy_generator(torch.Generator().manual_seed(0)).integers(100))
    52
    """
    return np.random.default_rng(int(torch.randint(2**62, (), generator=generator, device=generator.device)))
