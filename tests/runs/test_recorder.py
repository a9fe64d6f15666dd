"""The growing files of a run: whatever stopped it, a resumed run finds them as its checkpoint left them."""

from __future__ import annotations

import csv
import json
import math
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

from discrete_grpo.core.scoring import Failure
from discrete_grpo.domains.graph6 import graph6
from discrete_grpo.runs.checkpoint import Checkpoints, load_training
from discrete_grpo.runs.failures import FailureLog
from discrete_grpo.runs.recorder import METRICS, SAMPLES, Recorder, read_metrics, read_samples, shown_text, text_of
from tests.runs.test_checkpoint_kills import needs_fork
from tests.runs.test_checkpoint_run import Numbers

LAST = 120


def update(recorder: Recorder, step: int) -> None:
    recorder.record(step, {"reward": step / 3})
    recorder.record_samples(step, {"sample": [f"C{step}", "N"], "reward": [step / 7, None]})


def contents(folder: Path) -> tuple[bytes, bytes]:
    return (folder / METRICS).read_bytes(), (folder / SAMPLES).read_bytes()


def run(folder: Path, until: int = LAST) -> None:
    """A run that resumes where its newest checkpoint is, and saves at every fourth update."""
    recorder, store = Recorder(folder), Checkpoints(folder, 2)
    state: dict[str, Any] = load_training(store.latest()) if store.all() else {"step": 0, "position": None}
    recorder.restore(state["position"])
    for step in range(state["step"] + 1, until + 1):
        update(recorder, step)
        if step % 4 == 0:
            store.save(step, Numbers(step), metadata={}, training={"step": step, "position": recorder.position()})


@needs_fork
def test_a_run_killed_again_and_again_ends_with_the_bytes_of_an_undisturbed_one(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    generator, kills = random.Random(1), 0
    for _ in range(100):
        child = os.fork()
        if not child:
            try:
                run(tmp_path / "killed")
                os._exit(0)
            finally:
                os._exit(1)
        time.sleep(0.03 + 0.05 * generator.random())
        os.kill(child, signal.SIGKILL)
        if os.WIFEXITED(os.waitpid(child, 0)[1]):  # it came to its end before
            break
        kills += 1
    run(tmp_path / "killed")
    assert kills > 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert [record["step"] for record in read_metrics(tmp_path / "killed")] == list(range(1, LAST + 1))


@pytest.mark.parametrize("garbage", [b"\n", b'{"step": 3, "rew', b"\x00" * 4096, bytes(range(256)), b'{"step": 3}\n{"step": 4}\n'])
def test_whatever_stands_behind_the_position_goes(tmp_path: Path, garbage: bytes) -> None:
    recorder = Recorder(tmp_path)
    for step in (1, 2):
        update(recorder, step)
    position, before = recorder.position(), contents(tmp_path)
    for name in (METRICS, SAMPLES):
        with (tmp_path / name).open("ab") as file:
            file.write(garbage)
    again = Recorder(tmp_path)
    again.restore(position)
    assert contents(tmp_path) == before
    update(again, 3)
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2, 3]
    assert read_samples(tmp_path / SAMPLES)["step"] == ["1", "1", "2", "2", "3", "3"]


@pytest.mark.parametrize("name", [METRICS, SAMPLES])
def test_a_file_shorter_than_the_position_is_named_and_nothing_is_cut(tmp_path: Path, name: str) -> None:
    recorder = Recorder(tmp_path)
    update(recorder, 1)
    position = recorder.position()
    update(recorder, 2)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:5])
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=f"{name}: 5 bytes, expected at least the {position[name]} .*; put the file back"):
        Recorder(tmp_path).restore(position)
    assert contents(tmp_path) == before


def test_leftovers_of_killed_writes_go_when_a_run_is_resumed_and_no_other_file(tmp_path: Path) -> None:
    kept = [".hidden", ".config.yaml.tmp", "notes.tmp", ".cache.0123456789abcdef.tmp"]
    for name in (*kept, ".evaluation.json.0123456789ab.tmp", ".report.html.abcdef012345.tmp"):
        (tmp_path / name).touch()
    Recorder(tmp_path).restore(None)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(kept)


def test_leftovers_of_killed_checkpoints_go_when_a_run_is_resumed(tmp_path: Path) -> None:
    store = tmp_path / "checkpoints"
    kept = ["step-00000002", ".step-00000001.0123abcd.old", ".hidden"]  # step 1 has no replacement, so it still is a checkpoint
    for name in (*kept, ".step-00000002.89abcdef.old", ".step-00000003.01234567.tmp"):
        (store / name).mkdir(parents=True)
        (store / name / "model.safetensors").touch()
    Recorder(tmp_path).restore(None)
    assert sorted(path.name for path in store.iterdir()) == sorted(kept)


def test_a_cell_may_be_as_long_as_the_line_of_a_large_graph(tmp_path: Path) -> None:
    recorder, limit = Recorder(tmp_path), csv.field_size_limit()
    recorder.record_samples(1, {"sample": ["~" * 300_000, "B"]})
    assert read_samples(tmp_path / "samples.csv.gz")["sample"] == ["~" * 300_000, "B"]
    assert csv.field_size_limit() == limit


def test_samples_of_any_kind_are_told_apart_in_the_tables(tmp_path: Path) -> None:
    drawn: list[Any] = [nx.path_graph(3), nx.star_graph(2), torch.tensor([1.0, 2.0]), np.int64(3), "CCO", None]
    Recorder(tmp_path).record_samples(
        1, {"sample": drawn, "reward": [np.float32(0.5), torch.tensor(0.25), 1, True, None, math.nan]}
    )
    table = read_samples(tmp_path / "samples.csv.gz")
    assert table["sample"] == [graph6(drawn[0]), graph6(drawn[1]), "float32[2]([1.0, 2.0])", "3", "CCO", ""]
    assert table["reward"] == ["0.5", "0.25", "1", "True", "", ""]
    FailureLog(tmp_path).add(1, {"slow": [Failure(nx.path_graph(3), "late"), Failure(None, "invalid")]})
    told = [json.loads(line)["sample"] for line in (tmp_path / "failures.jsonl").read_text().splitlines()]
    assert told == [graph6(nx.path_graph(3)), None]


def test_a_table_may_show_a_sample_without_a_text_of_its_own() -> None:
    sample = object()
    assert shown_text(sample) == str(sample)
    assert shown_text("C,C") == "C,C"
    with pytest.raises(ValueError, match="have no text of their own"):
        text_of(sample)
