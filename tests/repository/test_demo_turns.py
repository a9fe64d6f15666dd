"""The parts of ``benchmarks/demo_turns.py`` that do not train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import demo_turns
from benchmarks.common import ROOT


def row(seconds: float, after: float) -> dict[str, Any]:
    evaluation = {"before": {"reward": 0.5}, "after": {"reward": after}}
    clocks = {"seconds": seconds, "processor_seconds": 2 * seconds, "seconds_per_update": seconds / 8}
    return {"preset": "demo", "threads": 1, **clocks, "evaluation": evaluation}


def test_ratios_are_of_pairs_and_rewards_are_means() -> None:
    rows = [{"earlier": row(4.0, 0.6), "later": row(2.0, 0.7)}, {"earlier": row(9.0, 0.8), "later": row(3.0, 0.7)}]
    found = demo_turns.summary(rows)
    ratios = {"median": 2.5, "least": 2.0, "most": 3.0}
    assert found["times_faster"] == {"seconds": ratios, "processor_seconds": ratios, "seconds_per_update": ratios}
    assert found["mean_reward"] == pytest.approx(
        {"earlier_before": 0.5, "earlier_after": 0.7, "later_before": 0.5, "later_after": 0.7}
    )


def test_a_folder_of_this_checkout_is_no_other_commit() -> None:
    with pytest.raises(ValueError, match=r"^earlier: .+tests belongs to this checkout, expected one of another commit$"):
        demo_turns.commit_of(ROOT / "tests")


def test_each_checkout_runs_its_own_code_and_the_first_one_alternates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = []

    def run(preset: str, folder: Path, seed: int, threads: int, root: Path) -> dict[str, Any]:
        ran.append((preset, seed, threads, root))
        return row(1.0, 0.5)

    monkeypatch.setattr(demo_turns, "run", run)
    monkeypatch.setattr("benchmarks.demo_turns.subprocess.run", lambda *arguments, **options: None)  # compiles nothing
    monkeypatch.setattr(demo_turns, "stamp", lambda seed, sources: {"seed": seed})
    monkeypatch.setattr(demo_turns, "commit_of", lambda root: f"commit of {root.name}")
    earlier, here = tmp_path / "earlier", ROOT
    result = demo_turns.main([f"--earlier={earlier}", "--seeds", "3", "4", "--threads=1", f"--out={tmp_path / 'out.json'}"])
    assert ran == [("demo", 3, 1, earlier), ("demo", 3, 1, here), ("demo", 4, 1, here), ("demo", 4, 1, earlier)]
    assert result["earlier_commit"] == "commit of earlier"
    assert [(r["seed"], r["first"]) for r in result["rows"]] == [(3, "earlier"), (4, "later")]
