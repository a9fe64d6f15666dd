"""Rewards on molecules: callables from SMILES samples to one number per sample.

A sample is a canonical SMILES or None. A sample that does not parse or is not connected scores 0 in every reward here,
whatever the scale of the property; all other scores are properties of the molecule. A reward of your own is a function of a
molecule::

    @molecule_reward
    def carbons(mol):
        return sum(atom.GetSymbol() == "C" for atom in mol.GetAtoms())

    carbons(["CCO", None])                       # [2.0, 0.0]

"The molecular weight is about 120 g/mol" is ``Target(molecular_weight, value=120, scale=10)``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, Protocol, cast, overload, runtime_checkable

from rdkit import Chem

from discrete_grpo.core.checks import check_function, check_range, check_whole, signature_of
from discrete_grpo.core.reward_arguments import check_forgets, reward_name
from discrete_grpo.core.reward_values import shown_value
from discrete_grpo.core.row_conditions import RowConditions
from discrete_grpo.core.scoring import score_one
from discrete_grpo.domains import molecule_properties
from discrete_grpo.domains.smiles import as_given_to, parse, parse_all, smarts_pattern
from discrete_grpo.rewards.gaussian import gaussian

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
        """Compute one number per sample, in order."""
        ...


@overload
def molecule_reward(score: Callable[..., float | None], *, invalid: float | None = 0.0) -> MoleculeReward: ...
@overload
def molecule_reward(*, invalid: float | None) -> Callable[[Callable[..., float | None]], MoleculeReward]: ...
def molecule_reward(score: Callable[..., float | None] | None = None, *, invalid: float | None = 0.0) -> Any:
    """Make a function of an RDKit molecule a reward: ``score(mol)`` for a valid sample, ``invalid`` for an invalid one.

    The reward keeps the function's name and docstring. None means that the score is unknown. An exception raised by ``score`` is
    passed on. Further parameters of the function are conditions: of each sample it gets the values of the columns of these names.

    Args:
        score: the function; left out where the decorator is given ``invalid``. A parameter with a default may be missing among
            the conditions.
        invalid: score of an invalid sample. If scores can be negative, give a number below all of them; with 0 the policy would
            learn to draw invalid samples.

    Raises:
        ValueError: if ``score`` is no function of one molecule, or ``invalid`` is neither a number nor None.

    >>> @molecule_reward
    ... def atoms(mol):
    ...     return mol.GetNumAtoms()
    >>> atoms(["CCO", None, "C.C"]), atoms.__name__
    ([3.0, 0.0, 0.0], 'atoms')
    >>> @molecule_reward
    ... def close_in_size(mol, num_nodes):
    ...     return -abs(mol.GetNumAtoms() - num_nodes)
    >>> close_in_size(["CCO", "CC"], num_nodes=[3, 4])
    [0.0, -2.0]
    >>> @molecule_reward(invalid=-10)
    ... def fewest_atoms(mol):
    ...     return -mol.GetNumAtoms()
    >>> fewest_atoms(["CCO", None])
    [-3.0, -10.0]
    """
    if invalid is not None:
        check_range("invalid", invalid, note=" or None")
    if score is None:
        return functools.partial(_molecule_reward, invalid=invalid)
    return _molecule_reward(score, invalid)


def _molecule_reward(score: Callable[..., float | None], invalid: float | None) -> MoleculeReward:
    if callable(score) and list(getattr(signature_of(score), "parameters", ()))[:1] == ["self"]:
        raise ValueError("score: a method, expected a function; molecule_reward(object.method) makes a reward of one object's")
    conditions = RowConditions.of(score) if callable(score) else RowConditions()
    check_function("score", score, "one RDKit molecule", 1, **dict.fromkeys(conditions.required))
    given = as_given_to(score)

    @functools.wraps(score)
    def reward(samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float | None]:
        rows = zip(parse_all(samples), conditions.rows(columns, len(samples)), strict=True)
        values = [invalid if mol is None else score(given(mol), **row) for mol, row in rows]
        return [value if value is None or isinstance(value, str) else float(value) for value in values]

    made = cast(Any, reward)
    del made.__wrapped__  # its signature is another one
    if conditions.names:
        made.__signature__ = conditions.signature
    if not conditions.every:
        made.reads = conditions.names  # others change no score
    return cast(MoleculeReward, made)


@molecule_reward
def validity(mol: Chem.Mol) -> float:
    """Test whether a molecule parses, sanitises and is connected.

    Returns:
        1 for a valid molecule, 0 for an invalid one.

    >>> validity(["CCO", "C.C", None])
    [1.0, 0.0, 0.0]
    """
    return 1.0


@molecule_reward
def qed(mol: Chem.Mol) -> float:
    """Compute the quantitative estimate of drug-likeness (QED).

    Returns:
        A number in [0, 1], higher for a more drug-like molecule; 0 for an invalid one.

    Source: Bickerton et al. (2012).

    >>> [round(x, 3) for x in qed(["CC(=O)Nc1ccc(O)cc1", "CCO", None])]
    [0.595, 0.407, 0.0]
    """
    return molecule_properties.qed_score(mol)


@molecule_reward
def logp(mol: Chem.Mol) -> float:
    """Compute the octanol-water partition coefficient log P by Crippen's atom contributions.

    Returns:
        An unbounded number (base 10), higher for a more lipophilic molecule; 0 for an invalid one, which is above the
        negative values of hydrophilic molecules. :class:`Target` and :class:`InRange` have 0 as their lowest score.

    Source: Wildman and Crippen (1999).

    >>> [round(x, 3) for x in logp(["c1ccccc1", "CCO", None])]
    [1.687, -0.001, 0.0]
    """
    return molecule_properties.crippen_logp(mol)


@molecule_reward
def penalised_logp(mol: Chem.Mol) -> float:
    """Compute z(log P) + z(-SA) + z(-max(0, largest ring - 6)), z being the standard score over ZINC.

    Returns:
        An unbounded number, higher for a lipophilic, easily made molecule without large rings. A typical ZINC molecule scores 0,
        as an invalid one does, so that many valid ones score less than an invalid one. :class:`Target` and :class:`InRange`
        have 0 as their lowest score.

    Source: Jin et al. (2018).

    >>> [round(x, 2) for x in penalised_logp(["CCCCCCCC", "CCO", None])]
    [2.9, -0.26, 0.0]
    """
    return molecule_properties.plogp(mol)


@molecule_reward
def synthetic_accessibility(mol: Chem.Mol) -> float:
    """Compute (10 - SA) / 9, SA being the synthetic accessibility score from 1 (easy to make) to 10.

    Returns:
        A number in [0, 1], higher for a molecule that is easier to make; 0 for an invalid one.

    Source: Ertl and Schuffenhauer (2009); scaled as in GDPO.

    >>> [round(x, 2) for x in synthetic_accessibility(["CCO", None])]
    [0.89, 0.0]
    """
    return (10.0 - molecule_properties.sa_score(mol)) / 9.0


@molecule_reward
def molecular_weight(mol: Chem.Mol) -> float:
    """Compute the average molecular weight, hydrogens included.

    Returns:
        A positive number in g/mol; 0 for an invalid molecule. Use it within :class:`Target` or :class:`InRange`, since the
        reward by itself only favours heavy molecules.

    >>> [round(x, 2) for x in molecular_weight(["CCO", None])]
    [46.07, 0.0]
    """
    return molecule_properties.molar_mass(mol)


@dataclass(frozen=True)
class Similarity:
    """Tanimoto similarity of a molecule's Morgan fingerprint (counts) to that of a target molecule, without stereochemistry.

    Args:
        target: SMILES of a connected molecule.
        radius: of the fingerprint in bonds, at least 0; 2 is ECFP4.

    Raises:
        ValueError: if the target is no valid molecule or the radius is negative.

    >>> Similarity("CCO")(["CCO", "c1ccccc1", None])
    [1.0, 0.0, 0.0]
    """

    target: str
    radius: int = 2

    def __post_init__(self) -> None:
        check_whole("radius", self.radius, least=0)
        if not isinstance(self.target, str) or parse(self.target) is None:
            raise ValueError(f"target: {shown_value(self.target)}, expected the SMILES of one connected molecule")

    @cached_property
    def _fingerprint(self) -> molecule_properties.Fingerprint:
        mol = parse(self.target)
        assert mol is not None  # checked when made
        return molecule_properties.count_fingerprint(mol, self.radius)

    @property
    def name(self) -> str:
        """The name in logs."""
        return f"similarity({self.target})"

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float]:
        """Compute the similarity of each sample.

        Returns:
            A number in [0, 1] per sample, 1 for a molecule with the target's fingerprint; 0 for an invalid one.
        """
        mols = parse_all(samples)
        target = self._fingerprint
        prints = [None if mol is None else molecule_properties.count_fingerprint(mol, self.radius) for mol in mols]
        return [0.0 if own is None else molecule_properties.tanimoto(own, target) for own in prints]


@dataclass(frozen=True)
class Substructure:
    """Test whether a molecule contains a SMARTS pattern, whatever its stereochemistry.

    Hydrogens that the pattern writes as atoms, such as ``[#8]-[#1]``, count as hydrogens of their neighbours.

    Args:
        smarts: the pattern.

    Raises:
        ValueError: if RDKit cannot read the pattern.

    >>> Substructure("[OX2H]")(["CCO", "COC", None])
    [1.0, 0.0, 0.0]
    """

    smarts: str

    def __post_init__(self) -> None:
        _ = self._pattern  # raises now rather than in the first step of a run

    @cached_property
    def _pattern(self) -> Chem.Mol:
        return smarts_pattern(self.smarts)

    @property
    def name(self) -> str:
        """The name in logs."""
        return f"substructure({self.smarts})"

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float]:
        """Test each sample.

        Returns:
            1 for a molecule that contains the pattern, 0 for any other sample.
        """
        mols = parse_all(samples)
        return [0.0 if mol is None else float(mol.HasSubstructMatch(self._pattern)) for mol in mols]


def modified(
    reward: Callable[..., Sequence[float | None]],
    shape: Callable[[float], float],
    samples: Sequence[str | None],
    columns: dict[str, Sequence[Any]],
) -> list[float | None]:
    """Apply ``shape`` to each score of a reward; 0 for an invalid sample, None where the score is unknown."""
    scores = score_one(reward, samples, columns).tolist()
    valid = [mol is not None for mol in parse_all(samples)]
    shaped = [None if math.isnan(x) else shape(x) for x in scores]
    return [y if ok else 0.0 for y, ok in zip(shaped, valid, strict=True)]


@dataclass(frozen=True)
class Target:
    """Gaussian of a property around a target value: exp(-((x - value) / scale)² / 2).

    Args:
        property: any reward on molecules, such as :func:`molecular_weight`.
        value: where the maximum lies, a finite number in the property's unit.
        scale: the standard deviation in the property's unit, more than 0.

    Raises:
        ValueError: for an argument out of its range.

    Source: the Gaussian score modifier of GuacaMol, Brown et al. (2019).

    >>> [round(x, 4) for x in Target(molecular_weight, value=46.069, scale=10)(["CCO", None])]
    [1.0, 0.0]
    """

    property: Callable[..., Sequence[float | None]]
    value: float
    scale: float

    def __post_init__(self) -> None:
        check_property(self.property)
        check_range("value", self.value)
        check_range("scale", self.scale, above=0)

    @functools.cached_property
    def name(self) -> str:
        """The name in logs."""
        return f"{reward_name(self.property)}={self.value:g}"

    @property
    def inner(self) -> tuple[Callable[..., Sequence[float | None]], ...]:
        """The property, alone."""
        return (self.property,)

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float | None]:
        """Compute the Gaussian of each sample's property.

        Returns:
            A number in [0, 1] per sample, 1 where the property has the target value; 0 for an invalid molecule, None where the
            property is unknown.
        """
        return modified(self.property, lambda x: gaussian(x, self.value, self.scale), samples, columns)


@dataclass(frozen=True)
class InRange:
    """Test whether low <= x <= high for a property x, with a Gaussian decline exp(-(d / scale)² / 2) at distance d outside.

    Args:
        property: any reward on molecules.
        low: lower end in the property's unit; ``-math.inf`` for none.
        high: upper end, at least ``low``; ``math.inf`` for none.
        scale: standard deviation of the decline, at least 0; 0 (default) is a hard edge.

    Raises:
        ValueError: for an argument out of its range.

    >>> InRange(molecular_weight, low=40, high=50)(["CCO", "C", None])
    [1.0, 0.0, 0.0]
    """

    property: Callable[..., Sequence[float | None]]
    low: float
    high: float
    scale: float = 0.0

    def __post_init__(self) -> None:
        check_property(self.property)
        for name in ("low", "high"):
            if not isinstance(bound := getattr(self, name), Real):
                raise ValueError(f"{name}: {bound!r}, expected a number")
        if not self.low <= self.high:
            raise ValueError(f"low, high: {self.low}, {self.high}, expected low <= high")
        check_range("scale", self.scale, least=0)

    @functools.cached_property
    def name(self) -> str:
        """The name in logs."""
        return f"{reward_name(self.property)} in {self.low:g}..{self.high:g}"

    @property
    def inner(self) -> tuple[Callable[..., Sequence[float | None]], ...]:
        """The property, alone."""
        return (self.property,)

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float | None]:
        """Compute how well each sample's property lies in the range.

        Returns:
            A number in [0, 1] per sample, 1 within the range; 0 for an invalid molecule, None where the property is unknown.
        """
        return modified(self.property, self._shape, samples, columns)

    def _shape(self, x: float) -> float:
        distance = max(self.low - x, x - self.high, 0.0)
        if distance == 0.0:
            return 1.0
        return gaussian(distance, 0.0, self.scale) if self.scale else 0.0


def check_property(reward: object) -> None:
    """Raise ``ValueError`` unless ``reward`` is a callable without a memory."""
    if not callable(reward):
        raise ValueError(f"property: {reward!r}, expected a reward, a callable from samples to numbers")
    check_forgets(reward)
