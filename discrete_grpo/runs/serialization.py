"""Conversion of objects to JSON and back: dataclasses and classes with ``init_args`` by import path, from trusted packages only.

The data types of a module's tensors are described too, since a class creates its tensors in the default type.
"""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from discrete_grpo.core.checks import check_samples, signature_of
from discrete_grpo.core.rollout import as_module
from discrete_grpo.core.unregistered import check_registered
from discrete_grpo.domains.global_random import seeded_everywhere
from discrete_grpo.runs.adapters import merged_tensors

__all__ = [
    "TRUSTED",
    "CheckpointError",
    "build",
    "check_init_args",
    "check_savable",
    "current_path",
    "describe",
    "describe_types",
    "restore_types",
]

TRUSTED = ("discrete_grpo",)
OLD_MODULES = {
    "chemistry": "domains.molecules",
    "config": "training.config",
    "decoders": "policies.decoders",
    "lora": "training.lora",
    "policies.likelihoods": "policies.surrogate",
    "policies.refinement": "policies.restart",
    "policies.sizes": "policies.node_count",
    "policies.smiles": "policies.tokens",
    "rollout": "core.rollout",
    "tokens": "domains.tokenizer",
    "truncation": "policies.truncation",
}
"""Modules of format 1, under ``discrete_grpo``, that define classes a checkpoint can name -> the modules of these classes today."""
ITEMS = "mapping_items"
"""The only key of the mapping that encodes a mapping whose keys are not text."""
TYPES = ("float16", "bfloat16", "float32", "float64")
REMOVED = {
    "discrete_grpo.diffusion.flow.FlowExpectedRate": "FlowExpectedRate is no kernel of policies any more (see docs/graphs.md); "
    "FlowEuler has its arguments",
    "discrete_grpo.models.equivariant.SingleFieldNetwork": "SingleFieldNetwork was removed; GraphTransformer reads the same graphs",
    "discrete_grpo.policies.decoders.EdgeListDecoder": "EdgeListDecoder was removed; GraphSequences reads graphs from text",
    "discrete_grpo.policies.decoders.LabelledGraph": "LabelledGraph was removed; a graph with classes is a line of text",
}
"""Classes in older checkpoints that have no successor, with the message for the user."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: missing, truncated, or not as it was written."""


def describe(obj: Any) -> Any:
    """Describe ``obj`` as JSON: plain values as they are, dataclasses and objects with ``init_args()`` by class path.

    Raises:
        TypeError: for any other object.
    """
    if obj is None or isinstance(obj, bool | int | float | str):
        return obj
    if isinstance(obj, Mapping):
        if all(isinstance(key, str) for key in obj):
            return {key: describe(value) for key, value in obj.items()}
        return {ITEMS: [[describe(key), describe(value)] for key, value in obj.items()]}  # JSON has only keys that are text
    if isinstance(obj, Sequence):
        return [describe(v) for v in obj]
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        args = {f.name: getattr(obj, f.name) for f in dataclasses.fields(obj) if f.init}
    elif hasattr(obj, "init_args"):
        args = obj.init_args()
    else:
        raise TypeError(
            f"{type(obj).__name__}: cannot be written to a checkpoint; give it init_args() -> dict, or make it a dataclass"
        )
    return {"class_path": f"{type(obj).__module__}.{type(obj).__qualname__}", "init_args": describe(args)}


def check_savable(argument: str, obj: Any) -> None:
    """Check that an object, and the objects in it, can be written to a checkpoint and built again from it.

    A module is built once more and compared with the one given. Classes without an import path, as in a console, can be trained
    but not loaded, so such a module is not built.

    Raises:
        TypeError: naming the argument, the class, and what ``init_args`` lacks or the attribute whose weights torch does not find.
    """
    if isinstance(obj, nn.Module):
        as_module(cast(Any, obj))
    try:
        described = describe(obj)
    except TypeError as error:
        raise TypeError(f"{argument}: {error}") from error
    check_init_args(argument, obj)
    if isinstance(obj, nn.Module):
        check_registered(argument, obj)
        _check_rebuilt(argument, obj, described)


def _check_rebuilt(argument: str, module: nn.Module, described: Any) -> None:
    """Raise TypeError unless the module that is built from a description has weights of the same names and shapes."""
    if (again := _built(described)) is None:
        return
    given, found = _shapes(module), _shapes(again)
    wrong = [f"{name} {shape} becomes {found.get(name, 'nothing')}" for name, shape in given.items() if found.get(name) != shape]
    wrong += [f"{name} {shape} is added" for name, shape in found.items() if name not in given]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        told = f"{argument}: {type(module).__name__}, built from its init_args, has other weights: {'; '.join(wrong[:3])}{more}"
        raise TypeError(f"{told}; expected init_args to give all arguments that determine them, since checkpoints are loaded so")


