"""Jobs in processes: what is kept, what a kill costs, and that a row does not depend on either."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from discrete_grpo.benchmarking import runner
from discrete_grpo.benchmarking.jobs import _says_exhausted
from discrete_grpo.benchmarking.processes import portable
from discrete_grpo.benchmarking.results import Results
from discrete_grpo.benchmarking.runner import benchmark
from discrete_grpo.benchmarking.suites import SUITES
from discrete_grpo.cli import main
from discrete_grpo.core.interrupt import Interrupted
from discrete_grpo.core.scoring import BudgetExhausted, RewardError
from discrete_grpo.rewards.task import Task
from tests.benchmarking.parts import CARBONS, CRASH, DIE, HANG, OXYGENS, SLOW, WALK, walk

ROOT = Path(__file__).parents[2]
TIMES = ("wall_seconds", "cpu_seconds", "made")
ASKED: dict[str, Any] = {"budget": 100, "seeds": [0]}
SCRIPT = """
import sys
from discrete_grpo.benchmarking.runner import benchmark
from tests.benchmarking.parts import CARBONS, DIE, SLOW
benchmark([CARBONS], methods=[SLOW, DIE], budget=100, seeds=[0], jobs=1, output_dir=sys.argv[1])
"""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run in this process, which is faster."""
    monkeypatch.setattr(runner, "portable", lambda job: "a test")


def untimed(results: Results) -> list[dict[str, Any]]:
    """The rows without what depends on the clock and the machine."""
    return [{k: v for k, v in row.items() if k not in TIMES} for row in results.rows]


def calls(folder: Path) -> list[dict[str, str]]:
    with gzip.open(folder / "calls.csv.gz", "rt") as file:
        return list(csv.DictReader(file))


def wait_until(done: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def scored(ledger: Path) -> int:
    if not ledger.exists():
        return 0
    try:
        return int(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True).execute("SELECT COUNT(*) FROM calls").fetchone()[0])
    except sqlite3.Error:
        return 0


