"""The reference that follows the policy from afar."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["mix_reference"]


@torch.no_grad()
def mix_reference(reference: nn.Module, policy: nn.Module, alpha: float) -> None:
    """π_ref ← α π_θ + (1-α) π_ref, in place, parameter by parameter; buffers are copied.

    Args:
        reference: of the policy's own make.
        policy: θ.
        alpha: α in [0, 1]; 1 makes the reference the policy.

    Source: Gorbatovski et al. (2024), TR-DPO, arXiv 2404.09656, as in TRL's ``ref_model_mixup_alpha``.
    """
    for parameter, towards in zip(reference.parameters(), policy.parameters(), strict=True):
        parameter.lerp_(towards, alpha)
    for buffer, other in zip(reference.buffers(), policy.buffers(), strict=True):
        buffer.copy_(other)
