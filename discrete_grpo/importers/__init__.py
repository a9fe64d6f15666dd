"""Models that others have trained, brought in as policies: each is read without executing anything and saved as our checkpoint."""

from __future__ import annotations

import datetime
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from discrete_grpo.checkpoint import save
from discrete_grpo.importers.huggingface import import_huggingface
from discrete_grpo.importers.molgpt import import_molgpt
from discrete_grpo.importers.reinvent import import_reinvent
from discrete_grpo.policies.smiles import TokenPolicy

__all__ = ["Source", "import_checkpoint", "import_huggingface", "import_molgpt", "import_reinvent", "importer"]

Source = Literal["huggingface", "molgpt", "reinvent"]


def importer(source: Source) -> Callable[..., TokenPolicy]:
    """The function that reads a kind of model; its keyword arguments are the options of :func:`import_checkpoint`.

    Raises:
        ValueError: for an unknown kind.
    """
    known: dict[str, Callable[..., TokenPolicy]]
    known = {"huggingface": import_huggingface, "molgpt": import_molgpt, "reinvent": import_reinvent}
    if source not in known:
        raise ValueError(f"source: {source!r}, expected one of {', '.join(known)}")
    return known[source]


def import_checkpoint(path: str | os.PathLike[str], source: Source, out: str | os.PathLike[str], **options: Any) -> Path:
    """Read a model that others have trained and save it as a checkpoint of a SMILES policy; returns its folder.

    Args:
        path: the model: a folder of HuggingFace, the weights of MolGPT, a prior of REINVENT.
        source: which of them.
        out: the checkpoint folder to make; an older one of that name is replaced.
        options: of the importer.

    Raises:
        CheckpointError: if the model cannot be read.
        ValueError: for an unknown source or option, or one that does not fit.
    """
    read = importer(source)
    try:
        inspect.signature(read).bind(path, **options)
    except TypeError as error:
        names = [p.name for p in inspect.signature(read).parameters.values() if p.kind is p.KEYWORD_ONLY]
        raise ValueError(f"options: {error} for {source}, expected {', '.join(names) or 'none'}") from error
    policy = read(path, **options)
    metadata = {
        "kind": "molecules",
        "source": {"format": source, "name": Path(path).resolve().name},
        "data": {"name": f"imported from {source}", "licence": "unknown"},
        "date": datetime.date.today().isoformat(),
    }
    return save(out, policy, metadata=metadata)
