"""Molecule data sets as packed graphs, with their statistics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Float, Int
from rdkit import Chem
from rdkit.rdBase import BlockLogs
from torch import Tensor

from discrete_grpo.core.checks import check_range
from discrete_grpo.datasets.arrays import read_arrays
from discrete_grpo.datasets.reading import (
    array_lines,
    check_broken,
    check_file,
    content_key,
    from_cache,
    smiles_rows,
    text_array,
    write_arrays,
)
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.domains.graphs import ConditionedGraphs, GraphBatch, PackedGraphs, num_pairs
from discrete_grpo.domains.molecule_properties import descriptor
from discrete_grpo.domains.molecules import AtomType, Vocabulary, molecule_parts, parse_smiles
from discrete_grpo.domains.tokenizer import Property

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

_CACHE_VERSION = "molecules 3"
NUM_BOND_CLASSES = 4
MAX_ATOMS = 10_000
"""Largest number of atoms of a molecule."""


@dataclass(frozen=True)
class MoleculeDataset:
    """M molecules as packed graphs, each with its own number of atoms.

    Attributes:
        graphs: packed graphs with atom classes as node classes and bond classes as pair classes.
        vocabulary: atom types of the node classes.
        smiles: canonical SMILES without stereo, one per molecule.
        broken: (line number, text) of lines that do not parse.
        name: name of the set in reports.
    """

    graphs: PackedGraphs
    vocabulary: Vocabulary
    smiles: tuple[str, ...]
    broken: tuple[tuple[int, str], ...] = ()
    name: str = ""

    def __len__(self) -> int:
        return len(self.graphs)

    @property
    def sizes(self) -> Int[Tensor, " molecule"]:
        """Number of heavy atoms [M]."""
        return self.graphs.sizes

    @property
    def num_nodes(self) -> int:
        """Number of atoms of the largest molecule."""
        return self.graphs.num_nodes

    def batch(self, rows: Int[Tensor, " row"] | Sequence[int] | slice) -> GraphBatch:
        """Return the graphs at ``rows``, padded to the largest of them."""
        return self.graphs.batch(rows)

    def index(self, rows: Int[Tensor, " row"] | Sequence[int]) -> MoleculeDataset:
        """Return the molecules at ``rows`` as a data set with the same vocabulary."""
        at = torch.as_tensor(rows, dtype=torch.long)
        smiles = tuple(self.smiles[k] for k in at.tolist())
        return MoleculeDataset(self.graphs.index(at), self.vocabulary, smiles, self.broken, self.name)


@dataclass(frozen=True)
class ConditionedMolecules:
    """Molecules with standardised properties as conditions, as :func:`conditioned` makes them.

    Attributes:
        data: molecules.
        values: standardised properties [M, K].
        properties: names, means and deviations of the properties.
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
        """Return the molecules at ``rows`` with their properties."""
        return ConditionedGraphs(self.data.batch(rows), self.values[rows])


def conditioned(data: MoleculeDataset, names: Sequence[str]) -> ConditionedMolecules:
    """Compute RDKit descriptors of a data set, standardised by their mean and deviation over it.

    Raises:
        ValueError: if RDKit has no descriptor of a name.
    """
    functions = [descriptor(name) for name in names]
    raw = torch.tensor([[f(Chem.MolFromSmiles(s)) for f in functions] for s in data.smiles], dtype=torch.float64)
    scales = property_scales(names, raw)
    mean, std = torch.tensor([p.mean for p in scales]), torch.tensor([p.std for p in scales])
    return ConditionedMolecules(data, ((raw - mean) / std).float(), scales)


def property_scales(names: Sequence[str], values: Float[Tensor, "molecule property"]) -> tuple[Property, ...]:
    """Compute mean and standard deviation of every property over the data."""
    if not names:
        return ()
    mean, std = values.double().mean(0).tolist(), values.double().std(0, correction=0).clamp_min(1e-6).tolist()
    return tuple(Property(n, m, s) for n, m, s in zip(names, mean, std, strict=True))


