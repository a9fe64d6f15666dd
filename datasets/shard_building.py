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

from discrete_grpo.core.atomic import atomic_write
from discrete_grpo.core.checks import check_range
from discrete_grpo.datasets.molecules import NUM_BOND_CLASSES, MoleculeStatistics, descriptors, property_scales, shares
from discrete_grpo.datasets.packing import pack_lines
from discrete_grpo.datasets.parallel import blocks, map_blocks
from discrete_grpo.datasets.reading import check_broken, check_file, content_key, smiles_rows
from discrete_grpo.datasets.shards import ALIGNMENT, FORMAT, FORMS, MANIFEST, PLAN, Array, MappedShard, Shard, damage, shard_files
from discrete_grpo.datasets.smiles import parse_lines
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.domains.molecule_properties import descriptor
from discrete_grpo.domains.molecules import AtomType, Vocabulary
from discrete_grpo.domains.tokenizer import EOS, SMILES, Tokenizer

__all__ = ["SHARD_LINES", "ShardOptions", "build_shards"]

SHARD_LINES = 100_000
"""Default number of lines of a shard."""
LEFTOVER = re.compile(r"\..+\.[0-9a-f]{12}\.tmp")
"""Names of the files that killed writes leave."""
SHARD_FILE = re.compile(r"shard-\d{5,}\.(bin|json)")
"""Names of the files of shards."""
EXAMPLES = 5
"""Number of broken lines that a record lists."""

Rows = Sequence[tuple[int, str]]


@dataclass(frozen=True)
class ShardOptions:
    """Options of the shards made of a file.

    Attributes:
        form: ``smiles`` for token sequences, ``graphs`` for packed graphs.
        properties: RDKit descriptors to keep as conditions.
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
        for name in self.properties:
            try:
                descriptor(name)
            except ValueError as error:
                raise ValueError(f"{error} (shards keep descriptors, not columns of the file)") from None


class _NothingLeft(ValueError):
    """The options leave no molecule, so that the shards are of no use to another call."""


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
    complete, or no molecule is left, the folder is removed.

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
            or the column is not certain.
    """
    path, folder, options = Path(path), Path(folder), options or ShardOptions()
    check_range("max_broken", max_broken, least=0, most=1, note=" (a share of the lines)")
    check_file(path)
    plan = _plan(path, options)
    with _begun(folder, plan):
        shards = _shards(path, folder, options, max_bytes, jobs, tell)
        _check(path, shards, max_broken, options)
    return _finish(folder, plan, shards, options)


def _shards(
    path: Path, folder: Path, options: ShardOptions, max_bytes: int, jobs: int | None, tell: Callable[[int], None] | None
) -> list[Shard]:
    """The records of all shards, of which those that are not whole yet are written."""
    done, todo = [0], partial(write_shard, folder=folder, options=options, path=path)
    known: dict[int, Shard] = {}

    def missing() -> Iterator[tuple[int, list[tuple[int, str]]]]:
        for index, rows in enumerate(blocks(smiles_rows(path, options.smiles_column, max_bytes), options.shard_lines)):
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


def _plan(path: Path, options: ShardOptions) -> dict[str, Any]:
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(options).items()}
    form = plain.pop("form")
    source = {"file": path.name, "key": content_key(path, f"shards {FORMAT}")}
    return {"format": FORMAT, "form": form, "name": path.name.split(".")[0], "source": source, "options": plain}


@contextmanager
def _begun(folder: Path, plan: Mapping[str, Any]) -> Iterator[None]:
    """Make the folder with its plan; it is removed if the block fails before it has written a shard, or leaves no molecule."""
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
    for name in (*plan["options"], "form", "format", "source file", "source key"):
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


def write_shard(task: tuple[int, Rows], *, folder: Path, options: ShardOptions, path: Path) -> tuple[int, Shard]:
    """Parse the lines of a shard and write it; returns its index and its record."""
    index, rows = task
    arrays, facts = (_tokens if options.form == "smiles" else _graphs)(rows, options, path)
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


