"""Graphs and SMILES to RDKit molecules and back, and the properties rewards and metrics share.

Conventions:

* A node class is a position in a :class:`Vocabulary` of (element, formal charge); hydrogens are implicit unless a policy was
  trained with them as nodes.
* A bond class is 0 none, 1 single, 2 double, 3 triple; aromatic rings are kekulised unless a policy was trained with class 4,
  aromatic. Stereo and isotopes are dropped, and a radical is filled up with hydrogens. An atom gets the hydrogens of its
  lowest fitting valence, so a hydrogen on P(V), S(IV) or I(III) is dropped too.
* Decoding corrects nothing: a graph that breaks a valence is not a molecule (``None``), and a disconnected graph that
  sanitises keeps its parts, joined by ``.`` in the SMILES.
* A molecule counts as **valid** when it parses, sanitises and is connected (:func:`discrete_grpo.domains.smiles.parse`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from types import MappingProxyType

import torch
from rdkit import Chem
from rdkit.rdBase import BlockLogs

from discrete_grpo.domains.graphs import GraphBatch, node_mask
from discrete_grpo.domains.smiles import parse_smiles, to_smiles

__all__ = [
    "AtomType",
    "Vocabulary",
    "classes_to_mol",
    "decode",
    "encode",
    "encoder",
    "has_aromatic",
    "has_hydrogens",
    "molecule_parts",
    "molecule_to_classes",
]

AROMATIC = 4
"""Class of aromatic bonds. Graphs of :func:`encode` have it where asked for, as imported policies draw it."""
_BOND_CLASS = {Chem.BondType.SINGLE: 1, Chem.BondType.DOUBLE: 2, Chem.BondType.TRIPLE: 3, Chem.BondType.AROMATIC: AROMATIC}
_BOND_TYPE = {c: t for t, c in _BOND_CLASS.items()}
# RDKit's clean-up step rewrites valence errors such as neutral N(=O)=O into charged atoms: a correction, so left out.
_NO_CLEANUP = Chem.SanitizeFlags.SANITIZE_ALL ^ Chem.SanitizeFlags.SANITIZE_CLEANUP
_LABEL = re.compile(r"([A-Z][a-z]?)([+-][1-9])?")


@dataclass(frozen=True)
class AtomType:
    """An element with a formal charge.

    >>> AtomType.from_label("N+1"), AtomType("O", -1).label
    (AtomType(symbol='N', charge=1), 'O-1')
    """

    symbol: str
    charge: int = 0

    @property
    def label(self) -> str:
        """``"N"``, ``"N+1"``, ``"O-1"``."""
        return f"{self.symbol}{self.charge:+d}" if self.charge else self.symbol

    @property
    def atomic_number(self) -> int:
        """Z."""
        return int(Chem.GetPeriodicTable().GetAtomicNumber(self.symbol))

    @classmethod
    def from_label(cls, label: str) -> AtomType:
        """Inverse of :attr:`label`.

        Raises:
            ValueError: if the label names no element.
        """
        match = _LABEL.fullmatch(label)
        known = match is not None and _is_element(match[1])
        if match is None or not known:
            raise ValueError(f"label: {label!r}, expected an element symbol and an optional charge, such as 'N' or 'N+1'")
        return cls(match[1], int(match[2] or 0))


def _is_element(symbol: str) -> bool:
    with BlockLogs():
        try:
            return bool(Chem.GetPeriodicTable().GetAtomicNumber(symbol) > 0)
        except RuntimeError:
            return False


@dataclass(frozen=True)
class Vocabulary:
    """The atom types of a data set; a node class is a position here.

    Attributes:
        atoms: labels such as ``("C", "N", "N+1")``.

    Raises:
        ValueError: if empty, if a label occurs twice or names no element.
    """

    atoms: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "atoms", tuple(self.atoms))  # JSON gives a list
        if not self.atoms or len(set(self.atoms)) != len(self.atoms):
            raise ValueError(f"atoms: {list(self.atoms)}, expected at least one label and none twice")
        for label in self.atoms:
            AtomType.from_label(label)

    def __len__(self) -> int:
        return len(self.atoms)

    @cached_property
    def types(self) -> tuple[AtomType, ...]:
        """The atom type of each class."""
        return tuple(AtomType.from_label(label) for label in self.atoms)

    @cached_property
    def index(self) -> dict[tuple[str, int], int]:
        """(symbol, charge) -> class."""
        return {(t.symbol, t.charge): k for k, t in enumerate(self.types)}

    @classmethod
    def from_types(cls, types: Iterable[AtomType]) -> Vocabulary:
        """The distinct types, by atomic number and then charge.

        >>> Vocabulary.from_types([AtomType("O"), AtomType("N", 1), AtomType("N")]).atoms
        ('N', 'N+1', 'O')
        """
        return cls(tuple(t.label for t in sorted(set(types), key=lambda t: (t.atomic_number, t.charge))))

    @classmethod
    def from_molecules(cls, molecules: Iterable[Chem.Mol]) -> Vocabulary:
        """The heavy-atom types that occur, by atomic number and then charge."""
        found = {(a.GetSymbol(), a.GetFormalCharge()) for mol in molecules for a in _bare(mol).GetAtoms()}
        return cls.from_types(AtomType(*pair) for pair in found)


def _bare(mol: Chem.Mol) -> Chem.Mol:
    """The molecule without explicit hydrogen atoms."""
    return Chem.RemoveAllHs(mol) if any(a.GetAtomicNum() == 1 for a in mol.GetAtoms()) else mol


def molecule_to_classes(
    mol: Chem.Mol,
    vocabulary: Vocabulary,
    *,
    aromatic: bool = False,
    hydrogens: bool = False,
    others: Mapping[tuple[str, int], int] = MappingProxyType({}),
) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Node classes in atom order, and (i, j, class) of each bond with i < j.

    Args:
        mol: a molecule.
        vocabulary: atom types of the node classes.
        aromatic: whether aromatic bonds are of class 4; otherwise they are kekulised.
        hydrogens: whether hydrogens that are atoms of ``mol`` become nodes; otherwise they are left out.
        others: (symbol, charge) -> class of atoms outside the vocabulary; ``*`` is the symbol of an attachment point.

    Raises:
        ValueError: if an atom type is in neither the vocabulary nor ``others``, a bond is not single, double, triple or aromatic,
            or a hydrogen that would be left out is bonded to no heavy atom, as in ``[H][H]``.
    """
    if not hydrogens:
        for atom in mol.GetAtoms():
            if atom.GetAtomicNum() == 1 and all(other.GetAtomicNum() == 1 for other in atom.GetNeighbors()):
                raise ValueError("mol: a hydrogen that is bonded to no heavy atom, expected none")
        mol = _bare(mol)
    types, bonds = _parts(mol, aromatic)
    classes = {**vocabulary.index, **others}
    missing = [AtomType(*t).label for t in types if t not in classes]
    if missing:
        raise ValueError(f"mol: atom {missing[0]!r} is not in the vocabulary {list(vocabulary.atoms)}")
    return [classes[t] for t in types], bonds


