"""Activation checkpointing: the backward pass recomputes a layer instead of storing its activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

__all__ = ["run_layer"]


def run_layer(layer: Callable[..., Any], *arguments: Any, again: bool, random: bool) -> Any:
    """Return ``layer(*arguments)``; with ``again``, autograd keeps the arguments only and the backward pass runs the layer again.

    The second run executes the same operations, so results and gradients are the same to the bit.

    Args:
        layer: a function of its arguments that changes nothing else.
        arguments: arguments of the layer.
        again: whether to run it a second time in the backward pass; without gradients it runs once.
        random: whether it draws random numbers (dropout in training); the second run then draws the same numbers.

    Source: Chen et al. (2016), arXiv 1604.06174.
    """
    if not again or not torch.is_grad_enabled():
        return layer(*arguments)
    return checkpoint(layer, *arguments, use_reentrant=False, preserve_rng_state=random)