def _tokens(rows: Rows, options: ShardOptions, path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    good, cores, values, broken, _ = parse_lines(rows, options.properties, options.scaffold)
    own = Tokenizer.of(good, SMILES).tokens if good else ()
    every = Tokenizer.of([*good, *cores], SMILES) if good else None
    kind = np.uint8 if every is None or len(every) <= 256 else np.uint16
    arrays: dict[str, Array] = {}
    arrays["tokens"], arrays["starts"] = _flat([[*every.encode(t), EOS] for t in good] if every else [], kind)
    if options.scaffold:
        arrays["prompts"], arrays["prompt_starts"] = _flat([every.encode(t) for t in cores] if every else [], kind)
    if options.properties:
        arrays["values"] = np.array(values, dtype=np.float64).astype(np.float32).ravel()
    lengths = Counter(np.diff(arrays["starts"]).tolist())
    longest = int(np.diff(arrays["prompt_starts"]).max(initial=0)) if options.scaffold else 0
    counts = {"tokens": own, "lengths": {str(n): lengths[n] for n in sorted(lengths)}, "longest_prompt": longest}
    facts = {"rows": len(good), "dropped": 0, "broken": len(broken), "examples": tuple(broken[:EXAMPLES]), "largest": 0}
    return arrays, facts | {"classes": every.tokens if every else (), "counts": counts}


def _flat(parts: Sequence[Sequence[int]], kind: type[np.generic]) -> tuple[Array, Array]:
    """Lists of ids end to end, and where each starts, with the end of the last."""
    starts = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return np.fromiter((k for part in parts for k in part), dtype=kind, count=int(starts[-1])), starts


def _graphs(rows: Rows, options: ShardOptions, path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    packer = pack_lines(rows, path, None, options.max_atoms)
    sizes = np.array(packer.sizes, dtype=np.int64)
    nodes, pairs = np.frombuffer(packer.nodes, dtype=np.uint8), np.frombuffer(packer.pairs, dtype=np.uint8)
    arrays: dict[str, Array] = {"nodes": nodes, "node_starts": np.cumsum(np.append(0, sizes)), "pairs": pairs}
    arrays["pair_starts"] = np.cumsum(np.append(0, sizes * (sizes - 1) // 2))
    if options.properties:
        arrays["values"] = descriptors(packer.smiles, options.properties).numpy().ravel()
    counts = {
        "nodes": np.bincount(nodes, minlength=len(packer.types)).tolist(),
        "pairs": np.bincount(pairs, minlength=NUM_BOND_CLASSES).tolist(),
        "sizes": np.bincount(sizes).tolist(),
    }
    classes = tuple(AtomType(*kind).label for kind in packer.types)
    facts = {"rows": len(sizes), "dropped": packer.dropped, "broken": len(packer.broken), "largest": packer.largest}
    return arrays, facts | {"examples": tuple(packer.broken[:EXAMPLES]), "classes": classes, "counts": counts}


# -- the whole


def _finish(folder: Path, plan: Mapping[str, Any], shards: Sequence[Shard], options: ShardOptions) -> dict[str, Any]:
    """Write the manifest and remove the leftovers of killed writes."""
    manifest = {
        **plan,
        "molecules": sum(shard.rows for shard in shards),
        "dropped": sum(shard.dropped for shard in shards),
        "broken": sum(shard.broken for shard in shards),
        "examples": [example for shard in shards for example in shard.examples][:EXAMPLES],
        "properties": _scales(folder, shards, options.properties),
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


def _scales(folder: Path, shards: Sequence[Shard], properties: Sequence[str]) -> list[dict[str, Any]]:
    """Mean and deviation of every property over all shards, bit-identical to those of a data set in memory."""
    if not properties:
        return []
    values = [MappedShard(shard_files(folder, k)[0], shard)["values"] for k, shard in enumerate(shards)]
    table = torch.from_numpy(np.concatenate(values)).reshape(-1, len(properties))
    return [asdict(scale) for scale in property_scales(properties, table)]


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with atomic_write(path, "w") as file:
        json.dump(content, file)
