"""Rewards of molecules in space."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem import rdForceFieldHelpers, rdMolAlign, rdMolTransforms, rdShapeHelpers

from discrete_grpo.core.reward_arguments import reward_name
from discrete_grpo.core.scoring import score_samples
from discrete_grpo.datasets.spatial import conformers
from discrete_grpo.domains.spatial_files import to_sdf
from discrete_grpo.domains.spatial_molecules import SpatialMolecule, to_mol
from discrete_grpo.rewards import molecules as flat
from discrete_grpo.rewards.identity import reward_identity
from discrete_grpo.rewards.spatial import (
    LowStrain,
    OfSmiles,
    ShapeSimilarity,
    _standard,
    atom_stability,
    mmff_energy,
    molecule_stability,
    molecule_stability_midi,
    negative_strain,
    spatial_validity,
)

SMILES = ["CCO", "CC(=O)Nc1ccc(O)cc1", "C[C@H](N)C(=O)O", "CC(=O)[O-]", "C#CC=O"]
CROWDED = SpatialMolecule(("F", "H", "H"), (0,) * 3, ((0, 1, 1), (0, 2, 1)), ((0, 0, 0), (1, 0, 0), (0, 1, 0)))
APART = SpatialMolecule(("He", "He"), (0, 0), (), ((0, 0, 0), (3, 0, 0)))
BORON = SpatialMolecule(
    ("B", "F", "F", "F"), (0,) * 4, ((0, 1, 1), (0, 2, 1), (0, 3, 1)), ((0, 0, 0), (1.3, 0, 0), (-0.65, 1.13, 0), (-0.65, -1.13, 0))
)


@pytest.fixture(scope="module")
def molecules() -> list[SpatialMolecule]:
    return list(conformers(SMILES))


def shaken(molecule: SpatialMolecule, size: float, seed: int = 0) -> SpatialMolecule:
    noise = size * np.random.default_rng(seed).normal(size=(len(molecule), 3))
    return replace(molecule, positions=(molecule.coordinates + noise).tolist())


def moved(molecule: SpatialMolecule, seed: int) -> SpatialMolecule:
    """The same molecule rotated, shifted and with another order of its atoms."""
    generator = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(generator.normal(size=(3, 3)))
    rotation = rotation * np.linalg.det(rotation)
    order = generator.permutation(len(molecule)).tolist()
    place = {old: new for new, old in enumerate(order)}
    bonds = [(*sorted((place[i], place[j])), kind) for i, j, kind in molecule.bonds]
    positions = (molecule.coordinates @ rotation.T + 5 * generator.normal(size=3))[order]
    symbols, charges = ([values[k] for k in order] for values in (molecule.symbols, molecule.charges))
    return SpatialMolecule(tuple(symbols), tuple(charges), tuple(bonds), positions.tolist())  # type: ignore[arg-type]


def radical(molecule: SpatialMolecule) -> SpatialMolecule:
    """The molecule without the bond and the place of its last atom, a hydrogen."""
    n = len(molecule) - 1
    bonds = tuple(bond for bond in molecule.bonds if bond[1] < n)
    return SpatialMolecule(molecule.symbols[:n], molecule.charges[:n], bonds, molecule.positions[:n])


# -- validity and stability


def test_validity_and_stability(molecules: list[SpatialMolecule]) -> None:
    cut = radical(conformers(["CC"])[0])  # a carbon with three bonds
    samples = [*molecules, cut, CROWDED, APART, None]
    assert spatial_validity(samples) == [1.0] * 6 + [0.0] * 3
    assert molecule_stability(samples) == [1.0] * 5 + [0.0] * 4
    assert molecule_stability_midi(samples) == [1.0] * 6 + [0.0] * 3
    assert atom_stability(samples) == pytest.approx([1.0] * 5 + [6 / 7, 2 / 3, 1.0, 0.0])


def test_a_stable_molecule_in_pieces_does_not_count(molecules: list[SpatialMolecule]) -> None:
    one = molecules[0]
    shifted = tuple((i + 9, j + 9, kind) for i, j, kind in one.bonds)
    far = tuple((x + 9.0, y, z) for x, y, z in one.positions)
    pair = SpatialMolecule(one.symbols * 2, one.charges * 2, one.bonds + shifted, one.positions + far)
    assert molecule_stability([pair]) == spatial_validity([pair]) == [0.0]
    assert molecule_stability_midi([pair]) == atom_stability([pair]) == [1.0]


# -- energies


def test_energy_is_that_of_mmff94_per_atom(molecules: list[SpatialMolecule]) -> None:
    samples = [shaken(m, 0.05) for m in molecules]
    for sample, found in zip(samples, mmff_energy(samples), strict=True):
        mol = to_mol(sample)
        assert mol is not None
        field = rdForceFieldHelpers.MMFFGetMoleculeForceField(mol, rdForceFieldHelpers.MMFFGetMoleculeProperties(mol))
        assert found == pytest.approx(-field.CalcEnergy() / len(sample), rel=1e-9)


def test_strain_is_energy_above_the_minimum(molecules: list[SpatialMolecule]) -> None:
    samples = [shaken(m, 0.02) for m in molecules]
    for sample, found in zip(samples, negative_strain(samples), strict=True):
        mol = to_mol(sample)
        assert mol is not None
        ((_, before),) = rdForceFieldHelpers.MMFFOptimizeMoleculeConfs(Chem.Mol(mol), maxIters=0)
        ((_, after),) = rdForceFieldHelpers.MMFFOptimizeMoleculeConfs(Chem.Mol(mol), maxIters=2000)
        assert found == pytest.approx((after - before) / len(sample), abs=1e-5)
        assert found is not None
        assert found < -0.05
    assert negative_strain(molecules) == pytest.approx([0.0] * 5, abs=1e-3)


def test_low_strain_halves_at_its_scale(molecules: list[SpatialMolecule]) -> None:
    sample = shaken(molecules[0], 0.05)
    (strain,) = negative_strain([sample])
    assert strain is not None
    assert LowStrain(scale=-strain)([sample]) == pytest.approx([0.5])
    assert LowStrain(scale=-strain / 3)([sample]) == pytest.approx([0.25])
    assert LowStrain()(molecules) == pytest.approx([1.0] * 5, abs=1e-3)
    with pytest.raises(ValueError, match="scale: 0, expected more than 0"):
        LowStrain(scale=0)


def test_invalid_and_unknown_molecules() -> None:
    samples = [CROWDED, APART, BORON, None]
    assert mmff_energy(samples) == negative_strain(samples) == [None] * 4
    assert LowStrain()(samples) == [0.0, 0.0, None, 0.0]
    assert spatial_validity(samples) == [0.0, 0.0, 1.0, 0.0]


# -- shape


def test_shape_of_the_reference_itself_is_1(molecules: list[SpatialMolecule]) -> None:
    found = ShapeSimilarity(molecules[1])([molecules[1], moved(molecules[1], 3), *molecules[2:], CROWDED, None])
    assert found[:2] == pytest.approx([1.0, 1.0], abs=0.01)
    assert all(0.05 < score < 0.8 for score in found[2:5])
    assert found[5:] == [0.0, 0.0]


def test_shape_of_one_atom_by_hand(molecules: list[SpatialMolecule]) -> None:
    """Two equal spheres overlap wholly wherever they are; O in C is the ratio of volumes, about (r_O / r_C)³."""
    carbon, oxygen = (replace(conformers([s])[0], positions=conformers([s])[0].positions) for s in ("C", "O"))
    assert ShapeSimilarity(carbon)([moved(carbon, 1)]) == pytest.approx([1.0], abs=0.02)
    table = Chem.GetPeriodicTable()
    (found,) = ShapeSimilarity(carbon)([moved(oxygen, 2)])
    assert found == pytest.approx((table.GetRvdw("O") / table.GetRvdw("C")) ** 3, abs=0.1)


def test_alignment_helps(molecules: list[SpatialMolecule]) -> None:
    probe, reference = moved(shaken(molecules[1], 0.05), 5), molecules[1]
    one, other = to_mol(probe), to_mol(reference)
    assert one is not None
    assert other is not None
    assert ShapeSimilarity(reference)([probe])[0] > 1.3 * (1 - rdShapeHelpers.ShapeTanimotoDist(one, other))


def test_a_part_is_laid_upon_its_like(molecules: list[SpatialMolecule]) -> None:
    """A tail moves the centroid and the axes, not what Open3DAlign finds alike."""
    probe, reference = conformers(["CC(=O)Nc1ccc(OCCCCCCCC)cc1"])[0], molecules[1]
    one, other = (Chem.RemoveHs(to_mol(m)) for m in (probe, reference))
    rdMolAlign.GetCrippenO3A(one, other).Align()
    wanted = 1 - rdShapeHelpers.ShapeTanimotoDist(one, other)
    assert ShapeSimilarity(reference)([moved(probe, 4)])[0] == pytest.approx(wanted, abs=0.05)
    centred = [Chem.Mol(mol) for mol in (one, other)]
    for mol in centred:
        rdMolTransforms.CanonicalizeConformer(mol.GetConformer())
    assert wanted > 0.1 + 1 - rdShapeHelpers.ShapeTanimotoDist(*centred)


def test_a_mirror_image_is_another_shape() -> None:
    menthol = conformers(["CC1CCC(C(C)C)C(O)C1"])[0]
    mirrored = replace(menthol, positions=(menthol.coordinates * [-1.0, 1.0, 1.0]).tolist())
    same, other = ShapeSimilarity(menthol)([moved(menthol, 1), mirrored])
    assert same == pytest.approx(1.0, abs=0.01)
    assert other < 0.95


def test_the_reference_can_be_a_file(tmp_path: Path, molecules: list[SpatialMolecule]) -> None:
    path = tmp_path / "target.sdf"
    path.write_text(to_sdf(molecules[:2]))
    reward = ShapeSimilarity(str(path))
    assert reward.name == "shape_similarity(target)"
    as_path: Any = path
    assert ShapeSimilarity(as_path) == reward
    assert ShapeSimilarity(molecules[0]).name == "shape_similarity(CCO)"
    assert reward(molecules) == pytest.approx(ShapeSimilarity(molecules[0])(molecules), abs=0.02)
    assert pickle.loads(pickle.dumps(reward))(molecules) == reward(molecules)
    (tmp_path / "LOUD.SDF").write_text(to_sdf(molecules[:1]))
    assert ShapeSimilarity(str(tmp_path / "LOUD.SDF")).name == "shape_similarity(LOUD)"
    before = reward_identity(reward)
    path.write_text(to_sdf(molecules[1:2]))
    assert reward_identity(ShapeSimilarity(str(path))) != before


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("missing.sdf", "reference: 'missing.sdf', expected a molecule or the path of an SDF file"),
        (Path("missing.sdf"), "reference: 'missing.sdf', expected a molecule or the path of an SDF file"),
        (5, "reference: 5, expected a molecule or the path of an SDF file"),
        ("CCO", "reference: 'CCO', expected a molecule or the path of an SDF file"),
        (CROWDED, "reference: a molecule of 3 atoms, expected a valid molecule in space with heavy atoms"),
    ],
)
def test_a_bad_reference_is_named(reference: Any, said: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        ShapeSimilarity(reference)
    assert str(error.value) == said


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    for text, said in (("", "holds no molecule, expected one"), ("x\n$$$$\n", "sdf: record 1: no molecule that RDKit reads")):
        (tmp_path / "bad.sdf").write_text(text)
        with pytest.raises(ValueError, match=said):
            ShapeSimilarity(str(tmp_path / "bad.sdf"))


# -- rewards of SMILES


def test_a_reward_of_smiles_sees_the_graph(molecules: list[SpatialMolecule]) -> None:
    samples = [*molecules, CROWDED, None]
    for reward in (flat.qed, flat.logp, flat.Similarity("CCO"), flat.Target(flat.molecular_weight, value=46, scale=5)):
        assert OfSmiles(reward)(samples) == pytest.approx([*reward(SMILES), 0.0, 0.0])
        assert reward_name(OfSmiles(reward)) == reward_name(reward)


def test_stereochemistry_reaches_the_reward_by_choice(molecules: list[SpatialMolecule]) -> None:
    seen: list[str | None] = []

    def note(samples: list[str | None], **columns: Any) -> list[None]:
        seen.extend(samples)
        return [None] * len(samples)

    assert OfSmiles(note)([molecules[2], None]) == [None, None]
    assert OfSmiles(note, stereo=True)([molecules[2]]) == [None]
    assert seen == ["CC(N)C(=O)O", None, "C[C@H](N)C(=O)O"]
    with pytest.raises(ValueError, match="reward: 'qed', expected a reward"):
        OfSmiles("qed")  # type: ignore[arg-type]


def test_columns_are_passed_on(molecules: list[SpatialMolecule]) -> None:
    def times(samples: list[str | None], *, factor: list[float]) -> list[float]:
        return [2 * x for x in factor]

    assert OfSmiles(times)(molecules[:2], factor=[1.0, 3.0]) == [2.0, 6.0]


# -- all of them


def test_every_reward_is_unchanged_by_motions_and_orders(molecules: list[SpatialMolecule]) -> None:
    samples = [*(shaken(m, 0.03, k) for k, m in enumerate(molecules)), radical(molecules[0]), CROWDED, None]
    turned = [None if m is None else moved(m, k) for k, m in enumerate(samples)]
    exact: list[Any] = [
        spatial_validity,
        molecule_stability,
        molecule_stability_midi,
        atom_stability,
        OfSmiles(flat.qed, stereo=True),
    ]
    for reward in exact:
        assert reward(turned) == reward(samples), reward_name(reward)
    uncertain: list[Any] = [mmff_energy, negative_strain, LowStrain()]
    for reward in uncertain:
        found, again = reward(samples[:5]), reward(turned[:5])  # a hydrogen that is filled in has no one place
        assert found == pytest.approx(again, rel=1e-3, abs=1e-4), reward_name(reward)
    shape = ShapeSimilarity(molecules[1])
    assert shape(turned) == pytest.approx(shape(samples), abs=0.02)
    assert ShapeSimilarity(moved(molecules[1], 9))(samples) == pytest.approx(shape(samples), abs=0.02)


def test_the_trainer_can_score_them(molecules: list[SpatialMolecule]) -> None:
    rewards: list[Any] = [molecule_stability, LowStrain(), negative_strain, ShapeSimilarity(molecules[0]), OfSmiles(flat.qed)]
    scores = score_samples(rewards, [*molecules, None])
    assert scores.shape == (6, 5)
    assert scores[:5].isfinite().all()
    assert scores[5].isnan().tolist() == [False, False, True, False, False]
    assert all(reward_identity(reward) is not None for reward in rewards)


@pytest.mark.parametrize("distance", [300.0, 1e6])
def test_the_shape_of_atoms_far_apart_is_unlike_and_costs_nothing(distance: float) -> None:
    places = ((0.0, 0.0, 0.0), *(tuple(distance * sign for sign in signs) for signs in ((1, 1, 1), (-1, -1, 1.01), (-1, 1.02, -1))))
    bonds = tuple((0, k, 1) for k in range(1, 4))
    far = SpatialMolecule(("C",) * 4, (0,) * 4, bonds, places)  # type: ignore[arg-type]
    near = SpatialMolecule(("C", "C"), (0, 0), ((0, 1, 1),), ((0.0, 0.0, 0.0), (1.5, 0.0, 0.0)))
    assert ShapeSimilarity(near)([far, near]) == pytest.approx([0.0, 1.0])


def test_a_shape_is_compared_up_to_50_angstroms_further_along_each_axis() -> None:
    def chain(*more: float) -> SpatialMolecule:
        places = tuple((x, 0.3 * (k % 2), 0.0) for k, x in enumerate((*(1.3 * k for k in range(8)), *more)))
        bonds = tuple((k, k + 1, 1) for k in range(len(places) - 1))
        return SpatialMolecule(("C",) * len(places), (0,) * len(places), bonds, places)

    found = ShapeSimilarity(chain())([chain(), chain(58.5), chain(60.0)])  # the chain itself is 9.1 long
    assert found[0] == 1.0
    assert found[1] > 0.7
    assert found[2] == 0.0


def test_molecules_without_heavy_atoms_and_without_atoms_score_0() -> None:
    hydrogen = SpatialMolecule(("H", "H"), (0, 0), ((0, 1, 1),), ((0.0, 0.0, 0.0), (0.74, 0.0, 0.0)))
    near = SpatialMolecule(("C", "C"), (0, 0), ((0, 1, 1),), ((0.0, 0.0, 0.0), (1.5, 0.0, 0.0)))
    assert ShapeSimilarity(near)([hydrogen]) == [0.0]
    assert molecule_stability_midi([SpatialMolecule((), (), (), ()), hydrogen]) == [0.0, 1.0]


def test_the_pose_of_a_shape_depends_on_no_motion_and_order() -> None:
    (made,) = conformers(["CC(C)C(=O)Nc1ccc(O)cc1"])  # equal methyls, and equal sides of the ring
    mols = [to_mol(m) for m in (made, moved(made, 1), moved(made, 2))]
    poses = [_standard(mol) for mol in mols if mol is not None]
    first = poses[0].GetConformer().GetPositions()
    assert first.mean(0) == pytest.approx(np.zeros(3), abs=1e-9)
    mirrored = to_mol(replace(made, positions=(made.coordinates * [-1.0, 1.0, 1.0]).tolist()))
    assert mirrored is not None
    for pose in (poses[0], _standard(mirrored)):
        moments = (pose.GetConformer().GetPositions() ** 3).sum(0)
        assert (np.delete(moments, np.abs(moments).argmin()) > 0).all()
    for pose in poses[1:]:
        assert [atom.GetSymbol() for atom in pose.GetAtoms()] == [atom.GetSymbol() for atom in poses[0].GetAtoms()]
        assert pose.GetConformer().GetPositions() == pytest.approx(first, abs=1e-3)
