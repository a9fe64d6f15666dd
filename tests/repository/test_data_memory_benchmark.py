"""The benchmark of data on disk: its molecules are those of the source, and its memory is that of all processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.common import ROOT
from benchmarks.data_memory import MIB, SOURCES, main, measured, order_peak, write_smiles
from discrete_grpo.domains.smiles import canonical_samples

LINES = ["CCO", "c1ccncc1", "CC(N)=O", "C1CC1C#N"]


def test_random_smiles_are_of_the_molecules_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "a.smi").write_text("\n".join(LINES))
    write_smiles(tmp_path / "a.smi", tmp_path / "b.smi", 10, 1, jobs=1)
    found = (tmp_path / "b.smi").read_text().splitlines()
    assert len(found) == 10
    assert set(canonical_samples(found)) == set(canonical_samples(LINES))
    assert len(set(found)) > len(LINES)


def test_the_memory_of_a_command_is_that_of_its_processes(capsys: pytest.CaptureFixture[str]) -> None:
    child = "import time; kept = b'x' * (60 << 20); time.sleep(1.0)"
    code = f"import subprocess, sys; kept = b'x' * (60 << 20); subprocess.run([sys.executable, '-c', {child!r}])"
    found = measured("two", 5, [sys.executable, "-c", code])
    assert 120 < found.peak_mib < 200
    assert (found.processes, found.molecules) == (2, 5)
    assert "two" in capsys.readouterr().out
    with pytest.raises(subprocess.CalledProcessError):
        measured("fails", 1, [sys.executable, "-c", "raise SystemExit(3)"])


@pytest.mark.slow
def test_the_order_of_an_epoch_takes_twelve_bytes_a_row() -> None:
    code = "from benchmarks.data_memory import order_peak; print(order_peak(8_000_000, 64))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert 12 * 8_000_000 / MIB * 0.9 < float(done.stdout) < 12 * 8_000_000 / MIB * 1.3
    assert 0 <= order_peak(10, 4) < 1


def test_its_sources_exist_and_a_file_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert all((ROOT / name).is_file() for name in SOURCES)
    with pytest.raises(SystemExit):
        main([])
    assert "--smiles" in capsys.readouterr().err


def test_the_committed_result_is_of_two_million_molecules_in_less_than_two_gibibytes() -> None:
    found = json.loads((ROOT / "benchmarks/results/data_memory.json").read_text())
    parts = {part["name"]: part for part in found["parts"]}
    assert parts["pretrain-smiles on shards"]["molecules"] == 2_000_000
    assert all(part["peak_mib"] < 2_048 for part in parts.values())
