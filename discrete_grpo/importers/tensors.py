"""Reading of foreign weights without executing any code, the choice of the network, and the check of names and shapes."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import IO, Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from discrete_grpo.runs.serialization import CheckpointError
from discrete_grpo.runs.weights import not_finite

__all__ = [
    "ZIP",
    "Inert",
    "below",
    "check_complete",
    "check_floating",
    "check_tensors",
    "named_tensors",
    "network_prefix",
    "read_json",
    "read_pickle",
    "read_safetensors",
    "select_rows",
    "state_dict_in",
]

_T = TypeVar("_T")
ZIP = b"PK\x03\x04"
"""First bytes of what ``torch.save`` writes since torch 1.6."""
NESTED = ("state_dict", "model_state_dict", "model")
"""Keys under which training programs store the state dict of a model."""
WRAPPERS = frozenset({"model", "module", "_orig_mod"})
"""Attributes under which Lightning modules, DataParallel and ``torch.compile`` hold the network that they train."""


class Inert:
    """Stand-in for an object of a foreign class; it accepts any state and runs no foreign code."""

    def __init__(self, *args: Any) -> None:
        pass


def check_complete(path: str | os.PathLike[str]) -> None:
    """Check that a file has a content and, if it begins like a zip archive, also the end of one.

    Raises:
        CheckpointError: if it is empty or truncated.
    """
    with Path(path).open("rb") as file:
        start = file.read(4)
    if not start:
        raise CheckpointError(f"path: {path} is empty, expected the weights of a model")
    if start == ZIP and not zipfile.is_zipfile(path):
        raise CheckpointError(f"path: {path} is truncated (an archive without its end), expected a complete file of torch.save")


def read_pickle(path: str | os.PathLike[str], inert: Collection[str] = ()) -> Any:
    """Read a file written by ``torch.save`` to the CPU: tensors and containers only, without executing any code.

    Args:
        path: the file.
        inert: names, without module, of foreign classes whose objects are replaced by :class:`Inert`.

    Raises:
        CheckpointError: if the file is missing, empty, truncated or damaged, or names any other class or function.
    """
    if not Path(path).is_file():
        raise CheckpointError(f"path: {path} is no file, expected weights written by torch.save")
    if Path(path).suffix == ".safetensors":
        raise CheckpointError(f"path: {path} is a safetensors file, expected one written by torch.save")
    check_complete(path)
    try:
        named = set(_named(Path(path)))
        stand_ins = [(Inert, name) for name in sorted(named) if name.rsplit(".", 1)[-1] in inert]
        with torch.serialization.safe_globals(stand_ins):  # type: ignore[arg-type]
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = next((line.strip() for line in str(error).splitlines() if "GLOBAL" in line), str(error).split("\n")[0])
        raise CheckpointError(f"path: {path} is not read, since reading it could run code ({reason})") from error
    except Exception as error:  # torch, zipfile and pickletools raise many exceptions for a damaged file
        first = str(error).split("\n")[0] or type(error).__name__
        raise CheckpointError(f"path: {path} cannot be read ({first}); expected a file written by torch.save") from error


def _named(path: Path) -> Iterator[str]:
    """Yield all global names in the pickles of a file, without unpickling."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            inner = [name for name in archive.namelist() if name.endswith("data.pkl")]
            for name in inner:
                with archive.open(name) as file:
                    yield from _globals(file)
        return
    with path.open("rb") as file:  # before torch 1.6: magic number, protocol, system, content; then raw storages
        for _ in range(4):
            yield from _globals(file)


def _globals(file: IO[bytes]) -> Iterator[str]:
    for code, argument, _ in pickletools.genops(file):
        if code.name == "GLOBAL":
            yield str(argument).replace(" ", ".")


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file.

    Raises:
        CheckpointError: if it is missing, empty or damaged.
    """
    try:
        check_complete(path)
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"path: {path} cannot be read ({error}); the file is missing or truncated") from error


def read_json(path: str | os.PathLike[str], argument: str = "path") -> Any:
    """Read a JSON file.

    Args:
        path: the file.
        argument: name of the argument in the error.

    Raises:
        CheckpointError: if it is missing or not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{argument}: {path} cannot be read as JSON ({error})") from error


def state_dict_in(content: Any) -> Any:
    """Return the state dict that a file holds by itself or under one of the keys ``NESTED``.

    >>> state_dict_in({"epoch": 3, "model_state_dict": {"head.weight": 0}})
    {'head.weight': 0}
    """
    for _ in NESTED:  # a limit: the content of a file may hold itself
        inner = [content[key] for key in NESTED if isinstance(content.get(key), Mapping)] if isinstance(content, Mapping) else []
        content = inner[0] if inner else content
    return content


