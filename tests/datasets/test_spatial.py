"""Conformers and their cache, files of molecules in space, statistics of a set."""

from __future__ import annotations

import errno
import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem import rdDistGeom, rdForceFieldHelpers

from discrete_grpo.datasets import spatial
from discrete_grpo.datasets.spatial import SpatialStatistics, conformers, load_spatial, spatial_statistics
from discrete_grpo.datasets.spatial_fields import bond_shares, fits
from discrete_grpo.domains import conformers as conformers_of_rdkit
from discrete_grpo.domains.force_field import relax
from discrete_grpo.domains.spatial_files import to_sdf, to_xyz
from discrete_grpo.domains.spatial_molecules import SpatialMolecule, smiles_of

SMILES = ["CCO", "c1ccncc1", "CC(=O)[O-]", "C#N", "O"]
HYDROGEN = SpatialMolecule(("H", "H"), (0, 0), ((0, 1, 1),), ((0, 0, 0), (0.74, 0, 0)))


# -- conformers


def test_a_conformer_is_etkdg_and_mmff94() -> None:
    (made,) = conformers(["CCO"], seed=7)
    mol, options = Chem.AddHs(Chem.MolFromSmiles("CCO")), rdDistGeom.ETKDGv3()
    options.randomSeed = 8  # type: ignore[assignment]
    rdDistGeom.EmbedMolecule(mol, options)
    rdForceFieldHelpers.MMFFOptimizeMolecule(mol, mmffVariant="MMFF94", maxIters=2000)
    np.testing.assert_allclose(made.coordinates, mol.GetConformer().GetPositions(), atol=5.1e-5)
    relaxed = relax(made)
    assert relaxed is not None
    assert relaxed.strain < 1e-3


def test_conformers_keep_order_and_hydrogens_by_choice() -> None:
    full, bare = conformers(SMILES), conformers(SMILES, hydrogens=False)
    assert [smiles_of(m) for m in full] == [smiles_of(m) for m in bare] == SMILES
    assert [len(m) for m in bare] == [3, 6, 4, 2, 1]
    assert [len(m) for m in full] == [9, 11, 7, 3, 3]
    heavy = [position for symbol, position in zip(full[0].symbols, full[0].positions, strict=True) if symbol != "H"]
    assert bare[0].positions == tuple(heavy)
    assert full.sources == (0, 1, 2, 3, 4)


def test_aromatic_bonds_by_choice() -> None:
    orders = [{order for _, _, order in conformers(["c1ccncc1"], aromatic=flag)[0].bonds} for flag in (False, True)]
    assert orders == [{1, 2}, {1, 4}]
    with pytest.raises(ValueError, match="aromatic: True, expected False where hydrogens is False"):
        conformers(["c1ccncc1"], aromatic=True, hydrogens=False)


def test_what_fails_is_left_out_and_counted() -> None:
    made = conformers(["CCO", "no molecule", "[BH3]", "O", ""])
    assert [smiles_of(m) for m in made] == ["CCO", "O"]
    assert made.sources == (0, 3)
    assert made.broken == ((1, "no molecule: does not parse"), (2, "[BH3]: no MMFF94 parameters"), (4, "does not parse"))


def test_the_seed_decides_and_the_company_does_not() -> None:
    alone, among, other = conformers(["CCO"]), conformers(SMILES[::-1]), conformers(["CCO"], seed=1)
    assert alone[0] == among[4]
    assert alone[0] != other[0]


@pytest.mark.parametrize("jobs", [1, 2])
def test_other_processes_make_the_same(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*SMILES, "no molecule"] * 3
    parts = [conformers(texts[:6]), conformers(texts[:12])]
    monkeypatch.setattr(spatial, "embed", None)  # Ctrl-C would change what it makes, and does not reach other processes
    made = conformers(texts, jobs=jobs)
    assert [made.molecules[:k] for k in (5, 10)] == [part.molecules for part in parts]
    assert (len(made), len(made.broken)) == (15, 3)


def test_a_process_imports_no_torch() -> None:
    code = "import sys, discrete_grpo.domains.conformers; print({'torch', 'scipy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize(("name", "value"), [("seed", -1), ("seed", 2**31 - 1), ("jobs", 0)])
def test_bad_numbers_are_named(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"^{name}: {value}, expected "):
        conformers(["C"], **{name: value})  # type: ignore[arg-type]


# -- cache