def molecule_parts(mol: Chem.Mol) -> tuple[list[tuple[str, int]], list[tuple[int, int, int]]]:
    """(symbol, charge) of each heavy atom, and (i, j, class) of each bond with i < j, kekulised.

    Raises:
        ValueError: if a bond is not single, double or triple.
    """
    return _parts(_bare(mol), aromatic=False)


def _parts(mol: Chem.Mol, aromatic: bool) -> tuple[list[tuple[str, int]], list[tuple[int, int, int]]]:
    """The same of all atoms, with aromatic bonds of class 4 or kekulised."""
    flat = Chem.Mol(mol)
    if not aromatic:
        Chem.Kekulize(flat, clearAromaticFlags=True)
    bonds = []
    for bond in flat.GetBonds():
        i, j = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        order = _BOND_CLASS.get(bond.GetBondType())
        if order is None or (order == AROMATIC and not aromatic):
            wanted = "single, double, triple or aromatic" if aromatic else "single, double or triple"
            raise ValueError(f"mol: bond of type {bond.GetBondType()}, expected {wanted}")
        bonds.append((i, j, order) if i < j else (j, i, order))
    return [(a.GetSymbol(), a.GetFormalCharge()) for a in flat.GetAtoms()], bonds


@lru_cache(maxsize=256)
def _atom(symbol: str, charge: int) -> Chem.Atom:
    """A template atom, which RDKit copies; sanitisation adds implicit hydrogens."""
    atom = Chem.Atom(symbol)
    atom.SetFormalCharge(charge)
    return atom


