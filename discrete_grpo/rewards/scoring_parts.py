"""The parts that objectives of molecular benchmarks are put together from, as values.

A part is called with a valid molecule and returns one number. Parts are plain data: two with equal settings are equal, and
``repr`` shows the whole definition. RDKit is imported when a part is first called, and fingerprints of reference molecules are
kept from then on.

Source: GuacaMol, Brown et al. (2019), https://doi.org/10.1021/acs.jcim.8b00839
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from discrete_grpo.rewards.gaussian import gaussian

if TYPE_CHECKING:
    from rdkit import Chem

__all__ = [
    "ArithmeticMean",
    "AtomCount",
    "Clipped",
    "Contains",
    "Gaussian",
    "GeometricMean",
    "Isomer",
    "Lacks",
    "MaxGaussian",
    "MinGaussian",
    "MoleculeProperty",
    "Part",
    "Tanimoto",
    "formula_counts",
    "property_of",
]

Part: TypeAlias = "Callable[[Chem.Mol], float]"
"""A number of a molecule."""
_ELEMENT = re.compile(r"([A-Z][a-z]?)(\d*)")
_FORMULA = re.compile(r"([A-Z][a-z]?\d*)+")


# -- numbers of a molecule


@dataclass(frozen=True)
class Tanimoto:
    """Tanimoto similarity to a reference molecule, in [0, 1].

    Attributes:
        fingerprint: a name of :data:`discrete_grpo.domains.fingerprints.FINGERPRINTS`.
        target: SMILES of the reference molecule.
    """

    fingerprint: str
    target: str

    def __call__(self, mol: Chem.Mol) -> float:
        """Compute the similarity."""
        compute, tanimoto = _fingerprint(self.fingerprint)
        return tanimoto(compute(mol), _target_fingerprint(self.fingerprint, self.target))


@dataclass(frozen=True)
class MoleculeProperty:
    """RDKit's descriptor of this name: ``MolLogP``, ``TPSA``, ``BertzCT``, ``NumAromaticRings``, ``RingCount``, ``qed``."""

    name: str

    def __call__(self, mol: Chem.Mol) -> float:
        """Compute the descriptor."""
        return float(_descriptor(self.name)(mol))


def property_of(name: str, smiles: str) -> float:
    """Compute RDKit's descriptor ``name`` of a reference molecule."""
    return float(_descriptor(name)(_reference(smiles)))


@dataclass(frozen=True)
class AtomCount:
    """Number of atoms of an element other than hydrogen, of any isotope and charge."""

    element: str

    def __call__(self, mol: Chem.Mol) -> float:
        """Count the atoms."""
        return float(sum(atom.GetSymbol() == self.element for atom in mol.GetAtoms()))


@dataclass(frozen=True)
class Contains:
    """1 for a molecule that contains a SMARTS pattern, else 0."""

    smarts: str

    def __call__(self, mol: Chem.Mol) -> float:
        """Look for the pattern."""
        return float(mol.HasSubstructMatch(_pattern(self.smarts)))


@dataclass(frozen=True)
class Lacks:
    """1 for a molecule that does not contain a SMARTS pattern, else 0."""

    smarts: str

    def __call__(self, mol: Chem.Mol) -> float:
        """Look for the pattern."""
        return float(not mol.HasSubstructMatch(_pattern(self.smarts)))


@dataclass(frozen=True)
class Isomer:
    """Closeness to a molecular formula: geometric mean over its elements and the total of exp(-((n - n_target) / s)² / 2).

    The standard deviation s is 1 for the number of atoms of an element and 2 for that of all atoms, hydrogens included. Elements
    that the formula does not name count in the total alone.

    Attributes:
        formula: such as ``"C7H8N2O2"``.

    Raises:
        ValueError: if the formula is anything but element symbols, each with a number or none.
    """

    formula: str

    def __post_init__(self) -> None:
        formula_counts(self.formula)  # raises now rather than in the first step of a run

    def __call__(self, mol: Chem.Mol) -> float:
        """Compute the closeness, in [0, 1]; 1 for an isomer and only for an isomer."""
        wanted, found = formula_counts(self.formula), _atom_counts(mol)
        terms = [gaussian(found.get(element, 0) - count, 0.0, 1.0) for element, count in wanted.items()]
        terms.append(gaussian(sum(found.values()) - sum(wanted.values()), 0.0, 2.0))
        return _geometric_mean(terms)


# -- modifiers of a number


@dataclass(frozen=True)
class Clipped:
    """min(x / upper, 1) of a part x that is at least 0."""

    part: Part
    upper: float

    def __call__(self, mol: Chem.Mol) -> float:
        """Compute the clipped number."""
        return min(self.part(mol) / self.upper, 1.0)


