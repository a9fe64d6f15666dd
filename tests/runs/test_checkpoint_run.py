"""The checkpoints of a run: which are kept, which is resumed from, which is the best, whatever was killed or damaged."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from discrete_grpo.runs.checkpoint import (
    CheckpointError,
    Checkpoints,
    load_metadata,
    load_training,
    load_weights,
    save,
    withdraw_export,
)
from tests.toys import tiny_policy

FILES = ("config.json", "model.safetensors", "training.pt", "SHA256SUMS")


class Numbers(nn.Module):
    """The smallest policy a checkpoint can hold: its weights say which update it is of."""

    def __init__(self, step: int = 0, size: int = 8) -> None:
        super().__init__()
        self.size = size
        self.values = nn.Parameter(torch.full((size,), float(step)))

    def init_args(self) -> dict[str, Any]:
        return {"size": self.size}


def write(store: Checkpoints, step: int, reward: float | None = None, size: int = 8) -> Path:
    lines = [] if reward is None else [{"reward": reward}]
    state = {"step": step, "weights": torch.full((size,), float(step))}
    return store.save(step, Numbers(step, size), metadata={"step": step}, training=state, lines=lines)


def step_of(folder: Path, size: int = 8) -> int:
    """The update a checkpoint is of, if all of its files agree."""
    policy = Numbers(size=size)
    load_weights(folder, policy)
    state = load_training(folder)
    found = {*policy.values.tolist(), *state["weights"].tolist(), state["step"], load_metadata(folder)["step"]}
    assert len(found) == 1
    return int(found.pop())


def steps(store: Checkpoints) -> list[int]:
    return [int(path.name[-8:]) for path in store.all()]


# -- retention


def test_the_newest_are_kept(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 2)
    for step in (1, 2, 10):
        write(store, step)
    assert steps(store) == [2, 10]
    assert step_of(store.latest()) == 10


def test_all_are_kept_without_a_limit(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, None)
    for step in (1, 2, 3, 10):
        write(store, step)
    assert steps(store) == [1, 2, 3, 10]


def test_no_checkpoint_is_one_line() -> None:
    with pytest.raises(CheckpointError, match=r"checkpoints holds no checkpoint to resume from$"):
        Checkpoints("nowhere").latest()


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(tmp_path: Path, limit: int) -> None:
    with pytest.raises(ValueError, match=f"save_total_limit: {limit}, expected at least 1"):
        Checkpoints(tmp_path, limit)


def test_checkpoints_of_an_abandoned_part_of_the_run_go_when_it_goes_on(tmp_path: Path) -> None:
    for step in (8, 10):
        write(Checkpoints(tmp_path, 2), step)
    (tmp_path / "checkpoints/step-00000010/training.pt").unlink()
    store = Checkpoints(tmp_path, 1)
    with pytest.warns(RuntimeWarning, match="step-00000008 is taken"):
        assert step_of(store.latest()) == 8
    write(store, 9)
    assert steps(store) == [9]
    assert step_of(store.latest()) == 9


def test_an_export_is_withdrawn_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill in the middle leaves no folder of that name without its weights."""

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    save(tmp_path / "policy", tiny_policy(), metadata={})
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            withdraw_export(tmp_path)
    assert not (tmp_path / "policy").exists()
    withdraw_export(tmp_path)  # nothing is left to withdraw


