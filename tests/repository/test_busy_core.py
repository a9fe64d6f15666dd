"""The parts of ``benchmarks/busy_core.py`` that do not train."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import busy_core


def test_the_first_update_is_not_counted_and_only_one_of_the_two_sets_the_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    def run(command: list[str], env: dict[str, str], **options: Any) -> None:
        told.append((env.get("GOMP_SPINCOUNT"), env["OMP_NUM_THREADS"], os.sched_getaffinity(0)))

    mine = os.sched_getaffinity(0)
    core = min(mine)
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    monkeypatch.setattr("benchmarks.busy_core.subprocess.run", run)
    monkeypatch.setattr(busy_core, "read_metrics", lambda folder: [{"step_time": t} for t in (9.0, 2.0, 3.0)] + [{"loss": 0.0}])
    for spins in busy_core.SPINS.values():
        assert busy_core.update_times(Path("never made"), spins, [core], 3) == [2.0, 3.0]
    assert told == [(None, "1", {core}), ("300000", "1", {core})]
    assert os.sched_getaffinity(0) == mine


def test_the_summary_is_over_all_updates_of_all_repeats() -> None:
    rows = [{"core": "busy", "spinning": "limited", "seconds": s} for s in ([1.0, 2.0], [3.0, 5.0, 4.0])]
    rows.append({"core": "idle", "spinning": "limited", "seconds": [0.5]})
    assert busy_core.summary(rows) == {
        "limited, busy": {"median": 3.0, "least": 1.0, "most": 5.0},
        "limited, idle": {"median": 0.5, "least": 0.5, "most": 0.5},
    }


def test_the_loop_that_occupies_a_core_ends_with_its_block() -> None:
    with busy_core.occupied(None):
        pass
    core = min(os.sched_getaffinity(0))
    with busy_core.occupied(core) as pid:
        assert pid is not None
        os.kill(pid, 0)  # it runs
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
