"""Low-rank adapters (LoRA): a policy's network is frozen and low-rank corrections of its layers are trained.

W' = W + (α/r) B A with B [out, r] zero at first and A [r, in] random, so that the first policy is the given one to the bit.
Source: Hu et al. (2021), Eq. 3, arXiv 2106.09685. Every adapted layer computes W' by ``torch.nn.utils.parametrize`` wherever its
weight is read, so that no adapter is left out in a network that reads weights itself. There is no dropout on adapters: GRPO
samples and scores in eval mode, where it would do nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from discrete_grpo.core.checks import check_range, check_whole, did_you_mean, plain_number
from discrete_grpo.core.option_names import known_options
from discrete_grpo.core.precision import full_precision
from discrete_grpo.training.network import network_of

__all__ = ["ALL_LINEAR", "LoraOptions", "LowRank", "add_lora", "current_names", "has_lora", "merge_lora", "without_lora"]

ALL_LINEAR = "all-linear"
"""Every linear map that is trained and shares its weight with no other layer."""
TRAINED = "trained_before_lora"
"""Attribute of an adapted network: names of the parameters that were trained before."""
NAMES_OF_PEFT = {
    "base_layer.weight": "parametrizations.weight.original",
    "base_layer.bias": "bias",
    "lora_A.default.weight": "parametrizations.weight.0.lora_A",
    "lora_B.default.weight": "parametrizations.weight.0.lora_B",
    "lora_embedding_A.default": "parametrizations.weight.0.lora_A",
    "lora_embedding_B.default": "parametrizations.weight.0.lora_B",
}
"""Names of an adapted layer's tensors in checkpoints written with the library peft, and the names they have now."""

PolicyT = TypeVar("PolicyT", bound=nn.Module)


@known_options()
@dataclass(frozen=True)
class LoraOptions:
    """Settings of low-rank adapters, under the names of the library peft.

    Attributes:
        r: rank of the corrections; 0 trains all weights instead.
        lora_alpha: α, more than 0; corrections are scaled by α/r.
        target_modules: names of the layers to adapt, in full or as suffixes (``qkv``, ``blocks.0.qkv``), or ``all-linear``.

    Raises:
        ValueError: for a value out of its range.
    """

    r: int = 0
    lora_alpha: float = 8.0
    target_modules: str | list[str] = ALL_LINEAR

    def __post_init__(self) -> None:
        check_whole("lora.r", plain_number(self.r))
        if self.r < 0:
            raise ValueError(f"lora.r: {self.r}, expected at least 1, or 0 for no adapters")
        check_range("lora.lora_alpha", self.lora_alpha, above=0)
        if not self.target_modules:
            raise ValueError(f"lora.target_modules: {self.target_modules!r}, expected at least one name, or {ALL_LINEAR}")