def test_a_link_is_removed_and_not_what_it_points_to(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept").touch()
    store = Checkpoints(tmp_path, 1)
    store.folder.mkdir()
    (store.folder / "step-00000001").symlink_to(other)
    (store.folder / ".step-00000002.0123abcd.tmp").symlink_to(other)
    write(store, 3)
    assert sorted(os.listdir(store.folder)) == ["step-00000003"]  # noqa: PTH208
    assert (other / "kept").exists()


# -- damage


def spoil(path: Path, how: str) -> None:
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-len(whole) // 3] ^= 0x10  # inside numbers and names, where neither zip nor safetensors nor JSON would notice
    spoiled = {"empty": b"", "half": whole[: len(whole) // 2], "flipped": bytes(flipped), "garbage": os.urandom(len(whole))}
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(spoiled[how])


@pytest.mark.parametrize("how", ["missing", "empty", "half", "flipped", "garbage"])
@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "training.pt"])
def test_a_damaged_file_of_any_kind_is_named_and_the_checkpoint_before_is_taken(tmp_path: Path, file: str, how: str) -> None:
    store = Checkpoints(tmp_path, 3)
    for step in (1, 2, 3):
        write(store, step)
    spoil(store.folder / "step-00000003" / file, how)
    with pytest.warns(RuntimeWarning, match=f"step-00000003(/{file}| has no {file}).*; step-00000002 is taken instead") as told:
        found = store.latest()
    assert step_of(found) == 2
    assert len(told) == 1
    assert "\n" not in str(told[0].message)


def test_if_all_are_damaged_one_line_names_every_file(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 2)
    for step, file in ((1, "config.json"), (2, "training.pt")):
        spoil(write(store, step) / file, "half")
    with pytest.raises(CheckpointError) as error:
        store.latest()
    text = str(error.value)
    assert text.index("step-00000002/training.pt") < text.index("step-00000001/config.json")
    assert "\n" not in text


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "training.pt"])
def test_a_checkpoint_without_sums_is_read_instead(tmp_path: Path, file: str) -> None:
    store = Checkpoints(tmp_path, 2)
    for step in (1, 2):
        (write(store, step) / "SHA256SUMS").unlink()
    assert step_of(store.latest()) == 2
    spoil(store.folder / "step-00000002" / file, "half")
    with pytest.warns(RuntimeWarning, match=file):
        assert step_of(store.latest()) == 1


def test_a_damaged_file_of_sums_is_named(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 2)
    for step in (1, 2):
        write(store, step)
    sums = store.folder / "step-00000002/SHA256SUMS"
    sums.write_text("".join(line for line in sums.read_text().splitlines(True) if "training" not in line))
    with pytest.warns(RuntimeWarning, match="SHA256SUMS has no sum of training"):
        assert step_of(store.latest()) == 1


def test_the_sums_are_those_of_sha256sum(tmp_path: Path) -> None:
    import hashlib

    folder = write(Checkpoints(tmp_path), 1)
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}" for name in FILES[:3]]
    assert (folder / "SHA256SUMS").read_text().splitlines() == lines


# -- the best


def test_the_best_is_kept_however_old_it_is(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 2, metric_for_best_model="reward")
    for step, reward in enumerate((0.1, 0.9, 0.3, 0.2, 0.5), 1):
        write(store, step, reward)
    assert steps(store) == [2, 4, 5]
    best = store.best()
    assert best is not None
    assert step_of(best) == 2
    assert json.loads((store.folder / "best.json").read_text()) == {
        "checkpoint": "step-00000002",
        "metric": "reward",
        "value": 0.9,
        "greater_is_better": True,
    }
    write(store, 6, 0.95)
    assert steps(store) == [5, 6]


def test_ties_keep_the_older(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 1, metric_for_best_model="reward")
    for step in (1, 2, 3):
        write(store, step, 0.5)
    assert steps(store) == [1, 3]
    assert store.best() == store.folder / "step-00000001"


@pytest.mark.parametrize(("metric", "given", "expected"), [("loss", None, 2), ("loss", True, 1), ("kl", None, 1), ("kl", False, 2)])
def test_less_can_be_better(tmp_path: Path, metric: str, given: bool | None, expected: int) -> None:
    store = Checkpoints(tmp_path, 3, metric_for_best_model=metric, greater_is_better=given)
    for step, value in enumerate((0.9, 0.1, 0.5), 1):
        store.save(step, Numbers(), metadata={}, training={}, lines=[{metric: value}])
    assert store.best() == store.folder / f"step-{expected:08d}"


