"""Molecular fingerprints by the names that the literature of molecular optimisation uses."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

from rdkit import Chem, DataStructs
from rdkit.Chem import rdFingerprintGenerator

__all__ = ["FINGERPRINTS", "AnyFingerprint", "folded_counts", "morgan_counts", "pharmacophore"]

AnyFingerprint: TypeAlias = DataStructs.ULongSparseIntVect | DataStructs.SparseBitVect


@lru_cache(maxsize=16)
def _morgan(radius: int, features: bool) -> rdFingerprintGenerator.FingerprintGenerator64:
    invariants = rdFingerprintGenerator.GetMorganFeatureAtomInvGen() if features else None
    return rdFingerprintGenerator.GetMorganGenerator(radius=radius, atomInvariantsGenerator=invariants)


@lru_cache(maxsize=1)
def _atom_pairs() -> rdFingerprintGenerator.FingerprintGenerator64:
    return rdFingerprintGenerator.GetAtomPairGenerator(maxDistance=10)


def morgan_counts(mol: Chem.Mol, radius: int, *, features: bool = False) -> DataStructs.ULongSparseIntVect:
    """Unfolded Morgan fingerprint with counts.

    Args:
        mol: a sanitised molecule.
        radius: in bonds, at least 0; the d of ECFPd and FCFPd is 2 radius.
        features: whether atoms are told apart by their pharmacophoric role (FCFP) in place of their element and bonds (ECFP).

    Source: Rogers and Hahn (2010), https://doi.org/10.1021/ci100050t
    """
    return _morgan(radius, features).GetSparseCountFingerprint(mol)


def folded_counts(counts: DataStructs.ULongSparseIntVect, size: int) -> dict[int, int]:
    """Sum the counts whose identifiers are equal modulo ``size``: position -> count, zeros left out."""
    folded: dict[int, int] = {}
    for identifier, count in counts.GetNonzeroElements().items():
        folded[identifier % size] = folded.get(identifier % size, 0) + count
    return folded


def atom_pairs(mol: Chem.Mol) -> DataStructs.ULongSparseIntVect:
    """Unfolded atom pairs with counts, at most 10 bonds apart.

    Source: Carhart et al. (1985), https://doi.org/10.1021/ci00046a002
    """
    return _atom_pairs().GetSparseCountFingerprint(mol)


def pharmacophore(mol: Chem.Mol) -> DataStructs.SparseBitVect:
    """Bits of pairs and triples of pharmacophoric features with their distances in bonds. Takes 5 ms for a drug.

    Source: Gobbi and Poppinger (1998), as in RDKit.
    """
    generate, factory = _gobbi()
    return generate(mol, factory)


@lru_cache(maxsize=1)
def _gobbi() -> tuple[Callable[..., Any], Any]:
    from rdkit.Chem.Pharm2D import Generate, Gobbi_Pharm2D  # builds the features, which takes 0.1 s

    return Generate.Gen2DFingerprint, Gobbi_Pharm2D.factory


def _ecfp4(mol: Chem.Mol) -> DataStructs.ULongSparseIntVect:
    return morgan_counts(mol, 2)


def _ecfp6(mol: Chem.Mol) -> DataStructs.ULongSparseIntVect:
    return morgan_counts(mol, 3)


def _fcfp4(mol: Chem.Mol) -> DataStructs.ULongSparseIntVect:
    return morgan_counts(mol, 2, features=True)


FINGERPRINTS: dict[str, Callable[[Chem.Mol], AnyFingerprint]] = {
    "ECFP4": _ecfp4,
    "ECFP6": _ecfp6,
    "FCFP4": _fcfp4,
    "AP": atom_pairs,
    "PHCO": pharmacophore,
}
"""Name -> fingerprint: Morgan with counts, atom pairs with counts, and 2D pharmacophores as bits. None sees stereo."""
