"""Features of molecules for models of their scores: counts of circular environments and atom pairs, and common descriptors."""

from __future__ import annotations

from rdkit import Chem
from rdkit.Chem import rdMolDescriptors

from discrete_grpo.domains import fingerprints
from discrete_grpo.domains.molecule_properties import crippen_logp
from discrete_grpo.domains.smiles import parse

__all__ = ["DESCRIPTORS", "molecule_counts", "molecule_numbers"]

ELEMENTS = ("C", "N", "O", "F", "P", "S", "Cl", "Br", "I")

DESCRIPTORS = (
    *(f"number of {symbol}" for symbol in ELEMENTS),
    "hydrogens",
    "heavy atoms",
    "Crippen logP",
    "TPSA / 10 Å²",
    "rings",
    "aromatic rings",
    "hydrogen-bond donors",
    "rotatable bonds",
    "5 · fraction of sp3 carbons",
)
"""Names of the numbers of :func:`molecule_numbers`."""


def molecule_counts(smiles: str) -> tuple[dict[int, int], ...]:
    """Unfolded counts of circular environments of radius 2 (ECFP4) and of atom pairs.

    >>> [sum(counts.values()) for counts in molecule_counts("CCO")]
    [6, 3]
    """
    mol = _parsed(smiles)
    return fingerprints.morgan_counts(mol, 2).GetNonzeroElements(), fingerprints.atom_pairs(mol).GetNonzeroElements()


def molecule_numbers(smiles: str) -> tuple[float, ...]:
    """The values of ``DESCRIPTORS``.

    >>> dict(zip(DESCRIPTORS, molecule_numbers("CCO")))["hydrogens"]
    6.0
    """
    mol = _parsed(smiles)
    symbols = [atom.GetSymbol() for atom in mol.GetAtoms()]
    hydrogens = sum(atom.GetTotalNumHs() for atom in mol.GetAtoms())
    return (
        *(float(symbols.count(symbol)) for symbol in ELEMENTS),
        float(hydrogens),
        float(len(symbols)),
        crippen_logp(mol),
        rdMolDescriptors.CalcTPSA(mol) / 10,
        float(rdMolDescriptors.CalcNumRings(mol)),
        float(rdMolDescriptors.CalcNumAromaticRings(mol)),
        float(rdMolDescriptors.CalcNumHBD(mol)),
        float(rdMolDescriptors.CalcNumRotatableBonds(mol)),
        5 * rdMolDescriptors.CalcFractionCSP3(mol),
    )


def _parsed(smiles: str) -> Chem.Mol:
    mol = parse(smiles)
    if mol is None:
        raise ValueError(f"smiles: {smiles!r}, expected a valid molecule")
    return mol