def test_a_checkpoint_is_worth_the_mean_since_the_one_before_and_unknown_values_are_left_out(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 3, metric_for_best_model="reward")
    nan = float("nan")
    both: list[dict[str, float | None]] = [{"reward": 0.25, "kl": 1.0}, {"reward": None}, {"reward": nan}, {"kl": 2.0}]
    both += [{"reward": 0.75}]
    store.save(1, Numbers(), metadata={}, training={}, lines=both)
    write(store, 2, 0.4)
    store.save(3, Numbers(), metadata={}, training={}, lines=[{"reward": float("nan")}])
    write(store, 4)
    assert store.best() == store.folder / "step-00000001"
    assert json.loads((store.folder / "best.json").read_text())["value"] == 0.5
    assert json.loads((store.folder / "step-00000001/config.json").read_text())["metrics"] == {"reward": 0.5}


def test_the_best_survives_a_resume_and_needs_no_note(tmp_path: Path) -> None:
    first = Checkpoints(tmp_path, 1, metric_for_best_model="reward")
    for step, reward in ((1, 0.9), (2, 0.1)):
        write(first, step, reward)
    (first.folder / "best.json").unlink()  # killed before it was written
    again = Checkpoints(tmp_path, 1, metric_for_best_model="reward")
    assert again.best() == again.folder / "step-00000001"
    write(again, 3, 0.5)
    assert steps(again) == [1, 3]
    assert json.loads((again.folder / "best.json").read_text())["checkpoint"] == "step-00000001"


def test_a_checkpoint_that_is_written_again_keeps_its_worth(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 1, metric_for_best_model="reward")
    write(store, 1, 0.9)
    write(store, 1)
    write(store, 2, 0.5)
    assert store.best() == store.folder / "step-00000001"


def test_what_an_abandoned_part_of_the_run_reached_is_not_the_best(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 3, metric_for_best_model="reward")
    for step, reward in ((1, 0.2), (2, 0.9)):
        write(store, step, reward)
    spoil(store.folder / "step-00000002/training.pt", "half")
    write(store, 1, 0.2)
    assert store.best() == store.folder / "step-00000001"
    assert json.loads((store.folder / "best.json").read_text())["checkpoint"] == "step-00000001"


def test_a_damaged_best_gives_way_to_the_next(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 3, metric_for_best_model="reward")
    for step, reward in ((1, 0.2), (2, 0.9), (3, 0.5)):
        write(store, step, reward)
    spoil(store.folder / "step-00000002/model.safetensors", "flipped")
    with pytest.warns(RuntimeWarning, match=r"step-00000002/model.safetensors .* step-00000003 is taken"):
        assert store.best() == store.folder / "step-00000003"


def test_without_a_metric_there_is_no_best(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 1)
    write(store, 1, 0.9)
    write(store, 2, 0.1)
    assert store.best() is None
    assert sorted(p.name for p in store.folder.iterdir()) == ["step-00000002"]
    assert "metrics" not in json.loads((store.folder / "step-00000002/config.json").read_text())
    assert Checkpoints(tmp_path, 1, metric_for_best_model="kl").best() is None


def test_a_metric_that_is_not_logged_is_named_with_the_nearest() -> None:
    store = Checkpoints("run", metric_for_best_model="rewrd")
    with pytest.raises(ValueError, match="metric_for_best_model: 'rewrd' is not logged; did you mean 'reward'\\? expected one of"):
        store.check_metric({"reward": 0.5, "kl": 0.1})


def test_a_run_that_a_mistyped_metric_ends_before_an_update_says_that_it_can_be_removed(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, metric_for_best_model="rewrd")
    write(store, 0)
    with pytest.raises(ValueError, match=rf"; {re.escape(str(tmp_path))} keeps no update, so begin again in another folder$"):
        store.check_metric({"reward": 0.5})
    write(store, 2)
    with pytest.raises(ValueError, match=rf"expected one of reward; resume {re.escape(str(tmp_path))} with the right name$"):
        store.check_metric({"reward": 0.5})


def test_a_metric_that_is_logged_or_none_is_no_error() -> None:
    Checkpoints("run", metric_for_best_model="kl").check_metric(["kl"])
    Checkpoints("run").check_metric([])
