"""A sampling step recorded as a CUDA graph, so that one launch runs all its kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from discrete_grpo.core.precision import uncached_casts

__all__ = ["RecordedStep", "Step", "recorded"]

Tensors: TypeAlias = tuple[Tensor, ...]
Step: TypeAlias = Callable[[Tensors, Tensor, Tensors], tuple[Tensors, Tensors]]
"""The next state and what else is found, from a state, numbers of steps [B] and random numbers; it copies nothing to the device
and reads nothing from it."""


class RecordedStep:
    """A step recorded as a CUDA graph.

    State, step number and random numbers are in static memory that every replay reads, and the graph writes the next state and
    number there. Weights are read in place, so a recording must not outlive them. Random numbers are drawn into ``noise``
    before each replay, by the same calls as without a recording.

    Args:
        step: function that draws a step; it must have run once on inputs of these shapes.
        state: state of the next step.
        at: number of the next step.
        noise: memory for the random numbers.
    """

    def __init__(self, step: Step, state: Tensors, at: Tensor, noise: Tensors) -> None:
        self.state = tuple(value.clone() for value in state)
        self.at, self.noise = at.clone(), tuple(value.zero_() for value in noise)
        self.graph = torch.cuda.CUDAGraph()
        with uncached_casts(), torch.cuda.graph(self.graph):
            after, self.found = step(self.state, self.at, self.noise)
            for old, new in zip(self.state, after, strict=True):
                old.copy_(new)
            self.at.add_(1)

    def replay(self) -> tuple[Tensors, Tensors]:
        """The state after the next step, which is valid until the one after it, and what else was found."""
        self.graph.replay()
        return self.state, tuple(value.clone() for value in self.found)


def recorded(step: Step, state: Tensors, at: Tensor, noise: Tensors) -> RecordedStep | None:
    """The recorded step; None, with a warning, for a network that cannot be recorded."""
    try:
        return RecordedStep(step, state, at, noise)
    except RuntimeError as error:
        warnings.warn(f"sampling step: not recorded as a CUDA graph ({' '.join(str(error).split())})", stacklevel=2)
        return None
