"""Rewards on molecules in space: callables from :class:`SpatialMolecule` samples to one number per sample.

A sample is **valid** when it sanitises, is connected and has no two atoms at one place. Energies are those of MMFF94, and unknown
(None) for a molecule with atoms that it has no parameters for. Rewards in [0, 1] score an invalid sample 0. Those that are energies
are unknown for it, because 0 would be a good energy: give them beside one that asks for validity, or train on :class:`LowStrain`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from rdkit import Chem
from rdkit.Chem import rdMolAlign, rdShapeHelpers
from rdkit.rdBase import BlockLogs

from discrete_grpo.core.checks import check_range
from discrete_grpo.core.reward_arguments import remembers, reward_name
from discrete_grpo.core.scoring import score_one
from discrete_grpo.domains.force_field import relax
from discrete_grpo.domains.spatial_files import from_sdf
from discrete_grpo.domains.spatial_geometry import midi_stable, octet_stable
from discrete_grpo.domains.spatial_molecules import SpatialMolecule, smiles_of, valid_mol

__all__ = [
    "LowStrain",
    "OfSmiles",
    "ShapeSimilarity",
    "atom_stability",
    "mmff_energy",
    "molecule_stability",
    "molecule_stability_midi",
    "negative_strain",
    "spatial_validity",
]

Samples = Sequence[SpatialMolecule | None]
FURTHER = 50.0
"""Å by which a molecule may reach further than a reference along an axis and still have its shape compared."""


def spatial_validity(samples: Samples, **columns: Sequence[Any]) -> list[float]:
    """Test whether a molecule in space sanitises, is connected and has no two atoms nearer than 0.1 Å.

    Returns:
        1 for a valid molecule, 0 for an invalid one.

    >>> spatial_validity([SpatialMolecule(("H", "H"), (0, 0), ((0, 1, 1),), ((0, 0, 0), (0.74, 0, 0))), None])
    [1.0, 0.0]
    """
    return [float(valid_mol(sample) is not None) for sample in samples]


def molecule_stability(samples: Samples, **columns: Sequence[Any]) -> list[float]:
    """Test whether a molecule is valid and all its atoms have a valence of their element and charge.

    The bonds of every atom must add up to a valence of the neutral atom with as many electrons, which no radical does; see
    :func:`discrete_grpo.domains.spatial_geometry.octet_stable`. Hydrogens must be atoms.

    Returns:
        1 for a stable molecule, 0 for any other sample.

    >>> molecule_stability([SpatialMolecule(("H", "H"), (0, 0), ((0, 1, 1),), ((0, 0, 0), (0.74, 0, 0))), None])
    [1.0, 0.0]
    """
    return [float(valid_mol(m) is not None and m is not None and all(octet_stable(m))) for m in samples]


def molecule_stability_midi(samples: Samples, **columns: Sequence[Any]) -> list[float]:
    """Test whether all atoms of a molecule are stable by the table of MiDi, valid or not.

    The table calls some radicals stable, which a policy that is trained on it will find: train on :func:`molecule_stability`.

    Returns:
        1 for a molecule whose atoms are all stable, 0 for any other sample.

    Source: Vignac et al. (2023), MiDi, arXiv 2302.09048.

    >>> molecule_stability_midi([SpatialMolecule(("H", "H"), (0, 0), ((0, 1, 1),), ((0, 0, 0), (0.74, 0, 0))), None])
    [1.0, 0.0]
    """
    return [float(m is not None and len(m) > 0 and all(midi_stable(m))) for m in samples]


def atom_stability(samples: Samples, **columns: Sequence[Any]) -> list[float]:
    """Compute the share of atoms that have a valence of their element and charge, valid molecule or not.

    Returns:
        A number in [0, 1], higher for a molecule with more stable atoms; 0 where there is no molecule.

    Source: Hoogeboom et al. (2022), EDM, arXiv 2203.17003, continued to charges as in :func:`molecule_stability`.

    >>> atom_stability([SpatialMolecule(("O", "H"), (0, 0), ((0, 1, 1),), ((0, 0, 0), (0.96, 0, 0))), None])
    [0.5, 0.0]
    """
    flags = [[] if m is None else octet_stable(m) for m in samples]
    return [sum(row) / len(row) if row else 0.0 for row in flags]


def mmff_energy(samples: Samples, **columns: Sequence[Any]) -> list[float | None]:
    """Compute -E / N, E being the MMFF94 energy at the given positions and N the number of atoms, hydrogens included.

    Returns:
        An unbounded number in kcal/mol, higher for a lower energy; None for an invalid molecule and where MMFF94 has no parameters.

    Source: Halgren (1996), as in RDKit.

    >>> mmff_energy([None])
    [None]
    """
    relaxed = [None if m is None else relax(m) for m in samples]
    return [None if r is None else -r.energy_per_atom for r in relaxed]


def negative_strain(samples: Samples, **columns: Sequence[Any]) -> list[float | None]:
    """Compute -(E before - E after) / N, the MMFF94 energies before and after a minimisation from the given positions.

    Returns:
        A number in kcal/mol, at most 0, higher for a molecule nearer to its minimum; None for an invalid molecule and where MMFF94
        has no parameters.

    Source: Halgren (1996), as in RDKit.

    >>> negative_strain([None])
    [None]
    """
    relaxed = [None if m is None else relax(m) for m in samples]
    return [None if r is None else -r.strain_per_atom for r in relaxed]


@dataclass(frozen=True)
class LowStrain:
    """Inverse 1 / (1 + s / scale) of the MMFF94 strain s per atom.

    Args:
        scale: strain of the score 1/2 in kcal/mol per atom, above 0.

    Raises:
        ValueError: if the scale is not positive.

    >>> ethyne = SpatialMolecule(("C", "C"), (0, 0), ((0, 1, 3),), ((0, 0, 0), (1.3, 0, 0)))
    >>> [0 < x < 1 for x in LowStrain()([ethyne])], LowStrain()([None])
    ([True], [0.0])
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        check_range("scale", self.scale, above=0)

    @property
    def name(self) -> str:
        """The name in logs."""
        return "low_strain"

    def __call__(self, samples: Samples, **columns: Sequence[Any]) -> list[float | None]:
        """Compute the score of each sample.

        Returns:
            A number in [0, 1] per sample, 1 for a molecule at its minimum; 0 for an invalid one, None where MMFF94 has no
            parameters.
        """
        return [self._one(sample) for sample in samples]

    def _one(self, sample: SpatialMolecule | None) -> float | None:
        if valid_mol(sample) is None or sample is None:
            return 0.0
        relaxed = relax(sample)
        return None if relaxed is None else 1.0 / (1.0 + relaxed.strain_per_atom / self.scale)


