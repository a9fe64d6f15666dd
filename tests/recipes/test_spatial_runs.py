"""Molecules in space go through pretraining, GRPO, sampling and evaluation to the report."""

from __future__ import annotations

import csv
import gzip
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo import GRPOConfig, PretrainConfig, evaluate
from discrete_grpo.datasets.spatial import conformers, load_spatial
from discrete_grpo.domains.spatial_files import from_sdf, from_xyz, to_sdf, to_xyz
from discrete_grpo.domains.spatial_molecules import SpatialMolecule, from_cxsmiles, smiles_of
from discrete_grpo.models.equivariant import EquivariantSizes
from discrete_grpo.recipes.evaluate import evaluate_file
from discrete_grpo.recipes.families import FileOptions, SamplerOptions, family_of
from discrete_grpo.recipes.kinds.spatial import SPATIAL
from discrete_grpo.recipes.loading import load
from discrete_grpo.recipes.pretraining.pretrain import pretrain
from discrete_grpo.recipes.pretraining.spatial import PretrainSpatialRecipe, split_molecules
from discrete_grpo.recipes.sample import sample, sample_file
from discrete_grpo.recipes.train import TrainRecipe, run_train
from discrete_grpo.rewards.molecules import molecular_weight
from discrete_grpo.rewards.spatial import atom_stability
from discrete_grpo.runs.checkpoint import Checkpoints, load_metadata
from discrete_grpo.runs.recorder import read_metrics
from discrete_grpo.runs.serialization import CheckpointError

TINY = EquivariantSizes(layers=1, heads=2, width=16, edge_width=8, global_width=8)
SMILES = ("O", "CO", "C#N", "C=O", "CC", "N", "C", "C#C", "OO", "CN", "CF", "C[O-]", "[NH4+]")
SEEN: list[Any] = []


def weight(samples: list[str | None], **columns: Any) -> list[float]:
    """Molecular weight of SMILES."""
    SEEN.extend(samples)
    return molecular_weight(samples)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spatial")


def recipe(work: Path, data: str, **changes: Any) -> PretrainSpatialRecipe:
    loop = PretrainConfig(max_steps=40, batch_size=8, learning_rate=1e-2, warmup_steps=0, save_steps=20)
    fixed: dict[str, Any] = {"num_steps": 4, "network": TINY, "pretrain": loop, "evaluation_samples": 6, "test_share": 0.2}
    fixed["output_dir"] = str(work / "pretrained")
    return PretrainSpatialRecipe(data=data, **fixed | changes)


@pytest.fixture(scope="module")
def pretrained(work: Path) -> Path:
    (work / "small.smi").write_text("\n".join(SMILES) + "\n", encoding="utf-8")
    return pretrain(recipe(work, str(work / "small.smi"), learned_variance=True))


def test_pretraining_keeps_what_it_takes_to_use_the_policy(pretrained: Path) -> None:
    metadata = load_metadata(pretrained)
    assert metadata["kind"] == "spatial"
    assert metadata["data"]["molecules"] == 10
    held_out = from_sdf((pretrained.parent / "test.sdf").read_text(encoding="utf-8"))
    assert len(held_out) == 3
    assert {smiles_of(one) for one in held_out} <= set(SMILES)
    assert {"eval/molecule_stable", "eval/valid"} <= {name for line in read_metrics(pretrained.parent) for name in line}
    loaded = load(pretrained, SamplerOptions(num_steps=3, temperature=0.5))
    assert loaded.family is SPATIAL
    assert (loaded.policy.num_steps, loaded.policy.temperature) == (3, 0.5)
    found = sample(pretrained, 4, seed=1)
    assert all(isinstance(one, SpatialMolecule) for one in found)
    assert found == sample(pretrained, 4, seed=1)