def _built(described: Any) -> nn.Module | None:
    """The module that a description gives; None if one of its classes cannot be imported, or raises."""
    paths = set(_class_paths(described))
    try:
        for path in paths:
            _class(path)
    except CheckpointError:
        return None
    trusted = sorted({path.split(".")[0] for path in paths})
    with seeded_everywhere(0), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return cast(nn.Module, build(described, trusted))
        except CheckpointError:  # a constructor may refuse to run twice in a process, and another process can load it
            return None


def _class_paths(described: Any) -> Iterator[str]:
    if isinstance(described, dict):
        if set(described) == {"class_path", "init_args"}:
            yield described["class_path"]
        described = list(described.values())
    if isinstance(described, list):
        for part in described:
            yield from _class_paths(part)


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of a state dict that have one; those of lazy modules have none before the first call."""
    tensors = merged_tensors(module.state_dict(), module).items()
    return {name: tuple(x.shape) for name, x in tensors if isinstance(x, Tensor) and not is_lazy(x)}


def check_init_args(argument: str, obj: Any) -> None:
    """Check that the constructors of an object, and of the objects in it, accept the result of ``init_args``.

    Raises:
        TypeError: naming the argument, the class, what its ``init_args`` gives and what its arguments are.
    """
    if isinstance(obj, Mapping):
        for value in obj.values():
            check_init_args(argument, value)
    elif isinstance(obj, Sequence) and not isinstance(obj, str):
        for value in obj:
            check_init_args(argument, value)
    elif hasattr(obj, "init_args") and not isinstance(obj, type):
        name, given, signature = type(obj).__name__, obj.init_args(), signature_of(type(obj))
        if not isinstance(given, Mapping):
            raise TypeError(f"{argument}: {name}.init_args gives a {type(given).__name__}, expected a mapping of arguments by name")
        try:
            if signature is not None:
                signature.bind(**given)
        except TypeError as error:
            assert signature is not None
            told = f"{argument}: {name}.init_args gives {', '.join(given) or 'nothing'} ({error})"
            wanted = f"{name}({', '.join(signature.parameters)})"
            raise TypeError(f"{told}, expected the arguments of {wanted}, from which checkpoints are loaded") from error
        check_init_args(argument, given)


def build(spec: Any, trusted: Sequence[str] = TRUSTED) -> Any:
    """Build the object that :func:`describe` described; lists become tuples.

    Raises:
        CheckpointError: if a class is outside the ``trusted`` packages, does not exist or rejects its arguments.
    """
    if isinstance(spec, list):
        return tuple(build(v, trusted) for v in spec)
    if not isinstance(spec, dict):
        return spec
    if set(spec) == {ITEMS}:
        return _from_items(spec[ITEMS], trusted)
    if set(spec) != {"class_path", "init_args"}:
        return {k: build(v, trusted) for k, v in spec.items()}
    path, args = spec["class_path"], spec["init_args"]
    if not isinstance(path, str) or not isinstance(args, dict):
        raise CheckpointError(f"class_path: {path!r} with {type(args).__name__} as init_args, expected a name and a mapping")
    path = current_path(path)
    check_samples(trusted, "trusted", "packages")
    if path.split(".")[0] not in trusted:
        raise CheckpointError(
            f"class_path: {path!r} is outside the trusted packages {', '.join(trusted)}; name its package in `trusted`,"
            " or where a policy is named write module:Class@FOLDER"
        )
    cls = _class(path)
    args = getattr(cls, "upgrade_args", dict)(args)  # a class whose arguments have changed converts the old ones
    args = {k: build(v, trusted) for k, v in args.items()}
    if path.startswith("discrete_grpo."):  # types of other packages are not checked
        _check_types(cls, args, path)
    try:
        return cls(**args)
    except Exception as error:  # arguments from a file can be anything, and the class may raise any error
        said = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"class_path: {path!r} cannot be built: {said}") from error


def _from_items(items: Any, trusted: Sequence[str]) -> dict[Any, Any]:
    pairs = build(items, trusted)
    try:
        return dict(pairs)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{ITEMS}: {items!r}, expected pairs of a key and a value"[:400]) from error


def current_path(path: str) -> str:
    """Return the class path of today for one of format 1; any other path unchanged.

    >>> current_path("discrete_grpo.policies.smiles.TokenPolicy")
    'discrete_grpo.policies.tokens.TokenPolicy'
    """
    module, _, name = path.rpartition(".")
    package, _, inner = module.partition(".")
    if package != "discrete_grpo" or inner not in OLD_MODULES:
        return path
    return f"{package}.{OLD_MODULES[inner]}.{name}"


def _check_types(cls: type, args: Mapping[str, Any], path: str) -> None:
    """Raise CheckpointError for an argument whose type differs from the annotation of the class."""
    try:
        hints = get_type_hints(cls if dataclasses.is_dataclass(cls) else cls.__init__)  # type: ignore[misc]  # the class is what is built
    except Exception:  # names that exist for type checkers only
        return
    for name, value in args.items():
        if name in hints and not _fits(value, hints[name]):
            raise CheckpointError(f"class_path: {path!r} has {name}: {value!r}, expected {_told(hints[name])}"[:400])


def _fits(value: Any, hint: Any) -> bool:
    """Whether a plain value has the annotated type; other annotations accept any value."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return value in inner
    if origin in (tuple, list, Sequence):
        many = inner[:1] * len(value) if isinstance(value, tuple) and (origin is not tuple or inner[1:] == (...,)) else inner
        return isinstance(value, tuple) and len(many) == len(value) and all(map(_fits, value, many))
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(_fits(v, inner[1]) for v in value.values())
    if hint in _PLAIN:
        return isinstance(value, _PLAIN[hint]) and (hint is bool or not isinstance(value, bool))
    if not isinstance(hint, type) or hint in (Any, object) or not isinstance(value, bool | int | float | str | tuple | dict):
        return True
    return not getattr(hint, "_is_protocol", False) and isinstance(value, hint)


