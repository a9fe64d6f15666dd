"""Metrics of generated molecules in space: stability, validity, distances to a reference set, strain and clashes.

Samples are :class:`~discrete_grpo.domains.spatial_molecules.SpatialMolecule` or None. Every metric is unchanged by the order of
the atoms and by motions of a molecule.

Sources: Hoogeboom et al. (2022), EDM, arXiv 2203.17003 (stability); Vignac et al. (2023), MiDi, arXiv 2302.09048 (charges, W1
distances).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

from discrete_grpo.domains.force_field import relax
from discrete_grpo.domains.spatial_geometry import (
    Terms,
    angle_centres,
    bond_angles,
    bond_lengths,
    count_clashes,
    dihedral_angles,
    midi_stable,
    octet_stable,
)
from discrete_grpo.domains.spatial_molecules import SpatialMolecule, smiles_of, to_mol, valid_mol
from discrete_grpo.metrics.distances import wasserstein
from discrete_grpo.metrics.molecule_suite import distinct_share
from discrete_grpo.metrics.resampling import Statistic, disjoint_halves, whole
from discrete_grpo.metrics.suite import SuiteOptions, SuiteResult, estimates

__all__ = [
    "evaluate",
    "metrics_of_readings",
    "readings",
    "relaxation_statistics",
    "sample_metrics",
    "spatial",
    "stability_statistics",
    "validity_statistics",
    "w1_statistics",
    "weighted_w1",
]

Samples = Sequence[SpatialMolecule | None]
Rows: TypeAlias = Int[np.ndarray, " row"]
_TERMS: Mapping[str, Callable[[SpatialMolecule], Terms]] = {
    "w1_bond_length": bond_lengths,
    "w1_bond_angle": bond_angles,
    "w1_dihedral": dihedral_angles,
}


def spatial(samples: Samples, reference: Sequence[SpatialMolecule], options: SuiteOptions | None = None) -> SuiteResult:
    """Evaluate a generator of molecules in space against a reference set.

    Args:
        samples: molecules, or None for a sample that gave no molecule.
        reference: molecules of the test set, in the same form: hydrogens as atoms or not, aromatic bonds or kekulised.
        options: of intervals and folds.

    Returns:
        The metrics of :func:`stability_statistics`, :func:`validity_statistics`, :func:`w1_statistics` and
        :func:`relaxation_statistics`. Their perfect value compares one part of the reference with the rest.
        ``bonded_pairs`` of the settings is the share of bonds among all pairs of atoms of the reference: MiDi's code weighs
        bond lengths by shares among all pairs, so its number is ``w1_bond_length`` times that.

    Raises:
        ValueError: if the reference has fewer than 2 molecules, or the folds do not divide the samples.
    """
    options = options or SuiteOptions()
    if len(reference) < 2:
        raise ValueError(f"reference: {len(reference)} molecules, expected at least 2")
    made = _Table(samples, reference)

    def perfect() -> dict[str, float]:
        first, second = ([reference[k] for k in rows] for rows in disjoint_halves(len(reference), len(samples), options.seed))
        ideal = _Table(first, second).statistics(np.arange(len(first)))
        return {name: whole(statistic) for name, statistic in ideal.items()}

    found = estimates(made.statistics, len(samples), perfect, options)
    pairs = sum(len(m) * (len(m) - 1) // 2 for m in reference)
    settings = {"reference_molecules": len(reference), "bonded_pairs": sum(len(m.bonds) for m in reference) / max(pairs, 1)}
    return SuiteResult(found, settings=settings)


def sample_metrics(samples: Samples) -> dict[str, float]:
    """Compute the numbers of :func:`stability_statistics` and :func:`validity_statistics`.

    >>> found = sample_metrics([SpatialMolecule(("H", "H"), (0, 0), ((0, 1, 1),), ((0, 0, 0), (0.74, 0, 0))), None])
    >>> found["molecule_stable"], found["valid"]
    (0.5, 0.5)
    """
    return metrics_of_readings(readings(samples))


def metrics_of_readings(found: Sequence[Reading]) -> dict[str, float]:
    """The numbers of :func:`sample_metrics` from the samples' :func:`readings`."""
    shares = {name: whole(one) for name, one in _all(_stability(found) | _validity(found), len(found)).items()}
    return {name: 0.0 if math.isnan(share) else share for name, share in shares.items()}  # of no samples, or of no valid ones


def evaluate(samples: Samples, reference: Sequence[SpatialMolecule] | None = None) -> dict[str, float]:
    """Evaluate a generator of molecules in space.

    Args:
        samples: molecules, or None where nothing could be made of a sample.
        reference: molecules with which the geometry is compared; None omits these metrics.

    Returns:
        ``num_samples`` and the numbers of :func:`stability_statistics`, :func:`validity_statistics`,
        :func:`relaxation_statistics` and, with a reference, ``novel`` (distinct SMILES that it does not have / distinct SMILES)
        and those of :func:`w1_statistics`.
    """
    found = {"num_samples": float(len(samples)), **sample_metrics(samples)}
    found |= {name: whole(one) for name, one in relaxation_statistics(samples).items()}
    if reference is not None:
        distinct = {name for name in map(smiles_of, samples) if name is not None}
        known = {smiles_of(one) for one in reference} if distinct else set()
        found["novel"] = len(distinct - known) / len(distinct) if distinct else 0.0
        found |= {name: whole(one) for name, one in w1_statistics(samples, reference).items()}
    return found


