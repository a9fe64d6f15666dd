"""The script that counts launches runs, and the committed table holds what is said of it."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.common import ROOT
from benchmarks.launches import BUNDLED, PRESET, main


def test_the_script_counts_a_policy(tmp_path: Path) -> None:
    out = tmp_path / "launches.json"
    found = main(["--policies", "fill-in", "--out", str(out)])["fill-in"]
    assert found["step"]["launches"] > 50
    assert found["update"]["synchronisations"] < 5
    assert json.loads(out.read_text())["policies"]["fill-in"] == found


def test_the_committed_table_meets_the_aims() -> None:
    table = json.loads((ROOT / "benchmarks/results/launches.json").read_text())["policies"]
    assert set(table) == {*BUNDLED, PRESET}
    for name, row in table.items():
        assert row["update"]["synchronisations"] < 5, name
        assert row["update"]["blocking_copies"] == 0, name
    for name in ("qm9-small", "tree-16", "planar-16", "qm9-3d", PRESET):
        assert row_of(table, name, "step")["blocking_copies"] == 0, name
        assert row_of(table, name, "step")["synchronisations"] == 0, name
        assert row_of(table, name, "recorded step")["launches"] <= 250, name
        assert row_of(table, name, "recorded step")["synchronisations"] == 0, name


def row_of(table: dict[str, dict[str, dict[str, float]]], name: str, part: str) -> dict[str, float]:
    return table[name][part]
