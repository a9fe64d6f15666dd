"""Molecule files to packed graphs and their statistics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from rdkit import Chem
from rdkit.rdBase import BlockLogs
from torch import Tensor

from discrete_grpo.chemistry import AtomType, Vocabulary, descriptor, molecule_parts, parse_smiles
from discrete_grpo.datasets.reading import (
    array_lines,
    check_broken,
    check_file,
    content_key,
    from_cache,
    rows,
    text_array,
    write_arrays,
)
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.graph import ConditionedGraphs, GraphBatch, node_mask, num_pairs, pair_index, unpack
from discrete_grpo.tokens import Property

__all__ = [
    "ConditionedMolecules",
    "MoleculeDataset",
    "MoleculeStatistics",
    "conditioned",
    "dataset_from_smiles",
    "load_molecules",
    "property_scales",
    "statistics",
]

_CACHE_VERSION = "molecules 2"
NUM_BOND_CLASSES = 4


@dataclass(frozen=True)
class MoleculeDataset:
    """M molecules as packed graphs of at most N nodes, one byte a site.

    Attributes:
        nodes: node classes [M, N], 0 beyond a molecule's size.
        pairs: bond classes of the unordered pairs [M, P], in the order of :mod:`discrete_grpo.graph`.
        sizes: number of heavy atoms [M].
        vocabulary: what the node classes mean.
        smiles: canonical, without stereo, one a molecule.
        broken: (line number, text) of what could not be read.
        name: for reports.
    """

    nodes: UInt8[Tensor, "molecule node"]
    pairs: UInt8[Tensor, "molecule pair"]
    sizes: Int[Tensor, " molecule"]
    vocabulary: Vocabulary
    smiles: tuple[str, ...]
    broken: tuple[tuple[int, str], ...] = ()
    name: str = ""

    def __len__(self) -> int:
        return self.nodes.shape[0]

    @property
    def num_nodes(self) -> int:
        """N, the atoms of the largest molecule."""
        return self.nodes.shape[1]

    def batch(self, rows: Int[Tensor, " row"] | Sequence[int] | slice) -> GraphBatch:
        """The graphs at ``rows``, padded to the largest among them."""
        at = rows if isinstance(rows, slice) else torch.as_tensor(rows, dtype=torch.long)
        sizes = self.sizes[at]
        n = int(sizes.max()) if sizes.numel() else 0
        return unpack(self.nodes[at][:, :n], self.pairs[at][:, : num_pairs(n)], node_mask(sizes, n))

    def index(self, rows: Int[Tensor, " row"] | Sequence[int]) -> MoleculeDataset:
        """The molecules at ``rows`` as a data set with the same vocabulary and padding."""
        at = torch.as_tensor(rows, dtype=torch.long)
        smiles = tuple(self.smiles[k] for k in at.tolist())
        return MoleculeDataset(self.nodes[at], self.pairs[at], self.sizes[at], self.vocabulary, smiles, self.broken, self.name)


@dataclass(frozen=True)
class ConditionedMolecules:
    """Molecules with properties to be conditioned on; made by :func:`conditioned`.

    Attributes:
        data: the molecules.
        values: standardised properties [M, K].
        properties: their names, means and deviations.
    """

    data: MoleculeDataset
    values: Float[Tensor, "molecule property"]
    properties: tuple[Property, ...]

    def __len__(self) -> int:
        return len(self.data)

    @property
    def sizes(self) -> Int[Tensor, " molecule"]:
        """Number of heavy atoms [M]."""
        return self.data.sizes

    def batch(self, rows: Int[Tensor, " row"]) -> ConditionedGraphs:
        """The molecules at ``rows`` with their properties."""
        return ConditionedGraphs(self.data.batch(rows), self.values[rows])


def conditioned(data: MoleculeDataset, names: Sequence[str]) -> ConditionedMolecules:
    """``data`` with RDKit descriptors, standardised by their mean and deviation over it.

    Raises:
        ValueError: if RDKit has no descriptor of a name.
    """
    functions = [descriptor(name) for name in names]
    raw = torch.tensor([[f(Chem.MolFromSmiles(s)) for f in functions] for s in data.smiles], dtype=torch.float64)
    scales = property_scales(names, raw)
    mean, std = torch.tensor([p.mean for p in scales]), torch.tensor([p.std for p in scales])
    return ConditionedMolecules(data, ((raw - mean) / std).float(), scales)


def property_scales(names: Sequence[str], values: Float[Tensor, "molecule property"]) -> tuple[Property, ...]:
    """Mean and standard deviation of every property over the data; none where there are no names."""
    if not names:
        return ()
    mean, std = values.double().mean(0).tolist(), values.double().std(0, correction=0).clamp_min(1e-6).tolist()
    return tuple(Property(n, m, s) for n, m, s in zip(names, mean, std, strict=True))


@dataclass(frozen=True)
class MoleculeStatistics:
    """What a policy's prior needs to know of a data set; plain numbers, JSON-able.

    Attributes:
        node_counts: probability of each number of nodes 0..N.
        node_marginal: probability of each node class.
        edge_marginal: probability of each bond class (none, single, double, triple) over unordered pairs.
        vocabulary: what the node classes mean.
        num_molecules: how many were counted.
        name: of the data set.
    """

    node_counts: tuple[float, ...]
    node_marginal: tuple[float, ...]
    edge_marginal: tuple[float, ...]
    vocabulary: Vocabulary
    num_molecules: int
    name: str = ""

    def to_json(self) -> dict[str, Any]:
        """A dictionary of lists, numbers and strings."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return plain | {"vocabulary": list(self.vocabulary.atoms)}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> MoleculeStatistics:
        """Inverse of :meth:`to_json`.

        Raises:
            ValueError: if a field is missing or unknown.
        """
        expected = set(cls.__dataclass_fields__)
        if set(plain) != expected:
            raise ValueError(f"statistics: fields {sorted(plain)}, expected {sorted(expected)}")
        numbers = {k: tuple(float(p) for p in plain[k]) for k in ("node_counts", "node_marginal", "edge_marginal")}
        vocabulary = Vocabulary(tuple(plain["vocabulary"]))
        return cls(vocabulary=vocabulary, num_molecules=int(plain["num_molecules"]), name=str(plain["name"]), **numbers)


