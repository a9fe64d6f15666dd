"""The adapted layers of ``peft``, whose ``weight`` is the one that acts: the only file that imports the library.

Networks here read some weights themselves: two maps fused into one product, rows of an embedding. The library's layers give
the frozen weight there, so that the adapter would be left out without a word.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import layer as lora
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

__all__ = ["ADAPTABLE", "Conv1D", "adapt", "adapted_layers"]

ADAPTABLE = (nn.Linear, Conv1D, nn.Embedding, nn.Conv1d, nn.Conv2d)
"""Layers that can be adapted. (``Conv1D`` is a linear map of transformers, with its weight transposed.)"""


def _acting(layer: Any) -> Tensor:
    """W + (α/r) B A; W alone where the adapter is merged or switched off."""
    weight = layer.get_base_layer().weight
    if not (layer.merged or layer.disable_adapters):
        for name in layer.active_adapters:
            weight = weight + layer.get_delta_weight(name)
    return weight


class _Linear(lora.Linear):
    weight = property(_acting)

    def __init__(self, base_layer: nn.Module, adapter_name: str, config: Any, **options: Any) -> None:
        config = copy.copy(config)
        config.fan_in_fan_out = isinstance(base_layer, Conv1D)
        super().__init__(base_layer, adapter_name, config=config, **options)


class _Embedding(lora.Embedding):
    weight = property(_acting)


class _Conv1d(lora.Conv1d):
    weight = property(_acting)


class _Conv2d(lora.Conv2d):
    weight = property(_acting)


CLASSES: dict[Any, Any] = {nn.Linear: _Linear, Conv1D: _Linear, nn.Embedding: _Embedding, nn.Conv1d: _Conv1d, nn.Conv2d: _Conv2d}


def adapt(network: nn.Module, names: Sequence[str], r: int, lora_alpha: Any) -> None:
    """Wrap the layers of these full names, and freeze everything but the adapters; A is drawn from the global random state.

    ``lora_alpha`` is any positive number, though the library names it an int.
    """
    pattern = "|".join(map(re.escape, names))  # a list would be read as endings of names
    config = LoraConfig(r=r, lora_alpha=lora_alpha, target_modules=pattern)
    config._register_custom_module(CLASSES)
    inject_adapter_in_model(config, network)


def adapted_layers(module: nn.Module) -> dict[str, Any]:
    """Adapted layers by their full names."""
    return {name: part for name, part in module.named_modules() if isinstance(part, lora.LoraLayer)}
