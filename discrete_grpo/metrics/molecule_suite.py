"""Shared parts of the suites of molecules: sets, counts of distinct and novel molecules, cosines, and counts after repairs."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from itertools import chain
from typing import TypeAlias

import numpy as np
from jaxtyping import Int
from rdkit import Chem
from scipy.sparse import csr_matrix

from discrete_grpo.core.checks import check_samples
from discrete_grpo.domains.smiles import parse_smiles, to_smiles
from discrete_grpo.metrics.molecule_table import MoleculeTable
from discrete_grpo.metrics.molecule_validity import atom_stability, repaired
from discrete_grpo.metrics.resampling import Statistic, mean_of

__all__ = ["canonical_valid", "cosine_statistic", "distinct_share", "novel_share", "reference_table", "repair_statistics"]

Samples = Sequence[str | None]
Rows: TypeAlias = Int[np.ndarray, " row"]


def canonical_valid(samples: Samples, *, stereo: bool = True) -> list[str | None]:
    """Canonical SMILES of each sample that RDKit sanitises, connected or not; else None.

    >>> canonical_valid(["OCC", "C.C", "C(C)(C)(C)(C)C", None])
    ['CCO', 'C.C', None, None]
    """
    for k, s in enumerate(samples):
        if s is not None and not isinstance(s, str):
            raise ValueError(f"samples: entry {k} is {s!r}, expected a SMILES or None")
    mols = [parse_smiles(s) if s else None for s in samples]
    return [None if mol is None else to_smiles(mol, stereo=stereo) for mol in mols]


def reference_table(reference: Samples, *, stereo: bool = True) -> MoleculeTable:
    """The molecules of a reference that sanitise, as canonical SMILES; without stereo each is taken once.

    Raises:
        ValueError: if there are fewer than 2.
    """
    check_samples(reference, "reference")
    found = [s for s in canonical_valid(reference, stereo=stereo) if s is not None]
    found = found if stereo else list(dict.fromkeys(found))
    if len(found) < 2:
        raise ValueError(f"reference: {len(found)} different molecules, expected at least 2")
    return MoleculeTable(found)


# -- shares


def _codes(items: Sequence[Hashable]) -> tuple[Int[np.ndarray, " row"], list[Hashable]]:
    """A number of each item, equal for equal items, and the item of each number."""
    numbers = {item: k for k, item in enumerate(dict.fromkeys(items))}
    return np.array([numbers[item] for item in items], dtype=np.int64), list(numbers)


def distinct_share(items: Sequence[Hashable]) -> Statistic:
    """Distinct / all.

    >>> distinct_share(["a", "b", "a"]).of(np.arange(3))
    0.6666666666666666
    """
    codes, _ = _codes(items)
    return Statistic(lambda rows: len(np.unique(codes[rows])) / len(rows), len(codes), 0.0, 1.0)


def novel_share(items: Sequence[Hashable], known: Collection[Hashable]) -> Statistic:
    """Distinct ones that are not known / distinct.

    >>> novel_share(["a", "b", "a"], {"a"}).of(np.arange(3))
    0.5
    """
    codes, named = _codes(items)
    new = np.array([item not in known for item in named], dtype=np.float64)
    return Statistic(lambda rows: float(new[np.unique(codes[rows])].mean()), len(codes), 0.0, 1.0)


def cosine_statistic(items: Sequence[Sequence[str]], reference: Sequence[Sequence[str]]) -> Statistic:
    """The cosine of the counts of what the samples hold and what the reference holds; NaN where one holds nothing.

    >>> round(cosine_statistic([["a", "a"], ["b"]], [["a"]]).of(np.arange(2)), 3)
    0.894
    """
    numbers = {item: k for k, item in enumerate(dict.fromkeys(chain(*items, *reference)))}
    wanted = np.bincount([numbers[x] for x in chain(*reference)], minlength=len(numbers)).astype(np.float64)
    ends = np.cumsum([0, *map(len, items)])
    flat = [numbers[x] for x in chain(*items)]
    table = csr_matrix((np.ones(len(flat)), flat, ends), shape=(len(items), max(len(numbers), 1)))

    def cosine(rows: Rows) -> float:
        counts = np.asarray(table[rows].sum(0)).ravel()[: len(numbers)]
        norms = float(np.linalg.norm(counts) * np.linalg.norm(wanted))
        return min(1.0, float(counts @ wanted) / norms) if norms else float("nan")

    return Statistic(cosine, len(items), 0.0, 1.0)


def repair_statistics(samples: Samples, known: Collection[str], *, stereo: bool = True) -> dict[str, Statistic]:
    """Counts after repairs and of stable atoms, which papers on graph models report in addition to MOSES and GuacaMol.

    Args:
        samples: SMILES or None.
        known: canonical SMILES of the training set.
        stereo: whether molecules that differ only in stereo are different; if not, ``known`` must have no stereo.

    Returns:
        ``connected``: in one piece / sanitised; ``valid_relaxed``: sanitised after charging N, O and S with one bond too many /
        all; ``unique_relaxed``: distinct largest fragments / those; ``novel_relaxed``: distinct ones that are not known / distinct;
        ``atom_stable``: stable atoms / all atoms; ``molecule_stable``: samples of stable atoms only / all.
    """
    mols = [parse_smiles(s) if s else None for s in samples]
    pieces = np.array([len(Chem.GetMolFrags(mol)) == 1 for mol in mols if mol is not None], dtype=np.float64)
    relaxed = repaired(samples, relaxed=True, stereo=stereo)
    largest = [s for s in relaxed if s is not None]
    stable = np.array([atom_stability(s) for s in samples], dtype=np.float64).reshape(len(samples), 2)

    def atoms(rows: Rows) -> float:
        good, every = stable[rows].sum(0)
        return float(good / every) if every else float("nan")

    return {
        "connected": mean_of(pieces, 0.0, 1.0),
        "valid_relaxed": mean_of(np.array([s is not None for s in relaxed]), 0.0, 1.0),
        "unique_relaxed": distinct_share(largest),
        "novel_relaxed": novel_share(largest, known),
        "atom_stable": Statistic(atoms, len(samples), 0.0, 1.0),
        "molecule_stable": mean_of((stable[:, 1] > 0) & (stable[:, 0] == stable[:, 1]), 0.0, 1.0),
    }
