"""Writing of folders of shards from molecule files: parallel, resumable after a kill at any moment, in one pass.

A shard holds the molecules of ``shard_lines`` lines. Its data is written before its record, each atomically, so a shard with a
record is complete; a later build with the same source and options keeps it if its SHA-256 matches the record.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discrete_grpo.core.atomic import atomic_write
from discrete_grpo.core.checks import check_range
from discrete_grpo.datasets.measured import Cells, Columns, measured_names
from discrete_grpo.datasets.molecules import NUM_BOND_CLASSES, MoleculeStatistics, property_scales, shares
from discrete_grpo.datasets.parallel import blocks, map_blocks
from discrete_grpo.datasets.reading import check_broken, check_file, content_key, smiles_rows
from discrete_grpo.datasets.shard_arrays import EXAMPLES, Conditions, graph_arrays, token_arrays
from discrete_grpo.datasets.shards import ALIGNMENT, FORMAT, FORMS, MANIFEST, PLAN, MappedShard, Shard, damage, shard_files
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.domains.molecules import AtomType, Vocabulary
from discrete_grpo.domains.tokenizer import SMILES, Tokenizer

__all__ = ["SHARD_LINES", "ShardOptions", "build_shards"]

SHARD_LINES = 100_000
"""Default number of lines of a shard."""
LEFTOVER = re.compile(r"\..+\.[0-9a-f]{12}\.tmp")
"""Names of the files that killed writes leave."""
SHARD_FILE = re.compile(r"shard-\d{5,}\.(bin|json)")
"""Names of the files of shards."""

Row = tuple[int, str, Cells | None]
"""Number of a line, SMILES, and the cells of its row if columns are read."""


@dataclass(frozen=True)
class ShardOptions:
    """Options of the shards made of a file.

    Attributes:
        form: ``smiles`` for token sequences, ``graphs`` for packed graphs.
        properties: names of conditions to keep: of columns of numbers in the file, and else of RDKit descriptors.
        scaffold: whether to keep Murcko scaffolds as conditions; for ``smiles``.
        max_atoms: larger molecules are left out; None keeps all; for ``graphs``.
        smiles_column: name of the column of SMILES; None finds it by its name.
        shard_lines: number of lines of a shard, at least 1.

    Raises:
        ValueError: for an option out of its range or of the other form.
    """

    form: str = "smiles"
    properties: tuple[str, ...] = ()
    scaffold: bool = False
    max_atoms: int | None = None
    smiles_column: str | None = None
    shard_lines: int = SHARD_LINES

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ValueError(f"form: {self.form!r}, expected {' or '.join(FORMS)}")
        if self.form == "smiles" and self.max_atoms is not None:
            raise ValueError(f"max_atoms: {self.max_atoms}, expected none with form smiles")
        if self.form == "graphs" and self.scaffold:
            raise ValueError("scaffold: true, expected false with form graphs")
        if self.max_atoms is not None:
            check_range("max_atoms", self.max_atoms, least=1)
        check_range("shard_lines", self.shard_lines, least=1)


class _NothingLeft(ValueError):
    """The options leave no molecule or no value of a property, so that the shards are of no use to another call."""


def build_shards(
    path: str | Path,
    folder: str | Path,
    options: ShardOptions | None = None,
    *,
    max_broken: float = 0.05,
    max_bytes: int = MAX_BYTES,
    jobs: int | None = None,
    tell: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Write the molecules of a file as a folder of shards; returns the manifest.

    The folder does not depend on ``jobs`` or on how often its building was stopped. If a file is refused before a shard is
    complete, or no molecule or no value of a property is left, the folder is removed.

    Args:
        path: molecule file, as in :func:`~discrete_grpo.datasets.reading.read_smiles`.
        folder: the folder to make; one that was begun with the same file and options is finished, and its shards are kept.
        options: what to write; None means the defaults.
        max_broken: largest share of lines that may fail to parse.
        max_bytes: largest size that a gzipped file may unpack to.
        jobs: number of processes; None: one per core that may be used.
        tell: called with the number of lines that are done, after every shard.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the folder cannot be made or holds something else, no molecules are left, more lines are broken than allowed,
            the column is not certain, or a property is neither a column nor a descriptor or is known for no molecule.
    """
    path, folder, options = Path(path), Path(folder), options or ShardOptions()
    check_range("max_broken", max_broken, least=0, most=1, note=" (a share of the lines)")
    check_file(path)
    measured = _measured(path, options, max_bytes)
    plan = _plan(path, options, measured)
    with _begun(folder, plan):
        shards = _shards(path, folder, options, measured, max_bytes, jobs, tell)
        _check(path, shards, max_broken, options)
        return _finish(folder, plan, shards, options, measured)


def _measured(path: Path, options: ShardOptions, max_bytes: int) -> Columns | None:
    """The columns that are read as conditions; None for none."""
    if not options.properties:
        return None
    names = measured_names(path, options.properties, smiles_column=options.smiles_column, max_bytes=max_bytes)
    return Columns.open(path, names, options.smiles_column, max_bytes)[0] if names else None


