"""The network inside a policy, and how its layers are run."""

from __future__ import annotations

from torch import nn

__all__ = ["checkpoint_layers", "network_of"]


def network_of(policy: nn.Module) -> nn.Module:
    """What a policy draws with: its ``network``, also of a policy inside a wrapper; the policy itself where it names none.

    >>> inner = nn.Module()
    >>> inner.network = nn.Linear(1, 1)
    >>> wrapper = nn.Module()
    >>> wrapper.policy = inner
    >>> network_of(wrapper)
    Linear(in_features=1, out_features=1, bias=True)
    """
    while isinstance(inside := getattr(policy, "policy", None), nn.Module):
        policy = inside
    network = getattr(policy, "network", None)
    return network if isinstance(network, nn.Module) else policy


def checkpoint_layers(policy: nn.Module, on: bool = True) -> None:
    """Let gradients compute the layers of a policy's network again instead of keeping what they computed.

    Less memory, some 30 % more time an update, the same gradients to the bit. Nothing of it is kept in a checkpoint.

    Args:
        policy: changed in place; its network has an attribute ``checkpoint_layers``.
        on: False keeps everything, as a new network does.

    Raises:
        ValueError: if the network has no such attribute.
    """
    network = network_of(policy)
    parts = [part for part in network.modules() if "checkpoint_layers" in vars(part)]
    if not parts:
        raise ValueError(f"checkpoint_layers: {on}, expected none: {type(network).__name__} has no layers to compute again")
    for part in parts:
        part.checkpoint_layers = on  # type: ignore[assignment]
