"""Preparation of large data: a file of molecules as a folder of memory-mapped shards, which pretraining reads."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from discrete_grpo.core.checks import check_range, told_as
from discrete_grpo.datasets.reading import check_file
from discrete_grpo.datasets.shard_building import ShardOptions, build_shards
from discrete_grpo.datasets.shards import FORMS
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.recipes.left_out import report_broken
from discrete_grpo.recipes.pretraining.measured import MoleculeFile, measured_columns
from discrete_grpo.recipes.pretraining.molecule_files import data_file
from discrete_grpo.runs.console import progress
from discrete_grpo.runs.lock import locked_folder

__all__ = ["ShardOptions", "preprocess"]

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Errors of writes that need not name a file."""


def preprocess(
    data: str | Path,
    output_dir: str | Path,
    options: ShardOptions | None = None,
    *,
    max_broken: float = 0.05,
    max_bytes: int = MAX_BYTES,
    jobs: int | None = None,
) -> Path:
    """Write a file of molecules as shards, for data that does not fit in memory; returns the folder.

    A folder whose building was stopped is finished by the same call; its shards are kept.

    Args:
        data: path of a SMILES file, or the name of a download.
        output_dir: folder to make.
        options: form, conditions and size of the shards; None means the defaults.
        max_broken: largest share of lines that may not be a molecule; they are counted on standard error.
        max_bytes: largest size that a gzipped file may unpack to.
        jobs: number of processes; None: one per core that may be used.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: as :func:`~discrete_grpo.datasets.shard_building.build_shards`, if a property is given twice or is one that a
            condition cannot have, or if another process works in the folder.
        OSError: if the folder cannot be written in, or no longer; complete shards are kept.
    """
    folder, options = Path(output_dir), options or ShardOptions()
    if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"output_dir: {folder} cannot be written in, expected a folder with write permission")
    path = data_file(str(data))
    with told_as("data", "path"):
        check_file(path)
    measured_columns(MoleculeFile(str(path), options.properties, options.smiles_column, max_bytes))
    check_range("max_broken", max_broken, least=0, most=1, note=" (a share of the lines)")  # before the lock makes the folder
    with locked_folder(folder), _written(folder), told_as("data", "path"), progress("lines", None) as shown:
        found = build_shards(path, folder, options, max_broken=max_broken, max_bytes=max_bytes, jobs=jobs, tell=shown.reach)
    good = found["molecules"] + found["dropped"]
    report_broken(path, found["examples"], good, count=found["broken"])
    dropped = f", {found['dropped']:,} of other sizes left out" if found["dropped"] else ""
    shards = "1 shard" if len(found["shards"]) == 1 else f"{len(found['shards'])} shards"
    print(f"{folder}: {found['molecules']:,} molecules in {shards}{dropped}")
    if unknown := [f"{name} is unknown for {count:,}" for name, count in found["measured"].items() if count]:
        print(f"{', '.join(unknown)} of them")
    print(f"train on it with: discrete-grpo {FORMS[options.form]} --data={quote(str(folder))}")
    return folder


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    """Say what is kept where the block is stopped or cannot write in the folder."""
    kept = "complete shards are kept, and the same command goes on"
    try:
        yield
    except KeyboardInterrupt as stopped:
        stopped.args = (f"stopped; {kept}",)
        raise
    except OSError as error:
        if error.errno in FULL or (error.filename is not None and Path(error.filename).absolute().parent == folder.absolute()):
            raise OSError(f"output_dir: {folder} cannot be written in ({error.strerror}); {kept}") from error
        raise
