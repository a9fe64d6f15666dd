"""Energies of molecules in space by the force field MMFF94, and their relaxation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from rdkit import Chem
from rdkit.Chem import rdForceFieldHelpers, rdMolAlign
from rdkit.ForceField import rdForceField
from rdkit.rdBase import BlockLogs

from discrete_grpo.domains.spatial_molecules import SpatialMolecule, valid_mol

__all__ = ["Relaxation", "relax"]

MAX_STEPS = 1000
"""Largest number of steps of a minimisation."""


@dataclass(frozen=True)
class Relaxation:
    """A molecule's energy at its positions and at the nearest minimum of MMFF94.

    Attributes:
        energy: at the given positions, in kcal/mol.
        relaxed_energy: after minimisation, in kcal/mol.
        rmsd: root mean square distance of the given atoms before and after, superposed, in Å. Where two minima are equally near,
            it can depend on the order of the atoms.
        num_atoms: number of atoms, with hydrogens that were filled in.
        converged: whether the minimisation ended within 1,000 steps.
    """

    energy: float
    relaxed_energy: float
    rmsd: float
    num_atoms: int
    converged: bool

    @property
    def strain(self) -> float:
        """E(before) - E(after) in kcal/mol, at least 0."""
        return max(0.0, self.energy - self.relaxed_energy)

    @property
    def energy_per_atom(self) -> float:
        """E / N in kcal/mol."""
        return self.energy / self.num_atoms

    @property
    def strain_per_atom(self) -> float:
        """(E(before) - E(after)) / N in kcal/mol, at least 0."""
        return self.strain / self.num_atoms


@lru_cache(maxsize=4096)
def relax(molecule: SpatialMolecule) -> Relaxation | None:
    """Minimise the MMFF94 energy of a valid molecule from its positions on.

    Hydrogens that are no atoms are filled in and moved to a minimum of their own first, so that they add little to the strain.
    Where they can turn about a bond there are several minima, and the energies can depend on the pose and the order of the atoms.

    Returns:
        None for an invalid molecule, one with atoms that MMFF94 has no parameters for, or without a finite energy.

    Source: Halgren (1996), doi 10.1002/(SICI)1096-987X(199604)17:5/6<490::AID-JCC1>3.0.CO;2-P, as in RDKit.
    """
    mol = valid_mol(molecule)
    if mol is None:
        return None
    with BlockLogs():
        return _relaxed(mol)


def _relaxed(mol: Chem.Mol) -> Relaxation | None:
    given = mol.GetNumAtoms()
    full = Chem.AddHs(mol, addCoords=True)
    field = _field(full)
    if field is None:
        return None
    if full.GetNumAtoms() > given:
        for k in range(given):
            field.AddFixedPoint(k)
        field.Minimize(maxIts=MAX_STEPS)
        field = _field(full)
        assert field is not None  # it has parameters
    start, before = Chem.Mol(full), field.CalcEnergy()
    unfinished = field.Minimize(maxIts=MAX_STEPS)
    after = field.CalcEnergy()
    if not (math.isfinite(before) and math.isfinite(after)):
        return None
    rmsd = rdMolAlign.AlignMol(full, start, atomMap=[(k, k) for k in range(given)])
    return Relaxation(float(before), float(after), float(rmsd), full.GetNumAtoms(), not unfinished)


def _field(mol: Chem.Mol) -> rdForceField.ForceField | None:
    """MMFF94 at the positions of the first conformer; None without parameters."""
    properties = rdForceFieldHelpers.MMFFGetMoleculeProperties(mol, mmffVariant="MMFF94")
    if properties is None:
        return None
    field = rdForceFieldHelpers.MMFFGetMoleculeForceField(mol, properties)
    if field is not None:
        field.Initialize()
    return field