def statistics(dataset: MoleculeDataset) -> MoleculeStatistics:
    """Frequencies of sizes, node classes and bond classes.

    The edge marginal equals the one over all ordered pairs, as DiGress takes it, because edges are symmetric.
    """
    n = dataset.num_nodes
    counts = torch.bincount(dataset.sizes, minlength=n + 1)
    nodes = torch.zeros(len(dataset.vocabulary), dtype=torch.long)
    edges = torch.zeros(NUM_BOND_CLASSES, dtype=torch.long)
    _, j = pair_index(n)
    for start in range(0, len(dataset), 8192):
        rows = slice(start, start + 8192)
        sizes = dataset.sizes[rows]
        nodes += torch.bincount(dataset.nodes[rows][node_mask(sizes, n)].long(), minlength=len(nodes))
        edges += torch.bincount(dataset.pairs[rows][j < sizes[:, None]].long(), minlength=NUM_BOND_CLASSES)
    return MoleculeStatistics(_shares(counts), _shares(nodes), _shares(edges), dataset.vocabulary, len(dataset), dataset.name)


def _shares(counts: Int[Tensor, " class"]) -> tuple[float, ...]:
    return tuple((counts.double() / max(int(counts.sum()), 1)).tolist())


class _Packer:
    """Collects molecules as bytes before the vocabulary and the largest size are known."""

    def __init__(self) -> None:
        self.types: dict[tuple[str, int], int] = {}
        self.nodes: list[bytes] = []
        self.pairs: list[bytes] = []
        self.smiles: list[str] = []
        self.broken: list[tuple[int, str]] = []

    def add(self, line: int, text: str) -> None:
        mol = parse_smiles(text)
        if mol is None:
            self.broken.append((line, text))
            return
        try:
            types, bonds = molecule_parts(mol)
        except ValueError:  # a bond this toolkit has no class for
            self.broken.append((line, text))
            return
        pairs = bytearray(num_pairs(len(types)))
        for i, j, order in bonds:
            pairs[j * (j - 1) // 2 + i] = order
        self.nodes.append(bytes(self.types.setdefault(t, len(self.types)) for t in types))
        self.pairs.append(bytes(pairs))
        self.smiles.append(Chem.MolToSmiles(mol, isomericSmiles=False))

    def dataset(self, name: str) -> MoleculeDataset:
        vocabulary = Vocabulary.from_types(AtomType(*t) for t in self.types)
        to_class = np.array([vocabulary.index[t] for t in self.types], dtype=np.uint8)
        sizes = np.array([len(row) for row in self.nodes], dtype=np.int64)
        n = int(sizes.max())
        nodes = np.zeros((len(sizes), n), dtype=np.uint8)
        pairs = np.zeros((len(sizes), num_pairs(n)), dtype=np.uint8)
        for m, (node_row, pair_row) in enumerate(zip(self.nodes, self.pairs, strict=True)):
            nodes[m, : len(node_row)] = to_class[np.frombuffer(node_row, dtype=np.uint8)]
            pairs[m, : len(pair_row)] = np.frombuffer(pair_row, dtype=np.uint8)
        a, b, c = (torch.from_numpy(array) for array in (nodes, pairs, sizes))
        return MoleculeDataset(a, b, c, vocabulary, tuple(self.smiles), tuple(self.broken), name)


def _pack(rows: Iterable[tuple[int, str]], path: Path | str, name: str, max_broken: float) -> MoleculeDataset:
    packer = _Packer()
    with BlockLogs():
        for line, text in rows:
            packer.add(line, text)
    check_broken(Path(path), len(packer.smiles), packer.broken, max_broken)
    return packer.dataset(name)


def dataset_from_smiles(smiles: Iterable[str], name: str = "", max_broken: float = 0.0) -> MoleculeDataset:
    """A data set of SMILES already in memory.

    Raises:
        ValueError: if there are none, or a larger share than ``max_broken`` does not parse.
    """
    return _pack(enumerate(smiles, 1), name or "smiles", name, max_broken)


def load_molecules(
    path: str | Path,
    max_broken: float = 0.05,
    *,
    min_atoms: int | None = None,
    max_atoms: int | None = None,
    smiles_column: str | None = None,
    max_bytes: int = MAX_BYTES,
    cache_dir: str | Path | None = None,
) -> MoleculeDataset:
    """The molecules of a file as packed graphs; hydrogens implicit, rings kekulised, stereo dropped.

    Args:
        path: as for :func:`read_smiles`.
        max_broken: largest share of lines that may be no molecule.
        min_atoms: drop molecules with fewer heavy atoms.
        max_atoms: drop molecules with more heavy atoms.
        smiles_column: name of the column of SMILES; None finds it, as for :func:`read_smiles`.
        max_bytes: largest size that a gzipped file may unpack to.
        cache_dir: folder for the parsed form, keyed by the file's content and the column; None parses every time.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if no molecules are left, more lines are broken than allowed, or the column is not certain.
    """
    path = Path(path)
    check_file(path)
    name = path.name.split(".")[0]
    key = "" if cache_dir is None else content_key(path, f"{_CACHE_VERSION} {smiles_column!r}")
    cached = None if cache_dir is None else Path(cache_dir) / f"{name}-{key}.npz"
    dataset = None if cached is None else from_cache(cached, partial(_read_cache, name=name))
    if dataset is not None:
        check_broken(path, len(dataset), dataset.broken, max_broken)
    else:
        dataset = _pack(rows(path, smiles_column, max_bytes), path, name, max_broken)
        if cached is not None:
            _write_cache(cached, dataset)
    return _by_size(dataset, min_atoms, max_atoms)


def _by_size(dataset: MoleculeDataset, min_atoms: int | None, max_atoms: int | None) -> MoleculeDataset:
    """Only molecules of the sizes asked for, with padding and vocabulary shrunk to what is left."""
    if min_atoms is None and max_atoms is None:
        return dataset
    low, high = min_atoms or 0, dataset.num_nodes if max_atoms is None else max_atoms
    rows = ((dataset.sizes >= low) & (dataset.sizes <= high)).nonzero().squeeze(1)
    if not rows.numel():
        raise ValueError(f"min_atoms, max_atoms: {min_atoms}, {max_atoms} leave no molecule; sizes are 1..{dataset.num_nodes}")
    kept = dataset.index(rows)
    n = int(kept.sizes.max())
    real = node_mask(kept.sizes, n)
    present = torch.bincount(kept.nodes[:, :n][real].long(), minlength=len(dataset.vocabulary)) > 0
    vocabulary = Vocabulary(tuple(label for label, used in zip(dataset.vocabulary.atoms, present.tolist(), strict=True) if used))
    to_class = (present.long().cumsum(0) - 1).clamp(min=0).to(torch.uint8)
    nodes = torch.where(real, to_class[kept.nodes[:, :n].long()], 0).to(torch.uint8)
    return MoleculeDataset(nodes, kept.pairs[:, : num_pairs(n)], kept.sizes, vocabulary, kept.smiles, kept.broken, kept.name)


# Cache ---------------------------------------------------------------------------------------------------------------


def _write_cache(path: Path, dataset: MoleculeDataset) -> None:
    write_arrays(
        path,
        nodes=dataset.nodes.numpy(),
        pairs=dataset.pairs.numpy(),
        sizes=dataset.sizes.numpy(),
        vocabulary=text_array(dataset.vocabulary.atoms),
        smiles=text_array(dataset.smiles),
        broken=text_array([f"{line}\t{text}" for line, text in dataset.broken]),
    )


def _read_cache(file: BinaryIO, name: str) -> MoleculeDataset:
    with np.load(file) as stored:
        nodes, pairs, sizes = (torch.from_numpy(stored[k]) for k in ("nodes", "pairs", "sizes"))
        broken = tuple((int(line), text) for line, text in (row.split("\t", 1) for row in array_lines(stored["broken"])))
        vocabulary = Vocabulary(array_lines(stored["vocabulary"]))
        return MoleculeDataset(nodes, pairs, sizes, vocabulary, array_lines(stored["smiles"]), broken, name)