def test_the_cache_gives_back_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*SMILES, "no molecule"]
    made = conformers(texts, cache=tmp_path, name="some")
    assert [path.name.split("-")[0] for path in tmp_path.iterdir()] == ["some"]
    monkeypatch.setattr(spatial, "embed", None)  # not needed again
    again = conformers(texts, cache=tmp_path, name="some")
    assert again == made
    assert again.broken == ((5, "no molecule: does not parse"),)
    assert all(type(x) is float for x in again[0].positions[0])


def test_the_cache_is_of_content_and_options(tmp_path: Path) -> None:
    for options in ({}, {"seed": 1}, {"hydrogens": False}, {"aromatic": True}):
        conformers(["CCO"], cache=tmp_path, **options)
    conformers(["CCN"], cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 5
    conformers(["CCO"], cache=tmp_path, jobs=2)
    assert len(list(tmp_path.iterdir())) == 5


def test_a_cache_that_cannot_be_written_in_is_told_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = conformers(["CCO"], cache=tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert conformers(["CCO"], cache=tmp_path) == made
    monkeypatch.setattr(spatial, "embed", None)
    with pytest.raises(ValueError, match=r"^cache_dir: .* cannot be written in, expected a folder with write permission$"):
        conformers(["CCN"], cache=tmp_path)


def test_a_full_disk_names_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **arrays: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(spatial, "write_arrays", full)
    with pytest.raises(OSError, match=r"^cache_dir: .*\.npz cannot be written \(No space left on device\)$"):
        conformers(["CCO"], cache=tmp_path)


def test_a_damaged_cache_is_made_again(tmp_path: Path) -> None:
    made = conformers(["CCO"], cache=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.warns(RuntimeWarning, match="damaged, and made again"):
        assert conformers(["CCO"], cache=tmp_path) == made
    assert conformers(["CCO"], cache=tmp_path) == made


def test_an_empty_set_is_cached(tmp_path: Path) -> None:
    assert len(conformers([], cache=tmp_path)) == 0
    assert conformers([], cache=tmp_path).molecules == ()


# -- files


@pytest.mark.parametrize("suffix", [".sdf", ".sdf.gz", ".xyz", ".xyz.gz"])
def test_a_file_is_loaded_as_it_was_written(tmp_path: Path, suffix: str) -> None:
    made, path = conformers(SMILES), tmp_path / f"set{suffix}"
    text = (to_sdf if "sdf" in suffix else to_xyz)(made)
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith(".gz") else text.encode())
    found = load_spatial(path)
    assert found.name == "set"
    assert [smiles_of(m) for m in found] == SMILES
    assert [m.positions for m in found] == [m.positions for m in made]
    assert load_spatial(path, cache=tmp_path / "cache") == found == load_spatial(path, cache=tmp_path / "cache")


def test_a_file_can_lose_its_hydrogens(tmp_path: Path) -> None:
    path = tmp_path / "set.sdf"
    path.write_text(to_sdf(conformers(SMILES, aromatic=True)))
    assert [len(m) for m in load_spatial(path, hydrogens=False)] == [3, 6, 4, 2, 1]
    assert {order for m in load_spatial(path) for _, _, order in m.bonds} == {1, 2, 3}
    assert {order for m in load_spatial(path, aromatic=True) for _, _, order in m.bonds} == {1, 2, 3, 4}
    with pytest.raises(ValueError, match="aromatic: True, expected False"):
        load_spatial(path, hydrogens=False, aromatic=True)


def test_broken_molecules_of_a_file_are_counted(tmp_path: Path) -> None:
    close = SpatialMolecule(("C", "C"), (0, 0), (), ((0, 0, 0), (0, 0, 0.01)))
    crowded = SpatialMolecule(("F", "H", "H"), (0,) * 3, ((0, 1, 1), (0, 2, 1)), ((0, 0, 0), (1, 0, 0), (0, 1, 0)))
    path = tmp_path / "set.sdf"
    path.write_text(to_sdf([HYDROGEN, close, HYDROGEN, crowded]))
    found = load_spatial(path, max_broken=0.5)
    assert found.sources == (0, 2)
    assert [k for k, _ in found.broken] == [1, 3]
    assert "0.010 Å apart" in found.broken[0][1]
    assert found.broken[1][1] == "does not sanitise"
    with pytest.raises(ValueError, match=r"has 2 of 4 records that are no molecule \(50\.0%, max_broken 5\.0%\): record 2: "):
        load_spatial(path)


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"set\.smi', expected a file ending in \.sdf or \.xyz"):
        load_spatial(tmp_path / "set.smi")
    with pytest.raises(FileNotFoundError, match=r"set\.sdf' is no file, expected an \.sdf or \.xyz of molecules"):
        load_spatial(tmp_path / "set.sdf")
    (tmp_path / "set.xyz").write_text("")
    with pytest.raises(ValueError, match="holds no molecules"):
        load_spatial(tmp_path / "set.xyz")


# -- statistics


def test_statistics_of_two_small_molecules() -> None:
    triangle = SpatialMolecule(("O", "C", "C"), (-1, 0, 0), ((0, 1, 1), (1, 2, 3)), ((0, 0, 0), (3, 0, 0), (0, 3, 0)))
    found = spatial_statistics([HYDROGEN, triangle], "two")
    assert found.node_counts == (0.0, 0.0, 0.5, 0.5)
    assert (found.symbols, found.symbol_marginal) == (("H", "C", "O"), (0.4, 0.4, 0.2))
    assert (found.charges, found.charge_marginal) == ((-1, 0), (0.2, 0.8))
    assert found.bond_marginal == (0.25, 0.5, 0.0, 0.25, 0.0)
    centred = [[-0.37, 0.0, 0.0], [0.37, 0.0, 0.0], [-1.0, -1.0, 0.0], [2.0, -1.0, 0.0], [-1.0, 2.0, 0.0]]
    assert found.position_std == pytest.approx(np.sqrt(np.mean(np.square(centred))))
    assert (found.num_molecules, found.name) == (2, "two")


def test_statistics_survive_json() -> None:
    found = spatial_statistics(conformers(SMILES), "five")
    assert SpatialStatistics.from_json(json.loads(json.dumps(found.to_json()))) == found
    for total in (found.node_counts, found.symbol_marginal, found.charge_marginal, found.bond_marginal):
        assert sum(total) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="statistics: fields"):
        SpatialStatistics.from_json({"symbols": []})