@dataclass(frozen=True)
class Gaussian:
    """exp(-((x - mean) / sigma)² / 2) of a part x.

    Attributes:
        part: the number x.
        mean: where the maximum lies; a SMILES stands for the property of that molecule (``part`` is a :class:`MoleculeProperty`).
        sigma: standard deviation, more than 0.
    """

    part: Part
    mean: float | str
    sigma: float

    def __call__(self, mol: Chem.Mol) -> float:
        """Compute the Gaussian."""
        mean = self.mean
        if isinstance(mean, str):
            assert isinstance(self.part, MoleculeProperty)
            mean = _property_of_target(self.part.name, mean)
        return gaussian(self.part(mol), mean, self.sigma)


@dataclass(frozen=True)
class MinGaussian:
    """1 where a part x is at most ``mean``, above it exp(-((x - mean) / sigma)² / 2): x should be small."""

    part: Part
    mean: float
    sigma: float

    def __call__(self, mol: Chem.Mol) -> float:
        """Compute the half Gaussian."""
        return gaussian(max(self.part(mol), self.mean), self.mean, self.sigma)


@dataclass(frozen=True)
class MaxGaussian:
    """1 where a part x is at least ``mean``, below it exp(-((x - mean) / sigma)² / 2): x should be large."""

    part: Part
    mean: float
    sigma: float

    def __call__(self, mol: Chem.Mol) -> float:
        """Compute the half Gaussian."""
        return gaussian(min(self.part(mol), self.mean), self.mean, self.sigma)


# -- means


@dataclass(frozen=True)
class GeometricMean:
    """(Π_k x_k)^(1/n) of n parts, each at least 0. Parts after one that is 0 are not computed: put the cheap ones first."""

    parts: tuple[Part, ...]

    def __call__(self, mol: Chem.Mol) -> float:
        """Compute the mean."""
        values: list[float] = []
        for part in self.parts:
            values.append(part(mol))
            if values[-1] == 0.0:
                return 0.0
        return _geometric_mean(values)


@dataclass(frozen=True)
class ArithmeticMean:
    """Σ_k x_k / n of n parts."""

    parts: tuple[Part, ...]

    def __call__(self, mol: Chem.Mol) -> float:
        """Compute the mean."""
        return math.fsum(part(mol) for part in self.parts) / len(self.parts)


# -- the formulas


def _geometric_mean(values: list[float]) -> float:
    if min(values) == 0.0:
        return 0.0
    return math.exp(math.fsum(map(math.log, values)) / len(values))


@lru_cache(maxsize=64)
def formula_counts(formula: str) -> dict[str, int]:
    """Element -> number of atoms of a molecular formula; an element that stands several times counts as often.

    Raises:
        ValueError: if the formula is anything but element symbols, each with a number or none.

    >>> formula_counts("C9H10PF2Cl")
    {'C': 9, 'H': 10, 'P': 1, 'F': 2, 'Cl': 1}
    """
    if not _FORMULA.fullmatch(formula):
        raise ValueError(f"formula: {formula!r}, expected element symbols with numbers, such as 'C2H6O'")
    found: dict[str, int] = {}
    for element, count in _ELEMENT.findall(formula):
        found[element] = found.get(element, 0) + int(count or 1)
    return found


def _atom_counts(mol: Chem.Mol) -> dict[str, int]:
    """Element -> number of atoms; hydrogens count whether they are atoms of the graph or not."""
    found: dict[str, int] = {}
    hydrogens = 0
    for atom in mol.GetAtoms():
        symbol = atom.GetSymbol()
        found[symbol] = found.get(symbol, 0) + 1
        hydrogens += atom.GetTotalNumHs()
    found["H"] = found.get("H", 0) + hydrogens
    return found


# -- reference molecules


def _reference(smiles: str) -> Chem.Mol:
    from discrete_grpo.domains.smiles import parse_smiles

    mol = parse_smiles(smiles)
    if mol is None:
        raise ValueError(f"target: {smiles!r}, expected a SMILES that RDKit parses")
    return mol


@lru_cache(maxsize=16)
def _fingerprint(name: str) -> tuple[Callable[[Chem.Mol], Any], Callable[[Any, Any], float]]:
    from discrete_grpo.domains.fingerprints import FINGERPRINTS
    from discrete_grpo.domains.molecule_properties import tanimoto

    return FINGERPRINTS[name], tanimoto


@lru_cache(maxsize=256)
def _target_fingerprint(name: str, smiles: str) -> Any:
    return _fingerprint(name)[0](_reference(smiles))


@lru_cache(maxsize=64)
def _descriptor(name: str) -> Callable[[Chem.Mol], float]:
    from discrete_grpo.domains.molecule_properties import descriptor

    return descriptor(name)


@lru_cache(maxsize=64)
def _property_of_target(name: str, smiles: str) -> float:
    return property_of(name, smiles)


@lru_cache(maxsize=64)
def _pattern(smarts: str) -> Chem.Mol:
    from rdkit import Chem

    pattern = Chem.MolFromSmarts(smarts)
    if pattern is None:
        raise ValueError(f"smarts: {smarts!r}, expected a SMARTS pattern that RDKit reads")
    return pattern
