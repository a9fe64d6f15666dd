"""A full disk costs the write that met it, and nothing that was written before."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.recipes.pretraining.given_data import with_data
from discrete_grpo.recipes.pretraining.smiles import PretrainSmilesRecipe
from discrete_grpo.recipes.reward_memories import RewardMemories
from discrete_grpo.rewards.diversity import DiversityFilter
from discrete_grpo.rewards.molecules import qed
from discrete_grpo.runs.checkpoint import Checkpoints, load_metadata, save
from discrete_grpo.runs.recorder import METRICS, SAMPLES, Recorder, read_metrics, read_samples, write_json, write_table
from tests.runs.test_checkpoint_run import Numbers, step_of, write

resource: Any = pytest.importorskip("resource", reason="no limits on this system")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte; only root can make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    try:
        made = sys.platform == "linux" and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        made = False
    if not made:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@contextlib.contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """No file can grow beyond ``size`` bytes; a write past it fails like one to a full disk, after a part of it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def never_full(handle: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_one_line_and_the_checkpoint_before_is_resumed_from(small_disk: Path) -> None:
    store = Checkpoints(small_disk, 2)
    write(store, 1, size=20_000)
    (small_disk / "others").write_bytes(b"x" * 800_000)
    for _ in range(2):  # again: nothing was left that takes space
        with pytest.raises(OSError, match="step-00000002: cannot be written") as error:
            write(store, 2, size=20_000)
        assert error.value.errno == errno.ENOSPC
        text = str(error.value)
        assert str(store.folder) in text
        assert "(No space left on device); a resumed run goes on from step-00000001" in text
        assert "\n" not in text
        assert [p.name for p in store.folder.iterdir()] == ["step-00000001"]
    assert step_of(store.latest(), 20_000) == 1
    (small_disk / "others").unlink()
    write(store, 2, size=20_000)
    assert step_of(store.latest(), 20_000) == 2


def test_leftovers_of_a_killed_write_make_room_for_the_next(small_disk: Path) -> None:
    store = Checkpoints(small_disk, 1)
    write(store, 1, size=20_000)
    torn = store.folder / ".step-00000002.0123abcd.tmp"
    torn.mkdir()
    (torn / "training.pt").write_bytes(b"x" * 800_000)
    write(store, 2, size=20_000)
    assert [p.name for p in store.folder.iterdir()] == ["step-00000002"]


def test_files_of_a_run_on_a_full_disk_keep_their_whole_lines(small_disk: Path) -> None:
    recorder = Recorder(small_disk)
    with pytest.raises(OSError, match=r"metrics.jsonl: cannot be written \(No space left on device\); its first \d+ bytes are"):  # noqa: PT012
        for step in range(1_000_000):
            recorder.record(step, {f"metric/{k}": k / 7 for k in range(1000)})
    assert [record["step"] for record in read_metrics(small_disk)] == list(range(step))
    assert (small_disk / METRICS).stat().st_size == recorder.position()[METRICS]


@pytest.mark.parametrize("size", [0, 1, 100, 300, 600, 1200, 1500])
@pytest.mark.parametrize("again", [False, True])
def test_wherever_a_checkpoint_stops_short_the_one_before_is_whole(tmp_path: Path, size: int, again: bool) -> None:
    store = Checkpoints(tmp_path, 1, metric_for_best_model="reward")
    write(store, 1, 0.5)
    with no_file_above(size), pytest.raises(OSError, match="cannot be written") as error:
        write(store, 1 if again else 2, 0.9)
    assert error.value.errno == errno.EFBIG
    assert "a resumed run goes on from step-00000001" in str(error.value)
    assert sorted(p.name for p in store.folder.iterdir()) == ["best.json", "step-00000001"]
    assert step_of(store.latest()) == 1
    write(store, 2, 0.9)
    assert step_of(store.latest()) == 2


def test_a_training_state_that_does_not_fit(tmp_path: Path) -> None:
    """The library that writes it has another error for it than the one that writes the weights."""
    store = Checkpoints(tmp_path)
    with no_file_above(50_000), pytest.raises(OSError, match=r"\(File too large\); .* holds no checkpoint yet"):
        store.save(1, Numbers(), metadata={}, training={"x": torch.zeros(100_000)})
    assert list(store.folder.iterdir()) == []


@pytest.mark.parametrize("what", ["memories", "values"])
def test_files_of_the_beginning_of_a_run_that_do_not_fit(tmp_path: Path, what: str) -> None:
    with no_file_above(200), pytest.raises(OSError, match=r"cannot be written \(File too large\)"):  # noqa: PT012
        if what == "memories":
            RewardMemories([DiversityFilter(qed)], tmp_path / "memories.pt")
        else:
            with_data(PretrainSmilesRecipe(output_dir=str(tmp_path)), ["C" * n for n in range(1, 40)], resume=False)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_tells_only_when_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Checkpoints(tmp_path, 1)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="holds no checkpoint yet"):  # noqa: PT012
        patch.setattr(os, "fsync", never_full)
        write(store, 1)
    assert list(store.folder.iterdir()) == []
    write(store, 1)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):  # noqa: PT012
        patch.setattr(os, "fsync", never_full)
        write(store, 2)
    assert step_of(store.latest()) == 1


