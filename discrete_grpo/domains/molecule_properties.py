"""Properties, fingerprints and scaffolds of RDKit molecules, which rewards and metrics share."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from rdkit import Chem, DataStructs
from rdkit.Chem import QED, Descriptors, rdFingerprintGenerator, rdMolDescriptors
from rdkit.rdBase import BlockLogs

__all__ = [
    "bit_fingerprint",
    "count_fingerprint",
    "crippen_logp",
    "descriptor",
    "descriptor_names",
    "finite_value",
    "largest_ring",
    "molar_mass",
    "murcko_scaffold",
    "plogp",
    "qed_score",
    "sa_score",
    "tanimoto",
]


def qed_score(mol: Chem.Mol) -> float:
    """Quantitative estimate of drug-likeness (QED), in [0, 1]; higher is better.

    Source: Bickerton et al. (2012), doi 10.1038/nchem.1243, as in RDKit.
    """
    return float(QED.qed(mol))


def crippen_logp(mol: Chem.Mol) -> float:
    """Octanol-water partition coefficient log P by Crippen's atom contributions, unbounded.

    Source: Wildman and Crippen (1999), doi 10.1021/ci990307l, as in RDKit.
    """
    return float(rdMolDescriptors.CalcCrippenDescriptors(mol)[0])


def molar_mass(mol: Chem.Mol) -> float:
    """Average molar mass with hydrogens in g/mol, more than 0."""
    return float(Descriptors.MolWt(mol))  # type: ignore[attr-defined]  # RDKit's stubs leave it out


def sa_score(mol: Chem.Mol) -> float:
    """Synthetic accessibility score, from 1 (easy) to 10 (hard).

    Source: Ertl and Schuffenhauer (2009), doi 10.1186/1758-2946-1-8, as in RDKit's Contrib.
    """
    from rdkit.Contrib.SA_Score import sascorer  # reads a 3 MB table, so only when asked for

    return float(sascorer.calculateScore(mol))


def descriptor(name: str, argument: str = "properties") -> Callable[[Chem.Mol], float]:
    """RDKit's descriptor of this name (``MolLogP``, ``TPSA``, ``qed``, ``MolWt``, ...).

    Raises:
        ValueError: naming ``argument``, if RDKit has none of that name; the nearest is named.

    >>> descriptor("TPSA")(Chem.MolFromSmiles("CCO"))
    20.23
    """
    known: dict[str, Callable[[Chem.Mol], float]] = dict(Descriptors.descList)
    if not isinstance(name, str) or name not in known:
        near = difflib.get_close_matches(name, known, 1, 0.4) if isinstance(name, str) else None
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{argument}: {name!r} is no RDKit descriptor{hint}")
    return known[name]


def finite_value(of: Callable[[Chem.Mol], float], mol: Chem.Mol) -> float | None:
    """The value of a descriptor; None where RDKit divides by zero or gives no finite number.

    >>> finite_value(lambda mol: 1 / mol.GetNumBonds(), Chem.MolFromSmiles("C")) is None
    True
    """
    try:
        value = float(of(mol))
    except ArithmeticError:  # such as a mean over the bonds between heavy atoms of a molecule without any
        return None
    return value if math.isfinite(value) else None


def descriptor_names() -> tuple[str, ...]:
    """Return the names that :func:`descriptor` takes."""
    return tuple(name for name, _ in Descriptors.descList)


def largest_ring(mol: Chem.Mol) -> float:
    """Number of atoms of the largest ring of the SSSR; 0 without rings."""
    return float(max((len(ring) for ring in mol.GetRingInfo().AtomRings()), default=0))


_LOGP_MEAN, _LOGP_STD = 2.4570953396190123, 1.434324401111988  # over ZINC250k, JT-VAE
_SA_MEAN, _SA_STD = -3.0525811293166134, 0.8335207024513095
_CYCLE_MEAN, _CYCLE_STD = -0.0485696876403053, 0.2860212110245455


def plogp(mol: Chem.Mol) -> float:
    """Penalised log P: z(logP) + z(-SA) + z(-max(0, largest ring - 6)), each z-scored over ZINC250k; unbounded.

    Source: Jin et al. (2018), JT-VAE, whose constants these are. The largest ring is over the SSSR of RDKit, where
    JT-VAE took networkx's ``cycle_basis``, which depends on the order of atoms.
    """
    cycle = -max(0.0, largest_ring(mol) - 6.0)
    easy = (-sa_score(mol) - _SA_MEAN) / _SA_STD
    return (crippen_logp(mol) - _LOGP_MEAN) / _LOGP_STD + easy + (cycle - _CYCLE_MEAN) / _CYCLE_STD


Fingerprint: TypeAlias = DataStructs.ULongSparseIntVect | DataStructs.ExplicitBitVect | DataStructs.SparseBitVect


@lru_cache(maxsize=16)
def _generator(radius: int, size: int) -> rdFingerprintGenerator.FingerprintGenerator64:
    return rdFingerprintGenerator.GetMorganGenerator(radius=radius, fpSize=size)


def count_fingerprint(mol: Chem.Mol, radius: int = 2) -> DataStructs.ULongSparseIntVect:
    """Unfolded Morgan fingerprint with counts; radius 2 is ECFP4."""
    return _generator(radius, 2048).GetSparseCountFingerprint(mol)


def bit_fingerprint(mol: Chem.Mol, radius: int = 2, size: int = 1024) -> DataStructs.ExplicitBitVect:
    """Morgan fingerprint folded to ``size`` bits."""
    return _generator(radius, size).GetFingerprint(mol)


def tanimoto(a: Fingerprint, b: Fingerprint) -> float:
    """Tanimoto similarity Σ min(a, b) / Σ max(a, b) of two fingerprints, in [0, 1]."""
    return float(DataStructs.TanimotoSimilarity(a, b))


def murcko_scaffold(mol: Chem.Mol) -> str:
    """Canonical SMILES of the Bemis-Murcko scaffold without stereo; empty for a molecule without rings.

    It is empty too where the scaffold is no molecule by itself, as that of ``C[c-]1cccc1``.
    """
    from rdkit.Chem.Scaffolds import MurckoScaffold

    text = str(Chem.MolToSmiles(MurckoScaffold.GetScaffoldForMol(mol), isomericSmiles=False))
    with BlockLogs():
        return text if Chem.MolFromSmiles(text) is not None else ""
