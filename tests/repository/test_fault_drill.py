"""Some rows of the fault drill, and that the drill sees what it is there to see."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("resource", reason="no limits and signals on this system")

from benchmarks.common import ROOT
from benchmarks.fault_compare import differences, lost, unknown
from benchmarks.fault_drill import QUICK, ROWS
from benchmarks.fault_rows import named_sample
from discrete_grpo.rewards.ledger import Ledger, molecule_key
from discrete_grpo.runs.recorder import write_json, write_table, write_text

DRILLED = ("kill", "truncated-state", "cache-row", "nan-gradient")
TABLES: dict[str, dict[str, list[Any]]] = {
    "evaluation_before": {"sample": ["CC", "CO"], "reward": [1.0, 0.5]},
    "samples": {"step": [2, 4, 4, 4], "sample": ["OC", "CN", "CCC", "C.C"], "reward": [0.5, 0.5, 1.0, None]},
    "evaluation_after": {"sample": ["CCN"], "reward": [0.7]},
}


# -- rows


@pytest.fixture(scope="module")
def drilled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Rows of a drill, in a process that has computed nothing before."""
    out = tmp_path_factory.mktemp("drill") / "drill.json"
    command = [sys.executable, "-m", "benchmarks.fault_drill", "--only", *DRILLED, "--kills", "1", "--seed", "1", "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert out.is_file(), done.stderr[-3000:]
    return dict(json.loads(out.read_text())["rows"])


@pytest.mark.slow
@pytest.mark.parametrize("name", DRILLED)
def test_a_run_survives(drilled: dict[str, Any], name: str) -> None:
    assert drilled[name]["survived"], drilled[name]


@pytest.mark.slow
def test_a_kill_is_a_kill(drilled: dict[str, Any]) -> None:
    (row,) = drilled["kill"]["details"]
    assert row["code"] == 0
    assert 0.0 <= row["moment"] < 1.0


# -- what the drill sees


def make_run(folder: Path) -> Path:
    """A run folder without a run."""
    (folder / "policy").mkdir(parents=True)
    (folder / "policy/model.safetensors").write_bytes(b"weights")
    for name, columns in TABLES.items():
        write_table(folder / f"{name}.csv.gz", columns)
    write_json(folder / "evaluation.json", {"before": {"reward": 0.75}})
    write_text(folder / "metrics.jsonl", '{"step": 1, "loss": 0.5, "step_time": 1.0, "rewards/x/failed": 0.0}\n')
    ledger = Ledger(folder / "ledger.sqlite", key=molecule_key)
    for columns in TABLES.values():
        ledger.score([lambda samples, **_: [1.0] * len(samples)], columns["sample"])
    ledger.close()
    return folder


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A run and the undisturbed one."""
    return Path(shutil.copytree(make_run(tmp_path / "whole"), tmp_path / "run")), tmp_path / "whole"


def change_table(name: str, **columns: list[Any]) -> Callable[[Path], None]:
    return lambda run: write_table(run / f"{name}.csv.gz", TABLES[name] | columns)


def change_file(name: str, old: str, new: str) -> Callable[[Path], None]:
    return lambda run: write_text(run / name, (run / name).read_text().replace(old, new))


def change_ledger(query: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        with closing(sqlite3.connect(run / "ledger.sqlite")) as connection, connection:
            assert connection.execute(query).rowcount > 0

    return change


def test_equal_runs_are_equal(pair: tuple[Path, Path]) -> None:
    run, whole = pair
    change_file("metrics.jsonl", '"step_time": 1.0, "rewards/x/failed": 0.0', '"step_time": 2.0, "rewards/x/failed": 1.0')(run)
    assert differences(run, whole) == []
    assert lost(run, whole) == 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (change_file("policy/model.safetensors", "weights", "weighty"), ["policy/model.safetensors"]),
        (change_file("evaluation.json", "0.75", "0.76"), ["evaluation.json"]),
        (change_file("metrics.jsonl", "0.5", "0.5000000001"), ["metrics.jsonl"]),
        (change_table("evaluation_after", reward=[0.71]), ["evaluation_after.csv.gz"]),
        (change_table("samples", reward=[0.5, 0.5, 1.0, 0.0]), ["samples.csv.gz"]),
        (change_ledger("UPDATE scores SET value = 0.9 WHERE key = 'CN'"), ["ledger.sqlite"]),
        (change_ledger("UPDATE calls SET turn = 0 WHERE key = 'CCN'"), ["ledger.sqlite"]),
        (lambda run: (run / "policy/model.safetensors").unlink(), ["policy/model.safetensors"]),
    ],
)
def test_one_change_is_seen(pair: tuple[Path, Path], change: Callable[[Path], None], named: list[str]) -> None:
    change(pair[0])
    assert differences(*pair) == named


def test_a_ledger_that_counts_what_was_never_sampled_is_seen_in_equal_runs_too(pair: tuple[Path, Path]) -> None:
    for run in pair:
        change_ledger("INSERT INTO calls VALUES ('CCCC', 9, 0, 0, x'00', '')")(run)
    assert differences(*pair) == ["ledger.sqlite"]


@pytest.mark.parametrize(
    ("change", "count"),
    [
        (change_table("evaluation_after", sample=[], reward=[]), 1),
        (change_table("samples", reward=[0.5, None, None, None]), 2),
        (change_ledger("DELETE FROM calls WHERE key IN ('CC', 'CCO', 'CCC')"), 2),
    ],
)
def test_lost_samples_are_counted(pair: tuple[Path, Path], change: Callable[[Path], None], count: int) -> None:
    change(pair[0])
    assert lost(*pair) == count


def test_the_named_sample_is_not_lost_and_an_invalid_one_not_unknown(pair: tuple[Path, Path]) -> None:
    run, whole = pair
    change_table("samples", reward=[0.5, None, 1.0, None])(run)
    assert unknown(run) == {"CN"}
    assert (lost(run, whole), lost(run, whole, ["CN"])) == (1, 0)


def test_the_named_sample_is_a_molecule_of_a_late_generation_that_comes_once(pair: tuple[Path, Path]) -> None:
    change_table("samples", step=[2, 4, 4, 4], sample=["CN", "C.C", "CO", "CCC"])(pair[0])
    assert named_sample(pair[0]) == "CCC"


def test_tables_are_compared_as_bytes(pair: tuple[Path, Path]) -> None:
    path = pair[0] / "samples.csv.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), 1, mtime=1))
    assert differences(*pair) == ["samples.csv.gz"]


# -- the committed table


def test_the_committed_result_has_every_row_and_all_survived() -> None:
    result = json.loads((ROOT / "benchmarks/results/fault_drill.json").read_text())
    assert list(result["rows"]) == list(ROWS)
    assert [name for name, row in result["rows"].items() if not row["survived"]] == []
    assert len(result["rows"]["kill"]["details"]) == 20
    assert set(QUICK) <= set(ROWS)