class _Table:
    """Statistics of parts of the samples, from numbers of each molecule that are computed once."""

    def __init__(self, samples: Samples, reference: Sequence[SpatialMolecule]) -> None:
        found = readings(samples)
        self._parts = {
            **_stability(found),
            **_validity(found),
            **_w1(samples, reference),
            **_relaxations(samples),
        }

    def statistics(self, rows: Rows) -> dict[str, Statistic]:
        return {name: make(rows) for name, make in self._parts.items()}


Part: TypeAlias = Callable[[Rows], Statistic]


def _all(parts: Mapping[str, Part], count: int) -> dict[str, Statistic]:
    return {name: make(np.arange(count)) for name, make in parts.items()}


def _mean(values: Float[np.ndarray, " sample"], most: float = math.inf, of: Callable[..., float] = np.mean) -> Part:
    """The mean, or another number, of the values that are known (not NaN) among some rows."""

    def make(rows: Rows) -> Statistic:
        known = values[rows][~np.isnan(values[rows])]
        return Statistic(lambda part: float(of(known[part])), len(known), 0.0, most)

    return make


def _ratio(above: Float[np.ndarray, " sample"], below: Float[np.ndarray, " sample"]) -> Part:
    """Σ above / Σ below over rows; NaN where nothing is counted."""

    def make(rows: Rows) -> Statistic:
        def of(part: Rows) -> float:
            total = float(below[rows[part]].sum())
            return float(above[rows[part]].sum()) / total if total else math.nan

        return Statistic(of, len(rows), 0.0, 1.0)

    return make


# -- stability and validity


class Reading(NamedTuple):
    """Counts of stable atoms, and validity, of one sample.

    Attributes:
        atoms: number of atoms; 0 for no molecule.
        stable: number of atoms that are stable by the table of MiDi.
        octet: number of atoms that are stable by :func:`~discrete_grpo.domains.spatial_geometry.octet_stable`.
        name: canonical SMILES of a valid molecule, else None.
        sanitises: whether RDKit accepts it, in one piece or not.
    """

    atoms: int
    stable: int
    octet: int
    name: str | None
    sanitises: bool


def readings(samples: Samples) -> list[Reading]:
    """The reading of each sample."""
    return [Reading(0, 0, 0, None, False) if one is None else _reading(one) for one in samples]


def _reading(one: SpatialMolecule) -> Reading:
    name = smiles_of(one)
    return Reading(len(one), sum(midi_stable(one)), sum(octet_stable(one)), name, name is not None or to_mol(one) is not None)


def stability_statistics(samples: Samples) -> dict[str, Statistic]:
    """Compute shares of stable atoms and of molecules whose atoms are all stable; hydrogens must be atoms.

    Returns:
        ``atom_stable``, ``molecule_stable``: by :func:`~discrete_grpo.domains.spatial_geometry.midi_stable`, the table of MiDi;
        ``atom_octet``, ``molecule_octet``: by :func:`~discrete_grpo.domains.spatial_geometry.octet_stable`, by which no
        radical is stable. Shares of molecules are relative to all samples, those of atoms to all atoms of samples that are
        molecules; None has none.
    """
    return _all(_stability(readings(samples)), len(samples))


def _stability(found: Sequence[Reading]) -> dict[str, Part]:
    every = np.array([one.atoms for one in found], dtype=np.float64)
    parts = {}
    for name, counts in (("stable", [one.stable for one in found]), ("octet", [one.octet for one in found])):
        good = np.array(counts, dtype=np.float64)
        parts[f"atom_{name}"] = _ratio(good, every)
        parts[f"molecule_{name}"] = _mean(((every > 0) & (good == every)).astype(np.float64), 1.0)
    return parts


def validity_statistics(samples: Samples) -> dict[str, Statistic]:
    """Compute shares of molecules that RDKit accepts, with the given bonds and charges.

    Returns:
        ``valid``: sanitises, is in one piece, and has no two atoms at one place / all; ``valid_any``: in one piece or not / all;
        ``unique``: distinct canonical SMILES / valid.
    """
    return _all(_validity(readings(samples)), len(samples))


def _validity(found: Sequence[Reading]) -> dict[str, Part]:
    names, loose = [one.name for one in found], [one.sanitises for one in found]

    def unique(rows: Rows) -> Statistic:
        return distinct_share([names[k] for k in rows if names[k] is not None])

    valid = np.array([name is not None for name in names], dtype=np.float64)
    return {"valid": _mean(valid, 1.0), "valid_any": _mean(np.array(loose, dtype=np.float64), 1.0), "unique": unique}


# -- distances to a reference