def test_a_run_that_was_stopped_goes_on_to_the_same_policy(pretrained: Path, work: Path) -> None:
    again = recipe(work, str(work / "small.smi"), learned_variance=True, output_dir=str(work / "again"))
    shutil.copytree(pretrained.parent, work / "again")
    shutil.rmtree(work / "again" / "policy")
    shutil.rmtree(Checkpoints(work / "again").all()[-1])  # as if it had been killed after update 20
    made = pretrain(again, resume=True)
    assert (made / "model.safetensors").read_bytes() == (pretrained / "model.safetensors").read_bytes()


@pytest.mark.parametrize("ending", [".sdf", ".xyz", ".csv", ".sdf.gz", ".smi"])
def test_samples_are_written_and_evaluated(pretrained: Path, work: Path, ending: str) -> None:
    path = sample_file(str(pretrained), 8, str(work / f"samples{ending}"), seed=3)
    drawn = [one for one in sample(pretrained, 8, seed=3) if one is not None]
    text = gzip.decompress(path.read_bytes()).decode() if ending.endswith(".gz") else path.read_text(encoding="utf-8")
    if ending.startswith(".sdf"):
        assert text == to_sdf(drawn)
    elif ending == ".xyz":
        assert text == to_xyz(drawn)
        return  # bonds of a policy that has learned little cannot be perceived
    elif ending == ".smi":
        assert text.splitlines() == list(map(str, drawn))
    else:
        rows = list(csv.DictReader(text.splitlines()))
        assert [row["cxsmiles"] for row in rows] == [str(one) for one in drawn]
        assert list(rows[0]) == ["cxsmiles", "smiles", "stable_atoms", "strain_per_atom"]
        assert [float(row["stable_atoms"]) for row in rows] == pytest.approx(atom_stability(drawn))
    again = evaluate_file(str(path))
    assert again["num_samples"] == 8
    assert again["atom_octet"] == pytest.approx(evaluate(drawn, kind="spatial")["atom_octet"])