def named_tensors(content: Any) -> dict[str, Tensor]:
    """Return the tensors of a state dict by name; other entries are left out."""
    state = state_dict_in(content)
    pairs = state.items() if isinstance(state, Mapping) else ()
    return {name: value for name, value in pairs if isinstance(name, str) and isinstance(value, Tensor)}


def network_prefix(names: Collection[str], first: str, path: object, expected: str) -> str:
    """Return what precedes the names of the network that was trained, such as ``model.``; often nothing.

    A prefix of ``WRAPPERS`` alone is chosen before any other, such as that of an exponential average beside the weights.

    Args:
        names: all names of a file.
        first: name of a tensor that the network has.
        path: path of the file.
        expected: programs that have such networks.

    Raises:
        CheckpointError: if no name ends with ``first``, or several networks may be meant.
    """
    found = sorted(name[: -len(first)] for name in names if name.endswith(first))
    if not found:
        start = ", ".join(sorted(names)[:3]) or "no tensors"
        raise CheckpointError(f"path: {path} has no {first} ({start}), expected a network of {expected}")
    trained = [prefix for prefix in found if WRAPPERS.issuperset(prefix.split(".")[:-1]) and prefix[-1:] in ("", ".")]
    outer = [prefix for prefix in found if not any(prefix != other and prefix.startswith(other) for other in found)]
    chosen = trained or outer
    if len(chosen) > 1:
        listed = ", ".join(f"{prefix}{first}" for prefix in chosen)
        raise CheckpointError(f"path: {path} holds {len(chosen)} networks ({listed}), expected one, or one below 'model.'")
    return chosen[0]


def below(named: Mapping[str, _T], prefix: str, first: str) -> dict[str, _T]:
    """Return the entries of a network without the prefix of their names, and without other networks that are below the prefix.

    >>> below({"model.w": 1, "model.ema.w": 2, "model.ema.steps": 3, "loss": 4}, "model.", "w")
    {'w': 1}
    """
    inside = {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}
    others = {name[: -len(first)] for name in inside if name.endswith(first) and name != first}
    starts = tuple("".join(other.partition(".")[:2]) for other in others)
    return {name: value for name, value in inside.items() if not name.startswith(starts)}


def check_tensors(found: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]], where: object) -> None:
    """Check names, shapes, types and finiteness of tensors.

    Raises:
        CheckpointError: naming the first five that are missing, unexpected or of another shape, or the first that is not of
            floating-point numbers or holds NaN or infinity.
    """
    wrong = [f"{name} missing" for name in expected if not isinstance(found.get(name), Tensor)]
    wrong += [f"{name} unexpected" for name in found if name not in expected]
    wrong += [
        f"{name} {tuple(found[name].shape)} for {shape}"
        for name, shape in expected.items()
        if isinstance(found.get(name), Tensor) and tuple(found[name].shape) != shape
    ]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise CheckpointError(f"path: {where} does not fit: {'; '.join(wrong[:5])}{more}")
    if other := next((name for name in expected if not found[name].is_floating_point()), None):
        kind = str(found[other].dtype).removeprefix("torch.")
        raise CheckpointError(f"path: {where} holds {other} as {kind}, expected floating-point weights")
    if broken := not_finite(found):
        raise CheckpointError(f"path: {where} holds weights that are no finite numbers: {broken}")


def check_floating(path: Path, names: Set[str]) -> None:
    """Check the types of these tensors in a safetensors file, such as the integers of a quantised model, from its header.

    Raises:
        CheckpointError: naming the first that is not of floating-point numbers.
    """
    with safe_open(path, framework="pt") as stored:
        for name in sorted(names & set(stored.keys())):
            if (kind := stored.get_slice(name).get_dtype()).startswith(("I", "U", "BOOL", "C")):
                raise CheckpointError(f"path: {path} holds {name} as {kind}, expected floating-point weights")


def select_rows(weight: Tensor, ids: Sequence[int]) -> Tensor:
    """Return the rows of ``weight`` at ``ids`` in float32: row k of the result is that of our token id k.

    >>> select_rows(torch.tensor([[1.0], [2.0], [3.0]]), [2, 0])
    tensor([[3.],
            [1.]])
    """
    return weight[torch.as_tensor(ids)].float()
