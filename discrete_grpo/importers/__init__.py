"""Import of models trained with other packages as policies; their files are read without executing any code."""

from __future__ import annotations

import datetime
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from torch import nn

from discrete_grpo.core.checks import did_you_mean
from discrete_grpo.importers.digress import ImportedGraphs, import_defog, import_digress, import_graph_grpo
from discrete_grpo.importers.huggingface import import_huggingface
from discrete_grpo.importers.midi import MidiModel, import_midi
from discrete_grpo.importers.molgpt import import_molgpt
from discrete_grpo.importers.reinvent import import_reinvent
from discrete_grpo.importers.tensors import read_json
from discrete_grpo.runs.checkpoint import CheckpointError, save

__all__ = [
    "ImportedGraphs",
    "MidiModel",
    "Source",
    "import_checkpoint",
    "import_defog",
    "import_digress",
    "import_graph_grpo",
    "import_huggingface",
    "import_midi",
    "import_molgpt",
    "import_reinvent",
    "importer",
]

TRAINED = frozenset({"grpo_steps", "offline_steps", "pretraining_steps", "rewards", "trained_from"})
"""Names in the metadata of a checkpoint that training adds to those of an import."""
Source = Literal["huggingface", "molgpt", "reinvent", "digress", "defog", "graph-grpo", "midi"]


def importer(source: Source) -> Callable[..., nn.Module | ImportedGraphs | MidiModel]:
    """Return the function that reads a kind of model; its keyword arguments are the options of :func:`import_checkpoint`.

    The importers of SMILES models return a policy, those of graph models an :class:`ImportedGraphs` or a :class:`MidiModel`.

    Raises:
        ValueError: for an unknown kind.
    """
    known: dict[str, Callable[..., nn.Module | ImportedGraphs | MidiModel]]
    known = {"huggingface": import_huggingface, "molgpt": import_molgpt, "reinvent": import_reinvent}
    known |= {"digress": import_digress, "defog": import_defog, "graph-grpo": import_graph_grpo, "midi": import_midi}
    if source not in known:
        hint = did_you_mean(str(source), known)
        raise ValueError(f"source: {source!r}, expected one of {', '.join(get_args(Source))}; {hint}".removesuffix("; "))
    return known[source]


def import_checkpoint(path: str | os.PathLike[str], source: Source, out: str | os.PathLike[str], **options: Any) -> Path:
    """Read a model trained with another package, save it as a checkpoint of this one, and return its folder.

    Args:
        path: a folder of HuggingFace, the weights of MolGPT, a prior of REINVENT, or a checkpoint of DiGress, GDPO, DeFoG,
            Graph-GRPO or MiDi.
        source: kind of the model.
        out: checkpoint folder: a new or an empty one, or an earlier import, which is replaced.
        options: options of the importer.

    Raises:
        CheckpointError: if the model cannot be read.
        ValueError: for an unknown source or option, one that does not fit, or an ``out`` that holds anything else.
    """
    read = importer(source)
    _check_options(read, source, options)
    _check_out(Path(out), Path(path))
    found = read(path, **options)
    policy: nn.Module
    if isinstance(found, ImportedGraphs | MidiModel):
        policy, kind = found.policy, found.metadata
    else:
        policy, kind = found, {"kind": "molecules"}
    metadata = {
        **kind,
        "source": {"format": source, "name": Path(path).resolve().name},
        "data": {"name": f"imported from {source}", "licence": "unknown"},
        "date": datetime.date.today().isoformat(),
    }
    return save(out, policy, metadata=metadata)


def _check_options(read: Callable[..., Any], source: str, options: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for an option that the importer does not have, or a missing required option."""
    known = {p.name: p.default for p in inspect.signature(read).parameters.values() if p.kind is p.KEYWORD_ONLY}
    for name, value in options.items():
        if name not in known:
            raise ValueError(f"{name}: {value!r}, expected none: {source} has {', '.join(known) or 'no options'}")
    for name, default in known.items():
        if default is inspect.Parameter.empty and name not in options:
            raise ValueError(f"{name}: None, expected a value, which {source} needs")


def _check_out(out: Path, path: Path) -> None:
    """Raise ValueError if replacing ``out`` would delete anything but an earlier import."""
    if not os.path.lexists(out):
        return
    source = path.resolve()
    if out.resolve() in (source, *source.parents):
        problem = "and holds the model to read"
    elif out.is_symlink() or not out.is_dir():
        problem = "and is no folder"
    else:
        found = sorted(file.name for file in out.iterdir())
        if not found or (found == ["config.json", "model.safetensors"] and _is_ours(out / "config.json")):
            return
        problem = f"and holds {', '.join(found[:3])}{', ...' if len(found) > 3 else ''}"
    raise ValueError(f"out: {out} exists {problem}, expected a new folder or a checkpoint made by this command")


def _is_ours(config: Path) -> bool:
    """Return whether a file is the configuration of a checkpoint that was imported."""
    try:
        described = read_json(config)
    except CheckpointError:
        return False
    metadata = described.get("metadata") if isinstance(described, dict) and "format" in described else None
    return isinstance(metadata, dict) and isinstance(metadata.get("source"), dict) and TRAINED.isdisjoint(metadata)
