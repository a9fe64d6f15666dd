"""Benchmarks that go on after files of their folder or of their tasks were edited, damaged, renamed or lost."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.benchmarking import runner
from discrete_grpo.benchmarking.results import Results
from discrete_grpo.benchmarking.runner import benchmark, write_files
from discrete_grpo.rewards.task import Task
from tests.benchmarking.parts import CARBONS, OXYGENS, WALK


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run in this process, which is faster."""
    monkeypatch.setattr(runner, "portable", lambda job: "a test")


class FromFile:
    def __init__(self, file: str, log: str | None = None) -> None:
        self.file, self.log = file, log

    def __call__(self, mol: Any) -> float:
        if self.log is not None:
            with Path(self.log).open("a") as file:
                file.write("called\n")
        return float(Path(self.file).read_text()) * mol.GetNumAtoms() / 100


def run(folder: Path, seeds: list[int], task: Task = CARBONS) -> Results:
    return benchmark([task], methods=[WALK], budget=20, seeds=seeds, output_dir=folder)


def job_folder(folder: Path, seed: int, task: str = "carbons") -> Path:
    return folder / "jobs" / "own" / task / "walk" / str(seed)


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_rows_of_a_task_whose_file_was_edited_are_refused(tmp_path: Path) -> None:
    weights, out = tmp_path / "w.txt", tmp_path / "out"
    task = Task("ff", "toy", "", "", FromFile(str(weights)))
    weights.write_text("1")
    before = run(out, [0], task).rows
    weights.write_text("2")
    said = r"row of ff, walk, seed 0 was made otherwise \(task_files\..*w\.txt was \w+ and is \w+"
    for seeds in ([0, 1], [1]):
        with pytest.raises(ValueError, match=said):
            run(out, seeds, task)
    weights.write_text("1")
    assert run(out, [0, 1], task).rows[0] == before[0]
    path = job_folder(out, 0, "ff") / "row.json"
    row = json.loads(path.read_text())
    del row["conditions"]["task_files"]  # of an earlier version
    path.write_text(json.dumps(row))
    weights.write_text("2")
    with pytest.raises(ValueError, match="row of ff, walk, seed 1 was made otherwise"):
        run(out, [0, 1], task)
    shutil.rmtree(job_folder(out, 1, "ff"))
    assert len(run(out, [0, 1], task).rows) == 2


def test_a_file_that_a_task_writes_ends_no_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights, log, out = tmp_path / "w.txt", tmp_path / "log.txt", tmp_path / "out"
    weights.write_text("1")
    task = Task("ff", "toy", "", "", FromFile(str(weights), str(log)))
    run(out, [0], task)
    assert "log.txt changed" not in told(capsys)
    assert len(run(out, [0, 1], task).rows) == 2
    assert len(run(out, [0, 1, 2], task).rows) == 3
    said = f"task 'ff': {log} changed while its jobs ran, or cannot be read, so that an edit would not be noticed"
    assert said in told(capsys)
    weights.write_text("2")
    with pytest.raises(ValueError, match=r"task_files\..*w\.txt was"):
        run(out, [0], task)


def test_a_damaged_file_of_scores_is_moved_aside_before_any_job(tmp_path: Path) -> None:
    run(tmp_path, [0])
    for file in tmp_path.glob("scores.sqlite*"):
        file.unlink()
    (tmp_path / "scores.sqlite").write_text("damaged")
    with pytest.warns(RuntimeWarning, match=r"scores\.sqlite: damaged .* moved to scores\.sqlite\.damaged-\d+ and begun anew"):
        found = run(tmp_path, [0, 1])
    assert (len(found.rows), found.failed) == (2, ())
    assert next(tmp_path.glob("scores.sqlite.damaged-*")).read_text() == "damaged"


@pytest.mark.parametrize("state", ["missing", "damaged"])
def test_rows_without_the_description_of_their_benchmark(state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, [0])
    plan, results = tmp_path / "benchmark.json", tmp_path / "results.json"
    if state == "missing":
        plan.unlink()
    else:
        plan.write_text('{"suite')
    said = rf"^output_dir: .* holds rows in jobs, but benchmark\.json is {state}; copy results\.json, which has the same entries,"
    with pytest.raises(ValueError, match=said):
        run(tmp_path, [0, 1])
    with pytest.raises(ValueError, match=said):
        write_files(tmp_path)
    plan.write_bytes(results.read_bytes())
    found = run(tmp_path, [1])
    assert [row["seed"] for row in found.rows] == [0, 1]
    assert (found.about["seeds"], len(found.about["runs"]), "rows" in found.about) == ([0, 1], 2, False)
    plan.unlink()
    results.unlink()
    with pytest.raises(ValueError, match=r"benchmark\.json is missing; put benchmark\.json back or run the benchmark again, or"):
        write_files(tmp_path)
    assert [row["seed"] for row in run(tmp_path, [1]).rows] == [0, 1]
    assert "benchmark.json: missing or damaged, and begun anew" in told(capsys)


def test_lost_calls_are_made_again_where_their_scores_are_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = run(tmp_path, [0]).rows[0]
    calls = job_folder(tmp_path, 0) / "calls.csv.gz"
    content = calls.read_bytes()
    calls.unlink()
    after = run(tmp_path, [0]).rows[0]
    assert calls.read_bytes() == content
    times = dict.fromkeys(("wall_seconds", "cpu_seconds"))
    assert {**before, **times} == {**after, **times}
    assert "calls.csv.gz: 1 of the rows lack it and are made again" in told(capsys)
    calls.unlink()
    for file in tmp_path.glob("scores.sqlite*"):
        file.unlink()
    assert run(tmp_path, [0]).rows[0] == after  # as a table that is kept without calls and scores
    run(tmp_path, [0], replace(CARBONS, name="other"))
    assert run(tmp_path, [0]).rows[0] == after  # there are scores now, but not these
    assert not calls.exists()
    assert "calls.csv.gz: 1 of the rows lack it and are kept, as scores.sqlite does not have their scores" in told(capsys)


def test_a_row_in_the_folder_of_another_job_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, [0, 1])
    job_folder(tmp_path, 1).rename(job_folder(tmp_path, 9))
    found = run(tmp_path, [0, 1])
    assert [row["seed"] for row in found.rows] == [0, 1]
    assert [row["seed"] for row in json.loads((tmp_path / "results.json").read_text())["rows"]] == [0, 1]
    assert f"{job_folder(tmp_path, 9)}: holds the row of carbons, walk, seed 1, and is left out" in told(capsys)
    with pytest.raises(ValueError, match=r"holds the row of another job \(own, carbons, walk, 1\), expected its own"):
        run(tmp_path, [9])
    shutil.rmtree(job_folder(tmp_path, 9))
    assert [row["seed"] for row in run(tmp_path, [9]).rows] == [0, 1, 9]


def test_a_row_of_another_job_is_not_replaced(tmp_path: Path) -> None:
    run(tmp_path, [0])
    (tmp_path / "jobs/own/carbons").rename(tmp_path / "jobs/own/oxygens")
    [row] = tmp_path.glob("jobs/own/oxygens/*/0/row.json")
    before = row.read_bytes()
    with pytest.raises(ValueError, match=r"holds the row of another job \(own, carbons, walk, 0\), expected its own"):
        run(tmp_path, [0], OXYGENS)
    assert row.read_bytes() == before
