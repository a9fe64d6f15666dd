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
from discrete_grpo.domains.smiles import parse, parse_all, parse_smiles
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
            value that is neither a finite number nor None.

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
            A number in [0, 1] per sample, 1 where the descriptor has the target value; 0 for an invalid molecule, None for a sample
            without a target and where RDKit gives no finite number.
        """
        targets = _column(columns, self.property, len(samples))
        wanted = [None if t is None else self._target(t) for t in targets]
        return [None if t is None else self._one(mol, t) for mol, t in zip(parse_all(samples), wanted, strict=True)]

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
        value = molecule_properties.finite_value(self._value, mol)
        return None if value is None else gaussian(value, target, self.scale)


def keeps_scaffold(samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float | None]:
    """Test whether a molecule contains the scaffold of its column ``scaffold`` (atoms, bonds, aromaticity; no stereo).

    An attachment point, ``*`` or ``[*:1]``, stands for any heavy atom. Fragments, joined by ``.``, have no atom in common.

    Returns:
        1 for a molecule that contains the scaffold, 0 for any other sample, None for one without a scaffold.

    Raises:
        ValueError: if the column is missing or holds an entry that is no molecule.

    >>> keeps_scaffold(["c1ccccc1CO", "CCO", None], scaffold=["c1ccccc1"] * 3)
    [1.0, 0.0, 0.0]
    """
    scaffolds = _column(columns, "scaffold", len(samples))
    pairs = zip(samples, scaffolds, strict=True)
    return [None if core is None else float(_contains(sample, str(core))) for sample, core in pairs]


def _contains(sample: str | None, scaffold: str) -> bool:
    core, mol = _scaffold(scaffold), parse(sample)
    return mol is not None and bool(mol.HasSubstructMatch(core))


@lru_cache(maxsize=256)
def _scaffold(smiles: str) -> Chem.Mol:
    mol = parse_smiles(smiles)
    if mol is None:
        raise ValueError(f"scaffold: {smiles!r}, expected a valid SMILES")
    for atom in mol.GetAtoms():
        if not atom.GetAtomicNum():
            atom.SetIsotope(0)  # RDKit makes no query of a numbered one, such as [1*]
    attachment = Chem.AdjustQueryParameters.NoAdjustments()
    attachment.makeDummiesQueries = True  # type: ignore[assignment]
    return Chem.AdjustQueryProperties(mol, attachment)


def _column(columns: dict[str, Sequence[Any]], name: str, count: int) -> Sequence[Any]:
    if name not in columns:
        given = ", ".join(columns) or "none"
        raise ValueError(f"{name}: no such condition is given, expected the column {name!r} (columns given: {given})")
    check_columns({name: columns[name]}, count)
    return columns[name]