def test_a_record_without_bonds_has_no_atoms_and_a_line_says_so(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (one,) = conformers(["CCO"])
    bad = "2\nno bond can be told\nC 0 0 0\nC 9 0 0\n"
    (work / "some.xyz").write_text(to_xyz([one]) + bad, encoding="utf-8")
    found = evaluate_file(str(work / "some.xyz"))
    assert (found["atom_stable"], found["molecule_stable"]) == (1.0, 0.5)
    said = capsys.readouterr().err
    assert "1 of 2 records are no molecule in space" in said
    assert "some.xyz: shares of atoms, such as atom_stable, are of the atoms of the other records" in " ".join(said.split())


def test_a_file_is_held_against_a_reference_alone_and_by_the_suite(work: Path, pretrained: Path) -> None:
    data = conformers(SMILES)
    path = work / "data.sdf"
    path.write_text(to_sdf(data), encoding="utf-8")
    assert [smiles_of(one) for one in load_spatial(path)] == [smiles_of(one) for one in data]
    plain = evaluate_file(str(path), FileOptions(reference=str(path)))
    assert (plain["valid"], plain["molecule_octet"], plain["novel"]) == (1.0, 1.0, 0.0)
    assert plain["w1_bond_length"] == pytest.approx(0.0, abs=1e-9)
    assert plain["strain_per_atom"] < 0.1
    suite = evaluate_file(str(path), FileOptions(reference=str(path), suite="spatial", bootstrap=0))
    assert suite["w1_bond_length"] == pytest.approx(0.0, abs=1e-9)
    assert suite["valid"] == 1.0
    xyz = work / "data.xyz"
    xyz.write_text(to_xyz(data), encoding="utf-8")
    assert [smiles_of(one) for one in from_xyz(to_xyz(data))] == [smiles_of(one) for one in data]
    assert evaluate_file(str(xyz))["valid"] == 1.0


def test_grpo_trains_it_on_rewards_with_and_without_positions(pretrained: Path, work: Path) -> None:
    SEEN.clear()
    config = GRPOConfig(max_steps=2, num_generations=4, generation_batch_size=8, learning_rate=1e-3, beta=0.1)
    fixed: dict[str, Any] = {"policy": str(pretrained), "grpo": config, "evaluation_samples": 6}
    run_train(TrainRecipe(reward=atom_stability, output_dir=str(work / "run"), **fixed))
    report = (work / "run" / "report.html").read_text(encoding="utf-8")
    assert report.count("data-positions=") >= 6
    line = read_metrics(work / "run")[-1]
    assert {"fields/positions/kl", "fields/bond/log_ratio", "molecule_stable"} <= set(line)
    run_train(TrainRecipe(reward=weight, rewards_see="smiles", output_dir=str(work / "flat"), **fixed))
    assert SEEN
    assert all(one is None or isinstance(one, str) for one in SEEN)


def test_the_family_knows_its_files_its_texts_and_its_pictures() -> None:
    water = conformers(("O",))[0]
    assert SPATIAL.holds(Path("a.xyz.gz"), "")
    assert SPATIAL.holds(Path("a.csv"), "cxsmiles,reward")
    assert not SPATIAL.holds(Path("a.csv"), "smiles")
    assert SPATIAL.holds(Path("a.smi"), str(conformers(("N",))[0]))
    assert SPATIAL.holds(Path("a.smiles.gz"), "[H][H] |(0,0,;0.74,0,0.5)|")
    flat = "CCO |(0,0,;1.3,0.75,;2.6,0,)|"  # such as a drawing
    assert not any(SPATIAL.holds(Path("a.smi"), line) for line in ("O", flat, "CC |$R1;$|"))
    assert SPATIAL.key(water) == str(water)
    assert SPATIAL.key(None) is None
    assert SPATIAL.draw is not None
    assert (SPATIAL.draw(str(water)) or "").startswith("<svg")
    assert SPATIAL.picture is not None
    assert (SPATIAL.picture([str(water), ""], ["1", "2"]) or b"").startswith(b"\x89PNG")
    assert math.isclose(from_cxsmiles(str(water)).positions[0][0], water.positions[0][0], abs_tol=1e-4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": "no.sdf"}, "no.sdf"),
        ({"data": "flat.smi", "max_molecules": 1}, "max_molecules: 1, expected at least 2"),
        ({"data": "flat.smi", "hydrogens": False, "aromatic": True}, "aromatic: True, expected False where hydrogens is False"),
        ({"data": "flat.smi", "test_share": 1.0}, "test_share: 1.0"),
        ({"data": "flat.smi", "jobs": 0}, "jobs: 0"),
        ({"data": "flat.smi"}, "flat.smi has 1 molecules in space, expected at least 2"),
        (
            {"data": "lines.g6"},
            "data: 'lines.g6', expected a file ending in .sdf, .xyz, .smi, .smiles, .txt, .csv, .tsv, or one of",
        ),
        (
            {"data": "salt.smi"},
            "of 3 molecules without a conformer (33.3%, max_broken 5.0%): CN.O: has several parts",
        ),
        (
            {"data": "space.smi"},
            "data: space.smi has positions, expected them in .sdf or .xyz, or SMILES alone, of which",
        ),
        ({"data": "ions.smi"}, "data: no molecule of ions.smi has a bond, expected at least one that has"),
        ({"data": "space.csv"}, "data: space.csv has positions, expected them in .sdf or .xyz"),
        ({"data": "odd.smi"}, "odd.smi has 1 of 3 molecules without a conformer (33.3%, max_broken 5.0%): F: no MMFF94 parameters"),
    ],
)
def test_bad_settings_are_one_line(work: Path, changes: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    (work / "flat.smi").write_text("CO\n", encoding="utf-8")
    (work / "lines.g6").write_text("Bw\n", encoding="utf-8")
    (work / "odd.smi").write_text("CO\nF\nCC\n", encoding="utf-8")
    (work / "ions.smi").write_text("[Cl-]\n[Na+]\n[K+]\n", encoding="utf-8")
    (work / "salt.smi").write_text("CO\nCN.O\nCC\n", encoding="utf-8")
    (work / "space.smi").write_text("[H][H] |(0,0,;0.74,0.5,0.25)|\n" * 3, encoding="utf-8")
    (work / "space.csv").write_text('smiles,cxsmiles\n[H][H],"[H][H] |(0,0,;0.74,0.5,0.25)|"\n', encoding="utf-8")
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        pretrain(recipe(work, **{"output_dir": str(work / "refused"), **changes}))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_files_and_options_are_one_line(work: Path, pretrained: Path) -> None:
    empty, table, bad = work / "empty.sdf", work / "table.csv", work / "bad.sdf"
    empty.write_text("", encoding="utf-8")
    table.write_text("cxsmiles\nCCO\n", encoding="utf-8")
    bad.write_text("nothing\n$$$$\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"empty\.sdf is empty, expected at least one molecule"):
        evaluate_file(str(empty))
    assert evaluate_file(str(table))["valid"] == 0.0
    with pytest.raises(ValueError, match=r"bad\.sdf' holds no sample of the kind spatial \(1 were looked at\)"):
        evaluate_file(str(bad))
    with pytest.raises(FileNotFoundError, match=r"reference: .*nowhere\.sdf does not exist"):
        evaluate_file(str(table), FileOptions(reference=str(work / "nowhere.sdf")))
    with pytest.raises(ValueError, match=r"reference: .*small\.smi holds no molecule with positions, expected at least one"):
        evaluate_file(str(table), FileOptions(reference=str(work / "small.smi")))
    with pytest.raises(ValueError, match="reference: None, expected a file of molecules in space with suite 'spatial'"):
        evaluate_file(str(table), FileOptions(suite="spatial"))
    with pytest.raises(ValueError, match="shape"):
        evaluate([], kind="spatial", shape="tree")
    with pytest.raises(ValueError, match="rewards_see: 'pyg', expected 'text' or 'smiles' with molecules in space"):
        run_train(TrainRecipe(policy=str(pretrained), reward=weight, rewards_see="pyg", output_dir=str(work / "no")))
    with pytest.raises(CheckpointError, match="has no statistics of molecules in space"):
        family_of({"kind": "spatial"}).decode(load(pretrained).policy, {})


def test_doubtful_positions_are_told(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = conformers(SMILES).molecules
    heavy = conformers(SMILES[:-3], hydrogens=False).molecules
    drawn = [replace(one, positions=tuple((x, y, 0.0) for x, y, _ in one.positions)) for one in made]
    small = [replace(one, positions=tuple((x / 10, y / 10, z / 10) for x, y, z in one.positions)) for one in made]
    told = {
        "fine": (made, None),
        "drawn": (drawn, "all z are 0 in 11 of 13 molecules, as in drawings"),
        "nanometres": (small, "half of the bonds are longer than 0.109 Å, expected about 1 to 1.5 Å; are the positions in Å?"),
        "heavy": (heavy, "molecules have no hydrogen atoms; with hydrogens, expected them as atoms, or --hydrogens=false"),
    }
    for name, (molecules, said) in told.items():
        (work / f"{name}.sdf").write_text(to_sdf(molecules), encoding="utf-8")
        split_molecules(recipe(work, str(work / f"{name}.sdf"), max_broken=0.9))
        found = " ".join(capsys.readouterr().err.split())
        assert said in found if said else "data: " not in found, (name, found)


def test_a_table_of_a_run_is_evaluated(tmp_path: Path) -> None:
    table = tmp_path / "evaluation_after.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(
            [["sample", "reward", "smiles"], ["", 0, ""], *([str(one), 1, "C"] for one in conformers(["CCO"]))]
        )
    found = evaluate_file(str(table))
    assert (found["num_samples"], found["valid"]) == (2, 0.5)


@pytest.mark.parametrize("name", ["a.pdb", "a.mol2.gz", "a.png.gz", "a.tsv"])
def test_an_ending_that_molecules_in_space_do_not_have_is_refused(pretrained: Path, tmp_path: Path, name: str) -> None:
    said = r"expected a file of spatial ending in \.csv, \.sdf, \.xyz, \.smi, \.smiles or \.txt, also with \.gz"
    with pytest.raises(ValueError, match=said):
        sample_file(str(pretrained), 2, str(tmp_path / name))