def classes_to_mol(nodes: Sequence[int], bonds: Iterable[tuple[int, int, int]], vocabulary: Vocabulary) -> Chem.Mol | None:
    """The sanitised molecule of a graph, hydrogens filled in, or None where a valence is broken. Nothing is corrected.

    Args:
        nodes: node classes.
        bonds: (i, j, class) with class 1, 2, 3 or 4 (aromatic), each pair at most once.
        vocabulary: what the node classes mean.
    """
    with BlockLogs():
        return _build(nodes, bonds, vocabulary)


def _build(nodes: Sequence[int], bonds: Iterable[tuple[int, int, int]], vocabulary: Vocabulary) -> Chem.Mol | None:
    mol = Chem.RWMol()
    types = vocabulary.types
    for k in nodes:
        mol.AddAtom(_atom(types[k].symbol, types[k].charge))
    for i, j, order in bonds:
        mol.AddBond(i, j, _BOND_TYPE[order])
    failed = Chem.SanitizeMol(mol, _NO_CLEANUP, catchErrors=True)
    return None if failed else mol


def decode(batch: GraphBatch, vocabulary: Vocabulary) -> list[str | None]:
    """Canonical SMILES of each graph, or None where RDKit does not sanitise it. Disconnected graphs keep all their parts.

    Raises:
        ValueError: if a node or bond class of a real node is out of range.
    """
    sizes = batch.sizes.tolist()
    real = batch.mask[:, :, None] & batch.mask[:, None, :]
    nodes, edges = batch.nodes.masked_fill(~batch.mask, 0).cpu(), batch.edges.masked_fill(~real, 0).triu(1).cpu()
    if nodes.numel() and not 0 <= int(nodes.min()) <= int(nodes.max()) < len(vocabulary):
        raise ValueError(f"batch: node classes {int(nodes.min())}..{int(nodes.max())}, expected 0..{len(vocabulary) - 1}")
    if edges.numel() and not 0 <= int(edges.min()) <= int(edges.max()) <= AROMATIC:
        raise ValueError(f"batch: bond classes {int(edges.min())}..{int(edges.max())}, expected 0..{AROMATIC}")
    where = edges.nonzero()
    bonds: list[list[tuple[int, int, int]]] = [[] for _ in sizes]
    for (b, i, j), order in zip(where.tolist(), edges[tuple(where.T)].tolist(), strict=True):
        bonds[b].append((i, j, order))
    with BlockLogs():
        mols = [_build(row[:n], bonds[b], vocabulary) for b, (row, n) in enumerate(zip(nodes.tolist(), sizes, strict=True))]
        return [Chem.MolToSmiles(mol) if mol is not None and mol.GetNumAtoms() else None for mol in mols]


