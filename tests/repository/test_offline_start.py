"""The benchmark of a start on measured scores: levels, calls to reach them, and a run of the smallest size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.offline_start import Settings, calls_to_reach, kept, levels_of, main, table, table_of

ROWS = [
    {"start": "none", "seed": 0, "calls": [10, 20, 30, 40], "reward": [0.0, 0.2, 0.4, 0.6]},
    {"start": "table", "seed": 0, "calls": [8, 18, 28, 38], "reward": [0.4, 0.5, 0.6, 0.6]},
]


def test_calls_are_those_of_the_first_update_whose_running_mean_reaches_the_level() -> None:
    assert calls_to_reach(0.2, ROWS[0]["calls"], ROWS[0]["reward"]) == 30  # type: ignore[arg-type]  # means 0, 0.1, 0.2, 0.4
    assert calls_to_reach(0.41, ROWS[0]["calls"], ROWS[0]["reward"]) is None  # type: ignore[arg-type]
    assert levels_of(ROWS, None) == [0.3, 0.35, 0.4]  # from 0.2 to 0.4, of the run without a table
    assert levels_of(ROWS, [0.7]) == [0.7]


def test_the_table_has_a_line_per_start() -> None:
    found = table(ROWS, [0.2, 0.45])
    assert found["start: none"] == {"first_reward": 0.0, "last_reward": 0.6, "calls to 0.2": "30", "calls to 0.45": "never"}
    assert found["start: table"]["calls to 0.2"] == "8"


def test_the_table_of_scores_is_a_part_of_the_list_with_scores_of_the_task() -> None:
    data = table_of(Settings(rows=5), seed=1)
    assert len(set(data.samples)) == len(data) == 5
    assert bool(((data.scores > 0) & (data.scores < 1)).all())
    part = kept(data, [3, 1])
    assert (part.samples, part.scores.tolist()) == ([data.samples[3], data.samples[1]], data.scores[[3, 1]].tolist())


def test_a_tiny_run_writes_what_it_promises(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    small = ["--rows=6", "--offline_steps=1", "--updates=1", "--batch=4", "--group=4", "--num_steps=2", "--seeds", "7"]
    threads = torch.get_num_threads()
    try:
        main([*small, "--out", str(out)])
    finally:
        torch.set_num_threads(threads)
    result = json.loads(out.read_text())
    assert {"command", "commit", "sources", "settings", "levels", "table", "rows"} <= result.keys()
    assert [(row["start"], row["seed"]) for row in result["rows"]] == [("none", 7), ("table", 7)]
    assert result["rows"][1]["offline/ratio"] == pytest.approx(1)
    assert all(len(row["calls"]) == len(row["reward"]) == 1 for row in result["rows"])