@dataclass(frozen=True)
class ShapeSimilarity:
    """Shape Tanimoto of a molecule and a reference after Open3DAlign, hydrogens left out of both.

    The molecule is moved as it is: its conformer does not change. Overlaps are measured on RDKit's grid, so that another pose or
    order of atoms can change the score by up to 0.02.

    Args:
        reference: a molecule, or the path of an SDF file whose first molecule it is.

    Raises:
        ValueError: if there is no such file, or the reference is no valid molecule.

    Source: Tosco, Balle and Shiri (2011), doi 10.1007/s10822-011-9462-9 (Open3DAlign), with Crippen's contributions, as in RDKit.

    >>> carbon = SpatialMolecule(("C", "C"), (0, 0), ((0, 1, 1),), ((0, 0, 0), (1.5, 0, 0)))
    >>> ShapeSimilarity(carbon)([carbon, None])
    [1.0, 0.0]
    """

    reference: str | SpatialMolecule

    def __post_init__(self) -> None:
        if isinstance(self.reference, PurePath):
            object.__setattr__(self, "reference", str(self.reference))
        if not isinstance(self.reference, str | SpatialMolecule):
            raise ValueError(f"reference: {self.reference!r}, expected a molecule or the path of an SDF file")
        _ = self._target  # raises now rather than in the first step of a run

    @cached_property
    def _target(self) -> Chem.Mol:
        mol = valid_mol(self._read() if isinstance(self.reference, str) else self.reference)
        if mol is None or not mol.GetNumHeavyAtoms():
            raise ValueError(f"reference: {self._shown}, expected a valid molecule in space with heavy atoms")
        return _standard(mol)

    def _read(self) -> SpatialMolecule:
        path = Path(str(self.reference))
        if path.suffix.lower() != ".sdf" or not path.is_file():
            raise ValueError(f"reference: {self._shown}, expected a molecule or the path of an SDF file")
        try:
            found = from_sdf(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"reference: {self._shown}: {error}") from None
        if not found:
            raise ValueError(f"reference: {self._shown} holds no molecule, expected one")
        return found[0]

    @property
    def _shown(self) -> str:
        return repr(self.reference) if isinstance(self.reference, str) else f"a molecule of {len(self.reference)} atoms"

    @property
    def name(self) -> str:
        """The name in logs."""
        given = self.reference
        return f"shape_similarity({Path(given).stem if isinstance(given, str) else smiles_of(given)})"

    def __call__(self, samples: Samples, **columns: Sequence[Any]) -> list[float]:
        """Compute the similarity of each sample.

        Returns:
            A number in [0, 1] per sample, 1 for the reference's shape; 0 for an invalid molecule, one without heavy atoms, and one
            that reaches 50 Å further than the reference, as the time and memory of the comparison grow with the cube of that.
        """
        mols = [valid_mol(sample) for sample in samples]
        return [0.0 if mol is None or not mol.GetNumHeavyAtoms() else self._similarity(mol) for mol in mols]

    def _similarity(self, mol: Chem.Mol) -> float:
        probe = _standard(mol)
        if (_reach(probe) > _reach(self._target) + FURTHER).any():
            return 0.0
        with BlockLogs():
            rdMolAlign.GetCrippenO3A(probe, self._target).Align()
        return 1.0 - float(rdShapeHelpers.ShapeTanimotoDist(probe, self._target))


