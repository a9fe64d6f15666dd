"""LoRA: a policy's network is frozen and low-rank corrections of its layers are trained, through the library ``peft``.

W' = W + (α/r) B A, B [out, r] zero at first and A [r, in] random, so that the first policy is the given one to the bit.
Source: Hu et al. (2021), Eq. 3, arXiv 2106.09685. There is no dropout on adapters: GRPO draws and scores in eval mode, where it
would do nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from discrete_grpo.core.checks import did_you_mean
from discrete_grpo.training.network import network_of

__all__ = ["ALL_LINEAR", "LoraOptions", "add_lora", "has_lora", "merge_lora", "without_lora"]

ALL_LINEAR = "all-linear"
"""Every linear map that is trained and shares its weight with no other layer."""
TRAINED = "trained_before_lora"
"""Attribute of an adapted network: names of the parameters that were trained before."""

PolicyT = TypeVar("PolicyT", bound=nn.Module)


@dataclass(frozen=True)
class LoraOptions:
    """Settings of low-rank adapters, under peft's names.

    Attributes:
        r: rank of the corrections; 0 trains all weights instead.
        lora_alpha: α, more than 0; corrections are scaled by α/r.
        target_modules: names of the layers to adapt, as their full names end (``qkv``, ``blocks.0.qkv``), or ``all-linear``.

    Raises:
        ValueError: for a value out of its range.
    """

    r: int = 0
    lora_alpha: float = 8.0
    target_modules: str | list[str] = ALL_LINEAR

    def __post_init__(self) -> None:
        if self.r < 0:
            raise ValueError(f"r: {self.r}, expected at least 1, or 0 for no adapters")
        if not 0 < self.lora_alpha < float("inf"):
            raise ValueError(f"lora_alpha: {self.lora_alpha}, expected > 0")
        if not self.target_modules:
            raise ValueError(f"target_modules: {self.target_modules!r}, expected at least one name, or {ALL_LINEAR}")


def add_lora(
    policy: nn.Module,
    r: int = 8,
    lora_alpha: float = 8.0,
    target_modules: str | Sequence[str] = ALL_LINEAR,
    *,
    seed: int = 0,
) -> list[str]:
    """Put adapters into a policy's network, in place, and freeze the rest of it; returns the full names of the adapted layers.

    What is outside the network (a learned node count) stays as trainable as it was, and decoders stay frozen. Give the
    optimizer the parameters with ``requires_grad``. :func:`merge_lora` makes the policy a plain one again.

    Args:
        policy: any policy whose network has Linear, Embedding, Conv1d or Conv2d layers.
        r: rank, at least 1.
        lora_alpha: α, more than 0.
        target_modules: see :class:`LoraOptions`; a string is one name or ``all-linear``.
        seed: of A; the global random state stays as it is.

    Raises:
        ImportError: if peft is not installed.
        ValueError: for a value out of its range, a name no layer has, a layer that cannot be adapted, or adapters already there.
    """
    options = LoraOptions(r, lora_alpha, target_modules if isinstance(target_modules, str) else list(target_modules))
    if options.r < 1:
        raise ValueError(f"r: {r}, expected at least 1")
    library = _library()
    network = network_of(policy)
    if has_lora(policy):
        raise ValueError("policy: it has adapters already, expected none; merge_lora folds them in")
    names = _targets(network, options.target_modules, library)
    trained = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        library.adapt(network, names, r, lora_alpha)
    setattr(network, TRAINED, trained)
    return names


def has_lora(policy: nn.Module) -> bool:
    """Whether a policy's network has adapters."""
    return hasattr(network_of(policy), TRAINED)


def merge_lora(policy: PolicyT) -> PolicyT:
    """Fold the adapters of a policy into its weights, in place: W ← W + (α/r) B A; its checkpoint is then a plain one.

    Raises:
        ValueError: if the policy has no adapters, or a merged weight is not finite.
    """
    network = network_of(policy)
    if not has_lora(policy):
        raise ValueError("policy: it has no adapters to merge, expected one that add_lora was given")
    for name, layer in _library().adapted_layers(network).items():
        layer.merge(safe_merge=True)
        parent, _, own = name.rpartition(".")
        setattr(network.get_submodule(parent), own, layer.get_base_layer())
    for name in getattr(network, TRAINED):
        network.get_parameter(name).requires_grad_(True)
    delattr(network, TRAINED)
    for left in ("peft_config", "_hf_peft_config_loaded"):
        vars(network).pop(left, None)
    return policy


def without_lora(policy: PolicyT) -> PolicyT:
    """A merged copy of a policy with adapters; a policy without is given back itself."""
    return merge_lora(copy.deepcopy(policy)) if has_lora(policy) else policy


def _library() -> Any:
    try:
        import discrete_grpo.training.lora_layers as library
    except ImportError as error:
        raise ImportError("peft is not installed; run: pip install 'discrete-grpo[lora]'") from error
    return library


def _targets(network: nn.Module, wanted: str | list[str], library: Any) -> list[str]:
    """Full names of the layers that ``wanted`` means, in order."""
    layers = {name: part for name, part in network.named_modules() if name and isinstance(part, library.ADAPTABLE)}
    if wanted == ALL_LINEAR:
        linear = [name for name, part in layers.items() if isinstance(part, nn.Linear | library.Conv1D)]
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
    """Those of ``layers`` whose full name is ``ending`` or ends with it."""

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
    """Why a layer cannot be adapted; None if it can."""
    layer = network.get_submodule(name)
    weight: Any = layer.weight
    if not weight.requires_grad:
        return "is frozen, expected a layer that is trained"
    if getattr(layer, "groups", 1) > 1:
        return f"has groups ({layer.groups}), expected a layer without: it could not be merged"
    sharing = [other for other, part in network.named_modules() if part is not layer and getattr(part, "weight", None) is weight]
    if sharing:
        return f"shares its weight with {sharing[0]!r}, expected a layer of its own: merging would change both"
    return None