@pytest.mark.parametrize("there", [False, True])
def test_an_export_that_cannot_be_written_says_what_is_left(tmp_path: Path, there: bool) -> None:
    if there:
        save(tmp_path / "policy", Numbers(), metadata={"step": 1})
    said = "what was there is as it was" if there else "nothing of it is left"
    with no_file_above(50), pytest.raises(OSError, match=rf"policy: cannot be written \(File too large\); {said}"):
        save(tmp_path / "policy", Numbers(), metadata={"step": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["policy"] * there
    assert not there or load_metadata(tmp_path / "policy") == {"step": 1}


def test_errors_that_are_not_of_the_disk_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="cannot be written to a checkpoint"):
        save(tmp_path / "policy", Numbers(), metadata={"step": object()})
    with pytest.raises(TypeError, match="state of the run: step is of type function, expected tensors"):
        save(tmp_path / "policy", Numbers(), metadata={}, training={"step": lambda: None})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", [0, 1, 20])
def test_a_record_that_does_not_fit_leaves_no_half_line(tmp_path: Path, part: int) -> None:
    recorder = Recorder(tmp_path)
    recorder.record(1, {"reward": 0.5})
    recorder.record_samples(1, {"sample": ["C"]})
    ends = recorder.position()
    with no_file_above(ends[METRICS] + part), pytest.raises(OSError, match=rf"metrics.jsonl: .* first {ends[METRICS]} bytes"):
        recorder.record(2, {"reward": 0.25})
    with no_file_above(ends[SAMPLES] + part), pytest.raises(OSError, match=rf"samples.csv.gz: .* first {ends[SAMPLES]} bytes"):
        recorder.record_samples(2, {"sample": ["N"]})
    assert recorder.position() == ends
    recorder.record(2, {"reward": 0.25})
    recorder.record_samples(2, {"sample": ["N"]})
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2]
    assert read_samples(tmp_path / SAMPLES) == {"step": ["1", "2"], "sample": ["C", "N"]}


def test_a_record_that_cannot_be_synced_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):  # noqa: PT012
        patch.setattr(os, "fsync", never_full)
        recorder.record(1, {"reward": 0.5})
    recorder.record(1, {"reward": 0.5})
    assert len(read_metrics(tmp_path)) == 1


def test_tables_and_json_that_do_not_fit_are_named_and_leave_the_old_ones(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"kept": 1})
    write_table(tmp_path / "a.csv.gz", {"kept": [1]})
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with no_file_above(10), pytest.raises(OSError, match=r"a.json: cannot be written \(File too large\); what was there is as"):
        write_json(tmp_path / "a.json", {"new": list(range(100))})
    with no_file_above(10), pytest.raises(OSError, match=r"a.csv.gz: cannot be written \(File too large\)"):
        write_table(tmp_path / "a.csv.gz", {"new": list(range(100))})
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
