"""The moving average of weights that evaluation and export use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

__all__ = ["averaged", "ema_decay_at"]


def ema_decay_at(decay: float, updates: int) -> float:
    """min(decay, (1 + n)/(10 + n)): the first weights, which know nothing, are forgotten quickly.

    >>> [round(ema_decay_at(0.999, n), 3) for n in (0, 100, 100_000)]
    [0.1, 0.918, 0.999]
    """
    return min(decay, (1 + updates) / (10 + updates))


def averaged(module: nn.Module, decay: float) -> AveragedModel:
    """A copy of ``module`` that ``update_parameters`` moves towards it: θ' <- d θ' + (1 - d) θ."""
    return AveragedModel(module, multi_avg_fn=_ema(decay))


def _ema(decay: float) -> Callable[[Sequence[Tensor], Sequence[Tensor], Tensor | int], None]:
    @torch.no_grad()
    def update(average: Sequence[Tensor], current: Sequence[Tensor], updates: Tensor | int) -> None:
        torch._foreach_lerp_(list(average), list(current), 1.0 - ema_decay_at(decay, int(updates)))

    return update