@pytest.mark.parametrize("seeds", [0, {0, 1}, "01", [True], [0.0]])
def test_seeds_are_a_list_of_whole_numbers(seeds: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^seeds: .*, expected a (list of whole numbers|whole number, 0 to 4294967295)$"):
        benchmark([CARBONS], methods=[WALK], budget=100, seeds=seeds, output_dir=tmp_path)


@pytest.mark.usefixtures("here")
def test_rows_files_and_more_rows_in_the_same_folder(tmp_path: Path) -> None:
    first = benchmark([CARBONS], methods=[WALK, CRASH], output_dir=tmp_path, command="the command", **ASKED)
    assert [(row["task"], row["method"], row["seed"]) for row in first.rows] == [("carbons", "walk", 0)]
    assert [(row["method"], row["error"]) for row in first.failed] == [
        ("crash", "KeyError: 'a bug in a method' (parts.py, line 61)")
    ]
    made = tmp_path / "jobs" / "own" / "carbons" / "walk" / "0" / "row.json"
    before = made.read_bytes()
    plan = json.loads((tmp_path / "benchmark.json").read_text())
    del plan["methods"]["crash"]["seeds"]  # as earlier versions wrote it
    (tmp_path / "benchmark.json").write_text(json.dumps(plan))
    more = benchmark([CARBONS, OXYGENS], methods=[WALK], budget=100, seeds=[0, 1], output_dir=tmp_path)
    assert [(row["task"], row["seed"]) for row in more.rows] == [("carbons", 0), ("carbons", 1), ("oxygens", 0), ("oxygens", 1)]
    assert made.read_bytes() == before
    table = more.table()
    assert (table.tasks, table.methods, table.seeds) == (("carbons", "oxygens"), ("walk", "crash"), (0, 1))
    assert {name: told["seeds"] for name, told in more.about["methods"].items()} == {"walk": [0, 1], "crash": [0]}
    assert "<td>missing" not in (tmp_path / "results.html").read_text()
    assert table.cells["carbons", "crash"].failures == ("seed 0: KeyError: 'a bug in a method' (parts.py, line 61)",)
    content = json.loads((tmp_path / "results.json").read_text())
    assert len(content["rows"]) == 4
    assert content["rows"][0]["auc_top10"] == more.rows[0]["auc_top10"]
    assert [run["command"] for run in content["runs"]] == ["the command", "discrete_grpo.benchmark(...)"]
    assert {"version", "torch", "rdkit", "processor", "cores", "date", "methods", "failed"} <= content.keys()
    assert content["methods"]["walk"]["settings"] == {"step": 1}
    kept = calls(made.parent)
    assert [row["call"] for row in kept] == [str(k) for k in range(1, 101)]
    assert [row["source"] for row in kept].count("first") == 10
    assert max(float(row["score"]) for row in kept) == more.rows[0]["top1"]
    assert not list(made.parent.glob("ledger.sqlite*"))


@pytest.mark.usefixtures("here")
def test_known_scores_change_no_count(tmp_path: Path) -> None:
    other = replace(WALK, name="again")
    found = untimed(benchmark([CARBONS], methods=[WALK, other], output_dir=tmp_path, **ASKED))
    assert found[0] | {"method": "", "conditions": 0} == found[1] | {"method": "", "conditions": 0}


@pytest.mark.usefixtures("here")
def test_a_budget_is_hard_and_a_method_that_ends_early_is_carried_on(tmp_path: Path) -> None:
    def once(task: Any, policy: Any, ledger: Any, seed: int) -> None:
        ledger.score([task], ["CC", "CCCC"])

    def greedy(task: Any, policy: Any, ledger: Any, seed: int) -> None:
        assert policy is None
        for k in range(1, 50):
            ledger.score([task], ["C" * k])

    methods = [replace(WALK, name=f.__name__, run=f, settings={}) for f in (once, greedy)]
    rows = benchmark([CARBONS], methods=methods, budget=12, seeds=[0], output_dir=tmp_path).rows
    assert [(row["calls"], row["stopped"]) for row in rows] == [(2, "method"), (12, "budget")]
    assert rows[0]["auc_top10"] == pytest.approx((0.05 + 0.125 + 10 * 0.15) / 12)


@pytest.mark.usefixtures("here")
def test_a_failed_job_runs_again_and_its_note_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert benchmark([CARBONS], methods=[CRASH], output_dir=tmp_path, **ASKED).failed
    fixed = replace(CRASH, run=walk)
    found = benchmark([CARBONS], methods=[fixed], output_dir=tmp_path, **ASKED)
    assert (len(found.rows), found.failed) == (1, ())


@pytest.mark.usefixtures("here")
def test_failures_of_an_earlier_call_are_not_those_of_this_one(tmp_path: Path) -> None:
    first = benchmark([CARBONS], methods=[CRASH], output_dir=tmp_path, **ASKED)
    assert len(first.failed) == len(first.failed_now) == 1
    second = benchmark([CARBONS], methods=[WALK], output_dir=tmp_path, **ASKED)
    assert (len(second.rows), len(second.failed), second.failed_now) == (1, 1, ())


@pytest.mark.usefixtures("here")
def test_a_row_whose_scores_are_all_unknown_is_a_failure(tmp_path: Path) -> None:
    unknown = Task("unknown", "toy", "nothing known", "", lambda mol: None)
    found = benchmark([unknown], methods=[WALK], output_dir=tmp_path, **ASKED)
    assert found.rows == ()
    assert found.failed[0]["error"].startswith("ValueError: scores: all 100 of unknown are unknown (None or NaN), expected")


@pytest.mark.usefixtures("here")
def test_ctrl_c_in_a_job_of_this_process_stops_and_goes_on(tmp_path: Path) -> None:
    pressed: list[int] = []

    def interrupted(task: Any, policy: Any, ledger: Any, seed: int) -> None:
        ledger.score([task], ["CC"])
        if not pressed:
            pressed.append(1)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

    method = replace(WALK, name="interrupted", run=interrupted, settings={})
    with pytest.raises(Interrupted, match="the same command goes on"):
        benchmark([CARBONS], methods=[WALK, method], output_dir=tmp_path, **ASKED)
    found = benchmark([CARBONS], methods=[WALK, method], output_dir=tmp_path, **ASKED)
    assert (len(found.rows), found.failed) == (2, ())


@pytest.mark.usefixtures("here")
def test_methods_do_not_share_a_policy_or_random_numbers(tmp_path: Path) -> None:
    from discrete_grpo.recipes.loading import load_policy

    seen = []

    def train(task: Any, policy: Any, ledger: Any, seed: int) -> None:
        first = next(policy.parameters())
        seen.append((float(first.detach().sum()), float(torch.rand(()))))
        with torch.no_grad():
            first.add_(1.0)

    state = torch.get_rng_state()
    methods = [replace(WALK, name=name, run=train, settings={}, needs_policy=True) for name in ("a", "b")]
    benchmark([CARBONS], methods=methods, policy="smiles-zinc", output_dir=tmp_path / "name", **ASKED)
    assert torch.equal(torch.get_rng_state(), state)
    benchmark([CARBONS], methods=methods, policy=load_policy("smiles-zinc"), output_dir=tmp_path / "object", **ASKED)
    assert len(seen) == 4
    assert len(set(seen)) == 1


@pytest.mark.usefixtures("here")
def test_the_controls_run_on_a_suite_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    screen = tmp_path / "screen.smi"
    screen.write_text("CCO\nCCN\nnot a molecule\nCCO\nc1ccccc1\n")
    words = ["benchmark", "pmo", "--tasks=qed", "--budget=20", "--seeds=[3]", f"--output_dir={tmp_path / 'out'}"]
    assert main([*words, f"--screen={screen}"]) == 0
    told = capsys.readouterr()
    assert "best-of-prior" in told.out
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    rows = {row["method"]: row for row in content["rows"]}
    assert (rows["best-of-prior"]["calls"], rows["best-of-prior"]["sources"]) == (20, {"policy": 20})
    assert (rows["random"]["calls"], rows["random"]["sources"]) == (3, {"screen": 3})
    assert content["command"].startswith("discrete-grpo benchmark pmo --tasks=")
    assert content["policies"]["smiles-zinc"]["data"] == "ZINC250k"
    page = tmp_path / "out" / "results.html"
    page.unlink()
    assert main(["report", str(tmp_path / "out")]) == 0
    assert page.is_file()
    capsys.readouterr()
    screen.write_text("CCO\n")
    assert main([*words, f"--screen={screen}"]) == 2
    assert "file_sha256 was" in capsys.readouterr().err


@pytest.mark.usefixtures("here")
def test_a_row_has_the_numbers_of_its_suite(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"tasks": ["median1"], "methods": ["random"], "output_dir": tmp_path}
    (row,) = benchmark("guacamol", **asked, **ASKED).rows
    found = calls(tmp_path / "jobs/guacamol/median1/random/0")
    best = sorted((float(call["score"]) for call in found), reverse=True)
    assert row["guacamol_score"] == pytest.approx((best[0] + sum(best[:10]) / 10 + sum(best[:100]) / 100) / 3, abs=1e-12)


@pytest.mark.parametrize("option", ["screen", "warm_start"])
def test_a_table_without_a_smiles_column_is_refused_before_any_job(option: str, tmp_path: Path, capsys: Any) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n3,4\n")
    method = {"screen": "random", "warm_start": "grpo-memory"}[option]
    words = ["benchmark", "pmo", "--tasks=qed", f"--methods=[{method}]", "--budget=200", f"--output_dir={tmp_path / 'out'}"]
    assert main([*words, f"--{option}={table}"]) == 2
    told = capsys.readouterr().err
    assert f"{option}: '{table}' has no column that is certainly of SMILES" in told
    assert "smiles_column" not in told
    assert not (tmp_path / "out").exists()


def test_the_command_fails_where_a_job_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    failed = {"task": "qed", "method": "random", "seed": 0, "error": "KeyError: 'x'"}
    monkeypatch.setattr(
        "discrete_grpo.benchmarking.runner.benchmark",
        lambda *_, **__: SimpleNamespace(failed_now=(failed,), print=lambda: None, page=tmp_path),
    )
    assert main(["benchmark", "pmo"]) == 2
    assert "jobs: 1 failed" in capsys.readouterr().err


def test_list_tasks_and_methods(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discrete_grpo.benchmarking.suites.SUITES", {"pmo": SUITES["pmo"]})
    assert main(["list", "tasks"]) == 0
    told = capsys.readouterr().out
    assert all(f"  {name} " in told for name in SUITES["pmo"].tasks())
    assert main(["list", "methods"]) == 0
    assert re.search(r"^  best-of-prior +control: ", capsys.readouterr().out, re.M)


@pytest.mark.usefixtures("here")
def test_a_sample_that_crashes_the_scorer_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def three(task: Any, policy: Any, ledger: Any, seed: int) -> None:
        assert (task.name, task.elements) == ("fragile", frozenset())
        ledger.score([task], ["CC", "CCC", "CCCC"])

    toy = replace(SUITES["pmo"], name="toy", module="tests.benchmarking.parts", pooled=True)
    monkeypatch.setitem(SUITES, "toy", toy)
    method = replace(WALK, name="three", run=three, settings={})
    found = benchmark("toy", tasks=["fragile"], methods=[method], output_dir=tmp_path, **ASKED)
    assert found.failed == ()
    assert [call["score"] for call in calls(tmp_path / "jobs" / "toy" / "fragile" / "three" / "0")] == ["0.5", "", "0.5"]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("jobs", [1, 2])
def test_idle_cores_score_samples_of_a_pooled_suite(jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def eight(task: Any, policy: Any, ledger: Any, seed: int) -> None:
        ledger.score([task], ["C" * n for n in range(1, 9)])

    monkeypatch.setattr("discrete_grpo.benchmarking.plan.usable_cores", lambda: 2)
    monkeypatch.setitem(SUITES, "toy", replace(SUITES["pmo"], name="toy", module="tests.benchmarking.parts", pooled=True))
    method = replace(WALK, name="eight", run=eight, settings={})
    benchmark("toy", tasks=["process"], methods=[method], jobs=jobs, output_dir=tmp_path, **ASKED)
    processes = {call["score"] for call in calls(tmp_path / "jobs" / "toy" / "process" / "eight" / "0")}
    assert len(processes) == 3 - jobs


def test_what_a_worker_cannot_import_is_said() -> None:
    def local(task: Any, policy: Any, ledger: Any, seed: int) -> None: ...

    assert portable(WALK) is None
    assert portable(CARBONS) is None
    assert "local" in (portable(replace(WALK, run=local, settings={})) or "")
    local.__module__ = "__main__"
    assert "main script" in (portable(local) or "")


@pytest.mark.slow
def test_hanging_and_crashing_methods_lose_only_their_own_rows(tmp_path: Path) -> None:
    found = benchmark([CARBONS], methods=[HANG, CRASH, WALK], jobs=2, job_timeout=12.0, output_dir=tmp_path, **ASKED)
    assert [row["method"] for row in found.rows] == ["walk"]
    reasons = {row["method"]: row["error"] for row in found.failed}
    assert reasons["crash"] == "KeyError: 'a bug in a method' (parts.py, line 61)"
    assert "longer than the time limit of 12 s (job_timeout)" in reasons["hang"]


@pytest.mark.slow
def test_a_worker_runs_the_package_of_its_parent(tmp_path: Path) -> None:
    """Also where another copy, such as an installed one, is found first on the search path."""
    left_out = shutil.ignore_patterns("*.safetensors")
    shutil.copytree(ROOT / "discrete_grpo", tmp_path / "discrete_grpo", ignore=left_out)
    source = tmp_path / "discrete_grpo/benchmarking/measures.py"
    with source.open("a") as file:
        file.write("import sys\nif sys.argv[0].endswith('worker.py'):\n    open('mark', 'w').close()\n")
    script = (
        "import sys; from discrete_grpo.cli import main; "
        "sys.path[:] = [p for p in sys.path if p not in ('', sys.argv[1])]; sys.exit(main(sys.argv[2:]))"
    )
    words = ["benchmark", "pmo", "--tasks=[qed]", "--methods=[random]", "--budget=10", "--seeds=[0]", "--output_dir=found"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script, str(tmp_path), *words]
    subprocess.run(command, check=True, cwd=tmp_path, env=environment, capture_output=True)
    assert (tmp_path / "mark").exists()


@pytest.mark.usefixtures("here")
def test_a_method_in_this_process_that_leaves_the_program_loses_its_own_row_only(tmp_path: Path) -> None:
    def leaves(task: Any, policy: Any, ledger: Any, seed: int) -> None:
        sys.exit(4)

    found = benchmark([CARBONS], methods=[leaves, WALK], output_dir=tmp_path, **ASKED)
    assert [row["method"] for row in found.rows] == ["walk"]
    assert [row["error"] for row in found.failed] == ["SystemExit: 4"]


@pytest.mark.usefixtures("here")
def test_scores_below_zero_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fewest = Task("fewest", "toy", "minus the atoms", "", lambda mol: -float(mol.GetNumAtoms()))
    benchmark([fewest], methods=[WALK], output_dir=tmp_path, **ASKED)
    assert "scores are negative, but the area counts a method without calls as 0" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_killed_and_resumed_rows_equal_undisturbed_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL of the benchmark in the middle of a job, and of a worker in the middle of another."""
    monkeypatch.setenv("TOY_MARKER", str(tmp_path / "marker"))
    killed = tmp_path / "killed"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ledger = killed / "jobs" / "own" / "carbons" / "slow" / "0" / "ledger.sqlite"
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(killed)], env=environment, stderr=subprocess.DEVNULL) as parent:
        wait_until(lambda: scored(ledger) >= 20)
        parent.kill()
    wait_until(lambda: still(ledger))  # the worker ended with its parent
    assert 20 <= scored(ledger) < 100

    def go_on() -> Results:
        return benchmark([CARBONS], methods=[SLOW, DIE], output_dir=killed, **ASKED)

    half = go_on()
    assert [row["method"] for row in half.rows] == ["slow"]
    assert [row["error"] for row in half.failed] == ["its process was killed by SIGKILL"]
    whole = go_on()
    assert whole.failed == ()
    with monkeypatch.context() as patch:
        patch.setattr(runner, "portable", lambda job: "a test")
        undisturbed = benchmark([CARBONS], methods=[SLOW, DIE], output_dir=tmp_path / "undisturbed", **ASKED)
    assert untimed(whole) == untimed(undisturbed)
    for method in ("slow", "die"):
        folders = [root / "jobs" / "own" / "carbons" / method / "0" for root in (killed, tmp_path / "undisturbed")]
        assert calls(folders[0]) == calls(folders[1])
    assert not list(killed.rglob("*.log"))


def still(ledger: Path) -> bool:
    before = scored(ledger)
    time.sleep(0.4)
    return scored(ledger) == before


@pytest.mark.slow
def test_sigint_ends_the_workers_and_keeps_what_is_done(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TOY_MARKER": str(tmp_path / "marker")}
    (tmp_path / "marker").touch()
    ledger = tmp_path / "jobs" / "own" / "carbons" / "slow" / "0" / "ledger.sqlite"
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], env=environment, stderr=subprocess.PIPE) as parent:
        wait_until(lambda: scored(ledger) >= 10)
        parent.send_signal(signal.SIGINT)
        told = parent.communicate()[1].decode()
    assert "Interrupted: stopped; finished rows are in" in told
    assert still(ledger)
    assert json.loads((tmp_path / "results.json").read_text())["rows"] == []


def test_the_end_of_the_budget_within_a_reward_of_the_method_is_no_failure() -> None:
    error: BaseException = BudgetExhausted("used up", torch.empty(0, 1))
    for _ in range(2):  # as score_one raises it for a reward around another one
        outer = RewardError("reward filtered: used up")
        outer.__cause__ = error
        error = outer
    assert _says_exhausted(error)
    assert not _says_exhausted(RewardError("the oracle is away"))
