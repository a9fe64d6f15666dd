"""Data sets of SMILES as token sequences, with Murcko scaffolds and RDKit descriptors as conditions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from rdkit import Chem
from torch import Tensor

from discrete_grpo.core.checks import check_range
from discrete_grpo.core.precision import place
from discrete_grpo.datasets.arrays import read_arrays
from discrete_grpo.datasets.parallel import blocks, map_blocks
from discrete_grpo.datasets.reading import (
    BLOCK,
    PARALLEL_ROWS,
    array_lines,
    broken_array,
    broken_lines,
    cache_file,
    check_broken,
    check_file,
    from_cache,
    keep_parsed,
    smiles_rows,
    text_array,
    write_arrays,
)
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.domains.molecule_properties import descriptor, murcko_scaffold
from discrete_grpo.domains.smiles import parse_smiles
from discrete_grpo.domains.tokenizer import EOS, PAD, SMILES, Property, TokenBatch, Tokenizer, matches

__all__ = ["SmilesLines", "TokenDataset", "alphabet", "load_smiles", "parse_lines", "smiles_from_lines", "token_dataset"]

_CACHE_VERSION = "smiles 6"
_ONE_LINE = str.maketrans("\n\r\t", "   ")  # a quoted cell may hold line ends, which delimit lines in a cache


@dataclass(frozen=True)
class SmilesLines:
    """M molecules as SMILES with their scaffolds and descriptors.

    Attributes:
        smiles: canonical SMILES, with stereo and charges.
        scaffolds: canonical Murcko scaffolds without stereo, empty for molecules without rings.
        values: descriptors [M, K] in the order of ``properties``.
        properties: names of the descriptors.
        broken: (line number, text) of lines that are not a molecule, or one without tokens, with blanks for line ends and tabs.
        name: name of the set in reports.
        lines: number of the line of each molecule.
    """

    smiles: tuple[str, ...]
    scaffolds: tuple[str, ...]
    values: Float[Tensor, "molecule property"]
    properties: tuple[str, ...]
    broken: tuple[tuple[int, str], ...] = ()
    name: str = ""
    lines: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.smiles)


@dataclass(frozen=True)
class TokenDataset:
    """Data set of M token sequences, each with a prompt and properties, stored as bytes without padding.

    Attributes:
        tokens: ids of all sequences end to end, each with its EOS; batches are made on their device.
        starts: position of the first token of each sequence in ``tokens`` [M + 1], on the CPU.
        prompts, prompt_starts: ids and starts of the prompts; empty if there are no prompts.
        values: standardised properties [M, K]; NaN where unknown.
    """

    tokens: UInt8[Tensor, " token"]
    starts: Int[Tensor, " boundary"]
    prompts: UInt8[Tensor, " token"]
    prompt_starts: Int[Tensor, " boundary"]
    values: Float[Tensor, "sequence property"]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def sizes(self) -> Int[Tensor, " sequence"]:
        """Number of tokens of each sequence [M], EOS included."""
        return self.starts.diff()

    def batch(self, rows: Int[Tensor, " row"]) -> TokenBatch:
        """Return the sequences at ``rows``, padded to the longest of them."""
        tokens = _rows_of(self.tokens, self.starts, rows, left=False)
        prompt = _rows_of(self.prompts, self.prompt_starts, rows, left=True) if len(self.prompts) else None
        values = self.values[place(rows, self.values.device)] if self.values.shape[1] else None
        return TokenBatch(tokens, prompt, values)

    @property
    def nbytes(self) -> int:
        """Number of bytes of the tokens and of the properties."""
        return int(self.tokens.nbytes + self.prompts.nbytes + self.values.nbytes)

    def to(self, device: torch.device | str) -> TokenDataset:
        """Return the same with tokens and properties on ``device``, where batches of them are then made."""
        where = torch.device(device)
        moved = {name: place(getattr(self, name), where) for name in ("tokens", "prompts", "values")}
        return replace(self, **moved)


def _rows_of(flat: Tensor, starts: Tensor, rows: Tensor, *, left: bool) -> Int[Tensor, "batch width"]:
    """Return rows of a ragged array, padded with PAD on the left or right."""
    first, last = starts[rows], starts[rows + 1]
    width = int((last - first).max())
    first, lengths = place(torch.stack([first, last - first]), flat.device)
    column = torch.arange(width, device=flat.device).expand(len(rows), -1)
    if left:
        column = column - (width - lengths)[:, None]
    inside = (column >= 0) & (column < lengths[:, None])
    at = torch.where(inside, first[:, None] + column, 0)
    return torch.where(inside, flat[at].long(), PAD)


def token_dataset(
    texts: Sequence[str],
    tokenizer: Tokenizer,
    *,
    prompts: Sequence[str] | None = None,
    values: Float[Tensor, "sequence property"] | None = None,
    properties: Sequence[Property] = (),
) -> TokenDataset:
    """Make a data set of texts; it standardises the raw ``values`` by the means and deviations of ``properties``.

    Raises:
        ValueError: if there are no texts, a token is outside the alphabet, or the alphabet has more than 256 ids.
    """
    if not texts:
        raise ValueError("texts: none given, expected at least one")
    check_range("ids of the tokenizer", len(tokenizer), most=256, note=" (sequences are stored as bytes)")
    flat, starts = _flat([[*tokenizer.encode(t), EOS] for t in texts])
    prompt_flat, prompt_starts = _flat([tokenizer.encode(t) if t else [] for t in prompts or [""] * len(texts)])
    given = torch.empty(len(texts), 0) if values is None else values.float()
    mean, std = torch.tensor([p.mean for p in properties]), torch.tensor([p.std for p in properties])
    return TokenDataset(flat, starts, prompt_flat, prompt_starts, (given - mean) / std)


def _flat(parts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([0, *map(len, parts)])
    return torch.tensor([k for part in parts for k in part], dtype=torch.uint8), lengths.cumsum(0)


_Parsed = tuple[list[str], list[str], list[list[float]], list[tuple[int, str]], list[int]]
"""Canonical SMILES, scaffolds and descriptors of molecules, the broken lines between them, and the numbers of their own lines."""


def parse_lines(rows: Sequence[tuple[int, str]], properties: tuple[str, ...], scaffolds: bool) -> _Parsed:
    """Parse a block of numbered lines of SMILES; a line that the SMILES expression cannot tokenize counts as broken too."""
    functions = [descriptor(p) for p in properties]
    good, cores, values, broken, lines = [], [], [], [], []
    for number, text in rows:
        mol = parse_smiles(text)
        smiles = "" if mol is None else str(Chem.MolToSmiles(mol))
        core = murcko_scaffold(mol) if mol is not None and scaffolds else ""
        if mol is None or not (matches(smiles, SMILES) and matches(core, SMILES)):  # dative bonds have no token
            broken.append((number, text.translate(_ONE_LINE)))
            continue
        good.append(smiles)
        lines.append(number)
        cores.append(core)
        values.append([value if math.isfinite(value := f(mol)) else math.nan for f in functions])
    return good, cores, values, broken, lines


def smiles_from_lines(
    lines: Iterable[tuple[int, str]],
    path: str | Path,
    *,
    properties: Sequence[str] = (),
    scaffolds: bool = True,
    max_broken: float = 0.05,
    name: str = "",
    jobs: int | None = 1,
) -> SmilesLines:
    """Parse numbered lines of SMILES, many of them by ``jobs`` processes; errors name ``path``.

    Raises:
        ValueError: if no molecule is left, more lines are broken than allowed, or RDKit lacks a descriptor.
    """
    for asked in properties:
        descriptor(asked)
    function = partial(parse_lines, properties=tuple(properties), scaffolds=scaffolds)
    parts = list(map_blocks(function, blocks(lines, BLOCK), jobs, alone=PARALLEL_ROWS // BLOCK))
    good, cores = [text for part in parts for text in part[0]], [text for part in parts for text in part[1]]
    values, broken = [row for part in parts for row in part[2]], [line for part in parts for line in part[3]]
    numbers = tuple(number for part in parts for number in part[4])
    check_broken(Path(path), len(good), broken, max_broken)
    table = torch.tensor(values, dtype=torch.float64).reshape(len(good), len(properties)).float()
    return SmilesLines(tuple(good), tuple(cores), table, tuple(properties), tuple(broken), name, numbers)


def load_smiles(
    path: str | Path,
    *,
    properties: Sequence[str] = (),
    scaffolds: bool = True,
    max_broken: float = 0.05,
    smiles_column: str | None = None,
    max_bytes: int = MAX_BYTES,
    cache_dir: str | Path | None = None,
    jobs: int | None = None,
) -> SmilesLines:
    """The molecules of a ``.smi``, ``.txt``, ``.csv`` or ``.tsv`` file (each optionally ``.gz``) as text with conditions.

    Args:
        path: the file.
        properties: RDKit descriptors to compute.
        scaffolds: whether to compute Murcko scaffolds.
        max_broken: largest share of lines that may be no molecule.
        smiles_column: name of the column of SMILES; None finds it, as :func:`~discrete_grpo.datasets.reading.read_smiles` does.
        max_bytes: largest size that a gzipped file may unpack to.
        cache_dir: folder for the parsed form, keyed by the file's content and these arguments; ``"auto"``: that of the user, for
            large files; None parses every time.
        jobs: number of processes that parse a large file; None: one per core that may be used. The result is the same.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: as :func:`smiles_from_lines` and :func:`~discrete_grpo.datasets.reading.read_smiles`.
    """
    path = Path(path)
    check_file(path)
    name = path.name.split(".")[0]
    cached = cache_file(cache_dir, name, path, f"{_CACHE_VERSION} {' '.join(properties)} {scaffolds} {smiles_column!r}")
    known = None if cached is None else from_cache(cached, partial(_read_cache, properties=tuple(properties), name=name))
    if known is not None:
        check_broken(path, len(known), known.broken, max_broken)
        return known
    lines = smiles_rows(path, smiles_column, max_bytes)
    options: dict[str, Any] = {"properties": properties, "scaffolds": scaffolds, "max_broken": max_broken}
    found = smiles_from_lines(lines, path, name=name, jobs=jobs, **options)
    keep_parsed(cached, cache_dir, len(found) + len(found.broken), partial(_write_cache, data=found))
    return found


def alphabet(data: SmilesLines) -> Tokenizer:
    """Return the tokenizer of the molecules and their scaffolds."""
    return Tokenizer.of([*data.smiles, *data.scaffolds], SMILES)


def _write_cache(path: Path, data: SmilesLines) -> None:
    write_arrays(
        path,
        smiles=text_array(data.smiles),
        scaffolds=text_array(data.scaffolds),
        values=data.values.numpy(),
        broken=broken_array(data.broken),
        lines=np.array(data.lines, dtype=np.int64),
    )


def _read_cache(file: BinaryIO, properties: tuple[str, ...], name: str) -> SmilesLines:
    stored = read_arrays(file)
    broken = broken_lines(stored["broken"])
    smiles, scaffolds = array_lines(stored["smiles"]), array_lines(stored["scaffolds"])
    values, lines = torch.from_numpy(stored["values"]), tuple(stored["lines"].tolist())
    return SmilesLines(smiles, scaffolds or ("",) * len(smiles), values, properties, broken, name, lines)
