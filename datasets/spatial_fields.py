"""Molecules in space as graphs with fields ``atom``, ``charge`` and ``bond`` and positions, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from discrete_grpo.core.checks import check_range
from discrete_grpo.core.precision import place
from discrete_grpo.datasets.spatial import SpatialStatistics
from discrete_grpo.domains.fields import FieldBatch
from discrete_grpo.domains.graphs import node_mask, num_pairs, padded_rows, symmetrise
from discrete_grpo.domains.spatial_molecules import SpatialMolecule

__all__ = ["SpatialGraphs", "bond_shares", "decode", "encode", "fits", "spatial_graphs"]


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
    return spatial_graphs(samples, stats).batch(torch.arange(len(samples)))


def fits(molecule: SpatialMolecule, stats: SpatialStatistics) -> bool:
    """Whether a policy of ``stats`` can draw a molecule: its size, elements, charges and bond orders."""
    orders = {order for _, _, order in molecule.bonds}
    known = set(molecule.symbols) <= set(stats.symbols) and set(molecule.charges) <= set(stats.charges)
    drawn = len(molecule) < len(stats.node_counts) and stats.node_counts[len(molecule)] > 0
    return known and drawn and max(orders, default=1) < len(bond_shares(stats))


@dataclass(frozen=True)
class SpatialGraphs:
    """M molecules in space end to end, one byte per class and without padding, as :func:`spatial_graphs` makes them.

    Attributes:
        atoms: class of the element of every atom; batches are made on their device.
        charges: class of the formal charge of every atom.
        bonds: class of every pair, each molecule's in the order of :mod:`discrete_grpo.domains.graphs`.
        positions: x, y and z of every atom [3, A], zero-mean over each molecule, in units of ``position_std`` of the statistics.
        sizes: number of atoms of each molecule [M], on the CPU.
    """

    atoms: UInt8[Tensor, " atom"]
    charges: UInt8[Tensor, " atom"]
    bonds: UInt8[Tensor, " pair"]
    positions: Float[Tensor, "3 atom"]
    sizes: Int[Tensor, " molecule"]

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def _starts(self) -> tuple[Tensor, Tensor]:
        """Offsets of the atoms and of the pairs of each molecule."""
        pairs = self.sizes * (self.sizes - 1) // 2
        return self.sizes.cumsum(0) - self.sizes, pairs.cumsum(0) - pairs

    def batch(self, rows: Int[Tensor, " row"]) -> FieldBatch:
        """The molecules at ``rows``, padded to the largest of them, with the fields ``atom``, ``charge`` and ``bond``."""
        n = int(self.sizes[rows].max()) if len(rows) else 0
        sizes, atoms, pairs = place(torch.stack([x[rows] for x in (self.sizes, *self._starts)]), self.atoms.device)  # one copy
        fields = {"atom": self.atoms, "charge": self.charges}
        nodes = {name: padded_rows(flat, atoms, sizes, n).long() for name, flat in fields.items()}
        bonds = padded_rows(self.bonds, pairs, sizes * (sizes - 1) // 2, num_pairs(n)).long()
        positions = torch.stack([padded_rows(axis, atoms, sizes, n) for axis in self.positions], -1)
        return FieldBatch(nodes, {"bond": symmetrise(bonds, n)}, positions, node_mask(sizes, n))

    @property
    def nbytes(self) -> int:
        """Number of bytes of classes and positions."""
        return int(self.atoms.nbytes + self.charges.nbytes + self.bonds.nbytes + self.positions.nbytes)

    def to(self, device: torch.device | str) -> SpatialGraphs:
        """The same molecules with classes and positions on ``device``, where batches of them are then made."""
        where = torch.device(device)
        moved = {name: place(getattr(self, name), where) for name in ("atoms", "charges", "bonds", "positions")}
        return replace(self, **moved)


def spatial_graphs(molecules: Sequence[SpatialMolecule], stats: SpatialStatistics) -> SpatialGraphs:
    """Make training data of molecules in space.

    Raises:
        ValueError: as :func:`encode`.
    """
    for one in molecules:
        if not isinstance(one, SpatialMolecule):
            raise ValueError(f"samples: {type(one).__name__}, expected a SpatialMolecule")
    highest, sizes = len(bond_shares(stats)) - 1, torch.tensor([len(one) for one in molecules], dtype=torch.long)
    bonds = torch.zeros(int((sizes * (sizes - 1) // 2).sum()), dtype=torch.uint8)
    start, at, orders = 0, [], []
    for one in molecules:
        for i, j, order in one.bonds:
            check_range("samples: bond order", order, least=1, most=highest)
            at.append(start + num_pairs(j) + i)
            orders.append(order)
        start += num_pairs(len(one))
    bonds[at] = torch.tensor(orders, dtype=torch.uint8)
    return SpatialGraphs(
        _classes("element", stats.symbols, (one.symbols for one in molecules)),
        _classes("charge", stats.charges, (one.charges for one in molecules)),
        bonds,
        _positions(molecules, sizes, stats.position_std),
        sizes,
    )


def _classes(kind: str, known: Sequence[Any], values: Iterable[Sequence[Any]]) -> UInt8[Tensor, " atom"]:
    """Places of values among those that are known."""
    place_of = {value: k for k, value in enumerate(known)}
    flat = [value for part in values for value in part]
    if unknown := [value for value in flat if value not in place_of]:
        raise ValueError(f"samples: {kind} {unknown[0]!r}, expected one of {', '.join(map(str, known))}")
    return torch.tensor([place_of[value] for value in flat], dtype=torch.uint8)


def _positions(molecules: Sequence[SpatialMolecule], sizes: Tensor, unit: float) -> Float[Tensor, "3 atom"]:
    """Coordinates of all atoms about the mean of their molecule."""
    found = torch.tensor([x for one in molecules for x in one.positions], dtype=torch.float64).reshape(-1, 3) / unit
    owner = torch.arange(len(sizes)).repeat_interleave(sizes)
    mean = torch.zeros(len(sizes), 3, dtype=torch.float64).index_add(0, owner, found) / sizes.clamp_min(1)[:, None]
    return (found - mean[owner]).float().T.contiguous()
