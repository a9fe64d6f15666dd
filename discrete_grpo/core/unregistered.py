"""Weights that torch does not find, since they are in a plain list or another attribute that is no part of the module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from itertools import islice
from typing import Any

from torch import Tensor, nn

__all__ = ["check_registered", "unregistered"]

REGISTERED = frozenset({"_parameters", "_buffers", "_modules"})
"""Attributes of a module in which torch itself keeps tensors and modules."""
MOST = 10_000
"""Number of values in an attribute that are looked at."""


def check_registered(argument: str, module: nn.Module) -> None:
    """Check that no weight that is to be trained is in an attribute where torch does not look for weights.

    Raises:
        TypeError: naming the argument, the attribute and what is expected.
    """
    for name, value in unregistered(module):
        wanted = "nn.Parameter" if isinstance(value, Tensor) else "nn.ModuleDict" if isinstance(value, Mapping) else "nn.ModuleList"
        raise TypeError(
            f"{argument}: {type(module).__name__}.{name} is a {type(value).__name__} with trainable weights, where torch does not"
            f" find them, so that they are neither trained nor stored; expected {wanted}, or requires_grad_(False) for weights that"
            " are not to be trained"
        )


def unregistered(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each attribute with trainable weights that ``module.parameters()`` does not give.

    >>> network = nn.Module()
    >>> network.layers, network.last = [nn.Linear(2, 2)], nn.Linear(2, 2)
    >>> [name for name, _ in unregistered(network)]
    ['layers']
    """
    known = {id(x) for x in module.parameters()}
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in REGISTERED and _hidden(value, known):
                yield f"{prefix}.{name}".removeprefix("."), value


def _hidden(value: Any, known: Set[int]) -> bool:
    """Whether a value holds a trainable weight that is not known, also in lists and mappings, of which the first parts are read."""
    waiting, seen, left = [value], set[int](), MOST
    while waiting and (left := left - 1):
        one = waiting.pop()
        if isinstance(one, Tensor):
            if one.requires_grad and one.is_leaf and id(one) not in known:
                return True
        elif isinstance(one, nn.Module):  # one that was put there by object.__setattr__, or in a list
            waiting += islice(one.parameters(), left)
        elif isinstance(one, dict | list | tuple | set) and id(one) not in seen:
            seen.add(id(one))
            waiting += islice(one.values() if isinstance(one, dict) else one, left)
    return False
