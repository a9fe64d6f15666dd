"""Rewards that compare a molecule with the condition it was sampled under, a column of its group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from rdkit import Chem

from discrete_grpo.core.checks import check_columns, check_range
from discrete_grpo.domains import molecule_properties
from discrete_grpo.domains.smiles import parse, parse_all
from discrete_grpo.rewards.gaussian import gaussian

__all__ = ["HitsProperty", "keeps_scaffold"]


@dataclass(frozen=True)
class HitsProperty:
    """Gaussian of a molecular descriptor around the target of the sample's group: exp(-((d(mol) - target) / scale)² / 2).

    The target of a sample is its entry in the column that has the descriptor's name.

    Args:
        property: name of an RDKit descriptor, which is also the name of the column.
        scale: the standard deviation in the descriptor's unit, more than 0.

    Raises:
        ValueError: if RDKit has no such descriptor, ``scale`` is not positive, or (when called) the column is missing or has a
            value that is no finite number.

    >>> [round(x, 2) for x in HitsProperty("TPSA", scale=10.0)(["CCO", None], TPSA=[30.23, 1.0])]
    [0.61, 0.0]
    """

    property: str
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_range("scale", self.scale, above=0)
        molecule_properties.descriptor(self.property, "property")

    @cached_property
    def name(self) -> str:
        """The name in logs."""
        return f"hits_{self.property}"

    @cached_property
    def _value(self) -> Any:
        return molecule_properties.descriptor(self.property)

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float | None]:
        """Compare each sample with its target.

        Returns:
            A number in [0, 1] per sample, 1 where the descriptor has the target value; 0 for an invalid molecule, None where RDKit
            divides by zero.
        """
        targets = _column(columns, self.property, len(samples))
        wanted = [self._target(t) for t in targets]
        return [self._one(mol, t) for mol, t in zip(parse_all(samples), wanted, strict=True)]

    def _target(self, value: Any) -> float:
        try:
            target = float(value)
        except (TypeError, ValueError):
            target = math.nan
        if not math.isfinite(target):
            raise ValueError(f"{self.property}: {value!r}, expected a finite number, the target of a sample")
        return target

    def _one(self, mol: Chem.Mol | None, target: float) -> float | None:
        if mol is None:
            return 0.0
        try:
            value = self._value(mol)
        except ArithmeticError:  # such as a mean over the bonds between heavy atoms of a molecule without any
            return None
        return gaussian(value, target, self.scale)


def keeps_scaffold(samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float]:
    """Test whether a molecule contains the scaffold of its column ``scaffold`` (atoms, bonds, aromaticity).

    Returns:
        1 for a molecule that contains the scaffold, 0 for any other sample.

    Raises:
        ValueError: if the column is missing or holds an entry that is no molecule.

    >>> keeps_scaffold(["c1ccccc1CO", "CCO", None], scaffold=["c1ccccc1"] * 3)
    [1.0, 0.0, 0.0]
    """
    scaffolds = _column(columns, "scaffold", len(samples))
    return [float(_contains(s, str(core))) for s, core in zip(samples, scaffolds, strict=True)]


def _contains(sample: str | None, scaffold: str) -> bool:
    core, mol = _scaffold(scaffold), parse(sample)
    return mol is not None and bool(mol.HasSubstructMatch(core))


@lru_cache(maxsize=256)
def _scaffold(smiles: str) -> Chem.Mol:
    mol = parse(smiles)
    if mol is None:
        raise ValueError(f"scaffold: {smiles!r}, expected a valid, connected SMILES")
    return mol


def _column(columns: dict[str, Sequence[Any]], name: str, count: int) -> Sequence[Any]:
    found = columns.get(name, [None] * count)
    if any(value is None for value in found):
        given = ", ".join(columns) or "none"
        raise ValueError(f"{name}: a sample has no such condition, expected the column {name!r} (columns given: {given})")
    check_columns({name: found}, count)
    return found
