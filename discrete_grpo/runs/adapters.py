"""Merged weights of a policy with low-rank adapters (LoRA), so that its checkpoint is that of a plain policy.

The adapters are those of :mod:`discrete_grpo.training.lora`. They are recognised by the name of their first factor, since this
package does not import those that train.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn.utils import parametrize

__all__ = ["merged_tensors"]

FACTOR = "lora_A"
"""Parameter of the parametrization that adapts a weight."""


def merged_tensors(named: Mapping[str, Tensor], policy: nn.Module) -> dict[str, Tensor]:
    """Return tensors of a policy by their names, with W' under the name of each adapted weight W and without W and the factors.

    Args:
        named: tensors of the policy, such as its state dict; the same tensors are returned if it has no adapters.
        policy: left as it is.
    """
    adapted = {name: layer for name, layer in policy.named_modules(remove_duplicate=False) if _is_adapted(layer)}
    parts = tuple(f"{name}.parametrizations.weight.".removeprefix(".") for name in adapted)
    merged = {f"{name}.weight".removeprefix("."): layer.weight.detach() for name, layer in adapted.items()}
    return {name: tensor for name, tensor in named.items() if not name.startswith(parts)} | merged


def _is_adapted(layer: nn.Module) -> bool:
    return parametrize.is_parametrized(layer, "weight") and hasattr(layer.parametrizations.weight[0], FACTOR)  # type: ignore[union-attr, index]
