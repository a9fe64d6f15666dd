"""Draws from a seed that leave the state of torch's global generator as it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TypeVar

import torch

from discrete_grpo.core.checks import check_whole

__all__ = ["seeded", "some_of"]

T = TypeVar("T")


def some_of(items: Sequence[T], count: int, seed: int) -> tuple[T, ...]:
    """At most ``count`` items, drawn at random and in their order.

    >>> some_of("abcdef", 3, seed=0) == some_of("abcdef", 3, seed=0), some_of("ab", 3, seed=0)
    (True, ('a', 'b'))
    """
    rows = torch.randperm(len(items), generator=torch.Generator().manual_seed(seed))[:count]
    return tuple(items[k] for k in rows.sort().values.tolist())


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
