"""Checkpoints: weights as safetensors, the policy's construction as JSON, training state beside them.

A checkpoint is a folder::

    model.safetensors   the policy's weights (the moving average where one is kept)
    config.json         how to build the policy, and metadata (data, licence, statistics)
    training.pt         optimiser, generators, counters, raw weights; read with ``weights_only``, absent in an export

Folders appear whole or not at all: they are written under another name, synced and renamed. Loading executes no
code from a checkpoint: classes are found by import path, and only inside packages the caller trusts.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from discrete_grpo.atomic import sync_folder

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "build",
    "bundled_policies",
    "describe",
    "find_checkpoint",
    "load_metadata",
    "load_policy",
    "load_training",
    "load_weights",
    "save",
]

FORMAT = 1
TRUSTED = ("discrete_grpo",)
BUNDLED = Path(__file__).parent / "bundled"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: missing, truncated, or of another shape than it says."""


# -- objects as JSON


def describe(obj: Any) -> Any:
    """``obj`` as JSON: plain values as they are, dataclasses and objects with ``init_args()`` by class path.

    Raises:
        TypeError: for anything else.
    """
    if obj is None or isinstance(obj, bool | int | float | str):
        return obj
    if isinstance(obj, Mapping):
        return {str(k): describe(v) for k, v in obj.items()}
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


def build(spec: Any, trusted: Sequence[str] = TRUSTED) -> Any:
    """The object ``describe`` described; lists become tuples.

    Raises:
        CheckpointError: if a class is outside the ``trusted`` packages, does not exist or rejects its arguments.
    """
    if isinstance(spec, list):
        return tuple(build(v, trusted) for v in spec)
    if not isinstance(spec, dict):
        return spec
    if set(spec) != {"class_path", "init_args"}:
        return {k: build(v, trusted) for k, v in spec.items()}
    path = spec["class_path"]
    if path.split(".")[0] not in trusted:
        raise CheckpointError(
            f"class_path: {path!r} is outside the trusted packages {', '.join(trusted)}; name its package in `trusted`"
        )
    cls = _class(path)
    args = build(spec["init_args"], trusted)
    try:
        return cls(**args)
    except (ImportError, AttributeError, TypeError) as error:
        raise CheckpointError(f"class_path: {path!r} cannot be built: {error}") from error


def _class(path: str) -> type:
    """The class at an import path, if it is of the kind :func:`describe` writes: a dataclass, or one with ``init_args``.

    A function, or a class that stands elsewhere, could do anything when called with arguments from a file.
    """
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise CheckpointError(f"class_path: {path!r} cannot be built: {error}") from error
    described = isinstance(found, type) and (dataclasses.is_dataclass(found) or hasattr(found, "init_args"))
    if not described or found.__module__ != module:
        raise CheckpointError(f"class_path: {path!r} is no dataclass of that module, nor a class with init_args")
    return found


# -- one checkpoint