def _rows(path: Path, options: ShardOptions, measured: Columns | None, max_bytes: int) -> Iterator[Row]:
    """The lines of a file, with the cells of their rows if there are columns to read."""
    rows = smiles_rows(path, options.smiles_column, max_bytes)
    if measured is None:
        return ((line, text, None) for line, text in rows)
    _, table = Columns.open(path, measured.names, options.smiles_column, max_bytes)
    return ((line, text, measured.cells(row)) for (line, text), (_, row) in zip(rows, table, strict=True))


def _shards(
    path: Path,
    folder: Path,
    options: ShardOptions,
    measured: Columns | None,
    max_bytes: int,
    jobs: int | None,
    tell: Callable[[int], None] | None,
) -> list[Shard]:
    """The records of all shards, of which those that are not whole yet are written."""
    done, todo = [0], partial(write_shard, folder=folder, options=options, path=path, measured=measured)
    known: dict[int, Shard] = {}

    def missing() -> Iterator[tuple[int, list[Row]]]:
        for index, rows in enumerate(blocks(_rows(path, options, measured, max_bytes), options.shard_lines)):
            found = _finished(folder, index)
            if found is None:
                yield index, rows
            else:
                known[index] = found
                done[0] += len(rows)

    for index, shard in map_blocks(todo, missing(), jobs, alone=1):
        known[index] = shard
        done[0] += shard.rows + shard.dropped + shard.broken
        if tell is not None:
            tell(done[0])
    return [known[index] for index in range(len(known))]


def _plan(path: Path, options: ShardOptions, measured: Columns | None) -> dict[str, Any]:
    given = asdict(options) | ({} if measured is None else {"measured": measured.names})
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    form = plain.pop("form")
    source = {"file": path.name, "key": content_key(path, f"shards {FORMAT}")}
    return {"format": FORMAT, "form": form, "name": path.name.split(".")[0], "source": source, "options": plain}


@contextmanager
def _begun(folder: Path, plan: Mapping[str, Any]) -> Iterator[None]:
    """Make the folder with its plan; remove it if the block fails before it has written a shard, or with :class:`_NothingLeft`."""
    new = not folder.exists()
    _begin(folder, plan)
    try:
        yield
    except Exception as error:
        useless = (LEFTOVER, SHARD_FILE) if isinstance(error, _NothingLeft) else (LEFTOVER,)
        with suppress(OSError):  # the error of the block is the one to report
            found = list(folder.iterdir())
            if all(path.name == PLAN or any(kind.fullmatch(path.name) for kind in useless) for path in found):
                for path in found:
                    path.unlink(missing_ok=True)
                if new:
                    folder.rmdir()
        raise


