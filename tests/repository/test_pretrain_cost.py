"""Cost of pretraining by a preset: what is counted is what the preset asks for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import pretrain_cost
from benchmarks.pretrain_cost import LAUNCH, estimates, main, recipe_of
from discrete_grpo.models.graph_transformer import NetworkSizes

SMILES = ["CC(=O)[O-]", "C[N+](C)(C)C", "c1ccccc1Cl", "CCO", "CCS", "C#N"]


def test_the_recipe_is_that_of_the_preset() -> None:
    recipe = recipe_of("zinc-graph")
    assert (recipe.network.layers, recipe.network.connectivity, recipe.precondition, recipe.max_atoms) == (8, True, True, 38)
    assert (recipe.pretrain.max_steps, recipe.pretrain.batch_size) == (100_000, 256)


def test_hours_follow_from_seconds_launches_and_products() -> None:
    row = {"seconds": [1.0, 9.0, 2.0], "launches": 1000, "gflops": 0.0}
    assert estimates(row, 3600) == {"core_hours": 4.0, "gpu_hours": 1000 * LAUNCH}
    assert estimates(row | {"launches": 0, "gflops": pretrain_cost.RATE / 1e9}, 7200)["gpu_hours"] == pytest.approx(2.0)


@pytest.mark.slow
def test_the_script_writes_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = replace(recipe_of("zinc-graph"), network=NetworkSizes(layers=1, heads=2, width=8, edge_width=4, global_width=4))
    monkeypatch.setattr(pretrain_cost, "recipe_of", lambda preset: tiny)
    (tmp_path / "data.smi").write_text("\n".join(SMILES * 3) + "\n")
    main([f"--data={tmp_path / 'data.smi'}", "--updates=2", "--batch", "6", "3", f"--out={tmp_path / 'r.json'}"])
    result = json.loads((tmp_path / "r.json").read_text())
    assert [row["batch_size"] for row in result["rows"]] == [6, 3]
    few, many = result["rows"][1], result["rows"][0]
    assert len(many["seconds"]) == 2
    assert many["gflops"] > few["gflops"] > 0
    assert many["launches"] == few["launches"] > 100
    assert "discrete_grpo/cli/presets/zinc-graph.yaml" in result["sources"]
