"""Seeds all global random generators at once, for code outside this package, which may draw from any of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from discrete_grpo.core.seeding import seeded

__all__ = ["seeded_everywhere"]


@contextmanager
def seeded_everywhere(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the global generators of torch, Python and numpy for the block, and restore their states afterwards.

    Those of torch are the CPU's and, if ``device`` is a CUDA device, that device's.
    """
    python, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
        with seeded(seed, device):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)  # noqa: NPY002
