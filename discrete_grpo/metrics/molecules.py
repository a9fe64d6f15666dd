"""Metrics of generated molecules.

Samples are SMILES or None. **Valid** means parses, sanitises and is connected. Two samples are the same when their
canonical SMILES without stereo are equal, which is also what a reference set must hold
(:class:`discrete_grpo.datasets.molecules.MoleculeDataset` does, in ``smiles``).
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence

from rdkit import Chem, DataStructs

from discrete_grpo.core.checks import check_whole
from discrete_grpo.domains import molecule_properties
from discrete_grpo.domains.smiles import parse, parse_all, parse_smiles, to_smiles

__all__ = [
    "canonical",
    "canonical_all",
    "evaluate",
    "internal_diversity",
    "metrics_of_names",
    "novelty",
    "sample_metrics",
]


def canonical(sample: str | None) -> str | None:
    """Return the canonical SMILES without stereo of a valid sample, else None.

    >>> canonical("OCC"), canonical("C.C")
    ('CCO', None)
    """
    mol = parse(sample)
    return None if mol is None else to_smiles(mol, stereo=False)


def canonical_all(samples: Sequence[str | None]) -> list[str | None]:
    """:func:`canonical` of each sample."""
    return [None if mol is None else to_smiles(mol, stereo=False) for mol in parse_all(samples)]


def _canonical_valid(samples: Sequence[str | None]) -> list[str]:
    return [name for name in canonical_all(samples) if name is not None]


def sample_metrics(samples: Sequence[str | None]) -> dict[str, float]:
    """Compute ``valid``: valid / all samples; ``unique``: distinct valid / valid, 0 where none is valid.

    >>> sample_metrics(["CCO", "OCC", "C", None])
    {'valid': 0.75, 'unique': 0.6666666666666666}
    """
    return metrics_of_names(canonical_all(samples))


def metrics_of_names(names: Sequence[str | None]) -> dict[str, float]:
    """The numbers of :func:`sample_metrics` from the samples' :func:`canonical` forms."""
    valid = [name for name in names if name is not None]
    return {"valid": _ratio(len(valid), len(names)), "unique": _ratio(len(set(valid)), len(valid))}


def novelty(samples: Sequence[str | None], reference: Collection[str]) -> float:
    """Compute distinct valid samples that are not in the reference / distinct valid samples; 0 where none is valid.

    Args:
        samples: SMILES or None.
        reference: canonical SMILES without stereo, compared as they are.

    >>> novelty(["CCO", "OCC", "CC"], {"CC"})
    0.5
    """
    distinct = set(_canonical_valid(samples))
    return _ratio(len(distinct.difference(reference)), len(distinct))


def internal_diversity(samples: Sequence[str | None], max_molecules: int = 2000, seed: int = 0) -> float:
    """Compute IntDiv₁ = 1 - mean over all ordered pairs, a molecule with itself included, of Tanimoto(ECFP4, 1024 bits).

    Args:
        samples: SMILES or None; invalid ones are left out.
        max_molecules: if more molecules are valid, a seeded draw of this many is used (the cost is quadratic).
        seed: of that draw.

    Returns:
        A number in [0, 1), NaN where no sample is valid.

    Raises:
        ValueError: if ``max_molecules`` is below 1.

    Source: Benhenda (2017); fingerprint and self pairs as in MOSES.

    >>> internal_diversity(["CCO", "CCO"])
    0.0
    """
    check_whole("max_molecules", max_molecules, least=1)
    return _internal_diversity([mol for mol in parse_all(samples) if mol is not None], max_molecules, seed)


def _internal_diversity(mols: list[Chem.Mol], max_molecules: int = 2000, seed: int = 0) -> float:
    if len(mols) > max_molecules:
        mols = random.Random(seed).sample(mols, max_molecules)
    if not mols:
        return math.nan
    prints = [molecule_properties.bit_fingerprint(mol, radius=2, size=1024) for mol in mols]
    below = sum(sum(DataStructs.BulkTanimotoSimilarity(own, prints[:k])) for k, own in enumerate(prints))
    m = len(prints)
    return 1.0 - (2.0 * below + m) / (m * m)


def evaluate(samples: Sequence[str | None], reference: Collection[str] | None = None, seed: int = 0) -> dict[str, float]:
    """Evaluate a molecule generator, without valence correction or largest-fragment repair.

    Args:
        samples: SMILES or None, one per generated object.
        reference: canonical SMILES without stereo of the training set; None leaves ``novel`` out.
        seed: random seed of the draw for ``internal_diversity``.

    Returns:
        ``num_samples``; ``sanitised``: sanitise / all; ``connected``: connected / sanitised; ``valid``: both / all;
        ``unique``: distinct / valid; ``novel``: distinct not in the reference / distinct; ``internal_diversity``;
        ``qed``, ``logp``, ``sa``: means over valid samples (SA from 1, easy, to 10), NaN where none is valid.
    """
    parsed = parse_all(samples)  # parsed once, as there may be more samples than the parser caches
    mols = [mol for mol in parsed if mol is not None]
    rest = [s for s, mol in zip(samples, parsed, strict=True) if mol is None and s is not None]
    sanitised = len(mols) + sum(parse_smiles(s) is not None for s in rest)
    smiles = [to_smiles(mol, stereo=False) for mol in mols]
    distinct = set(smiles)
    found = {"num_samples": float(len(samples)), "sanitised": _ratio(sanitised, len(samples))}
    found |= {"connected": _ratio(len(mols), sanitised), "valid": _ratio(len(mols), len(samples))}
    found["unique"] = _ratio(len(distinct), len(smiles))
    if reference is not None:
        found["novel"] = _ratio(len(distinct.difference(reference)), len(distinct))
    found["internal_diversity"] = _internal_diversity(mols, seed=seed)
    properties = {
        "qed": molecule_properties.qed_score,
        "logp": molecule_properties.crippen_logp,
        "sa": molecule_properties.sa_score,
    }
    for name, value in properties.items():
        found[name] = sum(map(value, mols)) / len(mols) if mols else math.nan
    return found


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