class LowRank(nn.Module):
    """Compute W' = W + (α/r) B A from a layer's frozen weight W.

    Attributes:
        lora_A: A [r, in, *kernel].
        lora_B: B [out, r, *ones].

    Args:
        layer: the layer to adapt; its ``weight`` gives shape, type and device.
        r: rank.
        lora_alpha: α.
        generator: random generator on the CPU that draws A, or B if the layer is an embedding.
    """

    def __init__(self, layer: nn.Module, r: int, lora_alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        weight: Any = layer.weight
        self.scale = lora_alpha / r
        self.transposed = isinstance(layer, nn.Embedding) or _is_conv1d(layer)
        rows, *columns = weight.T.shape if self.transposed else weight.shape
        a, b = torch.empty(r, *columns), torch.empty(rows, r, *[1] * (len(columns) - 1))
        _initialise(a, b, isinstance(layer, nn.Embedding), generator)
        self.lora_A, self.lora_B = nn.Parameter(a.to(weight)), nn.Parameter(b.to(weight))

    def forward(self, weight: Tensor) -> Tensor:
        """Return W' for the frozen weight W."""
        # PyTorch chooses the kernel of a product by whether its weight requires a gradient, also under no_grad. Samples are
        # drawn without gradients, and their log-probs must be those of the scores to the bit.
        with torch.enable_grad(), full_precision(weight.device):
            a, b = self.lora_A.flatten(1), self.lora_B.flatten(1)
            left, right = (a.T, b.T) if self.transposed else (b, a)
            return torch.addmm(weight.flatten(1), left, right, alpha=self.scale).view(weight.shape)


def add_lora(
    policy: nn.Module,
    r: int = 8,
    lora_alpha: float = 8.0,
    target_modules: str | Sequence[str] = ALL_LINEAR,
    *,
    seed: int = 0,
) -> list[str]:
    """Add adapters to a policy's network, in place, freeze the rest of it, and return the full names of the adapted layers.

    Parameters outside the network (a learned node count) stay as trainable as they were, and decoders stay frozen. Give
    the optimizer the parameters with ``requires_grad``. :func:`merge_lora` makes the policy a plain one again.

    Args:
        policy: any policy whose network has Linear, Embedding, Conv1d or Conv2d layers.
        r: rank, at least 1.
        lora_alpha: α, more than 0.
        target_modules: see :class:`LoraOptions`; a string is one name or ``all-linear``.
        seed: random seed of A; the global random state stays as it is.

    Raises:
        ValueError: for a value out of its range, a name no layer has, a layer that cannot be adapted, or adapters already there.
    """
    options = LoraOptions(r, lora_alpha, target_modules if isinstance(target_modules, str) else list(target_modules))
    if options.r < 1:
        raise ValueError(f"r: {r}, expected at least 1")
    network = network_of(policy)
    if has_lora(policy):
        raise ValueError("policy: it has adapters already, expected none; merge_lora folds them in")
    names = _targets(network, options.target_modules)
    trained = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
    network.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for name in names:
        layer = network.get_submodule(name)
        _adapt(layer, LowRank(layer, r, lora_alpha, generator))
    setattr(network, TRAINED, trained)
    return names


def has_lora(policy: nn.Module) -> bool:
    """Whether a policy's network has adapters."""
    return hasattr(network_of(policy), TRAINED)


def merge_lora(policy: PolicyT) -> PolicyT:
    """Replace the weights of a policy by W + (α/r) B A and remove the adapters, in place; its checkpoint is then a plain one.

    Raises:
        ValueError: if the policy has no adapters, or a merged weight is not finite.
    """
    network = network_of(policy)
    if not has_lora(policy):
        raise ValueError("policy: it has no adapters to merge, expected one that add_lora was given")
    layers = {name: part for name, part in network.named_modules() if _is_adapted(part)}
    merged: dict[str, Any] = {name: layer.weight for name, layer in layers.items()}
    for name, weight in merged.items():
        if not weight.isfinite().all():
            raise ValueError(f"policy: the merged weight of {name!r} has numbers that are not finite, expected finite ones only")
    for name, layer in layers.items():
        _restore(layer, merged[name].detach())
    for name in getattr(network, TRAINED):
        network.get_parameter(name).requires_grad_(True)
    delattr(network, TRAINED)
    return policy


def without_lora(policy: PolicyT) -> PolicyT:
    """Return a merged copy of a policy with adapters; a policy without adapters is returned itself."""
    return merge_lora(copy.deepcopy(policy)) if has_lora(policy) else policy


def current_names(state: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the tensors of adapted layers in a state dict that was written with the library peft.

    >>> old = {"base_layer.bias": 0, "qkv.base_layer.bias": 1, "qkv.lora_A.default.weight": 2}
    >>> list(current_names(old))
    ['base_layer.bias', 'qkv.bias', 'qkv.parametrizations.weight.0.lora_A']
    """
    factors = [f".{name}" for name in NAMES_OF_PEFT if name.startswith("lora_")]
    layers = {name.removesuffix(factor) for name in state for factor in factors if name.endswith(factor)}
    renamed = {f"{layer}.{old}": f"{layer}.{new}" for layer in layers for old, new in NAMES_OF_PEFT.items()}
    return {renamed.get(name, name): value for name, value in state.items()}


def _initialise(a: Tensor, b: Tensor, embedding: bool, generator: torch.Generator) -> None:
    """Draw A and zero B, or draw B and zero A for an embedding, in place.

    Both are drawn once before and these numbers are dropped, as the layers of peft do, so that the adapters equal those of
    peft to the bit.
    """
    drawn, zero = (b, a) if embedding else (a, b)
    for factor in (a, b, drawn):
        if embedding:
            nn.init.normal_(factor, generator=generator)
        else:
            nn.init.kaiming_uniform_(factor, a=math.sqrt(5), generator=generator)
    nn.init.zeros_(zero)


def _adapt(layer: nn.Module, adapter: LowRank) -> None:
    kind: Any = type(layer)
    parametrize.register_parametrization(layer, "weight", adapter)
    layer.__class__ = _adapted_class(kind)


@cache
def _adapted_class(kind: type[nn.Module]) -> type[nn.Module]:
    """Return the class of adapted layers of a kind.

    ``register_parametrization`` makes one class per layer, and compiled layers of different classes would not share programs.
    """
    return type(f"Parametrized{kind.__name__}", (kind,), {"weight": property(lambda layer: layer.parametrizations.weight())})


def _is_adapted(part: Any) -> bool:
    return parametrize.is_parametrized(part, "weight") and isinstance(part.parametrizations.weight[0], LowRank)


def _restore(layer: Any, weight: Tensor) -> None:
    """Make an adapted layer a plain one with this weight.

    ``remove_parametrizations`` cannot be used here: it deletes the property from the class, which copies of the layer share.
    """
    original = layer.parametrizations.weight.original
    original.data = weight
    layer.__class__ = parametrize.type_before_parametrizations(layer)
    del layer.parametrizations
    others = dict(layer._parameters)
    layer._parameters.clear()
    layer._parameters.update({"weight": original, **others})


def _targets(network: nn.Module, wanted: str | list[str]) -> list[str]:
    """Return the full names of the layers that ``wanted`` selects, in the order of the network."""
    layers = {name: part for name, part in network.named_modules() if name and _can_be_adapted(part)}
    if wanted == ALL_LINEAR:
        linear = [name for name, part in layers.items() if isinstance(part, nn.Linear) or _is_conv1d(part)]
        names = [name for name in linear if _why_not(network, name) is None]
        if not names:
            raise ValueError(f"target_modules: {ALL_LINEAR!r}, expected a linear layer to adapt: {type(network).__name__} has none")
        return names
    found: set[str] = set()
    for ending in [wanted] if isinstance(wanted, str) else wanted:
        found |= _named(network, ending, layers)
    for name in found:
        if reason := _why_not(network, name):
            raise ValueError(f"target_modules: {name!r} {reason}")
    return [name for name in layers if name in found]


def _named(network: nn.Module, ending: str, layers: dict[str, nn.Module]) -> set[str]:
    """Return those of ``layers`` whose full name is ``ending`` or ends with it."""

    def fits(name: str) -> bool:
        return name == ending or name.endswith(f".{ending}")

    if found := set(filter(fits, layers)):
        return found
    other = [part for name, part in network.named_modules() if name and fits(name)]
    if other:
        wanted = "Linear, Embedding, Conv1d or Conv2d"
        raise ValueError(f"target_modules: {ending!r} is a {type(other[0]).__name__}, expected a {wanted}")
    known = sorted({name.rpartition(".")[2] for name in layers} - {str(k) for k in range(len(layers))})
    hint = did_you_mean(ending, [*known, *layers]) or f"known: {', '.join([ALL_LINEAR, *known])}"
    raise ValueError(f"target_modules: {ending!r} is no layer of the {type(network).__name__}; {hint}")


def _why_not(network: nn.Module, name: str) -> str | None:
    """Return the reason why a layer cannot be adapted; None if it can."""
    layer = network.get_submodule(name)
    weight: Any = layer.weight
    if parametrize.is_parametrized(layer) or not isinstance(weight, nn.Parameter):
        return "is parametrized, expected a layer whose weight is a parameter"
    if not weight.requires_grad:
        return "is frozen, expected a layer that is trained"
    if getattr(layer, "groups", 1) > 1:
        return f"has groups ({layer.groups}), expected a layer without: it could not be merged"
    sharing = [other for other, part in network.named_modules() if part is not layer and getattr(part, "weight", None) is weight]
    if sharing:
        return f"shares its weight with {sharing[0]!r}, expected a layer of its own: merging would change both"
    return None


def _can_be_adapted(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear | nn.Embedding | nn.Conv1d | nn.Conv2d) or _is_conv1d(layer)


def _is_conv1d(layer: nn.Module) -> bool:
    """Whether a layer is the ``Conv1D`` of transformers, a linear map with a transposed weight; checked without importing it."""
    return any((kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D") for kind in type(layer).__mro__)
