"""Molecular fingerprints by the names that the literature of molecular optimisation uses."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Int
from rdkit import Chem, DataStructs
from rdkit.Chem import rdFingerprintGenerator

from discrete_grpo.domains.molecule_properties import Fingerprint

__all__ = ["FINGERPRINTS", "atom_pairs", "folded_counts", "morgan_counts", "pharmacophore"]


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
        radius: radius in bonds, at least 0; the d of ECFPd and FCFPd is 2 radius.
        features: whether atoms are distinguished by their pharmacophoric role (FCFP) instead of their element and bonds (ECFP).

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
    """Bits of pairs and triples of pharmacophoric features with their distances in bonds.

    Equal to RDKit's ``Gen2DFingerprint`` with the factory of ``Gobbi_Pharm2D``, which visits the triples one by one.

    Source: Gobbi and Poppinger (1998), as in RDKit.
    """
    factory = _gobbi()
    features = [(family, ids[0]) for family, found in enumerate(factory.GetMolFeats(mol)) for ids in sorted(set(found))]
    families, atoms = np.array(features, dtype=np.int64).reshape(-1, 2).T
    distances = Chem.GetDistanceMatrix(mol)[np.ix_(atoms, atoms)].astype(np.int64)
    codes = _feature_codes(families, np.where(distances < _FAR, distances, 0))
    bits = DataStructs.SparseBitVect(factory.GetSigSize())
    bits.SetBitsFromList([_bit(code) for code in codes])
    return bits


_NEAR, _FAR = 2, 100
"""A distance d counts where ``_NEAR <= d < _FAR``."""
_BASE = 128
"""More than any family, plus one, and than any distance that counts: one digit of a code."""


def _feature_codes(families: Int[np.ndarray, " feature"], distances: Int[np.ndarray, "feature feature"]) -> set[int]:
    """Distinct codes of all pairs and triples i < j < k: digits are the families, plus one, and the distances ij, ik, jk."""
    near = distances >= _NEAR
    j, k = np.triu_indices(len(families), 1)
    j, k = j[near[j, k]], k[near[j, k]]
    pairs = ((families[j] + 1) * _BASE + families[k] + 1) * _BASE**4 + distances[j, k]
    codes = set(np.unique(pairs).tolist())
    for i in range(len(families)):
        start = int(np.searchsorted(j, i, side="right"))
        later, last = j[start:], k[start:]
        seen = near[i, later] & near[i, last]
        first = (int(families[i]) + 1) * _BASE**6 + distances[i, later] * _BASE**2 + distances[i, last] * _BASE
        codes.update(np.unique((first + pairs[start:])[seen]).tolist())
    return codes


@lru_cache(maxsize=1 << 18)
def _bit(code: int) -> int:
    """RDKit's number of the bit of a code of :func:`_feature_codes`."""
    digits = [code // _BASE**place % _BASE for place in (6, 5, 4, 2, 1, 0)]
    families = [digit - 1 for digit in digits[:3] if digit]
    return int(_gobbi().GetBitIdx(families, digits[3:] if len(families) == 3 else digits[5:], sortIndices=False))


@lru_cache(maxsize=1)
def _gobbi() -> Any:
    from rdkit.Chem.Pharm2D import Gobbi_Pharm2D  # builds the features, which takes 0.1 s

    return Gobbi_Pharm2D.factory


def _ecfp4(mol: Chem.Mol) -> DataStructs.ULongSparseIntVect:
    return morgan_counts(mol, 2)


def _ecfp6(mol: Chem.Mol) -> DataStructs.ULongSparseIntVect:
    return morgan_counts(mol, 3)


def _fcfp4(mol: Chem.Mol) -> DataStructs.ULongSparseIntVect:
    return morgan_counts(mol, 2, features=True)


FINGERPRINTS: dict[str, Callable[[Chem.Mol], Fingerprint]] = {
    "ECFP4": _ecfp4,
    "ECFP6": _ecfp6,
    "FCFP4": _fcfp4,
    "AP": atom_pairs,
    "PHCO": pharmacophore,
}
"""Name -> fingerprint: Morgan with counts, atom pairs with counts, and 2D pharmacophores as bits. None sees stereo."""
