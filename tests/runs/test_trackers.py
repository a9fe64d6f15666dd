"""Trackers: what was logged is read back from their files, a resumed run has each step once, a broken one stops nothing."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import struct
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.runs.trackers import (
    TensorBoard,
    Tracker,
    Trackers,
    WeightsAndBiases,
    best_distinct,
    molecule_grid,
    open_trackers,
)

has_tensorboard = pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="the extra tensorboard is absent")
has_wandb = pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="the extra wandb is absent")
PNG = b"\x89PNG\r\n\x1a\n"


# -- what is shown


def test_the_best_distinct_samples_are_shown() -> None:
    samples = ["C", "CC", None, "CCC", "CC", "O", "N"]
    rewards = [0.2, 0.5, 9.0, math.nan, 0.75, None, 0.2]
    assert best_distinct(samples, rewards) == (("CC", "C", "N"), ("0.75", "0.2", "0.2"))
    assert best_distinct(samples, rewards, 1) == (("CC",), ("0.75",))
    assert best_distinct([], []) == ((), ())
    with pytest.raises(ValueError, match="zip"):
        best_distinct(["C"], [])


def test_a_grid_has_a_cell_a_molecule() -> None:
    for count, columns, rows in ((1, 1, 1), (6, 6, 1), (7, 6, 2)):
        png = molecule_grid(["CCO"] * count, ["a"] * count, width=50, height=40)
        assert png is not None
        assert png[:8] == PNG
        assert (int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")) == (50 * columns, 40 * rows)
    one, again, other = (molecule_grid([s, "C("], ["", ""]) for s in ("CCO", "CCO", "CCN"))
    assert one == again != other
    assert molecule_grid(["C(", ""], ["", ""]) is None


# -- TensorBoard


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    module: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = module.EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@has_tensorboard
def test_scalars_are_read_back(tmp_path: Path) -> None:
    tracker = TensorBoard(tmp_path / "board")
    assert isinstance(tracker, Tracker)
    assert not (tmp_path / "board").exists()
    tracker.start(0)
    tracker.log(1, {"reward": 0.5, "rewards/qed/mean": 2, "kl": None})
    tracker.log(2, {"reward": math.nan, "rewards/qed/mean": math.inf, "kl": 0.25})
    before = {"reward": [(1, 0.5)], "rewards/qed/mean": [(1, 2.0)], "kl": [(2, 0.25)]}
    assert scalars(tmp_path / "board") == before, "what was logged is on disk at once"
    tracker.close()
    assert scalars(tmp_path / "board") == before


@has_tensorboard
def test_a_resumed_run_has_each_step_once(tmp_path: Path) -> None:
    first = TensorBoard(tmp_path)
    first.start(0)
    for step in range(1, 8):
        first.log(step, {"reward": float(step)})
    with next(tmp_path.glob("events*")).open("ab") as file:
        file.write(b"torn")  # and it was never closed
    second = TensorBoard(tmp_path)
    second.start(4)
    for step in range(5, 10):
        second.log(step, {"reward": step / 10})
    second.close()
    found = dict(scalars(tmp_path)["reward"])
    assert list(found) == list(range(1, 10)) == [step for step, _ in scalars(tmp_path)["reward"]]
    assert found == pytest.approx({k: float(k) if k < 5 else k / 10 for k in range(1, 10)})
    third = TensorBoard(tmp_path)
    third.start(0)  # killed before the first checkpoint
    third.log(1, {"reward": -1.0})
    third.close()
    assert scalars(tmp_path)["reward"] == [(1, -1.0)]
    first.close()


@has_tensorboard
def test_samples_are_an_image_or_a_text(tmp_path: Path) -> None:
    tracker, text = TensorBoard(tmp_path / "a"), TensorBoard(tmp_path / "b", picture=None)
    for each in (tracker, text):
        each.start(0)
        each.log_samples(3, ["CCO", "c1ccccc1"], ["0.9", "0.8"])
        each.close()
    module: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = module.EventAccumulator(str(tmp_path / "a")).Reload()
    (image,) = events.Images("samples")
    assert (image.step, image.width, image.height, image.encoded_image_string[:8]) == (3, 360, 150, PNG)
    events = module.EventAccumulator(str(tmp_path / "b")).Reload()
    (line,) = events.Tensors("samples/text_summary")
    assert line.tensor_proto.string_val[0].decode().split() == ["0.9", "CCO", "0.8", "c1ccccc1"]


# -- W&B


class FakeRun:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings, self.lines, self.finished = settings, list[tuple[int, dict[str, Any]]](), False

    def log(self, line: Mapping[str, Any], step: int) -> None:
        self.lines.append((step, dict(line)))

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def fake_runs(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    runs: list[FakeRun] = []

    def init(**settings: Any) -> FakeRun:
        runs.append(FakeRun(settings))
        return runs[-1]

    fake: Any = types.ModuleType("wandb")
    fake.init, fake.Settings, fake.Image, fake.Table = init, dict, lambda pixels: pixels, lambda **content: content
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return runs


def test_a_wandb_run_is_taken_up_again(tmp_path: Path, fake_runs: list[FakeRun]) -> None:
    for step in (0, 3, 0):
        tracker = WeightsAndBiases(tmp_path / "my-run", mode="offline", config={"beta": 0.1}, picture=None)
        assert isinstance(tracker, Tracker)
        tracker.start(step)
        tracker.log(step + 1, {"reward": 0.5, "kl": math.nan, "loss": None})
        tracker.log_samples(step + 1, ["CCO"], ["0.5"])
        tracker.close()
    ids = [run.settings["id"] for run in fake_runs]
    assert ids[0] == ids[1] != ids[2], "a run that starts anew is another one"
    assert (tmp_path / "my-run" / "wandb-id.txt").read_text().strip() == ids[2]
    first = fake_runs[0]
    assert {name: first.settings[name] for name in ("project", "name", "resume", "mode", "config")} == {
        "project": "discrete-grpo",
        "name": "my-run",
        "resume": "allow",
        "mode": "offline",
        "config": {"beta": 0.1},
    }
    table = {"columns": ["sample", "caption"], "data": [["CCO", "0.5"]]}
    assert first.lines == [(1, {"reward": 0.5}), (1, {"samples": table})]
    assert all(run.finished for run in fake_runs)


def test_a_run_that_failed_in_its_first_generation_goes_on_in_the_same_wandb_run(tmp_path: Path, fake_runs: list[FakeRun]) -> None:
    tracker = Trackers({"wandb": WeightsAndBiases(tmp_path, picture=None)})
    tracker.start(0)
    tracker.close()
    tracker.log(1, {"reward": 0.5})
    assert len({run.settings["id"] for run in fake_runs}) == 1
    assert [run.lines for run in fake_runs] == [[], [(1, {"reward": 0.5})]]


def test_wandb_gets_a_picture(tmp_path: Path, fake_runs: list[FakeRun]) -> None:
    pytest.importorskip("PIL")
    tracker = WeightsAndBiases(tmp_path)
    tracker.start(0)
    tracker.log_samples(1, ["CCO", "CC"], ["", ""])
    assert fake_runs[0].lines[0][1]["samples"].shape == (150, 360, 3)
    with pytest.raises(ValueError, match="mode: 'off', expected online, offline, disabled or None"):
        WeightsAndBiases(tmp_path, mode="off")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["disabled", "offline", None])
def test_the_mode_of_wandb_is_left_to_its_variable(
    mode: str | None, tmp_path: Path, fake_runs: list[FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    if mode is not None:
        monkeypatch.setenv("WANDB_MODE", mode)
    tracker = open_trackers(tmp_path, ["wandb"], {})
    assert tracker is not None
    tracker.start(0)
    assert fake_runs[0].settings["mode"] is None


def level_records(data: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log after W&B's header of 7 bytes: blocks of 32 KiB, (checksum, length, type) before each part."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        if (room := 2**15 - at % 2**15) < 7:
            at += room
            continue
        _, length, kind = struct.unpack_from("<LHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


@has_wandb
def test_an_offline_run_is_read_back(tmp_path: Path) -> None:
    tracker = WeightsAndBiases(tmp_path, mode="offline", config={"beta": 0.1})
    tracker.start(0)
    tracker.log(1, {"reward": 0.5, "kl": None})
    tracker.log_samples(1, ["CCO"], ["0.5"])
    tracker.log(2, {"reward": 0.75})
    tracker.close()
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    record_type: Any = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    lines = []
    for data in level_records(path.read_bytes()):
        record = record_type()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            lines.append((record.history.step.num, items.get("reward"), "samples" in {key.split("/")[0] for key in items}))
    assert lines == [(1, 0.5, True), (2, 0.75, False)]


# -- what goes wrong


@pytest.mark.parametrize(("module", "extra"), [("torch.utils.tensorboard", "tensorboard"), ("wandb", "wandb")])
def test_a_missing_package_is_named_with_its_extra(
    module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"{extra}: .*; expected the extra, pip install 'discrete-grpo\[{extra}\]'"):
        {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}[extra](tmp_path)


class Broken:
    """Works until it is asked for ``at``."""

    def __init__(self, at: str) -> None:
        self.at, self.asked = at, list[str]()

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if what == self.at:
            raise OSError("no space\nleft on device")

    def start(self, step: int) -> None:
        self._ask("start")

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        self._ask(f"log {step}")

    def log_samples(self, step: int, samples: Sequence[str], captions: Sequence[str]) -> None:
        self._ask("log_samples")

    def close(self) -> None:
        self._ask("close")


@pytest.mark.parametrize("at", ["start", "log 2", "log_samples", "close"])
def test_a_broken_tracker_is_switched_off_and_the_others_go_on(at: str) -> None:
    everything = ["start", "log 1", "log_samples", "log 2", "close"]
    bad, good = Broken(at), Broken("never")
    trackers = Trackers({"bad": bad, "good": good})
    assert isinstance(trackers, Tracker)
    left: list[str] = []

    def run() -> None:
        trackers.start(0)
        trackers.log(1, {"reward": 0.0})
        trackers.log_samples(1, ["C"], [""])
        trackers.log(2, {"reward": 0.0})
        left.extend(trackers.names)
        trackers.close()

    with pytest.warns(RuntimeWarning) as told:
        run()
    assert left == (["bad", "good"] if at == "close" else ["good"])
    assert [str(w.message) for w in told] == ["tracker bad: switched off, the run goes on; OSError: no space left on device"]
    assert told[0].filename == __file__
    assert good.asked == everything
    assert bad.asked == everything[: everything.index(at) + 1]
    trackers.close()  # once is enough
    assert len(good.asked) == 5
    trackers.log(3, {})  # the run goes on
    assert good.asked[5:] == ["start", "log 3"]
    assert bad.asked == everything[: everything.index(at) + 1], "what failed stays off"


@pytest.mark.parametrize("samples_first", [False, True])
def test_trackers_start_again_before_the_update_that_follows_a_close(samples_first: bool) -> None:
    starts: list[int] = []

    class Started(Broken):
        def start(self, step: int) -> None:
            super().start(step)
            starts.append(step)

    one, fails = Started("never"), Broken("start")
    trackers = Trackers({"one": one})
    trackers.start(4)
    trackers.log(5, {})
    trackers.close()
    trackers.log_samples(6, ["C"], [""]) if samples_first else None
    trackers.log(6, {})
    trackers.log(7, {})
    trackers.close()
    trackers.start(7)  # another trainer with the same trackers
    trackers.log(8, {})
    assert starts == [4, 5, 7]
    again = ["start", *["log_samples"] * samples_first, "log 6", "log 7", "close"]
    assert one.asked == ["start", "log 5", "close", *again, "start", "log 8"]
    trackers = Trackers({"fails": fails})
    trackers.close()
    with pytest.warns(RuntimeWarning, match="tracker fails: switched off") as told:
        trackers.log(1, {})
    assert told[0].filename == __file__
    trackers.log(2, {})
    assert fails.asked == ["close", "start"]


@has_tensorboard
def test_a_board_that_was_closed_has_the_later_steps_too(tmp_path: Path) -> None:
    trackers = Trackers({"board": TensorBoard(tmp_path)})
    trackers.start(0)
    for step in (1, 2, 3, 4):
        trackers.log(step, {"reward": float(step)})
        if step % 2 == 0:
            trackers.close()
    assert scalars(tmp_path)["reward"] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]


@has_tensorboard
def test_a_folder_that_cannot_be_made_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    trackers = Trackers({"tensorboard": TensorBoard(tmp_path / "file" / "board")})
    with pytest.warns(RuntimeWarning, match="tracker tensorboard: switched off"):
        trackers.start(0)
    trackers.log(1, {"reward": 1.0})
    assert trackers.names == ()


def test_interrupting_is_no_failure_of_a_tracker() -> None:
    class Interrupted(Broken):
        def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Trackers({"a": Interrupted("never")}).log(1, {})


def test_a_sample_with_several_rewards_is_shown_with_the_highest() -> None:
    from discrete_grpo.runs.trackers import best_distinct

    assert best_distinct(["C", "CC", "C"], [0.9, 0.5, 0.1]) == (("C", "CC"), ("0.9", "0.5"))
