"""Reading of Lightning checkpoints without executing their code.

Such a file pickles the objects that a model was made with (data sets, metrics, configuration). Every class and function that its
pickle names, except the few that rebuild tensors, is replaced by :class:`Record`, so no foreign code is imported or called; the
stored attributes can still be read.
"""

from __future__ import annotations

import io
import os
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from discrete_grpo.importers.tensors import ZIP, check_complete, read_pickle
from discrete_grpo.runs.checkpoint import CheckpointError

__all__ = ["Record", "plain", "read_lightning"]

REBUILD: Mapping[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
    ("torch", "Size"): torch.Size,
    ("collections", "OrderedDict"): OrderedDict,
}


class Record:
    """Stand-in for a foreign object, which stores its state, items and arguments."""

    def __new__(cls, *arguments: Any, **named: Any) -> Record:
        """Return an empty record."""
        made = object.__new__(cls)
        made.__dict__.update(_arguments=arguments, _items={}, _state=None)
        return made

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.__dict__["_state"] = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__dict__["_items"][key if isinstance(key, str | int | float | tuple) else id(key)] = value

    def append(self, value: Any) -> None:
        """Store an element."""
        self[len(self.__dict__["_items"])] = value

    add = append

    def extend(self, values: Any) -> None:
        """Store elements."""
        for value in values:
            self.append(value)

    def __call__(self, *arguments: Any, **named: Any) -> Record:
        """Return another record in place of the result of a foreign function."""
        return Record(*arguments)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def stored(self) -> dict[Any, Any]:
        """Return the attributes and items."""
        state = self.__dict__["_state"]
        parts = state if isinstance(state, tuple) else (state,)
        found = {k: v for part in parts if isinstance(part, Mapping) for k, v in part.items()}
        return found | self.__dict__["_items"]


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = REBUILD.get((module, name), Record)
        # A pickle can set attributes of what it names, and torch's functions are this process's own: it gets a copy.
        return _copy(found) if isinstance(found, FunctionType) else found


def _copy(function: FunctionType) -> FunctionType:
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    return call  # type: ignore[return-value]


def _load(file: Any, **options: Any) -> Any:
    return _Unpickler(file, **options).load()


def read_lightning(path: str | os.PathLike[str]) -> Any:
    """Read a file written by ``torch.save`` to the CPU, without executing any code.

    Raises:
        CheckpointError: if the file is missing, empty, truncated or damaged.
    """
    if not Path(path).is_file():
        raise CheckpointError(f"path: {path} is no file, expected a checkpoint written by torch.save")
    check_complete(path)
    with Path(path).open("rb") as file:
        zipped = file.read(4) == ZIP  # the test that torch makes
    if not zipped:  # before torch 1.6: tensors only
        return read_pickle(path)
    _check_program(path)
    module = SimpleNamespace(Unpickler=_Unpickler, load=_load, loads=lambda data, **options: _load(io.BytesIO(data), **options))
    module.__name__ = "restricted"
    try:
        return torch.load(path, map_location="cpu", pickle_module=module, weights_only=False)  # see _Unpickler
    except Exception as error:  # torch, zipfile and pickle raise many exceptions
        first = str(error).split("\n")[0] or type(error).__name__
        raise CheckpointError(f"path: {path} cannot be read ({first}); expected a checkpoint written by torch.save") from error


def _check_program(path: str | os.PathLike[str]) -> None:
    """Raise CheckpointError for a compiled program, which torch would load; the reader of torch lists the records."""
    try:
        names = torch._C.PyTorchFileReader(str(path)).get_all_records()
    except RuntimeError as error:
        first = str(error).split("\n")[0]
        raise CheckpointError(f"path: {path} cannot be read ({first}); expected a checkpoint written by torch.save") from error
    if "constants.pkl" in names:
        raise CheckpointError(f"path: {path} holds a compiled program, expected a checkpoint")


def plain(value: Any, depth: int = 12) -> Any:
    """Convert a stored configuration or data set to dictionaries, lists, numbers and tensors; other values become None.

    A node of OmegaConf has its content under ``_content`` or its value under ``_val``.
    """
    if depth == 0:
        return None
    if isinstance(value, Record):
        found = value.stored()
        for inner in ("_content", "_val"):
            if inner in found:
                return plain(found[inner], depth - 1)
        return plain(found, depth - 1)
    if isinstance(value, Mapping):
        return {k: plain(v, depth - 1) for k, v in value.items() if isinstance(k, str | int)}
    if isinstance(value, list | tuple):
        return [plain(v, depth - 1) for v in value]
    return value if isinstance(value, bool | int | float | str | Tensor) else None
