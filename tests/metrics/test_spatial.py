"""Metrics of molecules in space against computations of their own."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from rdkit.Chem import rdMolTransforms
from scipy.stats import wasserstein_distance

from discrete_grpo.datasets.spatial import conformers
from discrete_grpo.domains.force_field import relax
from discrete_grpo.domains.spatial_geometry import Terms
from discrete_grpo.domains.spatial_molecules import SpatialMolecule, to_mol
from discrete_grpo.metrics.resampling import whole
from discrete_grpo.metrics.spatial import (
    _Table,
    evaluate,
    relaxation_statistics,
    sample_metrics,
    spatial,
    stability_statistics,
    validity_statistics,
    w1_statistics,
    weighted_w1,
)
from discrete_grpo.metrics.suite import SuiteOptions

SMILES = ["CCO", "c1ccncc1", "CC(=O)[O-]", "C#CC=O", "CC(N)=O", "C1CC1O", "CCC#N", "OCC=O", "FC(F)C", "CN1CC1", "CC=CC", "NCCO"]


@pytest.fixture(scope="module")
def molecules() -> list[SpatialMolecule]:
    return list(conformers(SMILES))


def shaken(molecules: list[SpatialMolecule], size: float, seed: int = 0) -> list[SpatialMolecule]:
    generator = np.random.default_rng(seed)
    noise = [size * generator.normal(size=(len(m), 3)) for m in molecules]
    return [replace(m, positions=(m.coordinates + x).tolist()) for m, x in zip(molecules, noise, strict=True)]


def moved(molecule: SpatialMolecule, seed: int) -> SpatialMolecule:
    """The same molecule rotated, shifted and with another order of its atoms."""
    generator = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(generator.normal(size=(3, 3)))
    rotation = rotation * np.linalg.det(rotation)
    order = generator.permutation(len(molecule)).tolist()
    place = {old: new for new, old in enumerate(order)}
    bonds = [(*sorted((place[i], place[j])), kind) for i, j, kind in molecule.bonds]
    positions = (molecule.coordinates @ rotation.T + generator.normal(size=3))[order]
    symbols, charges = ([values[k] for k in order] for values in (molecule.symbols, molecule.charges))
    return SpatialMolecule(tuple(symbols), tuple(charges), tuple(bonds), positions.tolist())  # type: ignore[arg-type]


def lost(molecule: SpatialMolecule) -> SpatialMolecule:
    """The molecule without its last atom, a hydrogen."""
    n = len(molecule) - 1
    assert molecule.symbols[n] == "H"
    return SpatialMolecule(
        molecule.symbols[:n], molecule.charges[:n], tuple(b for b in molecule.bonds if b[1] < n), molecule.positions[:n]
    )


def values(statistics: dict) -> dict[str, float]:  # type: ignore[type-arg]
    return {name: whole(statistic) for name, statistic in statistics.items()}


# -- stability and validity


def test_shares_of_stable_atoms_and_molecules(molecules: list[SpatialMolecule]) -> None:
    samples = [molecules[0], lost(molecules[0]), None, molecules[1]]  # 9 + 8 + 11 atoms, one of them not stable
    found = values(stability_statistics(samples))
    assert found["atom_octet"] == pytest.approx(27 / 28)
    assert found["molecule_octet"] == pytest.approx(2 / 4)
    charged = replace(molecules[0], charges=(0, 0, 1, *(0,) * 6))  # C-O+-H: two bonds where three are stable
    found = values(stability_statistics([charged, molecules[1]]))
    assert found["atom_stable"] == pytest.approx(19 / 20)
    assert found["molecule_stable"] == 0.5


def test_no_molecules_have_no_stable_atoms() -> None:
    found = values(stability_statistics([None, SpatialMolecule((), (), (), ())]))
    assert math.isnan(found["atom_stable"])
    assert found["molecule_stable"] == found["molecule_octet"] == 0.0


def test_a_radical_is_stable_for_midi_alone() -> None:
    places = ((0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    methyl = SpatialMolecule(("C", "H", "H", "H"), (0,) * 4, ((0, 1, 1), (0, 2, 1), (0, 3, 1)), places)
    found = values(stability_statistics([methyl]))
    assert (found["atom_stable"], found["molecule_stable"]) == (1.0, 1.0)
    assert (found["atom_octet"], found["molecule_octet"]) == (3 / 4, 0.0)


def test_shares_of_valid_and_unique_molecules(molecules: list[SpatialMolecule]) -> None:
    first = molecules[0]
    far = tuple((x + 50.0, y, z) for x, y, z in first.positions)
    shifted = tuple((i + 9, j + 9, kind) for i, j, kind in first.bonds)
    pair = SpatialMolecule(first.symbols * 2, first.charges * 2, first.bonds + shifted, first.positions + far)
    crowded = replace(first, bonds=(*first.bonds, (3, 4, 3)))
    close = replace(first, positions=(first.positions[1], *first.positions[1:]))
    samples = [first, moved(first, 1), molecules[1], pair, crowded, close, None, None]
    found = values(validity_statistics(samples))
    assert found == {"valid": 3 / 8, "valid_any": 4 / 8, "unique": pytest.approx(2 / 3)}


# -- distances


def test_w1_of_two_kinds_by_hand() -> None:
    own = Terms(np.array([1, 1, 2, 3]), np.array([1.0, 3.0, 5.0, 9.0]))
    reference = Terms(np.array([1, 2, 2, 2, 4]), np.array([2.0, 5.0, 6.0, 7.0, 0.0]))
    assert weighted_w1(own, reference) == pytest.approx(1 / 4 * 1.0 + 3 / 4 * 1.0)
    assert weighted_w1(own, reference, {1: 3.0, 2: 1.0, 4: 9.0}) == pytest.approx(1.0)
    assert weighted_w1(own, reference, {2: 1.0, 3: 1.0}) == pytest.approx(1.0)
    own = Terms(own.kind, own.value + np.array([0, 0, 4.0, 0]))
    assert weighted_w1(own, reference) == pytest.approx(1 / 4 * 1.0 + 3 / 4 * 3.0)
    assert weighted_w1(own, reference, {1: 3.0, 2: 1.0, 4: 9.0}) == pytest.approx(3 / 4 * 1.0 + 1 / 4 * 3.0)
    assert math.isnan(weighted_w1(Terms(np.array([7]), np.array([1.0])), reference))


def by_rdkit(molecule: SpatialMolecule) -> tuple[list[list[tuple[int, float]]], Counter[int]]:
    """Lengths, angles and dihedrals with their kinds, and the elements of atoms with two bonds or more."""
    mol = to_mol(molecule)
    assert mol is not None
    x = mol.GetConformer()
    around = [[n.GetIdx() for n in atom.GetNeighbors()] for atom in mol.GetAtoms()]
    number = [atom.GetAtomicNum() for atom in mol.GetAtoms()]
    lengths = [(kind, rdMolTransforms.GetBondLength(x, i, j)) for i, j, kind in molecule.bonds]
    angles = [
        (number[c], rdMolTransforms.GetAngleDeg(x, i, c, k))
        for c in range(len(number))
        for i, k in itertools.combinations(around[c], 2)
    ]
    dihedrals = [
        (kind, abs(rdMolTransforms.GetDihedralDeg(x, i, j, k, l)))
        for j, k, kind in molecule.bonds
        for i in around[j]
        for l in around[k]
        if len({i, j, k, l}) == 4 and max(rdMolTransforms.GetAngleDeg(x, *three) for three in ((i, j, k), (j, k, l))) < 179
    ]
    return [lengths, angles, dihedrals], Counter(z for z, others in zip(number, around, strict=True) if len(others) > 1)


def test_distances_are_those_of_scipy_with_the_weights_of_midi(molecules: list[SpatialMolecule]) -> None:
    samples, reference = shaken(molecules[:5], 0.03), molecules[3:]
    own, other = ([by_rdkit(m) for m in some] for some in (samples, reference))
    found = values(w1_statistics([*samples, None], reference))
    for place, name in enumerate(("w1_bond_length", "w1_bond_angle", "w1_dihedral")):
        ours = [term for rows in own for term in rows[0][place]]
        theirs = [term for rows in other for term in rows[0][place]]
        weights = sum((rows[1] for rows in other), Counter()) if name == "w1_bond_angle" else Counter(kind for kind, _ in theirs)
        shared = {kind for kind, _ in ours} & weights.keys()
        total = sum(weights[kind] for kind in shared)
        wanted = sum(
            weights[kind] / total * wasserstein_distance([x for y, x in ours if y == kind], [x for y, x in theirs if y == kind])
            for kind in shared
        )
        assert found[name] == pytest.approx(wanted, rel=1e-5)
        assert wanted > 0.001


def test_the_set_itself_is_at_no_distance(molecules: list[SpatialMolecule]) -> None:
    assert values(w1_statistics(molecules[::-1], molecules)) == pytest.approx(
        dict.fromkeys(("w1_bond_length", "w1_bond_angle", "w1_dihedral"), 0.0), abs=1e-9
    )
    stretched = [replace(m, positions=(1.1 * m.coordinates).tolist()) for m in molecules]
    found = values(w1_statistics(stretched, molecules))
    lengths = np.concatenate([[math.dist(m.positions[i], m.positions[j]) for i, j, _ in m.bonds] for m in molecules])
    assert found["w1_bond_length"] == pytest.approx(0.1 * lengths.mean())
    assert found["w1_bond_angle"] == pytest.approx(0.0, abs=1e-6)


# -- relaxation


def test_relaxation_of_real_and_shaken_molecules(molecules: list[SpatialMolecule]) -> None:
    found = values(relaxation_statistics([*molecules, None]))
    assert found["strain"] == pytest.approx(0.0, abs=1e-3)
    assert found["rmsd"] < 0.01
    assert (found["relaxable"], found["clashing"]) == (1.0, 0.0)
    worse = [values(relaxation_statistics(shaken(molecules, size))) for size in (0.02, 0.05, 0.1)]
    for name in ("strain", "strain_per_atom", "mean_strain", "rmsd"):
        assert 0 < worse[0][name] < worse[1][name] < worse[2][name]
    assert worse[2]["strain"] <= worse[2]["mean_strain"]


def test_strains_are_medians_and_means_of_valid_molecules(molecules: list[SpatialMolecule]) -> None:
    first, trifluoride = molecules[0], tuple((1.3 * math.cos(a), 1.3 * math.sin(a), 0.0) for a in (0.0, 2.1, 4.2))
    boron = SpatialMolecule(("B", "F", "F", "F"), (0,) * 4, tuple((0, k, 1) for k in (1, 2, 3)), ((0.0, 0.0, 0.0), *trifluoride))
    corners = tuple((1.5 * math.cos(k * math.pi / 3), 1.5 * math.sin(k * math.pi / 3), 0.0) for k in range(6))
    open_ring = SpatialMolecule(("C",) * 6, (0,) * 6, tuple((k, k + 1, 1) for k in range(5)), corners)  # its ends clash
    pieces = SpatialMolecule(first.symbols * 2, first.charges * 2, first.bonds, first.positions * 2)  # two atoms at each place
    samples = [molecules[0], *shaken(molecules[1:3], 0.02), *shaken(molecules[3:4], 0.15), boron, open_ring, pieces, None]
    found = values(relaxation_statistics(samples))
    relaxed = [one for m in samples[:-2] if m is not None and (one := relax(m)) is not None]
    assert len(relaxed) == 5
    assert found["strain"] == pytest.approx(np.median([one.strain for one in relaxed]))
    assert found["strain_per_atom"] == pytest.approx(np.median([one.strain_per_atom for one in relaxed]))
    assert found["mean_strain"] == pytest.approx(np.mean([one.strain for one in relaxed]))
    assert found["rmsd"] == pytest.approx(np.mean([one.rmsd for one in relaxed]))
    assert (found["relaxable"], found["clashing"]) == (5 / 6, 1 / 6)


def test_nothing_valid_has_no_strain() -> None:
    found = values(relaxation_statistics([None, None]))
    assert all(map(math.isnan, found.values()))


# -- the suite


def test_every_metric_is_unchanged_by_motions_and_orders(molecules: list[SpatialMolecule]) -> None:
    samples = [*shaken(molecules[:6], 0.05, seed=1), lost(molecules[0]), None]
    options = SuiteOptions(bootstrap=0)
    found = spatial(samples, molecules, options).metrics
    turned = [None if m is None else moved(m, k) for k, m in enumerate(samples)]
    again = spatial(turned, [moved(m, k) for k, m in enumerate(molecules)], options).metrics
    for name, estimate in found.items():
        # minimisations take slightly different paths
        assert again[name].value == pytest.approx(estimate.value, rel=0.05 if name == "rmsd" else 1e-3, abs=1e-4), name


def test_the_suite_has_intervals_perfect_values_and_settings(molecules: list[SpatialMolecule]) -> None:
    samples = [*shaken(molecules, 0.02), None, None, lost(molecules[0]), lost(molecules[7])]
    result = spatial(samples, molecules, SuiteOptions(bootstrap=20, folds=2))
    assert set(result.metrics) == {
        *("atom_stable", "molecule_stable", "atom_octet", "molecule_octet", "valid", "valid_any", "unique"),
        *("w1_bond_length", "w1_bond_angle", "w1_dihedral"),
        *("rmsd", "strain", "strain_per_atom", "mean_strain", "relaxable", "clashing"),
    }
    for name, estimate in result.metrics.items():
        assert estimate.low <= estimate.value <= estimate.high, name
        assert math.isfinite(estimate.mean), name
    assert result.metrics["molecule_octet"].value == 12 / 16
    assert result.metrics["molecule_octet"].perfect == 1.0
    assert 0 < result.metrics["w1_bond_length"].perfect < 0.2
    pairs = sum(len(m) * (len(m) - 1) / 2 for m in molecules)
    assert result.settings["bonded_pairs"] == pytest.approx(sum(len(m.bonds) for m in molecules) / pairs)
    assert result.settings["reference_molecules"] == 12


def test_statistics_of_rows_are_those_of_the_samples_there(molecules: list[SpatialMolecule]) -> None:
    samples = [*shaken(molecules[:6], 0.05), lost(molecules[0]), None]
    rows = np.array([7, 6, 2, 4, 1])
    part = _Table([samples[k] for k in rows], molecules).statistics(np.arange(len(rows)))
    assert values(_Table(samples, molecules).statistics(rows)) == pytest.approx(values(part))


def test_novel_molecules_are_counted_once(molecules: list[SpatialMolecule]) -> None:
    found = evaluate([molecules[0], moved(molecules[0], 1), molecules[1], None], molecules[1:])
    assert (found["num_samples"], found["novel"]) == (4.0, 0.5)
    assert "novel" not in evaluate([molecules[0]])
    assert evaluate([None], molecules[1:])["novel"] == 0.0


def test_a_reference_is_needed(molecules: list[SpatialMolecule]) -> None:
    with pytest.raises(ValueError, match="reference: 1 molecules, expected at least 2"):
        spatial(molecules, molecules[:1])
    with pytest.raises(ValueError, match="folds: 5 of 12 samples"):
        spatial(molecules, molecules, SuiteOptions(folds=5))


def test_shares_of_nothing_are_zero() -> None:
    for samples in ([], [None, None]):
        assert set(sample_metrics(samples).values()) == {0.0}
