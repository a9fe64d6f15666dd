"""The seven mutations of the graph genetic algorithm, as edits of the bonds of a molecule without aromatic flags.

Each mutation draws its details and returns a SMARTS pattern and an edit; the edit is applied to one place that matches. It is
False where the edit is impossible at that place (a bond that it would make exists already). Valences are checked afterwards.

Source: Jensen (2019), Chem. Sci. 10, 3567, doi 10.1039/c8sc05372c, whose patterns, atoms and probabilities these are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TypeAlias

from rdkit import Chem

__all__ = ["MUTATIONS", "Edit", "Mutation", "add_bond", "forget_configuration", "matches"]

Edit: TypeAlias = Callable[[Chem.RWMol, tuple[int, ...]], bool]
"""Changes a molecule at the atoms of one match; False if the edit is impossible there."""

Mutation: TypeAlias = Callable[[Chem.Mol, random.Random], tuple[str, Edit] | None]
"""Draws a SMARTS pattern and the edit of its matches; None if the molecule has no place for the mutation."""

_ORDERS = {1: Chem.BondType.SINGLE, 2: Chem.BondType.DOUBLE, 3: Chem.BondType.TRIPLE}
_ATOMIC_NUMBERS = {"C": 6, "N": 7, "O": 8, "F": 9, "S": 16, "Cl": 17, "Br": 35}


@cache
def pattern(smarts: str) -> Chem.Mol:
    """The molecule of a SMARTS pattern, compiled once."""
    return Chem.MolFromSmarts(smarts)


def matches(mol: Chem.Mol, smarts: str) -> list[tuple[int, ...]]:
    """The atoms of every match, in each order of symmetric patterns."""
    return list(mol.GetSubstructMatches(pattern(smarts), uniquify=False, maxMatches=10_000))


def forget_configuration(mol: Chem.RWMol, atoms: Iterable[int]) -> None:
    """Remove the configuration of these atoms and of the double bonds at them."""
    for i in atoms:
        atom = mol.GetAtomWithIdx(i)
        atom.SetChiralTag(Chem.ChiralType.CHI_UNSPECIFIED)
        for bond in atom.GetBonds():
            bond.SetStereo(Chem.BondStereo.STEREONONE)


def add_bond(mol: Chem.RWMol, i: int, j: int, order: int = 1) -> bool:
    """Bond two atoms and remove their configuration; False if they are one atom or bonded already."""
    if i == j or mol.GetBondBetweenAtoms(i, j) is not None:
        return False
    mol.AddBond(i, j, _ORDERS[order])
    forget_configuration(mol, (i, j))
    return True


def _insert_atom(mol: Chem.Mol, rng: random.Random) -> tuple[str, Edit] | None:
    order = rng.choices((1, 2, 3), (0.60, 0.35, 0.05))[0]
    symbol = rng.choice({1: ("C", "N", "O", "S"), 2: ("C", "N"), 3: ("C",)}[order])

    def edit(child: Chem.RWMol, place: tuple[int, ...]) -> bool:
        i, j = place
        child.RemoveBond(i, j)
        new = child.AddAtom(Chem.Atom(_ATOMIC_NUMBERS[symbol]))
        return add_bond(child, i, new, order) and add_bond(child, new, j)

    return {1: "[*]~[*]", 2: "[*;!H0]~[*]", 3: "[*;!R;!H1;!H0]~[*]"}[order], edit


def _append_atom(mol: Chem.Mol, rng: random.Random) -> tuple[str, Edit] | None:
    order = rng.choices((1, 2, 3), (0.60, 0.35, 0.05))[0]
    symbol = rng.choice({1: tuple(_ATOMIC_NUMBERS), 2: ("C", "N", "O"), 3: ("C", "N")}[order])

    def edit(child: Chem.RWMol, place: tuple[int, ...]) -> bool:
        return add_bond(child, place[0], child.AddAtom(Chem.Atom(_ATOMIC_NUMBERS[symbol])), order)

    return {1: "[*;!H0]", 2: "[*;!H0;!H1]", 3: "[*;H3]"}[order], edit


# Pattern, place of the deleted atom, single bonds made among the others, probability.
_DELETIONS: Sequence[tuple[str, int, Sequence[tuple[int, int]], float]] = (
    ("[*]~[D1]", 1, (), 0.25),
    ("[*]~[D2]~[*]", 1, ((0, 2),), 0.25),
    ("[*]~[D3](~[*;!H0])~[*]", 1, ((0, 2), (2, 3)), 0.25),
    ("[*]~[D4](~[*;!H0])(~[*;!H0])~[*]", 1, ((0, 2), (2, 3), (3, 4)), 0.1875),
    ("[*]~[D4](~[*;!H0;!H1])(~[*])~[*]", 1, ((0, 2), (2, 3), (2, 4)), 0.0625),
)


def _delete_atom(mol: Chem.Mol, rng: random.Random) -> tuple[str, Edit] | None:
    smarts, deleted, bonds, _ = rng.choices(_DELETIONS, [odds for *_, odds in _DELETIONS])[0]

    def edit(child: Chem.RWMol, place: tuple[int, ...]) -> bool:
        if not all(add_bond(child, place[i], place[j]) for i, j in bonds):
            return False
        forget_configuration(child, place)
        child.RemoveAtom(place[deleted])
        return True

    return smarts, edit


def _change_bond_order(mol: Chem.Mol, rng: random.Random) -> tuple[str, Edit] | None:
    changes = (("[*]!-[*]", 1), ("[*;!H0]-[*;!H0]", 2), ("[*]#[*]", 2), ("[*;!R;!H1;!H0]~[*]", 3))
    smarts, order = rng.choices(changes, (0.45, 0.45, 0.05, 0.05))[0]

    def edit(child: Chem.RWMol, place: tuple[int, ...]) -> bool:
        bond = child.GetBondBetweenAtoms(*place)
        if bond.GetBondType() == _ORDERS[order]:
            return False
        bond.SetBondType(_ORDERS[order])
        forget_configuration(child, place)
        return True

    return smarts, edit


def _delete_cyclic_bond(mol: Chem.Mol, rng: random.Random) -> tuple[str, Edit] | None:
    def edit(child: Chem.RWMol, place: tuple[int, ...]) -> bool:
        child.RemoveBond(*place)
        forget_configuration(child, place)
        return True

    return "[*]@[*]", edit


def _add_ring(mol: Chem.Mol, rng: random.Random) -> tuple[str, Edit] | None:
    length = rng.choices((3, 4, 5, 6), (0.05, 0.05, 0.45, 0.45))[0]
    smarts = "[*;!r;!H0]~" + "[*;!r]~" * (length - 2) + "[*;!r;!H0]"
    return smarts, lambda child, place: add_bond(child, place[0], place[-1])


def _change_atom(mol: Chem.Mol, rng: random.Random) -> tuple[str, Edit] | None:
    odds = dict(zip(_ATOMIC_NUMBERS.values(), (0.15, 0.15, 0.14, 0.14, 0.14, 0.14, 0.14), strict=True))
    present = sorted({atom.GetAtomicNum() for atom in mol.GetAtoms()} & odds.keys())
    if not present:
        return None
    old = rng.choices(present, [odds[number] for number in present])[0]
    others = [number for number in odds if number != old]
    new = rng.choices(others, [odds[number] for number in others])[0]

    def edit(child: Chem.RWMol, place: tuple[int, ...]) -> bool:
        forget_configuration(child, place)
        child.ReplaceAtom(place[0], Chem.Atom(new))
        return True

    return f"[#{old}]", edit


MUTATIONS: Mapping[str, Mutation] = {
    "insert_atom": _insert_atom,
    "change_bond_order": _change_bond_order,
    "delete_cyclic_bond": _delete_cyclic_bond,
    "add_ring": _add_ring,
    "delete_atom": _delete_atom,
    "change_atom": _change_atom,
    "append_atom": _append_atom,
}
"""The mutations by name."""
