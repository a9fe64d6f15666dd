"""The neighbourhood subgraph pairwise distance kernel (NSPDK) of molecules, and its MMD.

A feature is (r, d, h, h'): two atoms at distance d whose neighbourhoods of radius r are h and h', in either order. Their counts are
scaled to length 1 for each (r, d), r and d from 0 to 4, and concatenated to φ(x):

    k(x, y) = ⟨φ(x), φ(y)⟩ / |φ(x)| |φ(y)|,    MMD = mean k(x, x') + mean k(y, y') - 2 mean k(x, y),

pairs of a molecule with itself included. Neighbourhoods are distinguished by the elements of their atoms, the orders of their bonds
and all distances along paths inside them, as in the source, here by Python's hash of tuples of numbers, the same on every 64-bit
machine.

Source: Costa and De Grave (2010), NSPDK; as a metric Jo et al. (2022), GDSS, arXiv 2202.02514, which takes radii and distances up
to 4. Published tables use the implementation EDeN, which hashes otherwise and was not compared with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from rdkit import Chem
from scipy.sparse import csr_matrix

from discrete_grpo.metrics.molecule_table import MoleculeTable
from discrete_grpo.metrics.resampling import Statistic

__all__ = ["nspdk_features", "nspdk_statistic"]

DEPTH = 4
FAR = 10**6
"""Distance of atoms without a path."""


def _balls(near: Sequence[int], bonded: np.ndarray) -> Iterator[tuple[list[int], list[list[int]]]]:
    """For each radius, the atoms at most that far from one atom, and their distances by paths through these atoms alone.

    Args:
        near: distance of every atom from that atom.
        bonded: 1 for two atoms with a bond, 0 for an atom and itself, ``FAR`` for others [atom, atom].
    """
    inside = sorted((v for v, d in enumerate(near) if d <= DEPTH), key=near.__getitem__)
    far, count = bonded[np.ix_(inside, inside)], 0
    for radius in range(DEPTH + 1):
        while count < len(inside) and near[inside[count]] <= radius:
            far = np.minimum(far, far[:, count, None] + far[count])  # Floyd and Warshall: a further atom that paths may use
            count += 1
        yield inside[:count], far[:count, :count].tolist()


def _neighbourhoods(mol: Chem.Mol, distance: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each radius, a hash per atom of the subgraph within it: of its bonds by the labels and ranks of their ends."""
    labels = [atom.GetAtomicNum() for atom in mol.GetAtoms()]
    bonds = [(b.GetBeginAtomIdx(), b.GetEndAtomIdx(), b.GetBondTypeAsDouble()) for b in mol.GetBonds()]
    bonded = np.where(Chem.GetAdjacencyMatrix(mol) > 0, 1, FAR)
    np.fill_diagonal(bonded, 0)
    found: list[list[int]] = [[] for _ in range(DEPTH + 1)]
    for root, near in enumerate(distance):
        for row, (inside, within) in zip(found, _balls(near, bonded), strict=True):
            own = [(near[u], labels[u]) for u in inside]
            rows = (sorted((d, *one) for d, one in zip(far, own, strict=True)) for far in within)
            ranks = {v: hash(tuple(key)) for v, key in zip(inside, rows, strict=True)}
            ends = [(ranks[i], ranks[j], kind) for i, j, kind in bonds if i in ranks and j in ranks]
            edges = sorted((min(a, b), max(a, b), kind) for a, b, kind in ends)
            row.append(hash((labels[root], tuple(sorted(ranks.values())), tuple(edges))))
    return found


def nspdk_features(mol: Chem.Mol) -> dict[int, float]:
    """φ(x) / |φ(x)| of a molecule, by the hash of each feature.

    >>> round(sum(value**2 for value in nspdk_features(Chem.MolFromSmiles("CCO")).values()), 6)
    1.0
    """
    distance = [[int(min(d, FAR)) for d in row] for row in Chem.GetDistanceMatrix(mol)]
    found: dict[int, float] = {}
    for radius, hashes in enumerate(_neighbourhoods(mol, distance)):
        counts: dict[int, Counter[int]] = {d: Counter() for d in range(DEPTH + 1)}
        for i, row in enumerate(distance):
            for j in range(i + 1):
                if row[j] <= DEPTH:
                    low, high = sorted((hashes[i], hashes[j]))
                    counts[row[j]][hash((radius, row[j], low, high))] += 1
        for table in counts.values():
            norm = sum(c * c for c in table.values()) ** 0.5
            for key, count in table.items():
                found[key] = found.get(key, 0.0) + count / norm
    length = sum(value * value for value in found.values()) ** 0.5
    return {key: value / length for key, value in found.items()}


def _all_features(table: MoleculeTable) -> list[dict[int, float]]:
    return [nspdk_features(mol) for mol in table.mols]


def _matrix(rows: Sequence[dict[int, float]]) -> csr_matrix:
    """Return the feature vectors of molecules as rows; each distinct feature has a column."""
    keys = np.array([key for row in rows for key in row], dtype=np.int64)
    distinct, columns = np.unique(keys, return_inverse=True)
    values = [value for row in rows for value in row.values()]
    return csr_matrix((values, columns, np.cumsum([0, *map(len, rows)])), shape=(len(rows), len(distinct)))


def nspdk_statistic(generated: MoleculeTable, reference: MoleculeTable) -> Statistic:
    """|mean φ(x) - mean φ(y)|², which is the MMD of a linear kernel, in [0, 2]."""
    own, other = (table.cached("nspdk", partial(_all_features, table)) for table in (generated, reference))
    both = _matrix([*own, *other])
    matrix, mean = both[: len(own)], np.asarray(both[len(own) :].mean(0)).ravel()

    def mmd(rows: np.ndarray) -> float:
        return float(((np.asarray(matrix[rows].mean(0)).ravel() - mean) ** 2).sum())

    return Statistic(mmd, len(own), 0.0, 2.0)
