"""Molecules in space as graphs with fields ``atom``, ``charge`` and ``bond`` and positions, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int
from torch import Tensor

from discrete_grpo.core.checks import check_range
from discrete_grpo.datasets.spatial import SpatialStatistics
from discrete_grpo.domains.fields import FieldBatch, centred
from discrete_grpo.domains.spatial_molecules import SpatialMolecule

__all__ = ["SpatialGraphs", "bond_shares", "decode", "encode"]


def bond_shares(stats: SpatialStatistics) -> tuple[float, ...]:
    """Frequencies of no bond and of the orders up to the highest that occurs."""
    most = max(order for order, share in enumerate(stats.bond_marginal) if share > 0 or order == 1)
    return stats.bond_marginal[: most + 1]


def decode(graphs: FieldBatch, stats: SpatialStatistics) -> list[SpatialMolecule | None]:
    """The molecules of finished graphs, with positions in Å; None where a position is not finite."""
    assert graphs.positions is not None
    found: list[SpatialMolecule | None] = []
    positions = graphs.positions.double() * stats.position_std
    atoms, charges, bonds = graphs.nodes["atom"].tolist(), graphs.nodes["charge"].tolist(), graphs.edges["bond"].tolist()
    for b, n in enumerate(graphs.sizes.tolist()):
        if not bool(positions[b, :n].isfinite().all()):
            found.append(None)
            continue
        pairs = ((i, j, bonds[b][i][j]) for j in range(n) for i in range(j) if bonds[b][i][j])
        found.append(
            SpatialMolecule(
                tuple(stats.symbols[k] for k in atoms[b][:n]),
                tuple(stats.charges[k] for k in charges[b][:n]),
                tuple(pairs),
                tuple((x, y, z) for x, y, z in positions[b, :n].tolist()),
            )
        )
    return found


def encode(samples: Sequence[SpatialMolecule], stats: SpatialStatistics) -> FieldBatch:
    """The graphs of molecules, centred and in units of ``stats.position_std``.

    Raises:
        ValueError: for an element, a charge or a bond order that ``stats`` does not have, or a sample that is no molecule.
    """
    for one in samples:
        if not isinstance(one, SpatialMolecule):
            raise ValueError(f"samples: {type(one).__name__}, expected a SpatialMolecule")
    n = max((len(one) for one in samples), default=0)
    known = {"element": stats.symbols, "charge": stats.charges}
    nodes = {name: torch.zeros(len(samples), n, dtype=torch.long) for name in ("atom", "charge")}
    bonds = torch.zeros(len(samples), n, n, dtype=torch.long)
    positions, mask = torch.zeros(len(samples), n, 3), torch.zeros(len(samples), n, dtype=torch.bool)
    highest = len(bond_shares(stats)) - 1
    for b, one in enumerate(samples):
        size = len(one)
        for name, kind, values in (("atom", "element", one.symbols), ("charge", "charge", one.charges)):
            if unknown := [value for value in values if value not in known[kind]]:
                raise ValueError(f"samples: {kind} {unknown[0]!r}, expected one of {', '.join(map(str, known[kind]))}")
            nodes[name][b, :size] = torch.tensor([known[kind].index(value) for value in values])
        for i, j, order in one.bonds:
            check_range("samples: bond order", order, least=1, most=highest)
            bonds[b, i, j] = bonds[b, j, i] = order
        positions[b, :size] = torch.tensor(one.positions, dtype=torch.float64).float() / stats.position_std
        mask[b, :size] = True
    return FieldBatch(nodes, {"bond": bonds}, centred(positions, mask), mask)


@dataclass(frozen=True)
class SpatialGraphs:
    """Molecules in space as training data.

    Attributes:
        molecules: the molecules.
        stats: their statistics.
    """

    molecules: Sequence[SpatialMolecule]
    stats: SpatialStatistics

    @cached_property
    def sizes(self) -> Int[Tensor, " molecule"]:
        """Number of atoms of each."""
        return torch.tensor([len(one) for one in self.molecules])

    def __len__(self) -> int:
        return len(self.molecules)

    def batch(self, rows: Int[Tensor, " row"]) -> FieldBatch:
        """The molecules at ``rows``."""
        return encode([self.molecules[k] for k in rows.tolist()], self.stats)
