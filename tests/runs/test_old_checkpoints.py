"""What version 1 of the checkpoint format wrote, under the module names of that time, loads, samples the same and resumes.

``fixtures/format1.tar.xz`` was made before the modules moved: an exported policy (``pre``), two run folders killed after
their third update in the middle of a generation, what the runs gave when they were not killed, and samples of every policy.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.cli import main

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "format1.tar.xz"
GRAPHS = ("qm9-small", "tree-16", "planar-16")


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("policy", [*GRAPHS, "smiles-zinc", "fill-in", "digits", "pre"])
def test_policies_draw_what_they_drew(policy: str, old: Path, tmp_path: Path) -> None:
    name = str(old / policy) if policy == "pre" else policy
    more = ["--num_steps=8"] if policy in GRAPHS else []
    more += [f"--columns={old / 'masked.jsonl'}"] if policy == "fill-in" else []
    assert main(["sample", name, "-n", "6", "--seed=7", *more, f"--out={tmp_path / 'samples.csv'}"]) == 0
    found, wanted = ((folder / file).read_text() for folder, file in ((tmp_path, "samples.csv"), (old, f"samples/{policy}.csv")))
    assert rows(found) == rows(wanted)


@pytest.mark.parametrize(("run", "whole"), [("killed", "expected"), ("killed2", "expected2")])
def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(
    run: str, whole: str, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(old)  # the run names its policy by the relative path "pre"
    assert main(["resume", run]) == 0
    with gzip.open(old / run / "samples.csv.gz", "rt") as file:
        assert file.read() == (old / whole / "samples.csv").read_text()
    found, wanted = (lines(old / name / "metrics.jsonl") for name in (run, whole))
    assert len(found) == len(wanted) == 8
    for now, then in zip(found, wanted, strict=True):  # processors round differently
        assert now == pytest.approx(then, rel=1e-4, abs=1e-7, nan_ok=True)


def lines(path: Path) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: float("nan") if v is None else v for k, v in line.items() if k != "step_time"} for line in read]
