"""Format and reading of folders of shards: molecules on disk as flat arrays with offsets, read through memory maps.

A folder holds

* ``plan.json``: format, form, source and options, written before all else;
* ``shard-00000.bin``, ...: the arrays of one block of lines end to end, each at a multiple of 64 bytes;
* ``shard-00000.json``, ...: the record of a shard with its counts and its SHA-256, written after its data;
* ``manifest.json``: plan, records, statistics and counts of the whole, written last.

The arrays of form ``smiles`` are ``tokens``, ``starts``, with scaffolds also ``prompts`` and ``prompt_starts``; those of form
``graphs`` are ``nodes``, ``node_starts``, ``pairs``, ``pair_starts``; ``values`` are the raw properties. Tokens and node classes
are positions in the shard's own ``classes``, because those of the whole set are known only at the end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from discrete_grpo.core.processes import usable_cores
from discrete_grpo.domains.tokenizer import Property

__all__ = ["FORMAT", "MANIFEST", "PLAN", "MappedShard", "Shard", "ShardFolder", "damage", "is_shard_folder", "shard_files"]

FORMAT = 1
"""Version of the format of the folders that are written and read."""
PLAN, MANIFEST = "plan.json", "manifest.json"
FORMS = {"smiles": "pretrain-smiles", "graphs": "pretrain"}
"""The forms of data, and the command that reads each."""
ALIGNMENT = 64
DTYPES = ("uint8", "uint16", "int64", "float32", "float64")

ROOM = 256 << 20
"""Bytes of memory maps that may be resident before they are closed; the pages stay in the cache of the operating system."""
TOUCHED = 64 << 10
"""Bytes that a read from a memory map makes resident, as Linux maps the pages around it too."""

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Shard:
    """Record of a shard.

    Attributes:
        rows: number of molecules.
        dropped: number of molecules of other sizes than requested.
        broken: number of lines that do not parse.
        examples: (line number, text) of the first of them.
        largest: most atoms of a molecule, dropped ones included; 0 for tokens.
        arrays: dtype, offset in bytes and number of elements of each array.
        size: number of bytes of the file.
        sha256: of the file.
        classes: tokens, or labels of atom types, by their numbers in the arrays.
        counts: statistics of the arrays by name, see :mod:`discrete_grpo.datasets.shard_building`.
    """

    rows: int
    dropped: int
    broken: int
    examples: tuple[tuple[int, str], ...]
    largest: int
    arrays: dict[str, tuple[str, int, int]]
    size: int
    sha256: str
    classes: tuple[str, ...]
    counts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Convert to a dictionary of lists, numbers and strings."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Shard:
        """Inverse of :meth:`to_json`.

        Raises:
            ValueError, TypeError, KeyError: if it is no record, or its arrays are not within the file.
        """
        arrays = {str(name): (str(kind), int(offset), int(length)) for name, (kind, offset, length) in plain["arrays"].items()}
        for name, (kind, offset, length) in arrays.items():
            if kind not in DTYPES or offset < 0 or length < 0 or offset + length * np.dtype(kind).itemsize > plain["size"]:
                raise ValueError(f"array {name!r} of {length} {kind} at {offset}")
        examples = tuple((int(line), str(text)) for line, text in plain["examples"])
        given = {**plain, "arrays": arrays, "examples": examples, "classes": tuple(plain["classes"])}
        return cls(**given)


class MappedShard:
    """The arrays of a shard, read lazily.

    ``torch.from_file`` keeps no file open behind its map, unlike ``numpy.memmap``, so there may be thousands of shards.
    """

    def __init__(self, path: Path, shard: Shard) -> None:
        data = torch.from_file(str(path), shared=False, size=shard.size, dtype=torch.uint8).numpy()
        self.arrays: dict[str, Array] = {
            name: data[offset : offset + length * np.dtype(kind).itemsize].view(kind)
            for name, (kind, offset, length) in shard.arrays.items()
        }

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]


def shard_files(folder: Path, index: int) -> tuple[Path, Path]:
    """Paths of the data and of the record of a shard."""
    return folder / f"shard-{index:05d}.bin", folder / f"shard-{index:05d}.json"


def is_shard_folder(path: str | Path) -> bool:
    """Whether ``path`` is a folder, which data is read from as shards."""
    return Path(path).is_dir()


def damage(path: Path, shard: Shard) -> str | None:
    """Describe the damage of the data of a shard; None if its SHA-256 matches the record."""
    try:
        if path.stat().st_size != shard.size:
            return f"it has {path.stat().st_size:,} bytes instead of {shard.size:,}"
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return None if digest.hexdigest() == shard.sha256 else "its SHA-256 is not the one it was written with"


class ShardFolder:
    """A complete folder of shards, whose checksums are verified when it is opened.

    Args:
        path: the folder.
        form: ``smiles`` or ``graphs``, the form that is needed.

    Attributes:
        name: name of the data set in reports.
        options: options with which the folder was made.
        statistics: statistics of the whole.
        broken: number of lines that are not a molecule.
        dropped: number of molecules of other sizes than requested.
        examples: (line number, text) of the first broken lines.
        properties: names, means and deviations of the properties.
        measured: those of them that were read from columns of the file, with the number of molecules for which each is unknown.
        shards: record of each shard.

    Raises:
        ValueError: if it is no such folder, is half built, of another form or version, or damaged.
    """

    def __init__(self, path: str | Path, form: str) -> None:
        self.path = Path(path)
        manifest = _read_manifest(self.path)
        if manifest["form"] != form:
            need = f"expected {form}; make such a folder with 'discrete-grpo preprocess FILE --form={form} --output_dir=FOLDER'"
            raise ValueError(f"data: {str(path)!r} holds molecules in the form {manifest['form']}, {need}")
        try:
            self.name, self.options = str(manifest["name"]), dict(manifest["options"])
            self.statistics: dict[str, Any] = dict(manifest["statistics"])
            self.broken, self.dropped = int(manifest["broken"]), int(manifest["dropped"])
            self.examples = tuple((int(line), str(text)) for line, text in manifest["examples"])
            self.properties = tuple(Property(**scale) for scale in manifest["properties"])
            self.measured = {str(name): int(unknown) for name, unknown in manifest.get("measured", {}).items()}
            self.shards = tuple(Shard.from_json(record) for record in manifest["shards"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _damaged(self.path / MANIFEST, f"{type(error).__name__}: {error}") from None
        self._verify()
        self._ends = np.cumsum([shard.rows for shard in self.shards])
        self._firsts = self._ends - [shard.rows for shard in self.shards]
        self._maps: dict[int, MappedShard] = {}
        self._touched = 0

    def __len__(self) -> int:
        return int(self._ends[-1])

    def _verify(self) -> None:
        files = [shard_files(self.path, index)[0] for index in range(len(self.shards))]
        with ThreadPoolExecutor(min(8, usable_cores())) as threads:
            for path, wrong in zip(files, threads.map(damage, files, self.shards), strict=True):
                if wrong is not None:
                    raise _damaged(path, wrong)

    def lengths(self, starts: str) -> Int[Tensor, " row"]:
        """Differences of an array of starts over all shards, int32: 4 bytes per row."""
        found = np.empty(len(self), dtype=np.int32)
        for index, shard in enumerate(self.shards):
            end = int(self._ends[index])
            found[end - shard.rows : end] = np.diff(MappedShard(shard_files(self.path, index)[0], shard)[starts])
        return torch.from_numpy(found)

    def places(self, rows: Int[Tensor, " row"]) -> list[tuple[int, MappedShard, int]]:
        """Index, arrays and row within the shard of each of ``rows``.

        Raises:
            IndexError: if there is no such row.
        """
        at = np.asarray(rows)
        if len(at) and not 0 <= at.min() <= at.max() < len(self):
            raise IndexError(f"rows: {at.min()} to {at.max()}, expected 0 to {len(self) - 1}")
        self._touched += TOUCHED * len(at)
        if self._touched > ROOM:
            self._maps.clear()
            self._touched = TOUCHED * len(at)
        of = np.searchsorted(self._ends, at, side="right")
        within = at - self._firsts[of]
        return [(k, self._mapped(k), row) for k, row in zip(of.tolist(), within.tolist(), strict=True)]

    def _mapped(self, index: int) -> MappedShard:
        if index not in self._maps:
            self._maps[index] = MappedShard(shard_files(self.path, index)[0], self.shards[index])
        return self._maps[index]

    def columns(self, names: Sequence[str]) -> list[int]:
        """Columns of the properties of these names.

        Raises:
            ValueError: if the folder lacks one.
        """
        known = [p.name for p in self.properties]
        for name in names:
            if name not in known:
                has = f"has {', '.join(known)}" if known else "has none"
                raise ValueError(
                    f"properties: {name!r} is not in the folder {str(self.path)!r}, which {has}; give it to 'preprocess'"
                )
        return [known.index(name) for name in names]


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        if (folder / PLAN).is_file():
            done = len(list(folder.glob("shard-*.json")))
            go_on = "give the same 'discrete-grpo preprocess' command again to finish it"
            raise ValueError(f"data: {str(folder)!r} is half built, {done} shards so far; {go_on}")
        expected = "a file of molecules or a folder made by 'discrete-grpo preprocess'"
        raise ValueError(f"data: {str(folder)!r} is a folder without {MANIFEST}, expected {expected}")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version, form = manifest["format"], manifest["form"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from None
    if version != FORMAT or form not in FORMS:
        again = "make the folder again with 'discrete-grpo preprocess'"
        raise ValueError(
            f"data: {str(path)!r} is of format {version!r} {form!r}, expected {FORMAT} and {' or '.join(FORMS)}; {again}"
        )
    return dict(manifest)


def _damaged(path: Path, why: str) -> ValueError:
    again = "give the same 'discrete-grpo preprocess' command again to repair it"
    return ValueError(f"data: {str(path)!r} is damaged ({' '.join(why.split())}); {again}")