@dataclass(frozen=True)
class MoleculeStatistics:
    """Statistics of a data set that the prior of a policy needs, serialisable as JSON.

    Attributes:
        node_counts: probability of each number of nodes 0..N.
        node_marginal: probability of each node class.
        edge_marginal: probability of each bond class (none, single, double, triple) over unordered pairs.
        vocabulary: atom types of the node classes.
        num_molecules: number of molecules.
        name: name of the data set.
    """

    node_counts: tuple[float, ...]
    node_marginal: tuple[float, ...]
    edge_marginal: tuple[float, ...]
    vocabulary: Vocabulary
    num_molecules: int
    name: str = ""

    def to_json(self) -> dict[str, Any]:
        """Convert to a dictionary of lists, numbers and strings."""
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
    """Compute the frequencies of sizes, node classes and bond classes.

    The edge marginal equals the one over all ordered pairs, as DiGress takes it, because edges are symmetric.
    """
    graphs = dataset.graphs
    counts = torch.bincount(graphs.sizes, minlength=graphs.num_nodes + 1)
    nodes = torch.bincount(graphs.nodes, minlength=len(dataset.vocabulary))
    edges = torch.bincount(graphs.pairs, minlength=NUM_BOND_CLASSES)
    return MoleculeStatistics(_shares(counts), _shares(nodes), _shares(edges), dataset.vocabulary, len(dataset), dataset.name)


def _shares(counts: Int[Tensor, " class"]) -> tuple[float, ...]:
    return tuple((counts.double() / max(int(counts.sum()), 1)).tolist())


