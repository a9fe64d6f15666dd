"""The random search over settings of baselines: its trials, and a run of the smallest size."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.tuning import CHOICES, SEEDS, TASKS, main, search, sums, trials_of
from discrete_grpo.benchmarking import runner
from discrete_grpo.benchmarking.methods import METHODS


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_trials_differ_and_begin_with_the_settings_of_the_benchmark(name: str) -> None:
    method = METHODS[name]
    trials = trials_of(method, 20, seed=0)
    assert trials[0].settings == dict(method.settings)
    assert len({str(t.settings) for t in trials}) == len({t.name for t in trials}) == 20
    assert all(t.settings[key] in values for t in trials[1:] for key, values in CHOICES[name].items())
    assert [t.settings for t in trials_of(method, 20, seed=0)] == [t.settings for t in trials]
    assert [t.settings for t in trials_of(method, 20, seed=1)] != [t.settings for t in trials]
    assert all(t.least_budget >= t.settings.get("population", 0) for t in trials)


def test_more_trials_than_there_are_settings_are_refused() -> None:
    assert len(trials_of(METHODS["smiles-ga"], 36, seed=0)) == 36
    with pytest.raises(ValueError, match="trials: 37, expected 1 to 36 of smiles-ga"):
        trials_of(METHODS["smiles-ga"], 37, seed=0)
    with pytest.raises(ValueError, match="method: 'random', expected one of graph-ga, smiles-ga, tb-ga"):
        trials_of(METHODS["random"], 1, seed=0)


def test_sums_are_over_the_tasks_per_seed() -> None:
    rows = [{"method": "a", "task": t, "seed": s, "auc_top10": s + k / 10} for k, t in enumerate(TASKS) for s in (1, 2)]
    assert sums([*rows, {**rows[0], "method": "b", "auc_top10": 9.0}], "a", (1, 2)) == pytest.approx([3.3, 6.3])


def fails(monkeypatch: pytest.MonkeyPatch, failed: Callable[[str, int], bool]) -> None:
    """Benchmarks that score a trial by its number, except jobs that fail on the last task."""
    kept: dict[tuple[str, str, int], dict[str, Any]] = {}

    def benchmark(suite: str, *, methods: Any, seeds: Any, tasks: Any, **_: Any) -> Any:
        for name, seed, task in ((m.name, s, t) for m in methods for s in seeds for t in tasks):
            if task != TASKS[-1] or not failed(name, seed):
                row = {"method": name, "seed": seed, "task": task, "auc_top10": int(name[-2:]), "cpu_seconds": 1.0}
                kept[name, task, seed] = row
        return SimpleNamespace(rows=tuple(kept.values()))

    monkeypatch.setattr("benchmarks.tuning.benchmark", benchmark)


def test_a_trial_whose_job_failed_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, lambda name, seed: name == "graph-ga-04" or (name, seed) == ("graph-ga-03", SEEDS[1]))
    found = search(METHODS["graph-ga"], 5, 2, 10_000, 0, 1, tmp_path)
    assert [(t["trial"][-2:], len(t["sums"])) for t in found["trials"]] == [("03", 1), ("02", 3), ("01", 1), ("00", 3)]
    assert found["best"]["trial"] == "graph-ga-02"
    assert found["incomplete"] == ["graph-ga-03", "graph-ga-04"]
    fails(monkeypatch, lambda name, seed: True)
    with pytest.raises(
        ValueError, match=r"^trials: none of 5 has rows of all tasks and seeds in .*; the same command runs them again$"
    ):
        search(METHODS["graph-ga"], 5, 2, 10_000, 0, 1, tmp_path)


@pytest.mark.slow
def test_a_tiny_search_writes_what_it_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.tuning.TASKS", TASKS[:1])  # for time
    monkeypatch.setattr(runner, "portable", lambda job: "a test")  # for time: rows are made in this process
    monkeypatch.setattr("benchmarks.tuning.SEEDS", SEEDS[:2])
    small = ["--method=graph-ga", "--trials=2", "--again=1", "--budget=130", "--seed=1", "--jobs=2"]
    main([*small, f"--output_dir={tmp_path / 'rows'}", f"--out={tmp_path / 'found.json'}"])
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["method"], found["budget"], len(found["trials"])) == ("graph-ga", 130, 2)
    full = [t for t in found["trials"] if len(t["sums"]) == 2]
    assert {t["trial"] for t in full} >= {"graph-ga-00"}
    assert found["best"] in full
    assert sum(found["best"]["sums"]) == max(sum(t["sums"]) for t in full)
