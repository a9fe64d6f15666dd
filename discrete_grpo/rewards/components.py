"""Further components of scores as REINVENT4 has them: matches of a pattern, the size of rings and of a molecule, a decay."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rdkit import Chem

from discrete_grpo.core.checks import check_range
from discrete_grpo.core.reward_arguments import reward_name
from discrete_grpo.domains import molecule_properties
from discrete_grpo.domains.smiles import parse_all, smarts_pattern
from discrete_grpo.rewards.molecules import check_property, modified, molecule_reward

__all__ = ["ExponentialDecay", "MatchCount", "graph_length", "largest_ring_size"]


@dataclass(frozen=True)
class MatchCount:
    """Count the matches of a SMARTS pattern in a molecule: |{A : the pattern matches the set of atoms A}|.

    Matches of the same atoms, as the twelve of benzene in itself, count once; matches that share some atoms count each. The count
    ends at 1,000, as RDKit's does. Stereochemistry and hydrogens that the pattern writes as atoms are treated as by
    :class:`~discrete_grpo.rewards.molecules.Substructure`; in REINVENT4 such hydrogens match nothing.

    Args:
        smarts: the pattern.

    Raises:
        ValueError: if RDKit cannot read the pattern.

    Source: the component ``GroupCount`` of REINVENT4, Loeffler et al. (2024).

    >>> MatchCount("[OX2H]")(["OCC(O)CO", "c1ccccc1", None])
    [3.0, 0.0, 0.0]
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
        return f"match_count({self.smarts})"

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float]:
        """Count the matches in each sample.

        Returns:
            A whole number per sample, at least 0 and at most 1,000; 0 for an invalid molecule. By itself it only favours many
            matches, so use it within :class:`~discrete_grpo.rewards.transforms.Sigmoid`,
            :class:`~discrete_grpo.rewards.molecules.InRange` or :class:`ExponentialDecay`.
        """
        mols = parse_all(samples)
        return [0.0 if mol is None else float(len(mol.GetSubstructMatches(self._pattern))) for mol in mols]


@molecule_reward
def largest_ring_size(mol: Chem.Mol) -> float:
    """Count the atoms of the largest ring, max |r| over the smallest set of smallest rings r.

    Returns:
        A whole number, at least 3, or 0 for a molecule without rings and for an invalid one. Use it within
        :class:`~discrete_grpo.rewards.transforms.ReverseSigmoid` or :class:`~discrete_grpo.rewards.molecules.InRange`, since the
        reward by itself only favours large rings.

    Source: the component ``LargestRingSize`` of REINVENT4, Loeffler et al. (2024).

    >>> largest_ring_size(["C1CCC1CCc1ccccc1", "CCO", None])
    [6.0, 0.0, 0.0]
    """
    return molecule_properties.largest_ring(mol)


@molecule_reward
def graph_length(mol: Chem.Mol) -> float:
    """Compute the diameter of the molecular graph, max over i, j of d(i, j), the bonds on a shortest path from atom i to atom j.

    Returns:
        A whole number of bonds, at least 0; 0 for an invalid molecule. Use it within
        :class:`~discrete_grpo.rewards.transforms.ReverseSigmoid` or :class:`~discrete_grpo.rewards.molecules.InRange`, since the
        reward by itself only favours long molecules.

    Source: the component ``GraphLength`` of REINVENT4, Loeffler et al. (2024).

    >>> graph_length(["CCCCO", "CC(C)(C)C", "c1ccccc1", None])
    [4.0, 2.0, 3.0, 0.0]
    """
    return float(Chem.GetDistanceMatrix(mol).max())


@dataclass(frozen=True)
class ExponentialDecay:
    """Exponential decay of a property x, exp(-k x) for x >= 0 and 1 for x < 0.

    Args:
        property: any reward on molecules of which less is better, such as ``Descriptor("NumRotatableBonds")``.
        k: rate of the decay in the inverse of the property's unit, more than 0; the score is 1/2 at x = ln 2 / k.

    Raises:
        ValueError: for an argument out of its range.

    Source: the transform ``exponential_decay`` of REINVENT4, Loeffler et al. (2024).

    >>> [round(x, 3) for x in ExponentialDecay(MatchCount("[OX2H]"), k=0.5)(["CCC", "CCO", "OCC(O)CO", None])]
    [1.0, 0.607, 0.223, 0.0]
    """

    property: Callable[..., Sequence[float | None]]
    k: float

    def __post_init__(self) -> None:
        check_property(self.property)
        check_range("k", self.k, above=0)

    @cached_property
    def name(self) -> str:
        """The name in logs."""
        return f"exp(-{self.k:g} {reward_name(self.property)})"

    @property
    def inner(self) -> tuple[Callable[..., Sequence[float | None]], ...]:
        """The property, alone."""
        return (self.property,)

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float | None]:
        """Compute the decay of each sample's property.

        Returns:
            A number in [0, 1] per sample, 1 where the property is at most 0; 0 for an invalid molecule, None where the property is
            unknown.
        """
        return modified(self.property, lambda x: math.exp(-self.k * max(x, 0.0)), samples, columns)
