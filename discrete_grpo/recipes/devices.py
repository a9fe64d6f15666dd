"""Moves policies between devices."""

from __future__ import annotations

from typing import Any

import torch

from discrete_grpo.core.rollout import as_module

__all__ = ["device_of", "to_device"]


def device_of(policy: Any) -> torch.device:
    """The device of a policy's parameters."""
    return next(as_module(policy).parameters()).device


def to_device(policy: Any, device: str | torch.device | None) -> Any:
    """Move a policy to ``device``; None leaves it where it is.

    Raises:
        ValueError: for a device that torch does not know or that this machine does not have.
    """
    if device is None:
        return policy
    try:
        torch.Generator(torch.device(device))  # a kind without one, such as meta, cannot draw
        return as_module(policy).to(torch.device(device))
    except (RuntimeError, AssertionError) as error:
        more = [torch.accelerator.current_accelerator()] if torch.accelerator.is_available() else []
        here = " or ".join(str(one.type) for one in [torch.device("cpu"), *more] if one is not None)
        said = str(error).splitlines()[0]
        raise ValueError(f"device: {str(device)!r}, expected one of this machine: {here} ({said})") from error
