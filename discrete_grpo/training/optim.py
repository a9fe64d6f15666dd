"""What stands between gradients and the optimizer: the learning rate of an update, and gradients added up in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.distributed import Processes

__all__ = ["GradientSum", "learning_rate"]


def learning_rate(step: int, config: GRPOConfig) -> float:
    """Of update ``step``, counted from 0: a linear warm-up, then constant, or linear or cosine decay to 0."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.max_steps - config.warmup_steps)
    if config.lr_scheduler_type == "linear":
        return config.learning_rate * (1.0 - done)
    if config.lr_scheduler_type == "cosine":
        return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * done))
    return config.learning_rate


class GradientSum:
    """Σ over shards of the gradient of each, which is whole before it is added.

    The order of additions is then the same for two processes of one shard and one process of two shards, to the bit.

    Args:
        parameters: whose ``grad`` is read, and set at the end.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        self.total: list[Tensor | None] = [None] * len(parameters)

    def add(self) -> None:
        """Take the gradients that the passes of a shard have left."""
        grads = [p.grad for p in self.parameters]
        self.total = [b if a is None else a if b is None else a.add_(b) for a, b in zip(self.total, grads, strict=True)]
        for parameter in self.parameters:
            parameter.grad = None

    def finish(self, processes: Processes) -> None:
        """Add up over the processes; a parameter that none of them used stays without a gradient."""
        used = [any(found) for found in zip(*processes.gather([g is not None for g in self.total]), strict=True)]
        for parameter, gradient, use in zip(self.parameters, self.total, used, strict=True):
            parameter.grad = gradient if gradient is not None or not use else torch.zeros_like(parameter)
        processes.add([p.grad for p in self.parameters if p.grad is not None])
