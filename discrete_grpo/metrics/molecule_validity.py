"""Validity of molecules with repairs, and stability of atoms, as papers on graph models count them.

Samples are SMILES or None. Only the counts here use repaired molecules; all other metrics use samples unchanged.

Sources: Vignac et al. (2023), DiGress, arXiv 2209.14734 (largest fragment, relaxed validity, stability); Jo et al. (2022), GDSS,
arXiv 2202.02514 (charges).
"""

from __future__ import annotations

from collections.abc import Sequence

from rdkit import Chem
from rdkit.rdBase import BlockLogs

from discrete_grpo.domains.smiles import parse_smiles, to_smiles

__all__ = ["atom_stability", "largest_fragment", "relaxed_molecule", "repaired"]

_CATIONS = {7: 3, 8: 2, 16: 2}
"""Neutral valence of the elements that take a positive charge for one bond too many."""
_KEKULE = Chem.SanitizeFlags.SANITIZE_SYMMRINGS | Chem.SanitizeFlags.SANITIZE_KEKULIZE


def largest_fragment(mol: Chem.Mol) -> Chem.Mol:
    """The connected part with the most atoms, the first of several; hydrogens count where they are atoms."""
    parts = Chem.GetMolFrags(mol, asMols=True)
    return max(parts, key=lambda part: part.GetNumAtoms()) if len(parts) > 1 else mol


def _unsanitised(sample: str | None) -> Chem.Mol | None:
    """The molecule of a SMILES as written, whatever its valences; None if it does not parse or is empty."""
    if not sample or any(c.isspace() for c in sample):
        return None
    with BlockLogs():
        mol = Chem.MolFromSmiles(sample, sanitize=False)
    return mol if mol is not None and mol.GetNumAtoms() else None


def relaxed_molecule(sample: str | None) -> Chem.Mol | None:
    """The sanitised molecule after N, O and S with exactly one bond too many got the charge +1; None where that is not enough.

    DiGress adds bonds one by one and charges an atom when it first has too many; here the bonds are complete, so the order in
    which they were added makes no difference.

    Written hydrogens are removed at the end, as where a SMILES is parsed.

    >>> [Chem.MolToSmiles(relaxed_molecule(smiles)) for smiles in ("CN(C)(C)C", "[H]C([H])([H])[H]")]
    ['C[N+](C)(C)C', 'C']
    >>> relaxed_molecule("C(C)(C)(C)(C)C") is None
    True
    """
    mol = _unsanitised(sample)
    if mol is None:
        return None
    with BlockLogs():
        for problem in Chem.DetectChemistryProblems(mol, Chem.SanitizeFlags.SANITIZE_PROPERTIES):
            if problem.GetType() != "AtomValenceException":
                continue
            atom = mol.GetAtomWithIdx(problem.GetAtomIdx())
            bonds = sum(bond.GetBondTypeAsDouble() for bond in atom.GetBonds()) + atom.GetNumExplicitHs()
            if atom.GetFormalCharge() == 0 and bonds - _CATIONS.get(atom.GetAtomicNum(), bonds) == 1:
                atom.SetFormalCharge(1)
        failed = Chem.SanitizeMol(mol, catchErrors=True)
        return None if failed else Chem.RemoveHs(mol)


def repaired(samples: Sequence[str | None], *, relaxed: bool = False, stereo: bool = True) -> list[str | None]:
    """Canonical SMILES of the largest fragment of each sample, None where the whole does not sanitise.

    Args:
        samples: SMILES or None.
        relaxed: charge atoms first, see :func:`relaxed_molecule`.
        stereo: keep it in the SMILES.

    >>> repaired(["CCO.C", "C(C)(C)(C)(C)C", None])
    ['CCO', None, None]
    """
    mols = [relaxed_molecule(s) if relaxed else parse_smiles(s) if s else None for s in samples]
    return [None if mol is None else to_smiles(largest_fragment(mol), stereo=stereo) for mol in mols]


def atom_stability(sample: str | None) -> tuple[int, int]:
    """Number of stable atoms, and of all atoms; (0, 0) for what does not parse.

    An atom is stable if its bond orders, Kekulé structure, add up to a valence of its element: RDKit's list for the neutral atom
    with as many electrons, so 4 for N+ and 1 for O-. A sample with hydrogen atoms counts written hydrogens only, as in the sets
    with explicit hydrogens; in one without, hydrogens are filled up first, so that only atoms with too many bonds are unstable,
    and a valid molecule is stable, unless it has radicals, or a group that RDKit reads with other bonds, such as ``N(=O)=O``.

    DiGress's table is the same for H, C, N, O, F, P, Cl and Br and takes 4 alone for S.

    >>> atom_stability("CCO"), atom_stability("C(C)(C)(C)(C)C"), atom_stability("[H]C([H])[H]")
    ((3, 3), (5, 6), (3, 4))
    """
    mol = _unsanitised(sample)
    if mol is None:
        return 0, 0
    kekule = Chem.Mol(mol)
    with BlockLogs():
        failed = Chem.SanitizeMol(kekule, _KEKULE, catchErrors=True)
    atoms = list((mol if failed else kekule).GetAtoms())
    explicit = any(atom.GetAtomicNum() == 1 for atom in atoms)
    return sum(_is_stable(atom, explicit) for atom in atoms), len(atoms)


def _is_stable(atom: Chem.Atom, explicit: bool) -> bool:
    table, electrons = Chem.GetPeriodicTable(), atom.GetAtomicNum() - atom.GetFormalCharge()
    allowed = list(table.GetValenceList(electrons)) if 0 < electrons <= 118 else [0]  # the elements that RDKit knows
    bonds = sum(bond.GetBondTypeAsDouble() for bond in atom.GetBonds()) + atom.GetNumExplicitHs()
    if explicit or atom.GetNoImplicit():
        return bonds in allowed or -1 in allowed
    return bonds <= max(allowed) or -1 in allowed