def _reach(mol: Chem.Mol) -> np.ndarray:
    """Extents along x, y and z in Å."""
    return np.ptp(mol.GetConformer().GetPositions(), axis=0)


def _standard(mol: Chem.Mol) -> Chem.Mol:
    """A copy without hydrogens, in a pose and an order of atoms that do not depend on those of the molecule.

    Open3DAlign's result depends on both. The pose has the centroid at the origin and the principal axes along x, y and z; the two
    largest third moments along them are positive. Atoms are ordered by canonical rank, and then by coordinates.
    """
    with BlockLogs():
        bare = Chem.RemoveHs(mol)
    x = bare.GetConformer().GetPositions()
    x = x - x.mean(0)
    axes = np.linalg.eigh(x.T @ x)[1][:, ::-1]
    skew = ((x @ axes) ** 3).sum(0)
    axes = axes * np.where(skew < 0, -1.0, 1.0)
    axes[:, np.abs(skew).argmin()] *= np.linalg.det(axes)
    x = x @ axes
    ranks = np.array(Chem.CanonicalRankAtoms(bare, breakTies=False))
    order = np.lexsort((*x.T.round(4), ranks))
    posed = Chem.RenumberAtoms(bare, order.tolist())
    for k, position in enumerate(x[order].tolist()):
        posed.GetConformer().SetAtomPosition(k, position)
    return posed


@dataclass(frozen=True)
class OfSmiles:
    """A reward of SMILES, applied to the molecular graph of a molecule in space.

    Args:
        reward: any reward on SMILES or None, such as :func:`discrete_grpo.rewards.molecules.qed`.
        stereo: whether the SMILES has the stereochemistry that the positions imply.

    Raises:
        ValueError: if the reward is not callable.

    >>> from discrete_grpo.rewards.molecules import molecular_weight
    >>> carbon = SpatialMolecule(("C", "C"), (0, 0), ((0, 1, 1),), ((0, 0, 0), (1.5, 0, 0)))
    >>> [round(x, 2) for x in OfSmiles(molecular_weight)([carbon, None])]
    [30.07, 0.0]
    """

    reward: Callable[..., Sequence[float | None]]
    stereo: bool = False

    def __post_init__(self) -> None:
        if not callable(self.reward):
            raise ValueError(f"reward: {self.reward!r}, expected a reward, a callable from samples to numbers")

    @property
    def name(self) -> str:
        """The name in logs."""
        return reward_name(self.reward)

    @property
    def state_dict(self) -> Callable[[], Any]:
        """State of a reward that remembers samples; others have none."""
        return _memory(self.reward, "state_dict")

    @property
    def load_state_dict(self) -> Callable[[Any], Any]:
        """The method that restores the state of a reward which remembers samples; other rewards have no such method."""
        return _memory(self.reward, "load_state_dict")

    @property
    def inner(self) -> tuple[Callable[..., Sequence[float | None]], ...]:
        """The reward of SMILES, alone."""
        return (self.reward,)

    def __call__(self, samples: Samples, **columns: Sequence[Any]) -> list[float | None]:
        """Score the canonical SMILES of each sample, None where it is invalid, with hydrogens implicit.

        Returns:
            The scores of the reward; None where they are unknown.
        """
        scores = score_one(self.reward, [smiles_of(sample, stereo=self.stereo) for sample in samples], columns).tolist()
        return [None if math.isnan(score) else score for score in scores]


def _memory(reward: Any, name: str) -> Any:
    if not remembers(reward):
        raise AttributeError(name)
    return getattr(reward, name)