def _begin(folder: Path, plan: Mapping[str, Any]) -> None:
    """Make the folder with its plan, unless it is there with the same."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"output_dir: {str(folder)!r} is a file, expected a folder to make")
    if folder.is_dir() and any(LEFTOVER.fullmatch(path.name) is None for path in folder.iterdir()):
        kept, before = _kept_plan(folder, plan)
        if before != plan:
            said = _difference(before, plan)
            raise ValueError(f"output_dir: {str(folder)!r} was begun with other data or options ({said}); name another folder")
        if not kept:
            _write_json(folder / PLAN, plan)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"output_dir: {str(folder)!r} cannot be made a folder ({error.strerror})") from error
    _write_json(folder / PLAN, plan)


def _kept_plan(folder: Path, plan: Mapping[str, Any]) -> tuple[bool, Any]:
    """Whether the plan of a folder can be read, and the plan; the manifest repeats one that is damaged or missing."""
    for name in (PLAN, MANIFEST):
        try:
            found = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if name == PLAN:
            return True, found
        if isinstance(found, dict):
            return False, {key: found.get(key) for key in plan}
    raise ValueError(f"output_dir: {str(folder)!r} holds other files and no readable {PLAN} or {MANIFEST}, expected a new folder")


def _difference(before: Any, plan: Mapping[str, Any]) -> str:
    """Name the first entry in which two plans differ."""
    if not isinstance(before, dict):
        return f"{PLAN} is no plan"
    flat = [{**p, **p.get("options", {}), **{f"source {k}": v for k, v in p.get("source", {}).items()}} for p in (before, plan)]
    for name in (*before.get("options", {}), *plan["options"], "form", "format", "source file", "source key"):
        if flat[0].get(name) != flat[1].get(name):
            return f"{name}: {flat[0].get(name)!r}, given {flat[1].get(name)!r}"
    return "name"


def _finished(folder: Path, index: int) -> Shard | None:
    """The record of a shard that is whole; None if there is none."""
    data, record = shard_files(folder, index)
    try:
        shard = Shard.from_json(json.loads(record.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return shard if damage(data, shard) is None else None


def _check(path: Path, shards: Sequence[Shard], max_broken: float, options: ShardOptions) -> None:
    """Raise ValueError if too many lines are broken or no molecule is left."""
    rows, dropped = sum(s.rows for s in shards), sum(s.dropped for s in shards)
    examples = [example for shard in shards for example in shard.examples][:EXAMPLES]
    check_broken(path, rows + dropped, examples, max_broken, count=sum(s.broken for s in shards))
    if not rows:
        largest = max(shard.largest for shard in shards)
        raise _NothingLeft(f"max_atoms: {options.max_atoms} leaves no molecule; sizes are 1 to {largest}")


# -- one shard


def write_shard(
    task: tuple[int, Sequence[Row]], *, folder: Path, options: ShardOptions, path: Path, measured: Columns | None = None
) -> tuple[int, Shard]:
    """Parse the lines of a shard and write it; returns its index and its record."""
    index, rows = task
    read = Conditions(options.properties, measured, {line: cells for line, _, cells in rows if cells is not None})
    lines = [(line, text) for line, text, _ in rows]
    if options.form == "smiles":
        arrays, facts = token_arrays(lines, read, scaffold=options.scaffold)
    else:
        arrays, facts = graph_arrays(lines, read, path, max_atoms=options.max_atoms)
    data, record = shard_files(folder, index)
    places, size, digest = {}, 0, hashlib.sha256()
    with atomic_write(data) as file:
        for name, array in arrays.items():
            content = bytes(-size % ALIGNMENT) + np.ascontiguousarray(array).tobytes()
            places[name] = (str(array.dtype), size + -size % ALIGNMENT, array.size)
            size += len(content)
            digest.update(content)
            file.write(content)
    shard = Shard(arrays=places, size=size, sha256=digest.hexdigest(), **facts)
    _write_json(record, shard.to_json())
    return index, shard


# -- the whole


def _finish(
    folder: Path, plan: Mapping[str, Any], shards: Sequence[Shard], options: ShardOptions, measured: Columns | None
) -> dict[str, Any]:
    """Write the manifest and remove the leftovers of killed writes."""
    table = _values(folder, shards, options.properties)
    try:
        scales = property_scales(options.properties, table)
    except ValueError as error:
        raise _NothingLeft(str(error)) from None
    unknown = dict(zip(options.properties, table.isnan().sum(0).tolist(), strict=True))
    manifest = {
        **plan,
        "molecules": sum(shard.rows for shard in shards),
        "dropped": sum(shard.dropped for shard in shards),
        "broken": sum(shard.broken for shard in shards),
        "examples": [example for shard in shards for example in shard.examples][:EXAMPLES],
        "properties": [asdict(scale) for scale in scales],
        "measured": {name: unknown[name] for name in (measured.names if measured is not None else ())},
        "statistics": _token_statistics(shards) if options.form == "smiles" else _graph_statistics(shards, plan["name"]),
        "shards": [shard.to_json() for shard in shards],
    }
    _write_json(folder / MANIFEST, manifest)
    for path in folder.iterdir():
        if LEFTOVER.fullmatch(path.name):
            path.unlink(missing_ok=True)
    return manifest


def _token_statistics(shards: Sequence[Shard]) -> dict[str, Any]:
    """Alphabet of the molecules, alphabet with their scaffolds, number of molecules by length, and the longest scaffold."""
    lengths: Counter[int] = Counter()
    for shard in shards:
        lengths.update({int(n): count for n, count in shard.counts["lengths"].items()})
    alphabets = [[s.counts["tokens"] for s in shards], [s.classes for s in shards]]
    tokens, both = (Tokenizer.of({token for part in parts for token in part}, SMILES).tokens for parts in alphabets)
    longest = max(shard.counts["longest_prompt"] for shard in shards)
    return {
        "tokens": list(tokens),
        "tokens_with_scaffolds": list(both),
        "lengths": {str(n): lengths[n] for n in sorted(lengths)},
        "longest_prompt": longest,
    }


def _graph_statistics(shards: Sequence[Shard], name: str) -> dict[str, Any]:
    nodes: Counter[str] = Counter()
    for shard in shards:
        nodes.update(dict(zip(shard.classes, shard.counts["nodes"], strict=True)))
    vocabulary = Vocabulary.from_types(AtomType.from_label(label) for label in nodes)
    sizes = torch.zeros(max(len(shard.counts["sizes"]) for shard in shards), dtype=torch.long)
    pairs = torch.zeros(NUM_BOND_CLASSES, dtype=torch.long)
    for shard in shards:
        sizes[: len(shard.counts["sizes"])] += torch.tensor(shard.counts["sizes"], dtype=torch.long)
        pairs += torch.tensor(shard.counts["pairs"])
    kinds = torch.tensor([nodes[label] for label in vocabulary.atoms])
    rows = sum(shard.rows for shard in shards)
    return MoleculeStatistics(shares(sizes), shares(kinds), shares(pairs), vocabulary, rows, name).to_json()


def _values(folder: Path, shards: Sequence[Shard], properties: Sequence[str]) -> Tensor:
    """The conditions [M, K] of all shards, which have the scales of a data set in memory to the bit."""
    if not properties:
        return torch.empty(0, 0)
    values = [MappedShard(shard_files(folder, k)[0], shard)["values"] for k, shard in enumerate(shards)]
    return torch.from_numpy(np.concatenate(values)).reshape(-1, len(properties))


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with atomic_write(path, "w") as file:
        json.dump(content, file)
