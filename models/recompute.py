"""Activation checkpointing: gradients compute a layer again instead of keeping what it computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

__all__ = ["run_layer"]


def run_layer(layer: Callable[..., Any], *arguments: Any, again: bool, random: bool) -> Any:
    """``layer(*arguments)``; where gradients are wanted and ``again`` is set, it keeps its arguments only and runs again for them.

    The second run does the same operations, so results and gradients are the same to the bit.

    Args:
        layer: a function of its arguments that changes nothing else.
        arguments: of it.
        again: whether to run it again.
        random: whether it draws (dropout in training): the second run then draws the same.

    Source: Chen et al. (2016), arXiv 1604.06174.
    """
    if not again or not torch.is_grad_enabled():
        return layer(*arguments)
    return checkpoint(layer, *arguments, use_reentrant=False, preserve_rng_state=random)
