"""Reading of foreign weights without executing any code, and the check of their names and shapes."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from discrete_grpo.runs.serialization import CheckpointError
from discrete_grpo.runs.weights import not_finite

__all__ = ["Inert", "check_tensors", "read_json", "read_pickle", "read_safetensors", "select_rows"]


class Inert:
    """Stand-in for an object of a foreign class; it accepts any state and runs no foreign code."""

    def __init__(self, *args: Any) -> None:
        pass


def read_pickle(path: str | os.PathLike[str], inert: Collection[str] = ()) -> Any:
    """Read a file written by ``torch.save`` to the CPU: tensors and containers only, without executing any code.

    Args:
        path: the file.
        inert: names, without module, of foreign classes whose objects are replaced by :class:`Inert`.

    Raises:
        CheckpointError: if the file is missing or damaged, or names any other class or function.
    """
    if not Path(path).is_file():
        raise CheckpointError(f"path: {path} is no file, expected weights written by torch.save")
    if Path(path).suffix == ".safetensors":
        raise CheckpointError(f"path: {path} is a safetensors file, expected one written by torch.save")
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
        CheckpointError: if it is missing or damaged.
    """
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"path: {path} cannot be read ({error}); the file is missing or truncated") from error


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file.

    Raises:
        CheckpointError: if it is missing or not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"path: {path} cannot be read as JSON ({error})") from error


def check_tensors(found: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]], where: object) -> None:
    """Check names, shapes and finiteness of tensors.

    Raises:
        CheckpointError: naming the first five that are missing, unexpected or of another shape, or that hold NaN or infinity.
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
    if broken := not_finite(found):
        raise CheckpointError(f"path: {where} holds weights that are no finite numbers: {broken}")


def select_rows(weight: Tensor, ids: Sequence[int]) -> Tensor:
    """Return the rows of ``weight`` at ``ids`` in float32: row k of the result is that of our token id k.

    >>> select_rows(torch.tensor([[1.0], [2.0], [3.0]]), [2, 0])
    tensor([[3.],
            [1.]])
    """
    return weight[torch.as_tensor(ids)].float()
