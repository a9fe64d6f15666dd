"""Molecules with the formal charge as a field of its own: training data and their statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from discrete_grpo.datasets.molecules import MoleculeDataset, MoleculeStatistics
from discrete_grpo.datasets.sharded import ShardedMolecules
from discrete_grpo.domains.fields import FieldBatch
from discrete_grpo.domains.molecule_fields import AtomFields, as_fields

__all__ = ["FieldMolecules", "MoleculeFieldStatistics", "ShardedFieldMolecules", "field_statistics"]


@dataclass(frozen=True)
class MoleculeFieldStatistics:
    """Statistics of a data set that the prior of a policy with a field of charges needs, serialisable as JSON.

    Attributes:
        node_counts: probability of each number of atoms 0..N.
        symbols: elements, the classes of the field ``atom``.
        atom_marginal: share of each element among the atoms.
        charges: formal charges, the classes of the field ``charge``.
        charge_marginal: share of each charge among the atoms.
        bond_marginal: share of each bond class (none, single, double, triple) among the unordered pairs.
        num_molecules: number of molecules.
        name: name of the data set.

    Raises:
        ValueError: for invalid elements or charges, or another number of shares.
    """

    node_counts: tuple[float, ...]
    symbols: tuple[str, ...]
    atom_marginal: tuple[float, ...]
    charges: tuple[int, ...]
    charge_marginal: tuple[float, ...]
    bond_marginal: tuple[float, ...]
    num_molecules: int
    name: str = ""

    def __post_init__(self) -> None:
        fields = self.fields
        for name, classes in (("atom_marginal", fields.symbols), ("charge_marginal", fields.charges)):
            if len(getattr(self, name)) != len(classes):
                raise ValueError(f"{name}: {len(getattr(self, name))} shares, expected one for each of {len(classes)} classes")

    @property
    def fields(self) -> AtomFields:
        """Classes of the fields ``atom`` and ``charge``."""
        return AtomFields(self.symbols, self.charges)

    def to_json(self) -> dict[str, Any]:
        """Convert to a dictionary of lists, numbers and strings."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> MoleculeFieldStatistics:
        """Inverse of :meth:`to_json`.

        Raises:
            ValueError: if a field is missing, unknown or does not fit the others.
        """
        expected = set(cls.__dataclass_fields__)
        if set(plain) != expected:
            raise ValueError(f"statistics: fields {sorted(plain)}, expected {sorted(expected)}")
        shares = ("node_counts", "atom_marginal", "charge_marginal", "bond_marginal")
        found: dict[str, Any] = {k: tuple(float(p) for p in plain[k]) for k in shares}
        found |= {k: tuple(plain[k]) for k in ("symbols", "charges")}
        return cls(num_molecules=int(plain["num_molecules"]), name=str(plain["name"]), **found)


def field_statistics(stats: MoleculeStatistics) -> MoleculeFieldStatistics:
    """Separate the statistics of atom types into elements and charges: shares are summed over the other field.

    Args:
        stats: statistics of a data set, see :func:`~discrete_grpo.datasets.molecules.statistics`, or those stored with a policy.

    >>> from discrete_grpo.datasets.molecules import dataset_from_smiles, statistics
    >>> found = field_statistics(statistics(dataset_from_smiles(["C[N+](C)(C)C", "CN"])))
    >>> found.symbols, found.charges, [round(p, 2) for p in found.charge_marginal]
    (('C', 'N'), (0, 1), [0.86, 0.14])
    """
    fields = AtomFields.of(stats.vocabulary)
    atoms, charges = dict.fromkeys(fields.symbols, 0.0), dict.fromkeys(fields.charges, 0.0)
    for kind, share in zip(stats.vocabulary.types, stats.node_marginal, strict=True):
        atoms[kind.symbol] += share
        charges[kind.charge] += share
    return MoleculeFieldStatistics(
        stats.node_counts,
        fields.symbols,
        tuple(atoms.values()),
        fields.charges,
        tuple(charges.values()),
        stats.edge_marginal,
        stats.num_molecules,
        stats.name,
    )


@dataclass(frozen=True)
class FieldMolecules:
    """Molecules in memory as training data of a policy with a field of charges.

    Attributes:
        data: the molecules.
        fields: classes of the fields ``atom`` and ``charge``.
    """

    data: MoleculeDataset
    fields: AtomFields

    @property
    def sizes(self) -> Int[Tensor, " molecule"]:
        """Number of heavy atoms [M]."""
        return self.data.sizes

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, rows: Int[Tensor, " row"]) -> FieldBatch:
        """The molecules at ``rows``, padded to the largest of them."""
        return as_fields(self.data.batch(torch.as_tensor(rows)), self.data.vocabulary, self.fields)

    @property
    def nbytes(self) -> int:
        """Number of bytes of the packed graphs."""
        return self.data.nbytes

    def to(self, device: torch.device | str) -> FieldMolecules:
        """The same with the packed graphs on ``device``, where batches of them are then made."""
        return replace(self, data=self.data.to(device))


@dataclass(frozen=True)
class ShardedFieldMolecules:
    """Molecules on shards as training data of a policy with a field of charges; they stay on the disk.

    Attributes:
        data: the molecules.
        fields: classes of the fields ``atom`` and ``charge``.
    """

    data: ShardedMolecules
    fields: AtomFields

    @property
    def sizes(self) -> Int[Tensor, " molecule"]:
        """Number of heavy atoms [M]."""
        return self.data.sizes

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, rows: Int[Tensor, " row"]) -> FieldBatch:
        """The molecules at ``rows``, padded to the largest of them."""
        return as_fields(self.data.batch(torch.as_tensor(rows)), self.data.vocabulary, self.fields)
