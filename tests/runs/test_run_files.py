"""Metrics, samples and tables of a run as files: any reader takes them, and a killed run ends with the same bytes."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discrete_grpo.runs.files import whole_folder
from discrete_grpo.runs.recorder import METRICS, SAMPLES, Recorder, read_metrics, read_samples, write_json, write_table

AWKWARD = ["C,C", 'a "quoted" one', "two\nlines", "a\rreturn", "", " spaces ", "naïve ‖ 分子"]


def update(recorder: Recorder, step: int) -> None:
    recorder.record(step, {"reward": step / 3, "kl": math.nan, "valid": 1})
    rewards = [step / 7, None, math.nan]
    recorder.record_samples(step, {"group": [0, 0, 1], "sample": [f"C{step}", 'N,"x"', "a\nb"], "reward": rewards})


def contents(folder: Path) -> tuple[bytes, bytes]:
    return (folder / METRICS).read_bytes(), (folder / SAMPLES).read_bytes()


def test_metrics_are_valid_json_whatever_the_numbers(tmp_path: Path) -> None:
    Recorder(tmp_path / "run").record(1, {"a": math.inf, "b": float(np.float32(0.5)), "c": 3, "d": None})
    text = (tmp_path / "run" / METRICS).read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"step": 1, "a": None, "b": 0.5, "c": 3, "d": None}
    assert text.endswith("}\n")


def test_samples_are_one_csv_for_any_gzip_reader(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for step in (1, 2):
        update(recorder, step)
    with gzip.open(tmp_path / SAMPLES, "rt", newline="") as file:
        text = file.read()
    assert text.count("step,group,sample,reward\n") == 1
    columns = read_samples(tmp_path / SAMPLES)
    assert columns["step"] == ["1"] * 3 + ["2"] * 3
    assert columns["sample"][:3] == ["C1", 'N,"x"', "a\nb"]
    assert columns["reward"][:3] == [repr(1 / 7), "", ""]


@pytest.mark.parametrize("extra", [0, 1, 2])
@pytest.mark.parametrize("torn", [0, 1, 9])
def test_killed_and_resumed_run_ends_with_the_same_bytes(tmp_path: Path, extra: int, torn: int) -> None:
    whole, killed = Recorder(tmp_path / "whole"), Recorder(tmp_path / "killed")
    for step in range(1, 6):
        update(whole, step)
    for step in range(1, 3):
        update(killed, step)
    checkpoint = json.loads(json.dumps(killed.position()))
    for step in range(3, 3 + extra):
        update(killed, step)
    for name in (METRICS, SAMPLES):  # a record that reached the disk in part
        with (tmp_path / "killed" / name).open("ab") as file:
            file.write((tmp_path / "whole" / name).read_bytes()[:torn])
    resumed = Recorder(tmp_path / "killed")
    resumed.restore(checkpoint)
    for step in range(3, 6):
        update(resumed, step)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_run_killed_before_its_first_checkpoint_starts_over(tmp_path: Path) -> None:
    whole, killed = Recorder(tmp_path / "whole"), Recorder(tmp_path / "killed")
    update(whole, 1)
    killed.record(1, {"reward": 0.0})
    again = Recorder(tmp_path / "killed")
    again.restore(None)
    update(again, 1)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_recorder_does_not_run_into_another_run(tmp_path: Path) -> None:
    update(Recorder(tmp_path), 1)
    before = contents(tmp_path)
    with pytest.raises(FileExistsError, match=r"metrics\.jsonl: \d+ bytes, expected 0; call restore"):
        Recorder(tmp_path).record(1, {})
    assert contents(tmp_path) == before


def test_restore_refuses_files_shorter_than_the_checkpoint(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    update(recorder, 1)
    position = recorder.position()
    (tmp_path / SAMPLES).write_bytes(b"")
    with pytest.raises(ValueError, match=r"samples\.csv\.gz: 0 bytes, expected at least"):
        recorder.restore(position)


def test_recorder_refuses_wrong_columns(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    with pytest.raises(ValueError, match="lengths"):
        recorder.record_samples(1, {"sample": ["C"], "reward": [1.0, 2.0]})
    recorder.record_samples(1, {"sample": ["C"], "reward": [1.0]})
    with pytest.raises(ValueError, match=r"columns: \['sample'\], expected \['sample', 'reward'\]"):
        recorder.record_samples(2, {"sample": ["C"]})
    with pytest.raises(ValueError, match="metrics: an entry 'step'"):
        recorder.record(1, {"step": 2})


def test_an_update_without_samples_keeps_the_header(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.record_samples(1, {"sample": []})
    recorder.record_samples(2, {"sample": ["C"]})
    assert read_samples(tmp_path / SAMPLES) == {"step": ["2"], "sample": ["C"]}


def test_readers_stop_at_every_possible_tear(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run")
    ends = []
    for step in (1, 2):
        update(recorder, step)
        ends.append((recorder.position()[METRICS], recorder.position()[SAMPLES]))
    metrics, samples = contents(tmp_path / "run")
    for cut in range(ends[0][1] + 1, ends[1][1]):
        (tmp_path / SAMPLES).write_bytes(samples[:cut])
        with pytest.warns(RuntimeWarning, match="gzip member 2 is torn"):
            assert read_samples(tmp_path / SAMPLES)["step"] == ["1"] * 3
    for cut in range(ends[0][0] + 1, ends[1][0]):
        (tmp_path / METRICS).write_bytes(metrics[:cut])
        with pytest.warns(RuntimeWarning, match="line 2 is torn"):
            assert [r["step"] for r in read_metrics(tmp_path)] == [1]


def test_reader_stops_at_a_damaged_member(tmp_path: Path) -> None:
    update(Recorder(tmp_path), 1)
    data = bytearray((tmp_path / SAMPLES).read_bytes())
    data[len(data) // 2] ^= 0xFF
    (tmp_path / SAMPLES).write_bytes(data)
    with pytest.warns(RuntimeWarning, match="gzip member 1 is torn"):
        assert read_samples(tmp_path / SAMPLES) == {}


def test_table_round_trip_and_same_bytes(tmp_path: Path) -> None:
    numbers = [k / 7 for k in range(len(AWKWARD))]
    columns: dict[str, Any] = {"sample": AWKWARD, "x": np.array(numbers)}
    write_table(tmp_path / "a.csv.gz", columns)
    write_table(tmp_path / "b.csv.gz", columns)
    back = read_samples(tmp_path / "a.csv.gz")
    assert back["sample"] == AWKWARD
    assert [float(v) for v in back["x"]] == numbers
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    write_table(tmp_path / "one.csv.gz", {"sample": ["", "C"]})
    assert read_samples(tmp_path / "one.csv.gz") == {"sample": ["", "C"]}


def test_large_table_of_many_members_is_read_whole(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    noise = np.random.default_rng(0).random((3, 8000))
    for step, row in enumerate(noise, 1):  # members longer and shorter than the reader's chunk
        recorder.record_samples(step, {"x": row})
        recorder.record_samples(step, {"x": row[:2]})
    assert len(read_samples(tmp_path / SAMPLES)["x"]) == 3 * 8002


def test_write_json_takes_numpy_and_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": np.float64(0.5), "b": [math.nan, 1], "c": {"d": "é"}, "e": np.int64(3)})
    assert json.loads((tmp_path / "x.json").read_text("utf-8")) == {"a": 0.5, "b": [None, 1], "c": {"d": "é"}, "e": 3}


def test_a_folder_that_cannot_be_renamed_leaves_the_one_it_would_replace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final = tmp_path / "policy"
    final.mkdir()
    (final / "weights").write_text("old")
    rename = Path.rename

    def refused(path: Path, target: Any) -> Path:
        if path.name.endswith(".tmp"):
            raise OSError("no rename")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(OSError, match="no rename"), whole_folder(final) as made:
        (made / "weights").write_text("new")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    assert (final / "weights").read_text() == "old"
