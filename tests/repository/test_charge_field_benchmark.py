"""The benchmark of charges as a field: equal variants, shares of charged atoms, and a run of the smallest size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.charge_field import JointMolecules, Settings, charged, joint_policy, main, table
from discrete_grpo.core.rollout import Context
from discrete_grpo.datasets.molecule_fields import FieldMolecules, field_statistics
from discrete_grpo.datasets.molecules import dataset_from_smiles, statistics
from discrete_grpo.recipes.pretraining.molecule_fields import molecule_field_policy

SMILES = ("C[O-]", "C[NH3+]", "[NH3+]C[O-]", "CO", "CN", "CC", "C=O", "CCO", "C#N", "C1CC1")
TINY: dict[str, Any] = {"layers": 1, "heads": 2, "width": 16, "edge_width": 8, "global_width": 8}
SMALL = [f"--{name}={value}" for name, value in TINY.items()]


def test_shares_are_of_valid_molecules_and_of_their_atoms() -> None:
    molecules, atoms = charged([*SMILES, None, "C(C)(C)(C)(C)C"])
    assert molecules == pytest.approx(3 / 10)
    assert atoms == pytest.approx(4 / 23)
    assert charged([None]) == (0, 0)


def test_the_variants_have_one_network_one_noise_and_the_same_molecules() -> None:
    data, settings = dataset_from_smiles(SMILES), Settings(**TINY, num_steps=4)
    stats = statistics(data)
    joint = joint_policy(stats, settings.sizes, settings.options, seed=0)
    fields = molecule_field_policy(field_statistics(stats), settings.sizes, settings.options, seed=0)
    assert vars(joint.network.config).keys() == vars(fields.network.config).keys()
    same = [name for name in vars(joint.network.config) if "node" not in name]
    assert all(getattr(joint.network.config, name) == getattr(fields.network.config, name) for name in same)
    assert joint.edge_fields == fields.edge_fields
    assert [field.weight for field in (*joint.node_fields, *fields.node_fields)] == [1.0, 1.0, 1.0]
    rows = torch.tensor([2, 7])
    whole, apart = JointMolecules(data).batch(rows), FieldMolecules(data, field_statistics(stats).fields).batch(rows)
    assert joint.decode is not None
    assert fields.decode is not None
    assert joint.decode(whole) == fields.decode(apart) == [data.smiles[2], data.smiles[7]]
    drawn = joint.sample([Context(k) for k in range(4)], generator=torch.Generator().manual_seed(0)).samples
    assert all(text is None or isinstance(text, str) for text in drawn)


def test_the_table_has_means_over_seeds() -> None:
    rows: list[dict[str, Any]] = [
        {"variant": "joint", "valid": 0.5, "unique": 1.0, "charged_molecules": 0.25, "charged_atoms": 0.125},
        {"variant": "joint", "valid": 1.0, "unique": 1.0, "charged_molecules": 0.75, "charged_atoms": 0.125},
    ]
    found = table(rows, {"charged_atoms": 0.1})
    assert found["joint"]["valid"] == "0.7500 ± 0.2500"
    assert found["joint"]["seeds"] == "2"
    assert found["data"] == {"charged_atoms": "0.1000"}


def test_a_second_call_measures_what_is_missing(tmp_path: Path) -> None:
    data, out = tmp_path / "small.smi", tmp_path / "result.json"
    data.write_text("\n".join(SMILES) + "\n", encoding="utf-8")
    places = ["--data", str(data), "--out", str(out), "--work", str(tmp_path / "work")]
    given = [*places, *SMALL, "--updates=2", "--batch=4", "--samples=4", "--num_steps=2", "--seeds", "7"]
    threads = torch.get_num_threads()
    try:
        first = main([*given, "--runs=1"])
        again = main(given)
        with pytest.raises(SystemExit, match=r"--out: .*result\.json has other settings"):
            main([*given, "--width=32"])
    finally:
        torch.set_num_threads(threads)
    assert [(row["variant"], row["seed"]) for row in again["rows"]] == [("joint", 7), ("field", 7)]
    assert again["rows"][0] == first["rows"][0]
    assert [row["stamp"] for row in again["rows"]] == [0, 1]
    assert json.loads(out.read_text()) == again
    assert {"command", "commit", "sources", "machine"} <= again["stamps"][0].keys()
    assert again["of_data"]["charged_molecules"] == pytest.approx(0.3)
    assert {"valid", "unique", "charged_molecules", "charged_atoms", "parameters"} <= again["rows"][0].keys()
