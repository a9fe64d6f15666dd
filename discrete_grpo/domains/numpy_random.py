"""Generators of numpy that follow torch's."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["numpy_generator"]


def numpy_generator(generator: torch.Generator) -> np.random.Generator:
    """A generator of numpy, seeded by a draw from ``generator``.

    >>> int(numpy_generator(torch.Generator().manual_seed(0)).integers(100))
    52
    """
    return np.random.default_rng(int(torch.randint(2**62, (), generator=generator, device=generator.device)))
