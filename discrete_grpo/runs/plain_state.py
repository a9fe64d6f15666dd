"""Training state in the types that ``torch.load`` reads with ``weights_only``: tensors, numbers, texts and containers of them."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["plain_state"]

LEAVES = (Tensor, int, float, complex, str, bytes, bytearray, type(None), torch.Size, torch.dtype, torch.device)


def plain_state(value: Any, name: str = "") -> Any:
    """The same state with numpy's numbers as those of Python.

    Args:
        value: state, or a part of it.
        name: what an error calls the part.

    Raises:
        TypeError: naming a part of another type, which a resumed run could not read.

    >>> plain_state({"step": np.int64(3), "seen": ["CC", np.float64(0.5)]})
    {'step': 3, 'seen': ['CC', 0.5]}
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict) and type(value) in (dict, OrderedDict, Counter):
        found = (
            (plain_state(k, f"a key of {name}"), plain_state(v, f"{name}[{k!r}]" if name else str(k))) for k, v in value.items()
        )
        return type(value)(dict(found))
    if type(value) in (list, tuple):
        return type(value)(plain_state(part, f"{name}[{k}]") for k, part in enumerate(value))
    if type(value) is set:
        return {plain_state(part, f"an entry of {name}") for part in value}
    if not isinstance(value, LEAVES):
        kind = type(value).__name__
        raise TypeError(f"state of the run: {name} is of type {kind}, expected tensors, numbers, texts, and lists or dicts of them")
    return value
