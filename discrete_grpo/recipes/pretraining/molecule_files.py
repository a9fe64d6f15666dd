"""Files and folders of molecules that recipes read: named downloads, and folders of shards."""

from __future__ import annotations

from pathlib import Path

from discrete_grpo.datasets.downloads import DOWNLOADS, download
from discrete_grpo.datasets.reading import check_broken
from discrete_grpo.datasets.shards import ShardFolder

__all__ = ["check_shard_options", "data_file"]


def data_file(name: str) -> Path:
    """Return the path of a file of molecules; a named data set is downloaded unless a file of that name exists.

    With several processes all must call this: the first downloads, and the others wait for it.
    """
    if name not in DOWNLOADS or Path(name).exists():
        return Path(name)
    from discrete_grpo.training.distributed import ProcessGroup, accelerator

    return ProcessGroup(accelerator()).after_first(lambda: download(name))


def check_shard_options(folder: ShardFolder, max_broken: float, smiles_column: str | None, max_atoms: int | None = None) -> None:
    """Check the options of a recipe that a folder of shards has fixed when it was made.

    Raises:
        ValueError: if a larger share of lines than ``max_broken`` was broken, or an option differs from that of the folder.
    """
    for name, value in (("smiles_column", smiles_column), ("max_atoms", max_atoms)):
        made = folder.options[name]
        if value is not None and value != made:
            raise ValueError(f"{name}: {value!r}, expected {made!r}, with which the folder {str(folder.path)!r} was made, or null")
    check_broken(folder.path, len(folder) + folder.dropped, folder.examples, max_broken, count=folder.broken)