def encode(smiles: Sequence[str], vocabulary: Vocabulary, *, aromatic: bool = False, hydrogens: bool = False) -> GraphBatch:
    """Graphs of SMILES strings, padded to the largest; atoms in the order of the string.

    Args:
        smiles: the strings.
        vocabulary: atom types of the node classes.
        aromatic: whether aromatic bonds are of class 4; otherwise they are kekulised.
        hydrogens: whether all hydrogens of a molecule are nodes, after its heavy atoms; otherwise none is.

    Raises:
        ValueError: if a string does not parse, for an atom or bond that has no class, or, with aromatic bonds, for a molecule
            that the graph without hydrogens does not determine, such as a pyrrole; names the position.
    """
    parts = []
    for k, text in enumerate(smiles):
        mol = parse_smiles(text) if isinstance(text, str) else None
        if mol is None:
            raise ValueError(f"smiles[{k}]: {text!r}, expected a SMILES string that RDKit parses")
        try:
            parts.append(_encoded(mol, vocabulary, aromatic, hydrogens))
        except ValueError as error:
            raise ValueError(f"smiles[{k}]: {text!r}, {error}") from None
    sizes = torch.tensor([len(nodes) for nodes, _ in parts], dtype=torch.long)
    n = int(sizes.max()) if parts else 0
    node_classes = torch.zeros(len(parts), n, dtype=torch.long)
    edges = torch.zeros(len(parts), n, n, dtype=torch.long)
    for b, (nodes, bonds) in enumerate(parts):
        node_classes[b, : len(nodes)] = torch.tensor(nodes, dtype=torch.long)
        for i, j, order in bonds:
            edges[b, i, j] = edges[b, j, i] = order
    return GraphBatch(node_classes, edges, node_mask(sizes, n))


def _encoded(
    mol: Chem.Mol, vocabulary: Vocabulary, aromatic: bool, hydrogens: bool
) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Classes of a molecule that they determine: aromatic bonds do not tell where the hydrogen of a pyrrole is."""
    if hydrogens:
        return molecule_to_classes(Chem.AddHs(mol), vocabulary, aromatic=aromatic, hydrogens=True)
    nodes, bonds = molecule_to_classes(mol, vocabulary, aromatic=aromatic)
    if aromatic and any(atom.GetIsAromatic() and atom.GetNumExplicitHs() for atom in mol.GetAtoms()):
        read = classes_to_mol(nodes, bonds, vocabulary)
        if read is None or to_smiles(read) != to_smiles(mol, stereo=False):
            raise ValueError(
                "mol: a hydrogen on an aromatic atom, expected none where aromatic bonds have a class and hydrogens none"
            )
    return nodes, bonds


def encoder(
    vocabulary: Vocabulary, node_shares: Sequence[float], bond_shares: Sequence[float]
) -> Callable[[Sequence[str]], GraphBatch]:
    """:func:`encode` in the form that a policy was trained on: with aromatic bonds, and with hydrogens, if its data has any.

    Args:
        vocabulary: atom types of the node classes.
        node_shares: frequency of each node class in the data; H may be a class that does not occur, as in MOSES.
        bond_shares: frequency of each bond class in the data; the fifth, of aromatic bonds, may be missing.

    >>> known, bonds = Vocabulary(("C", "O", "H")), (0.8, 0.2, 0.0, 0.0)
    >>> encoder(known, (0.2, 0.1, 0.7), bonds)(["CO"]).nodes.tolist(), encoder(known, (0.8, 0.2, 0.0), bonds)(["CO"]).nodes.tolist()
    ([[0, 1, 2, 2, 2, 2]], [[0, 1]])
    """
    aromatic, hydrogens = has_aromatic(bond_shares), has_hydrogens(vocabulary, node_shares)
    return partial(encode, vocabulary=vocabulary, aromatic=aromatic, hydrogens=hydrogens)


def has_hydrogens(vocabulary: Vocabulary, node_shares: Sequence[float]) -> bool:
    """Whether data with these frequencies of node classes has hydrogens as nodes.

    >>> has_hydrogens(Vocabulary(("C", "H")), (0.4, 0.6)), has_hydrogens(Vocabulary(("C", "H")), (1.0, 0.0))
    (True, False)
    """
    return any(share > 0 for atom, share in zip(vocabulary.types, node_shares, strict=True) if atom.symbol == "H")


def has_aromatic(bond_shares: Sequence[float]) -> bool:
    """Whether data with these frequencies of bond classes has aromatic bonds.

    >>> has_aromatic((0.9, 0.1, 0.0, 0.0)), has_aromatic((0.9, 0.1, 0.0, 0.0, 0.0)), has_aromatic((0.8, 0.1, 0.0, 0.0, 0.1))
    (False, False, True)
    """
    return len(bond_shares) > AROMATIC and bond_shares[AROMATIC] > 0
