"""The benchmark of sampler grids: its Fréchet distance, and that a stopped measurement goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import sampler_grids
from benchmarks.sampler_grids import described, frechet, main


def sqrtm(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eig(matrix)  # of a product of two covariances, which is not symmetric
    return (vectors * np.sqrt(values.astype(complex))) @ np.linalg.inv(vectors)


def test_frechet_distance_is_its_definition() -> None:
    rng = np.random.default_rng(1)
    a = rng.normal(size=(60, 3)) @ rng.normal(size=(3, 3)) + 0.4
    b = rng.normal(size=(80, 3)) @ rng.normal(size=(3, 3))
    x, y = a / b.std(0), b / b.std(0)
    first, second = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    wanted = ((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(first + second - 2 * sqrtm(first @ second)).real
    assert frechet(a, b) == pytest.approx(wanted, abs=1e-10)
    assert frechet(b, b) == pytest.approx(0, abs=1e-10)
    assert frechet(b + b.std(0), b) == pytest.approx(3, abs=1e-10)  # one standard deviation in each of three columns


def test_a_column_that_never_changes_counts_as_it_is() -> None:
    data = np.column_stack([np.arange(10.0), np.full(10, 2.0)])
    assert frechet(data + np.array([0.0, 1.0]), data) == pytest.approx(1)


def test_invalid_molecules_have_no_descriptors() -> None:
    found = described(["CCO", None, "C1CC1"])
    assert found.shape == (2, len(sampler_grids.DESCRIPTORS))
    assert found[:, 0] == pytest.approx([46.069, 42.081], abs=1e-3)


def test_a_second_call_measures_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sampler_grids, "FOLDS", 1)
    monkeypatch.setattr(sampler_grids, "FOLD", 2)
    threads = torch.get_num_threads()
    out = tmp_path / "grids.json"
    given = ["--policies", "tree-16", "--distortions", "polydec", "--out", str(out), "--steps", "2"]
    try:
        first = main(given)
        again: dict[str, Any] = main([*given, "3"])
    finally:
        torch.set_num_threads(threads)
    assert [row["num_steps"] for row in again["rows"]] == [2, 3]
    assert again["rows"][0] == first["rows"][0]
    assert [row["run"] for row in again["rows"]] == [0, 1]
    assert len(again["runs"]) == 2
    assert json.loads(out.read_text()) == again
    assert {"valid", "unique", "novel", "vun", "ratio", "seconds_per_1000"} <= again["rows"][0].keys()


def test_molecules_need_data(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--policies", "qm9-small"])
    assert "--data: none, expected a file of SMILES" in capsys.readouterr().err