class _Packer:
    """Collects molecules as bytes before the vocabulary is known; molecules of other sizes than requested are counted only."""

    def __init__(self, min_atoms: int | None = None, max_atoms: int | None = None) -> None:
        self.min_atoms, self.max_atoms = min_atoms, max_atoms
        self.types: dict[tuple[str, int], int] = {}
        self.nodes, self.pairs = bytearray(), bytearray()
        self.sizes: list[int] = []
        self.smiles: list[str] = []
        self.broken: list[tuple[int, str]] = []
        self.dropped, self.largest = 0, 0

    def add(self, line: int, text: str) -> None:
        mol = parse_smiles(text)
        try:
            parts = None if mol is None else molecule_parts(mol)
        except ValueError:  # a bond without a class
            parts = None
        if mol is None or parts is None:
            self.broken.append((line, text))
            return
        types, bonds = parts
        if not self._wanted(len(types), line):
            return
        pairs = bytearray(num_pairs(len(types)))
        for i, j, order in bonds:
            pairs[j * (j - 1) // 2 + i] = order
        self.nodes += bytes(self.types.setdefault(t, len(self.types)) for t in types)
        self.pairs += pairs
        self.sizes.append(len(types))
        self.smiles.append(Chem.MolToSmiles(mol, isomericSmiles=False))

    def _wanted(self, atoms: int, line: int) -> bool:
        """Return whether the size is within the requested bounds; memory grows with the square of the number of atoms."""
        self.largest = max(self.largest, atoms)
        if atoms < (self.min_atoms or 0) or (self.max_atoms is not None and atoms > self.max_atoms):
            self.dropped += 1
            return False
        check_range(f"line {line}: atoms of the molecule", atoms, most=MAX_ATOMS, note="; max_atoms leaves it out")
        return True

    def dataset(self, name: str) -> MoleculeDataset:
        vocabulary = Vocabulary.from_types(AtomType(*t) for t in self.types)
        to_class = np.array([vocabulary.index[t] for t in self.types], dtype=np.uint8)
        nodes = torch.from_numpy(to_class[np.frombuffer(self.nodes, dtype=np.uint8)])
        pairs = torch.from_numpy(np.frombuffer(bytes(self.pairs), dtype=np.uint8).copy())
        graphs = PackedGraphs(nodes, pairs, torch.tensor(self.sizes, dtype=torch.long))
        return MoleculeDataset(graphs, vocabulary, tuple(self.smiles), tuple(self.broken), name)


def _pack(rows: Iterable[tuple[int, str]], packer: _Packer, path: Path | str) -> None:
    """Add all molecules of a file to ``packer``; errors name the path."""
    with BlockLogs():
        for line, text in rows:
            try:
                packer.add(line, text)
            except ValueError as error:
                raise ValueError(f"path: {str(path)!r} {error}") from None


def dataset_from_smiles(smiles: Iterable[str], name: str = "", max_broken: float = 0.0) -> MoleculeDataset:
    """Make a data set of SMILES in memory.

    Raises:
        ValueError: if there are none, or a larger share than ``max_broken`` does not parse.
    """
    packer = _Packer()
    _pack(enumerate(smiles, 1), packer, name or "smiles")
    check_broken(Path(name or "smiles"), len(packer.smiles), packer.broken, max_broken)
    return packer.dataset(name)


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
    """Load the molecules of a file as packed graphs, with implicit hydrogens, kekulised rings and no stereo.

    Args:
        path: molecule file, as in :func:`read_smiles`.
        max_broken: largest share of lines that may fail to parse.
        min_atoms: drop molecules with fewer heavy atoms.
        max_atoms: drop molecules with more heavy atoms.
        smiles_column: name of the column of SMILES; None finds it, as in :func:`read_smiles`.
        max_bytes: largest size that a gzipped file may unpack to.
        cache_dir: folder for the parsed form, keyed by the file's content, the column and the sizes; None parses every time.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if no molecules are left, more lines are broken than allowed, or the column is not certain.
    """
    path = Path(path)
    check_file(path)
    name = path.name.split(".")[0]
    key = "" if cache_dir is None else content_key(path, f"{_CACHE_VERSION} {smiles_column!r} {min_atoms} {max_atoms}")
    cached = None if cache_dir is None else Path(cache_dir) / f"{name}-{key}.npz"
    known = None if cached is None else from_cache(cached, partial(_read_cache, name=name))
    if known is not None:
        dataset, dropped = known
        check_broken(path, len(dataset) + dropped, dataset.broken, max_broken)
        return dataset
    packer = _Packer(min_atoms, max_atoms)
    _pack(smiles_rows(path, smiles_column, max_bytes), packer, path)
    check_broken(path, len(packer.smiles) + packer.dropped, packer.broken, max_broken)
    if not packer.smiles:
        raise ValueError(f"min_atoms, max_atoms: {min_atoms}, {max_atoms} leave no molecule; sizes are 1 to {packer.largest}")
    dataset = packer.dataset(name)
    if cached is not None:
        _write_cache(cached, dataset, packer.dropped)
    return dataset


# Cache ---------------------------------------------------------------------------------------------------------------


def _write_cache(path: Path, dataset: MoleculeDataset, dropped: int) -> None:
    write_arrays(
        path,
        nodes=dataset.graphs.nodes.numpy(),
        pairs=dataset.graphs.pairs.numpy(),
        sizes=dataset.sizes.numpy(),
        dropped=np.array([dropped]),
        vocabulary=text_array(dataset.vocabulary.atoms),
        smiles=text_array(dataset.smiles),
        broken=text_array([f"{line}\t{text}" for line, text in dataset.broken]),
    )


def _read_cache(file: BinaryIO, name: str) -> tuple[MoleculeDataset, int]:
    """Read the data set and the number of molecules of other sizes in the file."""
    stored = read_arrays(file)
    graphs = PackedGraphs(*(torch.from_numpy(stored[k]) for k in ("nodes", "pairs", "sizes")))
    broken = tuple((int(line), text) for line, text in (row.split("\t", 1) for row in array_lines(stored["broken"])))
    vocabulary = Vocabulary(array_lines(stored["vocabulary"]))
    dataset = MoleculeDataset(graphs, vocabulary, array_lines(stored["smiles"]), broken, name)
    return dataset, int(stored["dropped"][0])