def save(
    folder: str | os.PathLike[str], policy: nn.Module, *, metadata: Mapping[str, Any], training: Mapping[str, Any] | None = None
) -> Path:
    """Write a checkpoint folder, whole or not at all; an older one of that name is replaced.

    Args:
        folder: the folder to make.
        policy: a module with ``init_args()``; its weights are what users of the checkpoint get.
        metadata: JSON values kept beside the weights.
        training: what an exact resume needs; tensors, numbers, strings and containers of them.
    """
    final = Path(folder)
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(4)}.tmp")
    temporary.mkdir()
    try:
        weights = {name: value.detach().cpu().contiguous() for name, value in policy.state_dict().items()}
        save_file(weights, temporary / "model.safetensors")
        config = {"format": FORMAT, "policy": describe(policy), "metadata": describe(metadata)}
        (temporary / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
        if training is not None:
            torch.save(dict(training), temporary / "training.pt")
        for file in temporary.iterdir():
            _sync_file(file)
        sync_folder(temporary)
        if final.exists():
            old = final.with_name(f".{final.name}.{secrets.token_hex(4)}.old")
            final.rename(old)
            temporary.rename(final)
            shutil.rmtree(old)
        else:
            temporary.rename(final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(final.parent)
    return final


def _sync_file(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise CheckpointError(f"checkpoint: {folder} has no config.json, expected a folder written by discrete-grpo")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"checkpoint: {path} is no JSON ({error}); the file is truncated or was edited") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        found = config.get("format") if isinstance(config, dict) else None
        raise CheckpointError(f"checkpoint: {path} has format {found!r}, expected {FORMAT}")
    if missing := [name for name in ("policy", "metadata") if not isinstance(config.get(name), dict)]:
        raise CheckpointError(f"checkpoint: {path} has no {' and no '.join(missing)}; the file was edited")
    return config


def load_metadata(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The metadata a checkpoint was saved with."""
    return dict(_read_config(folder)["metadata"])


def load_weights(folder: str | os.PathLike[str], policy: nn.Module) -> None:
    """Copy a checkpoint's weights into ``policy``.

    Raises:
        CheckpointError: if the file is missing or truncated, or a tensor is missing, unexpected or of another shape.
    """
    path = Path(folder) / "model.safetensors"
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint: {path} cannot be read ({error}); the file is missing or truncated") from error
    wanted = policy.state_dict()
    wrong = [f"{name} missing" for name in wanted if name not in found]
    wrong += [f"{name} unexpected" for name in found if name not in wanted]
    wrong += [
        f"{name} {tuple(found[name].shape)} for {tuple(wanted[name].shape)}"
        for name in wanted
        if name in found and found[name].shape != wanted[name].shape
    ]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise CheckpointError(f"checkpoint: {path} does not fit the policy: {'; '.join(wrong[:5])}{more}")
    policy.load_state_dict(found)


def load_policy(folder: str | os.PathLike[str], *, trusted: Sequence[str] = TRUSTED) -> Any:
    """The policy a checkpoint holds, on the CPU, in eval mode, with its weights.

    Args:
        folder: the checkpoint.
        trusted: top-level packages whose classes may be built; name yours for a policy or network of your own.

    Raises:
        CheckpointError: if it cannot be built or its weights do not fit.
    """
    policy = build(_read_config(folder)["policy"], trusted)
    load_weights(folder, policy)
    return policy.eval()


def load_training(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The training state of a checkpoint, read without executing anything.

    Raises:
        CheckpointError: if there is none or it cannot be read.
    """
    path = Path(folder) / "training.pt"
    if not path.is_file():
        raise CheckpointError(f"checkpoint: {folder} has no training.pt, so there is no run to resume from it")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"checkpoint: {path} cannot be read ({first}); the file is truncated or was changed") from error
    return dict(state)


# -- the checkpoints of a run


class Checkpoints:
    """The numbered checkpoints of a run folder, ``RUN/checkpoints/step-00000010``, the last few of which are kept."""

    def __init__(self, run: str | os.PathLike[str], keep: int = 2) -> None:
        self.folder = Path(run) / "checkpoints"
        self.keep = keep

    def all(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(p for p in self.folder.iterdir() if re.fullmatch(r"step-\d{8}", p.name))

    def latest(self) -> Path:
        """The newest checkpoint whose training state can be read; a damaged newer one is passed over.

        Raises:
            CheckpointError: if there is none.
        """
        reasons = []
        for path in reversed(self.all()):
            try:
                load_training(path)
            except CheckpointError as error:
                reasons.append(str(error))
            else:
                return path
        raise CheckpointError(f"checkpoint: {self.folder} holds no checkpoint to resume from" + "".join(f"; {r}" for r in reasons))

    def save(self, step: int, policy: nn.Module, *, metadata: Mapping[str, Any], training: Mapping[str, Any]) -> Path:
        """Write the checkpoint of ``step`` and then remove what is beyond ``keep``, and leftovers of killed writes."""
        path = save(self.folder / f"step-{step:08d}", policy, metadata=metadata, training=training)
        for old in self.all()[: -self.keep]:
            shutil.rmtree(old)
        for torn in self.folder.glob(".step-*"):
            shutil.rmtree(torn, ignore_errors=True)
        return path


def tensors_to_cpu(tree: Any) -> Any:
    """A copy of a nested state with every tensor detached on the CPU."""
    if isinstance(tree, Tensor):
        return tree.detach().cpu().clone()
    if isinstance(tree, Mapping):
        return {k: tensors_to_cpu(v) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(tensors_to_cpu(v) for v in tree)
    return tree


# -- finding one by name


def bundled_policies(role: str = "policy") -> list[str]:
    """Names of the policies that come with the package; with ``role``, of the judges or classifiers."""
    kinds = {p.parent.name: load_metadata(p.parent).get("kind") for p in BUNDLED.glob("*/config.json")}
    return sorted(name for name, kind in kinds.items() if role == (kind if kind in ("judge", "classifier") else "policy"))


def find_checkpoint(name: str | Path, role: str = "policy") -> Path:
    """The checkpoint folder meant by a bundled policy's name, a checkpoint folder or a run folder.

    Args:
        name: which.
        role: what it holds: ``policy``, ``judge`` or ``classifier``; for the error.

    Raises:
        CheckpointError: if there is none.
    """
    path = Path(name)
    for candidate in (path, path / "policy", BUNDLED / str(name)):
        if (candidate / "config.json").is_file():
            return candidate
    if (path / "checkpoints").is_dir():
        return Checkpoints(path).latest()
    known = bundled_policies(role)
    near = difflib.get_close_matches(str(name), known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else f" (bundled: {', '.join(known) or 'none'})"
    raise CheckpointError(f"{role}: {str(name)!r} is no checkpoint folder, run folder or bundled {role}{hint}")
