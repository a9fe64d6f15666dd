"""Genetic operators on molecules: crossover and mutation of molecular graphs, and splicing of retrosynthetic fragments.

Every operator takes sanitised molecules, leaves them as they are, draws from the given generator only, and returns a sanitised,
connected child without radicals that passes :func:`rings_ok` and the size draw of :class:`ChildSize`, or None where no child was
found. The bonds are edited directly; the places are visited in random order and the first valid child is returned, which has
the distribution of a uniform choice among all valid children. An atom that loses or gains a neighbour loses its configuration.

Source: Jensen (2019), Chem. Sci. 10, 3567, doi 10.1039/c8sc05372c, with its probabilities.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product
from typing import TypeAlias, TypeVar

from rdkit import Chem
from rdkit.Chem import BRICS
from rdkit.rdBase import BlockLogs

from discrete_grpo.core.checks import check_range, did_you_mean
from discrete_grpo.domains.molecule_mutations import MUTATIONS, Mutation, add_bond, matches, pattern
from discrete_grpo.domains.smiles import parse, to_smiles

__all__ = ["MUTATION_ODDS", "ChildSize", "crossover", "mutate", "reproduce", "rings_ok", "splice"]

T = TypeVar("T")

ATTEMPTS = 10
"""Attempts of each operator before it gives up."""

MUTATION_ODDS: Mapping[str, float] = {
    "insert_atom": 0.15,
    "change_bond_order": 0.14,
    "delete_cyclic_bond": 0.14,
    "add_ring": 0.14,
    "delete_atom": 0.14,
    "change_atom": 0.15,
    "append_atom": 0.14,
}
"""Probability of each mutation, by its name in :data:`~discrete_grpo.domains.molecule_mutations.MUTATIONS`."""


@dataclass(frozen=True)
class ChildSize:
    """Accepted number of heavy atoms n of a child: least <= n <= most and n < z with z drawn from N(mean, stdev²) for each child.

    The defaults are those of the source, taken from ZINC, where n must exceed 5.

    Raises:
        ValueError: for a value out of its range.
    """

    mean: float = 39.15
    stdev: float = 3.5
    least: int = 6
    most: int | None = None

    def __post_init__(self) -> None:
        check_range("mean", self.mean, above=0)
        check_range("stdev", self.stdev, least=0)
        check_range("least", self.least, least=1)
        if self.most is not None:
            check_range("most", self.most, least=self.least, note=" (least)")

    def accepts(self, count: int, rng: random.Random) -> bool:
        """Whether a child of ``count`` atoms is kept; draws one number."""
        drawn = rng.gauss(self.mean, self.stdev)
        return self.least <= count < drawn and (self.most is None or count <= self.most)


def rings_ok(mol: Chem.Mol) -> bool:
    """Whether no ring has more than 6 atoms, an allene, or a double bond within 3 or 4 atoms.

    >>> [rings_ok(Chem.MolFromSmiles(text)) for text in ("c1ccccc1", "C1CCCCCC1", "C1CCC=C=C1", "C1=CCC1", "CCC")]
    [True, False, False, False, True]
    """
    rings = mol.GetRingInfo().AtomRings()
    if not rings:
        return True
    if max(map(len, rings)) > 6 or mol.HasSubstructMatch(pattern("[R]=[R]=[R]")):
        return False
    return not (min(map(len, rings)) < 5 and mol.HasSubstructMatch(pattern("[r3,r4]=[r3,r4]")))


def mutate(
    mol: Chem.Mol, rng: random.Random, *, size: ChildSize = ChildSize(), odds: Mapping[str, float] = MUTATION_ODDS
) -> Chem.Mol | None:
    """A child that differs from ``mol`` by one mutation; None after 10 mutations without a valid child.

    Args:
        mol: sanitised molecule; of several components the largest.
        rng: generator of all choices.
        size: accepted sizes of the child.
        odds: weight of each mutation; those left out are not used.

    Raises:
        ValueError: for an unknown mutation, whose nearest is named, a weight below 0, or without a weight above 0.
    """
    for name, weight in odds.items():
        check_range(f"odds of {name}", weight, least=0)
        if name not in MUTATIONS:
            raise ValueError(f"odds: {name!r}, expected of {', '.join(MUTATIONS)} {did_you_mean(name, MUTATIONS)}".rstrip())
    if not any(odds.values()):
        raise ValueError(f"odds: {dict(odds)}, expected a weight above 0 of at least one mutation")
    with BlockLogs():
        start = _editable(mol)
        return _mutate(start, rng, size, {MUTATIONS[name]: weight for name, weight in odds.items()})


def _mutate(start: Chem.Mol, rng: random.Random, size: ChildSize, odds: Mapping[Mutation, float]) -> Chem.Mol | None:
    kinds, weights = list(odds), list(odds.values())
    for _ in range(ATTEMPTS):
        drawn = rng.choices(kinds, weights)[0](start, rng)
        if drawn is None:
            continue
        smarts, edit = drawn
        for place in _shuffled(matches(start, smarts), rng):
            child = Chem.RWMol(start)
            if edit(child, place) and (found := _checked(child, rng, size)) is not None:
                return found
    return None


def crossover(a: Chem.Mol, b: Chem.Mol, rng: random.Random, *, size: ChildSize = ChildSize()) -> Chem.Mol | None:
    """A child of one part of ``a`` and one part of ``b``, unlike both; None after 10 attempts without a valid child.

    With equal odds, the parents are cut at one acyclic single bond and the parts joined by a single bond, or at two bonds of a
    ring (neighbours, or with one bond between them) and the parts joined by two single or double bonds.

    Args:
        a: sanitised molecule; of several components the largest.
        b: likewise.
        rng: generator of all choices.
        size: accepted sizes of the child.
    """
    with BlockLogs():
        parents = {to_smiles(_largest(a)), to_smiles(_largest(b))}
        return _crossover(_editable(a), _editable(b), parents, rng, size)


def _crossover(a: Chem.Mol, b: Chem.Mol, parents: set[str], rng: random.Random, size: ChildSize) -> Chem.Mol | None:
    for _ in range(ATTEMPTS):
        cut = _cut_chain if rng.random() < 0.5 else _cut_ring
        for _ in range(ATTEMPTS):
            parts_a, parts_b = cut(a, rng), cut(b, rng)
            if not parts_a or not parts_b:
                break
            child = _first_joined(parts_a, parts_b, rng, size)
            if child is not None:
                if to_smiles(child) not in parents:
                    return child
                break
    return None


@dataclass(frozen=True)
class _Part:
    """A fragment.

    Attributes:
        mol: the fragment, not sanitised.
        atoms: number of each of its atoms in the parent.
        open: its atoms that lost a bond, one per bond.
    """

    mol: Chem.Mol
    atoms: tuple[int, ...]
    open: tuple[int, ...]


def _cut_chain(mol: Chem.Mol, rng: random.Random) -> list[_Part]:
    """The two parts left by a random acyclic single bond; an empty list if there is none."""
    bonds = [b for b in mol.GetBonds() if b.GetBondType() == Chem.BondType.SINGLE and not b.IsInRing()]
    if not bonds:
        return []
    bond = rng.choice(bonds)
    return _cut(mol, [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx())])


def _cut_ring(mol: Chem.Mol, rng: random.Random) -> list[_Part]:
    """The two parts left by two bonds of a ring; an empty list if 10 draws find none."""
    for _ in range(ATTEMPTS):
        if rng.random() < 0.5:
            places = mol.GetSubstructMatches(pattern("[R]@[R]@[R]@[R]"))
            pairs = [((i, j), (k, l)) for i, j, k, l in places]
        else:
            places = mol.GetSubstructMatches(pattern("[R]@[R;!D2]@[R]"))
            pairs = [((i, j), (j, k)) for i, j, k in places]
        if not pairs:
            return []
        parts = _cut(mol, rng.choice(pairs))
        if len(parts) == 2:
            return parts
    return []


def _cut(mol: Chem.Mol, bonds: Sequence[tuple[int, int]]) -> list[_Part]:
    """The components of ``mol`` without these bonds."""
    pieces = Chem.RWMol(mol)
    for i, j in bonds:
        pieces.RemoveBond(i, j)
    atoms: list[tuple[int, ...]] = []
    found = Chem.GetMolFrags(pieces, asMols=True, sanitizeFrags=False, fragsMolAtomMapping=atoms)
    ends = [end for bond in bonds for end in bond]
    return [_Part(f, a, tuple(a.index(end) for end in ends if end in a)) for f, a in zip(found, map(tuple, atoms), strict=True)]


def _first_joined(parts_a: Iterable[_Part], parts_b: Iterable[_Part], rng: random.Random, size: ChildSize) -> Chem.Mol | None:
    """The first valid child of a part of each parent; all ways of joining are visited in random order."""
    ways = [
        (x, y, ends, orders)
        for x, y in product(parts_a, parts_b)
        for ends in ((y.open,) if len(y.open) == 1 else (y.open, y.open[::-1]))
        for orders in (((1,),) if len(y.open) == 1 else product((1, 2), repeat=2))
    ]
    for x, y, ends, orders in _shuffled(ways, rng):
        child = _joined(x, y, ends, orders)
        if child is not None and (found := _checked(child, rng, size)) is not None:
            return found
    return None


def _joined(x: _Part, y: _Part, ends: Sequence[int], orders: Sequence[int]) -> Chem.RWMol | None:
    """Both parts in one molecule with a bond from each open atom of ``x`` to the one of ``ends``; None where it exists already."""
    child, shift = Chem.RWMol(Chem.CombineMols(x.mol, y.mol)), x.mol.GetNumAtoms()
    if all(add_bond(child, i, shift + j, order) for i, j, order in zip(x.open, ends, orders, strict=True)):
        return child
    return None


def splice(a: Chem.Mol, b: Chem.Mol, rng: random.Random, *, size: ChildSize = ChildSize()) -> Chem.Mol | None:
    """A child of one side of a BRICS bond in ``a`` and one in ``b`` that BRICS allows to be joined; None if no pair is valid.

    Args:
        a: sanitised molecule; of several components the largest.
        b: likewise.
        rng: generator of all choices.
        size: accepted sizes of the child.

    Source: Degen et al. (2008), ChemMedChem 3, 1503, doi 10.1002/cmdc.200800178, as in RDKit.
    """
    with BlockLogs():
        a, b = _largest(a), _largest(b)
        sides = [(x, y) for x, y in product(_brics_sides(a), _brics_sides(b)) if (x[2], y[2]) in _brics_pairs()]
        parents, start_a, start_b = {to_smiles(a), to_smiles(b)}, _editable(a), _editable(b)
        for x, y in _shuffled(sides, rng):
            part_a, part_b = _kept(start_a, x), _kept(start_b, y)
            child = _joined(part_a, part_b, part_b.open, (_brics_pairs()[x[2], y[2]],))
            found = None if child is None else _checked(child, rng, size)
            if found is not None and to_smiles(found) not in parents:
                return found
    return None


_Side: TypeAlias = tuple[int, int, str]
"""The kept atom of a BRICS bond, the lost one, and the BRICS environment of the kept one."""


def _brics_sides(mol: Chem.Mol) -> list[_Side]:
    found = [(i, j, *labels) for (i, j), labels in BRICS.FindBRICSBonds(mol)]
    return [side for i, j, x, y in found for side in ((i, j, x.rstrip("ab")), (j, i, y.rstrip("ab")))]


@cache
def _brics_pairs() -> dict[tuple[str, str], int]:
    """Order of the bond between two BRICS environments that may be joined."""
    pairs: dict[tuple[str, str], int] = {}
    for x, y, bond in (rule for rules in BRICS.reactionDefs for rule in rules):
        x, y = x.rstrip("ab"), y.rstrip("ab")
        pairs[x, y] = pairs[y, x] = 2 if bond == "=" else 1
    return pairs


def _kept(mol: Chem.Mol, side: _Side) -> _Part:
    """The part of a molecule that holds the kept atom of a bond."""
    kept, lost, _ = side
    part, other = _cut(mol, [(kept, lost)])
    return part if part.atoms[part.open[0]] == kept else other


def reproduce(
    parents: Sequence[str],
    rng: random.Random,
    *,
    weights: Sequence[float] | None = None,
    mutation_rate: float = 0.067,
    size: ChildSize = ChildSize(),
) -> str | None:
    """Canonical SMILES of a child of two parents drawn with replacement: their crossover, mutated with a probability.

    Args:
        parents: valid SMILES.
        rng: generator of all choices.
        weights: of the parents, not all 0; equal ones if left out.
        mutation_rate: probability of a mutation after the crossover, 0 to 1.
        size: accepted sizes of the child.

    Returns:
        A child unlike both parents; None if crossover or mutation found none.

    Raises:
        ValueError: for no parents, a parent that is no valid molecule, or a rate out of its range.
    """
    check_range("mutation_rate", mutation_rate, least=0, most=1)
    if not parents:
        raise ValueError("parents: none given, expected at least one SMILES string")
    with BlockLogs():
        (a, b), (text_a, text_b) = zip(*map(_parent, rng.choices(parents, weights, k=2)), strict=True)
        child = _crossover(a, b, {text_a, text_b}, rng, size)
        if child is not None and rng.random() < mutation_rate:
            child = _mutate(_editable(child), rng, size, _ODDS)
    if child is None:
        return None
    mol = parse(to_smiles(child))
    text = None if mol is None else to_smiles(mol)
    return None if text in (text_a, text_b) else text


_ODDS = {MUTATIONS[name]: weight for name, weight in MUTATION_ODDS.items()}


@lru_cache(maxsize=4096)
def _parent(text: str) -> tuple[Chem.Mol, str]:
    """A parent ready for editing, and its canonical SMILES."""
    mol = parse(text)
    if mol is None:
        raise ValueError(f"parents: {text!r} is no valid molecule")
    return _editable(mol), to_smiles(mol)


def _largest(mol: Chem.Mol) -> Chem.Mol:
    """The component of most atoms."""
    return max(Chem.GetMolFrags(mol, asMols=True), key=lambda f: f.GetNumAtoms()) if len(Chem.GetMolFrags(mol)) > 1 else mol


_RELATIVE = {Chem.BondStereo.STEREOE: Chem.BondStereo.STEREOTRANS, Chem.BondStereo.STEREOZ: Chem.BondStereo.STEREOCIS}


def _editable(mol: Chem.Mol) -> Chem.Mol:
    """A copy without aromatic flags, whose hydrogens follow the valence wherever that gives the same number as before.

    The configuration of a double bond is kept at that bond alone, not as directions of its neighbours too.
    """
    copy = Chem.RWMol(_largest(mol))
    Chem.Kekulize(copy, clearAromaticFlags=True)
    for bond in copy.GetBonds():
        if bond.GetStereo() in _RELATIVE:
            bond.SetStereo(_RELATIVE[bond.GetStereo()])
        bond.SetBondDir(Chem.BondDir.NONE)
    for atom in copy.GetAtoms():
        if atom.GetNoImplicit() and not atom.GetNumRadicalElectrons():
            explicit, total = atom.GetNumExplicitHs(), atom.GetTotalNumHs()
            atom.SetNoImplicit(False)
            atom.SetNumExplicitHs(0)
            atom.UpdatePropertyCache(strict=False)
            if atom.GetTotalNumHs() != total:
                atom.SetNoImplicit(True)
                atom.SetNumExplicitHs(explicit)
                atom.UpdatePropertyCache(strict=False)
    return copy.GetMol()


def _checked(child: Chem.RWMol, rng: random.Random, size: ChildSize) -> Chem.Mol | None:
    """The child, sanitised; None if it is invalid or refused."""
    if not size.accepts(child.GetNumAtoms(), rng):
        return None
    if Chem.SanitizeMol(child, catchErrors=True) != Chem.SanitizeFlags.SANITIZE_NONE or not rings_ok(child):
        return None
    if any(atom.GetNumRadicalElectrons() for atom in child.GetAtoms()):
        return None
    Chem.SetDoubleBondNeighborDirections(child)
    return child.GetMol()


def _shuffled(items: Sequence[T], rng: random.Random) -> Iterator[T]:
    """The items in random order; only what is taken is drawn."""
    rest = list(items)
    while rest:
        k = rng.randrange(len(rest))
        rest[k], rest[-1] = rest[-1], rest[k]
        yield rest.pop()
