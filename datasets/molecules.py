"""Molecule data sets as packed graphs, with their statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Float, Int
from rdkit import Chem
from torch import Tensor

from discrete_grpo.core.checks import check_samples
from discrete_grpo.core.precision import place
from discrete_grpo.datasets.arrays import read_arrays
from discrete_grpo.datasets.packing import MAX_ATOMS, Packer, pack
from discrete_grpo.datasets.reading import (
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
from discrete_grpo.domains.graphs import ConditionedGraphs, GraphBatch, PackedGraphs
from discrete_grpo.domains.molecule_properties import descriptor
from discrete_grpo.domains.molecules import Vocabulary
from discrete_grpo.domains.tokenizer import Property

__all__ = [
    "MAX_ATOMS",
    "ConditionedMolecules",
    "MoleculeDataset",
    "MoleculeStatistics",
    "conditioned",
    "dataset_from_smiles",
    "descriptors",
    "load_molecules",
    "property_scales",
    "shares",
    "statistics",
    "with_measured",
]

_CACHE_VERSION = "molecules 6"
NUM_BOND_CLASSES = 4


@dataclass(frozen=True)
class MoleculeDataset:
    """M molecules as packed graphs, each with its own number of atoms.

    Attributes:
        graphs: packed graphs with atom classes as node classes and bond classes as pair classes.
        vocabulary: atom types of the node classes.
        smiles: canonical SMILES without stereo, one per molecule.
        broken: (line number, text) of lines that do not parse.
        name: name of the set in reports.
        dropped: number of molecules of the file that are left out for their number of heavy atoms.
        lines: number of the line of each molecule in the file, from 1.
    """

    graphs: PackedGraphs
    vocabulary: Vocabulary
    smiles: tuple[str, ...]
    broken: tuple[tuple[int, str], ...] = ()
    name: str = ""
    dropped: int = 0
    lines: tuple[int, ...] = ()

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

    @property
    def nbytes(self) -> int:
        """Number of bytes of the packed graphs."""
        return self.graphs.nbytes

    def to(self, device: torch.device | str) -> MoleculeDataset:
        """Return the same with the packed graphs on ``device``, where batches of them are then made."""
        return replace(self, graphs=self.graphs.to(device))

    def index(self, rows: Int[Tensor, " row"] | Sequence[int]) -> MoleculeDataset:
        """Return the molecules at ``rows`` as a data set with the same vocabulary."""
        at = torch.as_tensor(rows, dtype=torch.long)
        smiles = tuple(self.smiles[k] for k in at.tolist())
        lines = tuple(self.lines[k] for k in at.tolist()) if self.lines else ()
        return MoleculeDataset(self.graphs.index(at), self.vocabulary, smiles, self.broken, self.name, lines=lines)


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
        return ConditionedGraphs(self.data.batch(rows), self.values[place(torch.as_tensor(rows), self.values.device)])

    @property
    def nbytes(self) -> int:
        """Number of bytes of the packed graphs and of the properties."""
        return int(self.data.nbytes + self.values.nbytes)

    def to(self, device: torch.device | str) -> ConditionedMolecules:
        """Return the same on ``device``, where batches are then made."""
        return replace(self, data=self.data.to(device), values=place(self.values, torch.device(device)))


def conditioned(
    data: MoleculeDataset, names: Sequence[str], measured: Mapping[str, Float[Tensor, " molecule"]] | None = None
) -> ConditionedMolecules:
    """Compute RDKit descriptors of a data set, standardised by their mean and deviation over it.

    Args:
        data: the molecules.
        names: names of the descriptors.
        measured: values of the names that are not computed, NaN where unknown.

    Raises:
        ValueError: if RDKit has no descriptor of a name.
    """
    computed = [name for name in names if name not in (measured or {})]
    raw = with_measured(names, computed, descriptors(data.smiles, computed), measured)
    scales = property_scales(names, raw)
    mean, std = torch.tensor([p.mean for p in scales]), torch.tensor([p.std for p in scales])
    return ConditionedMolecules(data, ((raw - mean) / std).float(), scales)


def with_measured(
    names: Sequence[str],
    computed: Sequence[str],
    values: Float[Tensor, "molecule property"],
    measured: Mapping[str, Float[Tensor, " molecule"]] | None,
) -> Float[Tensor, "molecule property"]:
    """Return the values of all ``names``: those ``computed``, which are given as ``values``, and those ``measured``."""
    if not measured:
        return values
    known = dict(zip(computed, values.unbind(1), strict=True)) | {k: v.to(values.dtype) for k, v in measured.items()}
    return torch.stack([known[name] for name in names], 1)


def descriptors(smiles: Iterable[str], names: Sequence[str]) -> Float[Tensor, "molecule property"]:
    """Compute RDKit descriptors of SMILES that parse, in float64; NaN where one is not finite.

    Raises:
        ValueError: if RDKit has no descriptor of a name.
    """
    functions = [descriptor(name) for name in names]
    rows = [[f(mol) for f in functions] for mol in map(Chem.MolFromSmiles, smiles)] if functions else [[] for _ in smiles]
    found = torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(names))
    return found.where(found.isfinite(), torch.nan)


def property_scales(names: Sequence[str], values: Float[Tensor, "molecule property"]) -> tuple[Property, ...]:
    """Compute mean and standard deviation of every property over the molecules with a finite value.

    A property that is the same for all molecules, up to the rounding of float32, has the standard deviation 1, so that its value is
    standardised to 0.

    Raises:
        ValueError: if no molecule has a property.
    """
    found = []
    for name, column in zip(names, values.double().unbind(1), strict=True):
        known = column[column.isfinite()]
        if not len(known):
            raise ValueError(f"properties: {name} is finite for none of {len(column)} molecules, expected another property")
        mean, std = float(known.mean()), float(known.std(correction=0))
        found.append(Property(name, mean, std if std > 1e-6 * max(1.0, abs(mean)) else 1.0))
    return tuple(found)


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
    return MoleculeStatistics(shares(counts), shares(nodes), shares(edges), dataset.vocabulary, len(dataset), dataset.name)


def shares(counts: Int[Tensor, " class"]) -> tuple[float, ...]:
    """Divide counts by their sum; zeros where there is nothing."""
    return tuple((counts.double() / max(int(counts.sum()), 1)).tolist())


def dataset_from_smiles(smiles: Iterable[str], name: str = "", max_broken: float = 0.0) -> MoleculeDataset:
    """Make a data set of SMILES in memory.

    Raises:
        ValueError: if there are none, or a larger share than ``max_broken`` does not parse.
    """
    check_samples(smiles, "smiles")
    packer = pack(enumerate(smiles, 1), name or "smiles")
    check_broken(Path(name or "smiles"), len(packer.smiles), packer.broken, max_broken)
    return _dataset(packer, name)


def _dataset(packer: Packer, name: str) -> MoleculeDataset:
    graphs, vocabulary = packer.packed()
    lines, broken = tuple(packer.lines), tuple(packer.broken)
    return MoleculeDataset(graphs, vocabulary, tuple(packer.smiles), broken, name, packer.dropped, lines)


def load_molecules(
    path: str | Path,
    max_broken: float = 0.05,
    *,
    min_atoms: int | None = None,
    max_atoms: int | None = None,
    smiles_column: str | None = None,
    max_bytes: int = MAX_BYTES,
    cache_dir: str | Path | None = None,
    jobs: int | None = None,
) -> MoleculeDataset:
    """Load the molecules of a file as packed graphs, with implicit hydrogens, kekulised rings and no stereo.

    Args:
        path: molecule file, as in :func:`read_smiles`.
        max_broken: largest share of lines that may fail to parse.
        min_atoms: drop molecules with fewer heavy atoms.
        max_atoms: drop molecules with more heavy atoms.
        smiles_column: name of the column of SMILES; None finds it, as in :func:`read_smiles`.
        max_bytes: largest size that a gzipped file may unpack to.
        cache_dir: folder for the parsed form, keyed by the file's content, the column and the sizes; ``"auto"``: that of
            the user, for large files; None parses every time.
        jobs: number of processes that parse a large file; None: one per core that may be used. The result is the same.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if no molecules are left, more lines are broken than allowed, or the column is not certain.
    """
    path = Path(path)
    check_file(path)
    name = path.name.split(".")[0]
    cached = cache_file(cache_dir, name, path, f"{_CACHE_VERSION} {smiles_column!r} {min_atoms} {max_atoms}")
    known = None if cached is None else from_cache(cached, partial(_read_cache, name=name))
    if known is not None:
        dataset, dropped = known
        check_broken(path, len(dataset) + dropped, dataset.broken, max_broken)
        return dataset
    packer = pack(smiles_rows(path, smiles_column, max_bytes), path, min_atoms, max_atoms, jobs)
    check_broken(path, len(packer.smiles) + packer.dropped, packer.broken, max_broken)
    if not packer.smiles:
        asked = {name: value for name, value in (("min_atoms", min_atoms), ("max_atoms", max_atoms)) if value is not None}
        told = ", ".join(f"{name} {value}" for name, value in asked.items()) or "path"
        raise ValueError(f"{told}: no molecule is left, as those of {path} have up to {packer.largest} heavy atoms")
    dataset = _dataset(packer, name)
    lines = len(dataset) + packer.dropped + len(dataset.broken)
    keep_parsed(cached, cache_dir, lines, partial(_write_cache, dataset=dataset, dropped=packer.dropped))
    return dataset


# Cache ---------------------------------------------------------------------------------------------------------------


def _write_cache(path: Path, dataset: MoleculeDataset, dropped: int) -> None:
    write_arrays(
        path,
        nodes=dataset.graphs.nodes.numpy(),
        pairs=dataset.graphs.pairs.numpy(),
        sizes=dataset.sizes.numpy(),
        dropped=np.array([dropped]),
        lines=np.array(dataset.lines, dtype=np.int64),
        vocabulary=text_array(dataset.vocabulary.atoms),
        smiles=text_array(dataset.smiles),
        broken=broken_array(dataset.broken),
    )


def _read_cache(file: BinaryIO, name: str) -> tuple[MoleculeDataset, int]:
    """Read the data set and the number of molecules of other sizes in the file."""
    stored = read_arrays(file)
    graphs = PackedGraphs(*(torch.from_numpy(stored[k]) for k in ("nodes", "pairs", "sizes")))
    broken = broken_lines(stored["broken"])
    vocabulary = Vocabulary(array_lines(stored["vocabulary"]))
    dropped = int(stored["dropped"][0])
    smiles, lines = array_lines(stored["smiles"]), tuple(stored["lines"].tolist())
    return MoleculeDataset(graphs, vocabulary, smiles, broken, name, dropped, lines), dropped
