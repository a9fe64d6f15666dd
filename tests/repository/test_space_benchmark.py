"""The parts of ``benchmarks/space.py`` that do not train."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from benchmarks.space import held_out, noise, summary
from discrete_grpo.datasets.spatial import conformers
from discrete_grpo.domains.spatial_molecules import smiles_of


def test_the_control_is_random_and_always_the_same() -> None:
    molecules = [*conformers(("CO", "CC", "C=O", "CN", "C#N", "OO", "CCO", "CCN")), None]
    first = noise(molecules)
    assert first == noise(molecules)
    assert len(set(first)) == len(first)
    assert all(0 <= x < 1 for x in first)


def test_means_are_over_the_seeds_of_a_reward() -> None:
    rows = [
        {
            "reward": name,
            "before": dict.fromkeys(("molecule_octet", *OTHER), low),
            "after": dict.fromkeys(("molecule_octet", *OTHER), low + 1),
        }
        for name, low in (("a", 0.0), ("a", 1.0), ("b", 5.0))
    ]
    table = summary(rows)
    assert table["a, before"]["molecule_octet"] == statistics.fmean((0.0, 1.0))
    assert table["a, after"]["valid"] == 1.5
    assert table["b, after"]["valid"] == 6.0


OTHER = ("molecule_stable", "atom_stable", "valid", "unique", "w1_bond_length", "w1_bond_angle", "strain_per_atom")


def test_held_out_molecules_are_those_of_the_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["CO", "CC", "C=O", "CN", "C#N", "OO", "CCO", "CCN", "N", "O"]
    (tmp_path / "small.smi").write_text("\n".join(names), encoding="utf-8")
    monkeypatch.setattr("benchmarks.space.yaml.safe_load", lambda text: {"max_molecules": 8, "jobs": 1})
    found = held_out(str(tmp_path / "small.smi"), str(tmp_path / "cache"), 5)
    assert len(found) == 1
    assert smiles_of(found[0]) in names
