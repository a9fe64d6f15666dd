"""All global random states at once, for code of others, which may draw from any of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from discrete_grpo.core.seeding import seeded

__all__ = ["seeded_everywhere"]


@contextmanager
def seeded_everywhere(seed: int) -> Iterator[None]:
    """Seed the global generators of torch on the CPU, Python and numpy for the block, and restore their states afterwards."""
    python, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
        with seeded(seed):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)  # noqa: NPY002
