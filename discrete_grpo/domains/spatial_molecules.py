"""Molecules in space: atoms with charges, bonds and positions, as RDKit molecules and as one line of text.

Conventions:

* Positions are in Å. Hydrogens are atoms like others; where an atom has too few, RDKit counts implicit ones.
* A bond is (i, j, order) with i < j and order 1, 2, 3, or 4 for an aromatic one.
* Nothing is corrected: a molecule that breaks a valence has no RDKit molecule (``None``).
* A molecule is **valid** when it sanitises, is connected and has no two atoms nearer than 0.1 Å (:func:`valid_mol`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float
from rdkit import Chem
from rdkit.rdBase import BlockLogs

__all__ = [
    "MIN_DISTANCE",
    "SpatialMolecule",
    "as_spatial",
    "as_written",
    "check_apart",
    "from_cxsmiles",
    "from_mol",
    "is_dense",
    "smiles_of",
    "to_cxsmiles",
    "to_mol",
    "unsanitised",
    "valid_mol",
]

MIN_DISTANCE = 0.1
"""Smallest distance of two atoms of a molecule, in Å."""
_ORDER = {Chem.BondType.SINGLE: 1, Chem.BondType.DOUBLE: 2, Chem.BondType.TRIPLE: 3, Chem.BondType.AROMATIC: 4}
_BOND_TYPE = {order: kind for kind, order in _ORDER.items()}
_BOND_SIGN = {1: "-", 2: "=", 3: "#", 4: ":"}
_SYMBOLS = frozenset(Chem.GetPeriodicTable().GetElementSymbol(z) for z in range(1, 119))
# RDKit's clean-up step rewrites valence errors such as neutral N(=O)=O into charged atoms: a correction, so left out.
_NO_CLEANUP = Chem.SanitizeFlags.SANITIZE_ALL ^ Chem.SanitizeFlags.SANITIZE_CLEANUP
_UNCHANGED: Any = Chem.SmilesParserParams()  # RDKit's stubs type its options wrongly
_UNCHANGED.sanitize = _UNCHANGED.removeHs = False


@dataclass(frozen=True)
class SpatialMolecule:
    """A molecule with the positions of its atoms, with valid or invalid valences.

    Attributes:
        symbols: element of each atom.
        charges: formal charge of each atom.
        bonds: (i, j, order) of each bond, i < j, order 1, 2, 3, or 4 for an aromatic bond.
        positions: coordinates of each atom in Å.

    Raises:
        ValueError: for an unknown element, a charge or an order that is not whole, a position that is not three finite numbers, a
            bond between atoms that do not exist or of another order (an aromatic bond has 4 and not 1.5), a pair that is bonded
            twice, or numbers of entries that differ.

    >>> SpatialMolecule(("H", "H"), (0, 0), ((0, 1, 1),), ((0, 0, 0), (0.74, 0, 0))).positions
    ((0.0, 0.0, 0.0), (0.74, 0.0, 0.0))
    """

    symbols: tuple[str, ...]
    charges: tuple[int, ...]
    bonds: tuple[tuple[int, int, int], ...]
    positions: tuple[tuple[float, float, float], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "symbols", tuple(self.symbols))
        object.__setattr__(self, "charges", tuple(_whole(f"charges[{k}]", q) for k, q in enumerate(self.charges)))
        bonds = (tuple(_whole(f"bonds[{k}]", value) for value in bond) for k, bond in enumerate(self.bonds))
        object.__setattr__(self, "bonds", tuple(bonds))
        object.__setattr__(self, "positions", tuple(tuple(float(x) for x in row) for row in self.positions))
        n = len(self.symbols)
        if not len(self.charges) == len(self.positions) == n:
            given = f"{len(self.charges)} and {len(self.positions)} entries for {n} symbols"
            raise ValueError(f"charges, positions: {given}, expected one per atom")
        for k, symbol in enumerate(self.symbols):
            if symbol not in _SYMBOLS:
                raise ValueError(f"symbols[{k}]: {symbol!r}, expected the symbol of an element")
        for k, row in enumerate(self.positions):
            if len(row) != 3 or not all(map(math.isfinite, row)):
                raise ValueError(f"positions[{k}]: {row}, expected three finite numbers")
        self._check_bonds(n)

    def _check_bonds(self, n: int) -> None:
        seen: set[tuple[int, int]] = set()
        for k, (i, j, order) in enumerate(self.bonds):
            if not 0 <= i < j < n or order not in _BOND_TYPE:
                wanted = f"(i, j, order) with 0 <= i < j < {n} and order 1, 2, 3 or 4"
                raise ValueError(f"bonds[{k}]: {(i, j, order)}, expected {wanted}")
            if (i, j) in seen:
                raise ValueError(f"bonds[{k}]: {(i, j, order)}, expected each pair of atoms once")
            seen.add((i, j))

    def __len__(self) -> int:
        return len(self.symbols)

    def __str__(self) -> str:
        return to_cxsmiles(self)

    @property
    def coordinates(self) -> Float[np.ndarray, "atom 3"]:
        """Positions in Å as an array."""
        return np.array(self.positions, dtype=np.float64).reshape(-1, 3)


def _whole(name: str, value: Any) -> int:
    if int(value) != value:
        raise ValueError(f"{name}: {value!r}, expected a whole number")
    return int(value)


def check_apart(molecule: SpatialMolecule) -> None:
    """Raise ``ValueError`` if two atoms are nearer than 0.1 Å; the nearest pair is named.

    >>> check_apart(SpatialMolecule(("C", "H"), (0, 0), (), ((0, 0, 0), (0, 0, 0.01))))
    Traceback (most recent call last):
    ValueError: positions: atoms 0 and 1 are 0.010 Å apart, expected at least 0.1 Å
    """
    distance, i, j = _nearest(molecule)
    if distance < MIN_DISTANCE:
        raise ValueError(f"positions: atoms {i} and {j} are {distance:.3f} Å apart, expected at least {MIN_DISTANCE} Å")


def _nearest(molecule: SpatialMolecule) -> tuple[float, int, int]:
    """Smallest distance of two atoms, infinite for fewer than two, and the atoms."""
    n, x = len(molecule), molecule.coordinates
    if n < 2:
        return math.inf, 0, 0
    rows, columns = np.triu_indices(n, 1)
    squared = ((x[rows] - x[columns]) ** 2).sum(-1)
    k = int(squared.argmin())
    return math.sqrt(squared[k]), int(rows[k]), int(columns[k])


def is_dense(molecule: SpatialMolecule) -> bool:
    """Whether a molecule has more than 2 n + 64 bonds between n atoms, far more than any valid one.

    RDKit takes minutes to find the rings of such a sample, or ends the process.
    """
    return len(molecule.bonds) > 2 * len(molecule) + 64


# -- RDKit


def unsanitised(molecule: SpatialMolecule) -> Chem.RWMol:
    """The RDKit molecule with one conformer, not sanitised."""
    mol = Chem.RWMol()
    for symbol, charge in zip(molecule.symbols, molecule.charges, strict=True):
        atom = Chem.Atom(symbol)
        atom.SetFormalCharge(charge)
        mol.AddAtom(atom)
    for i, j, order in molecule.bonds:
        mol.AddBond(i, j, _BOND_TYPE[order])
    conformer = Chem.Conformer(len(molecule))
    conformer.Set3D(True)
    for k, position in enumerate(molecule.positions):
        conformer.SetAtomPosition(k, position)
    mol.AddConformer(conformer, assignId=True)
    return mol


def to_mol(molecule: SpatialMolecule) -> Chem.Mol | None:
    """The sanitised RDKit molecule with one conformer, atoms in the same order, connected or not.

    Returns:
        None where RDKit does not sanitise it, two atoms are nearer than 0.1 Å, there are no atoms, or :func:`is_dense`.

    >>> to_mol(SpatialMolecule(("H", "H"), (0, 0), ((0, 1, 1),), ((0, 0, 0), (0.74, 0, 0)))).GetNumAtoms()
    2
    """
    if not len(molecule) or is_dense(molecule) or _nearest(molecule)[0] < MIN_DISTANCE:
        return None
    mol = unsanitised(molecule)
    with BlockLogs():
        failed = Chem.SanitizeMol(mol, _NO_CLEANUP, catchErrors=True)
    return None if failed else mol.GetMol()


@lru_cache(maxsize=4096)
def _valid(molecule: SpatialMolecule) -> Chem.Mol | None:
    mol = to_mol(molecule)
    return mol if mol is not None and len(Chem.GetMolFrags(mol)) == 1 else None


def valid_mol(sample: SpatialMolecule | None) -> Chem.Mol | None:
    """The RDKit molecule of a sample if it is **valid**: sanitises, is connected, has no two atoms at one place. Else None.

    The molecules used last are kept, so that the rewards and metrics of a batch share them. Do not modify them.

    Raises:
        ValueError: if the sample is neither a :class:`SpatialMolecule` nor None.
    """
    if sample is None:
        return None
    if not isinstance(sample, SpatialMolecule):
        raise ValueError(f"sample: {type(sample).__name__}, expected a SpatialMolecule or None")
    return _valid(sample)


def smiles_of(sample: SpatialMolecule | None, *, stereo: bool = False) -> str | None:
    """Canonical SMILES of a valid molecule with implicit hydrogens; None for an invalid one.

    Args:
        sample: the molecule.
        stereo: whether the SMILES has the stereochemistry that the positions imply.
    """
    mol = valid_mol(sample)
    if mol is None:
        return None
    mol = Chem.Mol(mol)
    if stereo:
        Chem.AssignStereochemistryFrom3D(mol)
    with BlockLogs():
        bare = Chem.RemoveHs(mol)
    return str(Chem.MolToSmiles(bare, isomericSmiles=stereo))


def from_mol(mol: Chem.Mol, *, aromatic: bool = False) -> SpatialMolecule:
    """The molecule of an RDKit molecule's first conformer; hydrogens that are no atoms are dropped.

    Args:
        mol: a sanitised molecule with a conformer.
        aromatic: whether aromatic bonds keep the order 4; otherwise rings are kekulised.

    Raises:
        ValueError: without a conformer, for a bond that is not single, double, triple or aromatic, or for bad positions.
    """
    flat = Chem.Mol(mol)
    if not aromatic:
        Chem.Kekulize(flat, clearAromaticFlags=True)
    made = as_written(flat)
    check_apart(made)
    return made


def as_spatial(sample: Any) -> Any:
    """A molecule in space from an RDKit molecule with a conformer or a line of text with positions; other values as they are.

    Raises:
        ValueError: as :func:`from_mol` and :func:`from_cxsmiles`.

    >>> as_spatial("[H][H] |(0,0,;0.74,0.5,0.25)|").symbols, as_spatial(None)
    (('H', 'H'), None)
    """
    if isinstance(sample, str):
        return from_cxsmiles(sample)
    return from_mol(sample) if isinstance(sample, Chem.Mol) else sample


def as_written(mol: Chem.Mol) -> SpatialMolecule:
    """The atoms, bonds and positions of an RDKit molecule, sanitised or not.

    Raises:
        ValueError: without a conformer, for a bond that is not single, double, triple or aromatic, or a position that is
            not finite.
    """
    if not mol.GetNumConformers():
        raise ValueError("mol: no conformer, expected positions of the atoms")
    bonds = []
    for bond in mol.GetBonds():
        order = _ORDER.get(bond.GetBondType())
        if order is None:
            raise ValueError(f"mol: bond of type {bond.GetBondType()}, expected single, double, triple or aromatic")
        i, j = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        bonds.append((min(i, j), max(i, j), order))
    atoms = list(mol.GetAtoms())
    return SpatialMolecule(
        tuple(a.GetSymbol() for a in atoms),
        tuple(a.GetFormalCharge() for a in atoms),
        tuple(sorted(bonds)),
        tuple(map(tuple, mol.GetConformer().GetPositions().tolist())),
    )


# -- one line of text


def to_cxsmiles(molecule: SpatialMolecule) -> str:
    """One line of text of a molecule, valid or not: its SMILES with all atoms and bonds, and the positions as ChemAxon's extension.

    Positions have six significant digits, and atoms come in the order of the SMILES.

    Source: ChemAxon Extended SMILES, as in RDKit.

    >>> to_cxsmiles(SpatialMolecule(("H", "H"), (0, 0), ((0, 1, 1),), ((0, 0, 0), (0.74, 0.5, 0.25))))
    '[H][H] |(0,0,;0.74,0.5,0.25)|'
    """
    if is_dense(molecule):
        return _dense_text(molecule)
    mol = unsanitised(molecule)
    mol.UpdatePropertyCache(strict=False)
    params: Any = Chem.SmilesWriteParams()
    params.canonical = False
    params.allBondsExplicit = any(order == 4 for _, _, order in molecule.bonds)  # else one to a hydrogen would read as single
    with BlockLogs():
        return str(Chem.MolToCXSmiles(mol, params, Chem.CXSmilesFields.CX_COORDS))


def _dense_text(molecule: SpatialMolecule) -> str:
    """The same text without RDKit: atoms in their order, each a part of its own, and every bond as a ring closure."""
    closures: list[str] = [""] * len(molecule)
    for k, (i, j, order) in enumerate(molecule.bonds, 1):
        closures[i] += f"{_BOND_SIGN[order]}%({k})"
        closures[j] += f"%({k})"
    signs = [f"{charge:+d}" if charge else "" for charge in molecule.charges]
    atoms = (f"[{symbol}{sign}]{ends}" for symbol, sign, ends in zip(molecule.symbols, signs, closures, strict=True))
    places = (",".join(f"{x:.6g}" for x in position) for position in molecule.positions)
    return f"{'.'.join(atoms)} |({';'.join(places)})|"


def from_cxsmiles(text: str) -> SpatialMolecule:
    """The molecule of such a line, with the bonds that stand there.

    Raises:
        ValueError: if RDKit does not read it, or it has no atoms, no positions or bad ones.

    >>> from_cxsmiles("[H][H] |(0,0,;0.74,0.5,0.25)|").positions
    ((0.0, 0.0, 0.0), (0.74, 0.5, 0.25))
    """
    with BlockLogs():
        mol = Chem.MolFromSmiles(text, _UNCHANGED)
    if mol is None or not mol.GetNumAtoms() or not mol.GetNumConformers():
        raise ValueError(f"text: {text[:60]!r}, expected a SMILES with positions, such as '[H][H] |(0,0,;0.74,0,)|'")
    return as_written(mol)
