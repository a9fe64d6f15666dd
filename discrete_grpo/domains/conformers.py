"""A conformer of a SMILES string by RDKit, in a module without torch, so that worker processes start quickly."""

from __future__ import annotations

from rdkit import Chem
from rdkit.Chem import rdDistGeom, rdForceFieldHelpers
from rdkit.rdBase import BlockLogs

from discrete_grpo.domains.spatial_molecules import SpatialMolecule, from_mol

__all__ = ["DECIMALS", "as_stored", "embed"]

DECIMALS = 4
"""Decimals of a coordinate of a stored molecule, as in an SDF file."""
_MAX_STEPS = 2000
"""Largest number of steps of MMFF94."""


def embed(text: str, seed: int, *, hydrogens: bool, aromatic: bool) -> SpatialMolecule | str:
    """Return the conformer of a SMILES by ETKDGv3, relaxed by MMFF94 with its hydrogens, or the reason why there is none.

    Args:
        text: the SMILES.
        seed: at least 0. RDKit gets one more, since it takes 0 for 1.
        hydrogens: whether hydrogens stay as atoms afterwards.
        aromatic: whether aromatic bonds have the order 4; otherwise rings are kekulised.
    """
    with BlockLogs():
        mol = Chem.MolFromSmiles(text)
        if mol is None or not mol.GetNumAtoms():
            return "does not parse"
        if len(Chem.GetMolFrags(mol)) > 1:  # the embedding would put them on top of each other
            return "has several parts"
        full, options = Chem.AddHs(mol), rdDistGeom.ETKDGv3()
        options.randomSeed = seed + 1  # type: ignore[assignment]  # wrong in RDKit's stubs
        if rdDistGeom.EmbedMolecule(full, options) != 0:
            options.useRandomCoords = True  # type: ignore[assignment]
            if rdDistGeom.EmbedMolecule(full, options) != 0:
                return "cannot be embedded"
        if rdForceFieldHelpers.MMFFOptimizeMolecule(full, mmffVariant="MMFF94", maxIters=_MAX_STEPS) < 0:
            return "no MMFF94 parameters"
    return as_stored(full, hydrogens=hydrogens, aromatic=aromatic)


def as_stored(mol: Chem.Mol, *, hydrogens: bool, aromatic: bool) -> SpatialMolecule | str:
    """Return the first conformer of a sanitised molecule, with rounded coordinates, or the reason why it cannot be stored."""
    try:
        with BlockLogs():
            made = from_mol(mol if hydrogens else Chem.RemoveHs(mol), aromatic=aromatic)
    except ValueError as error:
        return str(error)
    positions = made.coordinates.round(DECIMALS) + 0.0  # no -0.0
    return SpatialMolecule(made.symbols, made.charges, made.bonds, tuple(map(tuple, positions.tolist())))