_PLAIN: dict[Any, tuple[type, ...]] = {int: (int,), float: (int, float), str: (str,), bool: (bool,), type(None): (type(None),)}


def _told(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("collections.abc.", "")


def _class(path: str) -> type:
    """Import the class at a path if :func:`describe` can have written it: a dataclass, or a class with ``init_args``.

    Functions are refused, and classes defined elsewhere, since they could do anything when called with arguments from a file.
    """
    if path in REMOVED:
        raise CheckpointError(f"class_path: {path!r} cannot be built: {REMOVED[path]}")
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise CheckpointError(f"class_path: {path!r} cannot be built: {error}") from error
    described = isinstance(found, type) and (dataclasses.is_dataclass(found) or hasattr(found, "init_args"))
    if not described or found.__module__ != module:
        raise CheckpointError(f"class_path: {path!r} is no dataclass of that module, nor a class with init_args")
    return found


def _floating(module: nn.Module) -> dict[str, Tensor]:
    """Collect parameters and buffers of floating-point type by name, non-persistent buffers included."""
    return {name: x for name, x in chain(module.named_parameters(), module.named_buffers()) if x.is_floating_point()}


def describe_types(module: nn.Module) -> dict[str, Any]:
    """Describe the floating-point types of a module's tensors; those of adapted weights (LoRA) under their plain names.

    Returns:
        ``dtype``, the type that most tensors have, and ``dtypes`` of the tensors with another one, by name.

    >>> describe_types(nn.Linear(2, 2, dtype=torch.float64))
    {'dtype': 'float64'}
    """
    types = {name: str(x.dtype).removeprefix("torch.") for name, x in merged_tensors(_floating(module), module).items()}
    if not types:
        return {}
    [(usual, _)] = Counter(types.values()).most_common(1)
    others = {name: dtype for name, dtype in types.items() if dtype != usual}
    return {"dtype": usual} | ({"dtypes": others} if others else {})


def restore_types(module: nn.Module, described: Mapping[str, Any]) -> None:
    """Convert each tensor of a module to the type that :func:`describe_types` wrote; without an entry the types stay as they are.

    Raises:
        CheckpointError: for a type that is not in ``TYPES``.
    """
    if "dtype" not in described:
        return
    others = described.get("dtypes", {})
    if not isinstance(others, Mapping):
        raise CheckpointError(f"dtypes: {others!r}, expected a type for each name; the file was edited")
    for name, tensor in _floating(module).items():
        said = others.get(name, described["dtype"])
        if said not in TYPES:
            raise CheckpointError(f"dtype: {said!r}, expected one of {', '.join(TYPES)}")
        if tensor.dtype != (wanted := getattr(torch, said)):
            tensor.data = tensor.data.to(wanted)
