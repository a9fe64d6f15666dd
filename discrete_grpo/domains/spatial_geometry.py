"""Bond lengths, angles, dihedrals and clashes of a molecule in space, and which of its atoms are stable.

Every number is unchanged by a rotation, translation or reflection of the molecule and by another order of its atoms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from rdkit import Chem
from rdkit.rdBase import BlockLogs

from discrete_grpo.domains.spatial_molecules import SpatialMolecule, is_dense

__all__ = [
    "CLASH_RATIO",
    "MIDI_VALENCES",
    "Terms",
    "angle_centres",
    "bond_angles",
    "bond_lengths",
    "count_clashes",
    "dihedral_angles",
    "midi_stable",
    "octet_stable",
]

CLASH_RATIO = 0.6
"""Distance of a clash as a share of the sum of two van der Waals radii."""
_KEKULE = Chem.SanitizeFlags.SANITIZE_SYMMRINGS | Chem.SanitizeFlags.SANITIZE_KEKULIZE
_STRAIGHT = math.sin(math.radians(1))
"""Sine of a bond angle below which a dihedral is not defined."""


class Terms(NamedTuple):
    """Geometric terms of a molecule.

    Attributes:
        kind: class of each term: the order of the bond, or the atomic number of the central atom.
        value: length in Å or angle in degrees.
    """

    kind: Int[np.ndarray, " term"]
    value: Float[np.ndarray, " term"]


def _terms(kinds: list[int], values: list[float] | Float[np.ndarray, " term"]) -> Terms:
    return Terms(np.array(kinds, dtype=np.int64), np.array(values, dtype=np.float64))


def _neighbours(molecule: SpatialMolecule) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(len(molecule))]
    for i, j, _ in molecule.bonds:
        found[i].append(j)
        found[j].append(i)
    return found


def bond_lengths(molecule: SpatialMolecule) -> Terms:
    """|x_i - x_j| of each bond in Å; its kind is the order of the bond.

    >>> bond_lengths(SpatialMolecule(("H", "H"), (0, 0), ((0, 1, 1),), ((0, 0, 0), (3, 4, 0))))
    Terms(kind=array([1]), value=array([5.]))
    """
    x = molecule.coordinates
    ends = np.array([bond[:2] for bond in molecule.bonds], dtype=np.int64).reshape(-1, 2)
    return _terms([order for _, _, order in molecule.bonds], np.linalg.norm(x[ends[:, 0]] - x[ends[:, 1]], axis=-1))


def bond_angles(molecule: SpatialMolecule) -> Terms:
    """Angle in [0, 180] degrees at each atom between each two of its bonds; its kind is the atomic number of that atom."""
    table, x = Chem.GetPeriodicTable(), molecule.coordinates
    triples = [
        (i, centre, k)
        for centre, around in enumerate(_neighbours(molecule))
        for place, i in enumerate(around)
        for k in around[place + 1 :]
    ]
    ends = np.array(triples, dtype=np.int64).reshape(-1, 3)
    first, second = x[ends[:, 0]] - x[ends[:, 1]], x[ends[:, 2]] - x[ends[:, 1]]
    across = np.linalg.norm(np.cross(first, second), axis=-1)
    angles = np.degrees(np.arctan2(across, (first * second).sum(-1)))
    return _terms([table.GetAtomicNumber(molecule.symbols[centre]) for _, centre, _ in triples], angles)


def angle_centres(molecule: SpatialMolecule) -> list[int]:
    """Atomic number of each atom with two bonds or more."""
    table = Chem.GetPeriodicTable()
    pairs = zip(molecule.symbols, _neighbours(molecule), strict=True)
    return [table.GetAtomicNumber(symbol) for symbol, around in pairs if len(around) > 1]


def dihedral_angles(molecule: SpatialMolecule) -> Terms:
    """Unsigned dihedral |φ_ijkl| in [0, 180] degrees of each chain i-j-k-l; its kind is the order of the bond j-k.

    The sign is left out, so that the distribution does not live on a circle and mirror images are alike. Chains of which three
    atoms lie on a line, to one degree, have no dihedral.
    """
    around, x = _neighbours(molecule), molecule.coordinates
    chains = [
        (i, j, k, l, order) for j, k, order in molecule.bonds for i in around[j] for l in around[k] if i != k and l != j and i != l
    ]
    ends = np.array(chains, dtype=np.int64).reshape(-1, 5)
    first, axis, last = (x[ends[:, s + 1]] - x[ends[:, s]] for s in range(3))
    left, right = np.cross(first, axis), np.cross(axis, last)
    norms = [np.linalg.norm(v, axis=-1) for v in (first, axis, last, left, right)]
    bent = (norms[3] > _STRAIGHT * norms[0] * norms[1]) & (norms[4] > _STRAIGHT * norms[1] * norms[2])
    across = np.linalg.norm(np.cross(left, right), axis=-1)
    angles = np.degrees(np.arctan2(across, (left * right).sum(-1)))
    return Terms(ends[bent, 4], angles[bent])


def count_clashes(molecule: SpatialMolecule, ratio: float = CLASH_RATIO) -> int:
    """Number of pairs more than three bonds apart, or in different parts, with |x_i - x_j| < ratio · (r_i + r_j).

    Args:
        molecule: the molecule.
        ratio: share of the sum of the van der Waals radii r, above 0. Hydrogen bonds lie above the default.
    """
    table, x = Chem.GetPeriodicTable(), molecule.coordinates
    radius = np.array([table.GetRvdw(symbol) for symbol in molecule.symbols])
    bonded = np.eye(len(molecule), dtype=np.int64)
    for i, j, _ in molecule.bonds:
        bonded[i, j] = bonded[j, i] = 1
    near = np.linalg.matrix_power(bonded, 3) > 0
    distance = np.linalg.norm(x[:, None] - x[None], axis=-1)
    clash: Bool[np.ndarray, "atom atom"] = (distance < ratio * (radius[:, None] + radius)) & ~near
    return int(np.triu(clash, 1).sum())


# -- stability

MIDI_VALENCES: Mapping[str, Mapping[int, tuple[int, ...]]] = {
    "H": {0: (1,), 1: (0,), -1: (0,)},
    "B": {0: (3,)},
    "C": {0: (3, 4), 1: (3,), -1: (3,)},
    "N": {0: (2, 3), 1: (2, 3, 4), -1: (2,)},
    "O": {0: (2,), 1: (3,), -1: (1,)},
    "F": {0: (1,), -1: (0,)},
    "Al": {0: (3,)},
    "Si": {0: (4,)},
    "P": {0: (3, 5), 1: (4,)},
    "S": {0: (2, 6), 1: (2, 3), 2: (4,), 3: (5,), -1: (3,)},
    "Cl": {0: (1,)},
    "As": {0: (3,)},
    "Se": {0: (2, 4, 6)},
    "Br": {0: (1,), 1: (2,)},
    "I": {0: (1,)},
    "Hg": {0: (1, 2)},
    "Bi": {0: (3, 5)},
}
"""Valences that MiDi counts as stable: element -> formal charge -> sums of bond orders. A charge without an entry counts as 0."""


def midi_stable(molecule: SpatialMolecule) -> list[bool]:
    """Whether ⌊Σ_j order(i, j)⌋ of each atom i, with 1.5 for aromatic bonds, is a valence of its element and charge for MiDi.

    The table lets carbon have three bonds and nitrogen two, and so calls some radicals stable; :func:`octet_stable` does not.
    Hydrogens must be atoms.

    Source: Vignac et al. (2023), MiDi, arXiv 2302.09048, after Hoogeboom et al. (2022), EDM, arXiv 2203.17003; the table is that of
    the code published with MiDi.
    """
    sums = [0.0] * len(molecule)
    for i, j, order in molecule.bonds:
        sums[i] += 1.5 if order == 4 else order
        sums[j] += 1.5 if order == 4 else order
    rows = [MIDI_VALENCES.get(symbol, {0: ()}) for symbol in molecule.symbols]
    return [int(total) in row.get(q, row[0]) for total, row, q in zip(sums, rows, molecule.charges, strict=True)]


def octet_stable(molecule: SpatialMolecule) -> list[bool]:
    """Whether the bond orders of each atom, Kekulé structure, add up to a valence of the neutral atom with as many electrons.

    So N+ has the valence of C, 4, and O- that of F, 1: EDM's table for neutral atoms (H 1, C 4, N 3, O 2, F 1), continued to
    charges. RDKit's valences are taken, of which sulphur and phosphorus have several. Hydrogens must be atoms: none are filled in.

    >>> octet_stable(SpatialMolecule(("O", "H"), (-1, 0), ((0, 1, 1),), ((0, 0, 0), (0.96, 0, 0))))
    [True, True]
    """
    mol = Chem.RWMol()
    for symbol, charge in zip(molecule.symbols, molecule.charges, strict=True):
        atom = Chem.Atom(symbol)
        atom.SetFormalCharge(charge)
        atom.SetNoImplicit(True)
        mol.AddAtom(atom)
    kinds = (Chem.BondType.SINGLE, Chem.BondType.DOUBLE, Chem.BondType.TRIPLE, Chem.BondType.AROMATIC)
    for i, j, order in molecule.bonds:
        mol.AddBond(i, j, kinds[order - 1])
    kekule = Chem.Mol(mol)
    with BlockLogs():
        failed = is_dense(molecule) or Chem.SanitizeMol(kekule, _KEKULE, catchErrors=True)
    return [_is_octet(atom) for atom in (mol if failed else kekule).GetAtoms()]


def _is_octet(atom: Chem.Atom) -> bool:
    electrons = atom.GetAtomicNum() - atom.GetFormalCharge()
    known = 0 < electrons <= 118  # the elements of RDKit
    allowed = list(Chem.GetPeriodicTable().GetValenceList(electrons)) if known else [0]
    total = sum(bond.GetBondTypeAsDouble() for bond in atom.GetBonds())
    return total in allowed or -1 in allowed