def test_no_statistics_of_nothing() -> None:
    for nothing in ([], [SpatialMolecule((), (), (), ())]):
        with pytest.raises(ValueError, match=f"molecules: {len(nothing)} with 0 atoms, expected at least one atom"):
            spatial_statistics(nothing)


def test_a_policy_can_draw_what_its_statistics_have() -> None:
    oxygen = SpatialMolecule(("O", "O"), (0, 0), ((0, 1, 2),), ((0, 0, 0), (1.2, 0, 0)))
    carbon = SpatialMolecule(("C",) * 4, (0,) * 4, tuple((k, k + 1, 1) for k in range(3)), tuple((1.5 * k, 0, 0) for k in range(4)))
    nitrogen = SpatialMolecule(("O", "O"), (0, 0), ((0, 1, 3),), ((0, 0, 0), (1.2, 0, 0)))
    stats = spatial_statistics([oxygen, carbon])
    assert bond_shares(stats) == stats.bond_marginal[:3]
    assert fits(oxygen, stats)
    assert fits(carbon, stats)
    assert not fits(nitrogen, stats)  # a triple bond
    for n in (3, 5):  # between the sizes, and beyond them
        assert not fits(SpatialMolecule(("C",) * n, (0,) * n, (), tuple((1.5 * k, 0, 0) for k in range(n))), stats)
    assert not fits(replace(oxygen, charges=(0, 1)), stats)
    assert not fits(replace(oxygen, symbols=("O", "S")), stats)
    lone = SpatialMolecule(("He", "He"), (0, 0), (), ((0, 0, 0), (3, 0, 0)))
    assert bond_shares(spatial_statistics([lone])) == (1.0, 0.0)


def test_a_molecule_that_is_not_relaxed_to_the_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformers_of_rdkit, "_MAX_STEPS", 1)
    made = conformers_of_rdkit.embed("CC(C)CCO", 0, hydrogens=True, aromatic=False)
    assert isinstance(made, SpatialMolecule)
    assert smiles_of(made) == "CC(C)CCO"


def test_several_parts_have_no_conformer() -> None:
    assert conformers_of_rdkit.embed("CC.O", 0, hydrogens=True, aromatic=False) == "has several parts"


def test_stored_coordinates_are_rounded_and_have_no_negative_zero() -> None:
    mol = Chem.AddHs(Chem.MolFromSmiles("[H][H]"))
    rdDistGeom.EmbedMolecule(mol, randomSeed=1)
    for k, place in enumerate([(-1e-6, 0.12344, -0.0), (0.74321, -0.12346, 0.00004)]):
        mol.GetConformer().SetAtomPosition(k, place)
    made = conformers_of_rdkit.as_stored(mol, hydrogens=True, aromatic=False)
    assert isinstance(made, SpatialMolecule)
    assert str(made.positions) == "((0.0, 0.1234, 0.0), (0.7432, -0.1235, 0.0))"
