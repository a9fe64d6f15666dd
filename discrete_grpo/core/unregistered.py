"""Weights that torch does not find, since they are in a plain list or another attribute that is no part of the module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

from torch import Tensor, nn

__all__ = ["check_registered", "unregistered"]

REGISTERED = frozenset({"_parameters", "_buffers", "_modules"})
"""Attributes of a module in which torch itself keeps tensors and modules."""


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
    if isinstance(value, Tensor):
        return value.requires_grad and value.is_leaf and id(value) not in known
    if isinstance(value, nn.Module):  # one that was put there by object.__setattr__
        return any(_hidden(x, known) for x in value.parameters())
    if isinstance(value, Mapping):
        return any(_hidden(x, known) for x in value.values())
    return isinstance(value, list | tuple | set) and any(_hidden(x, known) for x in value)