def weighted_w1(own: Terms, reference: Terms, weights: Mapping[int, float] | None = None) -> float:
    """Σ_y p(y) W1(own of kind y, reference of kind y).

    Kinds that the samples do not have are left out, and the other weights scaled to sum to 1; NaN if there is none in common.

    Args:
        own: terms of the samples.
        reference: terms of the reference.
        weights: p of each kind of the reference, of any sum; None takes the number of the reference's terms of the kind.

    Source: Vignac et al. (2023), MiDi, arXiv 2302.09048, without the rounding to bins of its code.

    >>> own, other = (Terms(np.array([1, 1, 2]), np.array(x)) for x in ([1.0, 2.0, 5.0], [1.5, 2.5, 8.0]))
    >>> weighted_w1(own, other)  # 2/3 · 0.5 + 1/3 · 3
    1.3333333333333333
    """
    if weights is None:
        kinds, counts = np.unique(reference.kind, return_counts=True)
        weights = dict(zip(kinds.tolist(), counts.tolist(), strict=True))
    shared = {y: weight for y, weight in weights.items() if (own.kind == y).any() and (reference.kind == y).any()}
    distances = [wasserstein(own.value[own.kind == y], reference.value[reference.kind == y]) for y in shared]
    total = sum(shared.values())
    return sum(w * d for w, d in zip(shared.values(), distances, strict=True)) / total if total else math.nan


def w1_statistics(samples: Samples, reference: Sequence[SpatialMolecule]) -> dict[str, Statistic]:
    """Compute :func:`weighted_w1` of the geometry of all samples that are molecules, valid or not.

    Returns:
        ``w1_bond_length``: of bond lengths in Å; p(y) is the share of bonds of order y. ``w1_bond_angle``: of angles between bonds
        in degrees; p(y) is the share of element y among atoms with two bonds or more. ``w1_dihedral``: of unsigned dihedrals in
        degrees; p(y) is the share of dihedrals about bonds of order y.
    """
    return _all(_w1(samples, reference), len(samples))


def _w1(samples: Samples, reference: Sequence[SpatialMolecule]) -> dict[str, Part]:
    centres = Counter(y for m in reference for y in angle_centres(m))
    weights = {"w1_bond_angle": {y: float(count) for y, count in centres.items()}}
    return {
        name: _distance([None if m is None else of(m) for m in samples], [of(m) for m in reference], weights.get(name))
        for name, of in _TERMS.items()
    }


def _distance(own: Sequence[Terms | None], reference: Sequence[Terms], weights: Mapping[int, float] | None) -> Part:
    none = Terms(np.zeros(0, dtype=np.int64), np.zeros(0))
    table, target = _joined([none if t is None else t for t in own]), _joined(reference)
    sizes = np.array([0 if t is None else len(t.kind) for t in own], dtype=np.int64)
    owner = np.repeat(np.arange(len(own)), sizes)

    def make(rows: Rows) -> Statistic:
        def of(part: Rows) -> float:
            chosen: Bool[np.ndarray, " sample"] = np.zeros(len(own), dtype=bool)
            chosen[rows[part]] = True
            kept = chosen[owner]
            return weighted_w1(Terms(table.kind[kept], table.value[kept]), target, weights)

        return Statistic(of, len(rows), 0.0)

    return make


def _joined(terms: Sequence[Terms]) -> Terms:
    kinds = np.concatenate([t.kind for t in terms] or [np.zeros(0, dtype=np.int64)])
    return Terms(kinds, np.concatenate([t.value for t in terms] or [np.zeros(0)]))


# -- relaxation and clashes


def relaxation_statistics(samples: Samples) -> dict[str, Statistic]:
    """Compute how far valid molecules are from their nearest minimum of MMFF94, and their clashes.

    Returns:
        ``rmsd``: mean RMSD of the relaxation in Å; ``strain``, ``strain_per_atom``: median of E before minus E after, in kcal/mol,
        since a few bad molecules decide a mean; ``mean_strain``: that mean; ``relaxable``: valid molecules that MMFF94 has
        parameters for / valid; ``clashing``: valid molecules with a clash / valid; see
        :func:`~discrete_grpo.domains.spatial_geometry.count_clashes`.
    """
    return _all(_relaxations(samples), len(samples))


def _relaxations(samples: Samples) -> dict[str, Part]:
    valid = [m if valid_mol(m) is not None else None for m in samples]
    relaxed = [None if m is None else relax(m) for m in valid]
    rows = [(math.nan,) * 3 if r is None else (r.rmsd, r.strain, r.strain_per_atom) for r in relaxed]
    rmsd, strain, per_atom = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    known = np.array([math.nan if m is None else r is not None for m, r in zip(valid, relaxed, strict=True)], dtype=np.float64)
    clashing = np.array([math.nan if m is None else count_clashes(m) > 0 for m in valid], dtype=np.float64)
    return {
        "rmsd": _mean(rmsd),
        "strain": _mean(strain, of=np.median),
        "strain_per_atom": _mean(per_atom, of=np.median),
        "mean_strain": _mean(strain),
        "relaxable": _mean(known, 1.0),
        "clashing": _mean(clashing, 1.0),
    }
