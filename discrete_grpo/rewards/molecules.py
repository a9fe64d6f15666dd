"""Rewards on molecules: callables from SMILES samples to one number each.

A sample is a canonical SMILES or None. What does not parse or is not connected scores 0 in every reward here, whatever
the scale of the property; the rest is a property of the molecule. A reward of your own is a function of a molecule::

    @molecule_reward
    def carbons(mol):
        return sum(atom.GetSymbol() == "C" for atom in mol.GetAtoms())

    carbons(["CCO", None])                       # [2.0, 0.0]

and "weigh 120 g/mol" is ``Target(molecular_weight, value=120, scale=10)``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from rdkit import Chem
from rdkit.rdBase import BlockLogs

from discrete_grpo.core.scoring import reward_name, score_one
from discrete_grpo.domains import molecule_properties
from discrete_grpo.domains import molecules as chemistry

__all__ = [
    "InRange",
    "MoleculeReward",
    "Similarity",
    "Substructure",
    "Target",
    "logp",
    "molecular_weight",
    "molecule_reward",
    "penalised_logp",
    "qed",
    "synthetic_accessibility",
    "validity",
]


@runtime_checkable
class MoleculeReward(Protocol):
    """A reward whose samples are SMILES or None."""

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float]:
        """One number a sample, in order."""
        ...


def molecule_reward(score: Callable[[Chem.Mol], float]) -> MoleculeReward:
    """Make a function of an RDKit molecule a reward: ``score(mol)`` for a valid sample, 0 for the rest.

    The reward keeps the function's name and docstring; an exception in ``score`` is not swallowed.

    >>> @molecule_reward
    ... def atoms(mol):
    ...     return mol.GetNumAtoms()
    >>> atoms(["CCO", None, "C.C"]), atoms.__name__
    ([3.0, 0.0, 0.0], 'atoms')
    """

    @functools.wraps(score)
    def reward(samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float]:
        mols = chemistry.parse_all(samples)
        return [0.0 if mol is None else float(score(mol)) for mol in mols]

    del reward.__wrapped__  # its signature is another one
    return reward


@molecule_reward
def validity(mol: Chem.Mol) -> float:
    """1 for a molecule that parses, sanitises and is connected, else 0."""
    return 1.0


@molecule_reward
def qed(mol: Chem.Mol) -> float:
    """Quantitative estimate of drug-likeness, in [0, 1]. Source: Bickerton et al. (2012)."""
    return molecule_properties.qed_score(mol)


@molecule_reward
def logp(mol: Chem.Mol) -> float:
    """Crippen logP, unbounded. Source: Wildman and Crippen (1999)."""
    return molecule_properties.crippen_logp(mol)


@molecule_reward
def penalised_logp(mol: Chem.Mol) -> float:
    """z(logP) + z(-SA) + z(-max(0, largest ring - 6)), unbounded; a typical ZINC molecule scores 0, like an invalid one.

    Source: Jin et al. (2018).
    """
    return molecule_properties.plogp(mol)


@molecule_reward
def synthetic_accessibility(mol: Chem.Mol) -> float:
    """(10 - SA) / 9, from 0 (hard to make) to 1 (easy). Source: Ertl and Schuffenhauer (2009); scaled as in GDPO."""
    return (10.0 - molecule_properties.sa_score(mol)) / 9.0


@molecule_reward
def molecular_weight(mol: Chem.Mol) -> float:
    """Average molecular weight with hydrogens, g/mol."""
    return molecule_properties.molar_mass(mol)


@dataclass(frozen=True)
class Similarity:
    """Tanimoto similarity of Morgan counts to a target molecule, in [0, 1]; ``radius`` 2 is ECFP4.

    Raises:
        ValueError: if the target is no valid molecule or the radius is negative.

    >>> Similarity("CCO")(["CCO", "c1ccccc1", None])
    [1.0, 0.0, 0.0]
    """

    target: str
    radius: int = 2

    def __post_init__(self) -> None:
        if self.radius < 0:
            raise ValueError(f"radius: {self.radius}, expected at least 0")
        if chemistry.parse(self.target) is None:
            raise ValueError(f"target: {self.target!r}, expected the SMILES of a connected molecule")

    @cached_property
    def _fingerprint(self) -> molecule_properties.Fingerprint:
        mol = chemistry.parse(self.target)
        assert mol is not None  # checked when made
        return molecule_properties.count_fingerprint(mol, self.radius)

    @property
    def name(self) -> str:
        """For logs."""
        return f"similarity({self.target})"

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float]:
        """One similarity a sample."""
        mols = chemistry.parse_all(samples)
        target = self._fingerprint
        prints = [None if mol is None else molecule_properties.count_fingerprint(mol, self.radius) for mol in mols]
        return [0.0 if own is None else molecule_properties.tanimoto(own, target) for own in prints]


@dataclass(frozen=True)
class Substructure:
    """1 where the molecule holds a SMARTS pattern, else 0.

    Raises:
        ValueError: if RDKit does not read the pattern.

    >>> Substructure("[OX2H]")(["CCO", "COC", None])
    [1.0, 0.0, 0.0]
    """

    smarts: str

    def __post_init__(self) -> None:
        _ = self._pattern  # raises now rather than in the first step of a run

    @cached_property
    def _pattern(self) -> Chem.Mol:
        with BlockLogs():
            pattern = Chem.MolFromSmarts(self.smarts) if self.smarts else None
        if pattern is None:
            raise ValueError(f"smarts: {self.smarts!r}, expected a SMARTS pattern that RDKit reads")
        return pattern

    @property
    def name(self) -> str:
        """For logs."""
        return f"substructure({self.smarts})"

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float]:
        """1 or 0 a sample."""
        mols = chemistry.parse_all(samples)
        return [0.0 if mol is None else float(mol.HasSubstructMatch(self._pattern)) for mol in mols]


def _modify(
    reward: Callable[..., Sequence[float | None]],
    shape: Callable[[float], float],
    samples: Sequence[str | None],
    columns: dict[str, Sequence[Any]],
) -> list[float | None]:
    """``shape`` of each score; 0 for an invalid sample, None where the score is unknown."""
    scores = score_one(reward, samples, columns).tolist()
    valid = [mol is not None for mol in chemistry.parse_all(samples)]
    shaped = [None if math.isnan(x) else shape(x) for x in scores]
    return [y if ok else 0.0 for y, ok in zip(shaped, valid, strict=True)]


@dataclass(frozen=True)
class Target:
    """exp(-((x - value) / scale)² / 2): 1 where a property hits a value, 0 for an invalid sample. GuacaMol's Gaussian.

    Attributes:
        property: any reward on molecules, such as :func:`molecular_weight`.
        value: where the maximum lies.
        scale: the standard deviation, above 0.

    >>> [round(x, 4) for x in Target(molecular_weight, value=46.069, scale=10)(["CCO", None])]
    [1.0, 0.0]
    """

    property: Callable[..., Sequence[float | None]]
    value: float
    scale: float

    def __post_init__(self) -> None:
        _check_callable(self.property)
        _check_finite("value", self.value)
        if not 0 < self.scale < math.inf:
            raise ValueError(f"scale: {self.scale}, expected a finite number above 0")

    @functools.cached_property
    def name(self) -> str:
        """For logs."""
        return f"{reward_name(self.property)}={self.value:g}"

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float | None]:
        """One number in [0, 1] a sample; None where the property is unknown."""
        return _modify(self.property, lambda x: math.exp(-(((x - self.value) / self.scale) ** 2) / 2), samples, columns)


@dataclass(frozen=True)
class InRange:
    """1 where low <= x <= high, exp(-(d / scale)² / 2) at distance d outside; 0 for an invalid sample.

    Attributes:
        property: any reward on molecules.
        low: lower end; ``-math.inf`` for none.
        high: upper end; ``math.inf`` for none.
        scale: how fast it falls outside; 0 (default) is a hard edge.

    >>> InRange(molecular_weight, low=40, high=50)(["CCO", "C", None])
    [1.0, 0.0, 0.0]
    """

    property: Callable[..., Sequence[float | None]]
    low: float
    high: float
    scale: float = 0.0

    def __post_init__(self) -> None:
        _check_callable(self.property)
        if not self.low <= self.high:
            raise ValueError(f"low, high: {self.low}, {self.high}, expected low <= high")
        if not 0 <= self.scale < math.inf:
            raise ValueError(f"scale: {self.scale}, expected a finite number of at least 0")

    @functools.cached_property
    def name(self) -> str:
        """For logs."""
        return f"{reward_name(self.property)} in {self.low:g}..{self.high:g}"

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float | None]:
        """One number in [0, 1] a sample; None where the property is unknown."""
        return _modify(self.property, self._shape, samples, columns)

    def _shape(self, x: float) -> float:
        distance = max(self.low - x, x - self.high, 0.0)
        if distance == 0.0:
            return 1.0
        return math.exp(-((distance / self.scale) ** 2) / 2) if self.scale else 0.0


def _check_callable(reward: object) -> None:
    if not callable(reward):
        raise ValueError(f"property: {reward!r}, expected a reward, a callable from samples to numbers")


def _check_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"{name}: {value}, expected a finite number")
