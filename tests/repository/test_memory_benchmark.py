"""The memory benchmark: its byte counts are real ones, a chunked update is flat in the number of steps, and the script runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from benchmarks.baseline_graph import PeerNetwork, PeerPolicy
from benchmarks.common import ROOT
from benchmarks.memory import (
    EDGE_PRIOR,
    NODE_PRIOR,
    Setting,
    draw,
    growth,
    main,
    make_policy,
    one_hot_bytes,
    storage,
    stored_bytes,
    update_peak,
)
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import marginal
from discrete_grpo.diffusion.schedules import CosineSchedule
from discrete_grpo.models.graph_transformer import GraphTransformerConfig

SMALL = Setting(batch=2, chunk=2, layers=1, width=8, edge_width=4, storage_steps=12, storage_batch=3, storage_total=6)


def test_one_hot_bytes_are_those_of_one_hot_trajectories() -> None:
    schedule = CosineSchedule()
    config = GraphTransformerConfig(9, 4, 9, 4, layers=1, heads=2, width=8, edge_width=6, global_width=4, walk_length=3)
    policy = PeerPolicy(
        PeerNetwork(config).eval(), D3PM(marginal(NODE_PRIOR, schedule)), D3PM(marginal(EDGE_PRIOR, schedule)), 5, 3
    )
    held = policy.sample(2, torch.Generator().manual_seed(0))
    assert (held.x.dtype, held.e.dtype, held.logp.dtype) == (torch.float32,) * 3
    assert 2 * one_hot_bytes(5, 3, 9, 4) == held.nbytes() + held.logp.numel() * held.logp.element_size()


def test_stored_bytes_leave_nothing_out() -> None:
    rollout = draw(make_policy(5, 3, SMALL), 2, seed=0)
    fields = [value for value in vars(rollout).values() if isinstance(value, torch.Tensor)] + list(rollout.states.values())
    assert stored_bytes(rollout) == sum(x.numel() * x.element_size() for x in fields)
    assert stored_bytes(rollout) >= 2 * 4 * (5 + 10), "a byte a site at least, at each of S + 1 states"


def test_zinc_size_trajectories_are_twenty_times_smaller() -> None:
    found = storage(SMALL)
    assert found["ratio"] == found["one_hot"] / found["ours"] > 20
    assert found["one_hot"] == 6 * one_hot_bytes(38, 12, 9, 4)
    assert 6 * 13 * (38 + 38 * 37 // 2) <= found["ours"] <= 1.3 * 6 * 13 * (38 + 38 * 37 // 2)


@pytest.mark.slow
def test_a_chunked_update_is_flat_in_the_number_of_steps() -> None:
    chunked = {steps: update_peak(8, steps, 2, SMALL) for steps in (4, 16)}
    whole = {steps: update_peak(8, steps, None, SMALL) for steps in (4, 16)}
    assert [chunked[steps]["count"] for steps in (4, 16)] == [2, 8]
    assert [whole[steps]["count"] for steps in (4, 16)] == [1, 1]
    assert chunked[16]["peak"] < 1.1 * chunked[4]["peak"]
    assert whole[16]["peak"] > 3 * whole[4]["peak"]
    one = draw(make_policy(8, 16, SMALL), 2, seed=0)
    assert chunked[16]["passes"] == stored_bytes(one), "all passes share one copy of the trajectories"


def test_growth_compares_what_was_run() -> None:
    peaks = [(9, 10, 5, 7), (9, 20, 5, 14), (9, 40, 6, None), (24, 10, 8, None)]
    rows = [{"nodes": n, "steps": s, "chunked": {"peak": c}, "whole": None if w is None else {"peak": w}} for n, s, c, w in peaks]
    assert growth(rows) == {
        "9": {"chunked": 1.2, "chunked_steps": 4.0, "whole": 2.0, "whole_steps": 2.0},
        "24": {"chunked": 1.0, "chunked_steps": 1.0, "whole": None, "whole_steps": None},
    }


def test_the_script_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = "--nodes 4 6 --steps 2 4 --layers 1 --width 8 --edge-width 4 --chunk 2 --storage-steps 3 --limit 50"
    result = main([*small.split(), "--out", str(tmp_path / "memory.json")])
    assert json.loads((tmp_path / "memory.json").read_text()) == json.loads(json.dumps(result))
    assert [(row["nodes"], row["steps"], row["whole"] is None) for row in result["updates"]] == [
        (4, 2, False),
        (4, 4, False),
        (6, 2, True),
        (6, 4, True),
    ]
    said = capsys.readouterr().out
    assert "N=6 S=4" in said
    assert "not run" in said


def test_the_committed_result_shows_what_is_said_of_it() -> None:
    result = json.loads((ROOT / "benchmarks" / "results" / "memory.json").read_text())
    default = json.loads(json.dumps(asdict(Setting())))
    assert result["settings"] == default
    assert [(row["nodes"], row["steps"]) for row in result["updates"]] == [
        (n, s) for n in (9, 24, 38, 64) for s in (10, 50, 100, 200)
    ]
    assert all(line["chunked"] < 1.05 and line["chunked_steps"] == 20 for line in result["growth"].values())
    assert all(line["whole"] > 10 for line in result["growth"].values())
    assert result["storage"]["ratio"] > 20
    assert (result["storage"]["nodes"], result["storage"]["trajectories"]) == (38, 256)
