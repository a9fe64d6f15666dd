"""A save that is killed or forked at any moment loses nothing that was saved before."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.runs.checkpoint import (
    Checkpoints,
    load_metadata,
    save,
)
from discrete_grpo.runs.recorder import Recorder
from discrete_grpo.training.offline import OfflineTrainer
from discrete_grpo.training.pretrain import Pretrainer
from tests.letters import letters_policy
from tests.runs.test_checkpoint_run import FILES, Numbers, step_of, steps, write
from tests.toys import share_of_class_two, tiny_policy
from tests.training.test_offline import DATA as WORDS
from tests.training.test_pretrain import CONFIG, DATA

# -- kills


def killed(work: Callable[[], Any], folder: Path, event: int) -> bool:
    """Whether ``work``, done in a child process, was killed at its ``event``-th touch of a file in ``folder``."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        return os.WIFSIGNALED(status)
    count = 0

    def hook(name: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if name.startswith(("os.", "open", "shutil.")) and any(str(a).startswith(str(folder)) for a in arguments):
            count += 1
            if count == event:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.addaudithook(hook)
        work()
    except BaseException as error:
        os.write(2, repr(error).encode())
        os._exit(1)
    os._exit(0)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@needs_fork
@pytest.mark.parametrize("again", [False, True], ids=["a new checkpoint", "the same one again"])
def test_a_kill_at_any_moment_of_a_save_leaves_a_checkpoint_and_the_next_save_clears_up(tmp_path: Path, again: bool) -> None:
    events = 0
    while True:
        run = tmp_path / str(events)
        store = Checkpoints(run, 1, metric_for_best_model="reward")
        write(store, 1, 0.5)
        if not killed(lambda: write(store, 1 if again else 2, 0.9), run, events + 1):  # noqa: B023
            break
        assert step_of(store.latest()) in (1, 2)
        assert all(step_of(there) in (1, 2) for there in store.all()), "no checkpoint is half removed"
        best = store.best()
        assert best is not None
        noted = store.folder / json.loads((store.folder / "best.json").read_text())["checkpoint"]
        assert noted.is_dir() or again  # which may stand aside
        write(store, 3, 0.1)
        names = [p.name for p in store.folder.iterdir() if p.name != "best.json"]
        assert sorted(names) == [p.name for p in store.all()]
        assert all(sorted(p.name for p in whole.iterdir()) == sorted(FILES) for whole in store.all())
        assert steps(store)[-1] == step_of(store.latest()) == 3
        shutil.rmtree(run)
        events += 1
    assert events > 10, "the save was killed at each of its steps"


@needs_fork
def test_random_kills_lose_nothing_that_was_saved(tmp_path: Path) -> None:
    generator = random.Random(0)
    store, size, done = Checkpoints(tmp_path, 2), 300_000, 0
    for _ in range(8):
        child = os.fork()
        if not child:
            try:
                step = done
                while True:
                    step += 1
                    write(store, step, size=size)
                    (tmp_path / "said").write_text(str(step))  # the save has returned
            finally:
                os._exit(1)
        time.sleep(0.05 + 0.1 * generator.random())
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said = int((tmp_path / "said").read_text() or 0) if (tmp_path / "said").exists() else 0
        if store.all():
            done = step_of(store.latest(), size)
        assert done >= said
    assert done > 2


def test_leftovers_are_no_checkpoints_and_go_at_the_next_save(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 2)
    folder = write(store, 1)
    for name in (".step-00000002.0123abcd.tmp", ".step-00000001.0123abcd.old", "step-2", "step-00000009.tmp"):
        shutil.copytree(folder, store.folder / name)
    assert steps(store) == [1]
    assert store.latest() == folder
    write(store, 3)
    assert sorted(p.name for p in store.folder.iterdir()) == ["step-00000001", "step-00000003", "step-00000009.tmp", "step-2"]


def test_a_checkpoint_moved_aside_by_a_killed_write_stands_for_itself(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 2)
    folder = write(store, 1)
    aside = folder.rename(folder.with_name(".step-00000001.0123abcd.old"))
    assert store.latest() == aside
    assert step_of(aside) == 1
    write(store, 2)
    assert steps(store) == [1, 2]
    assert step_of(folder) == 1, "the next save gave it its name back"


def test_leftovers_of_an_export_go_at_the_next_one(tmp_path: Path) -> None:
    folder = save(tmp_path / "policy", Numbers(1), metadata={"step": 1})
    shutil.copytree(folder, tmp_path / ".policy.0123abcd.tmp")
    shutil.copytree(folder, tmp_path / ".other.0123abcd.tmp")
    save(folder, Numbers(2), metadata={"step": 2})
    assert sorted(p.name for p in tmp_path.iterdir()) == [".other.0123abcd.tmp", "policy"]
    assert load_metadata(folder) == {"step": 2}


def test_trainers_refuse_the_folder_of_another_run_and_leave_it_as_it_is(tmp_path: Path) -> None:
    config = GRPOConfig(max_steps=3, num_generations=4, generation_batch_size=8, save_steps=1, learning_rate=1e-3)
    trained: dict[str, Any] = {
        "grpo": lambda **o: GRPOTrainer(tiny_policy(), share_of_class_two, config, run=tmp_path / "grpo", **o),
        "pretraining": lambda **o: Pretrainer(tiny_policy(), DATA, CONFIG, tmp_path / "pretraining", **o),
        "offline": lambda **o: OfflineTrainer(letters_policy(), WORDS, config, steps=2, run=tmp_path / "offline", **o),
    }
    for name, make in trained.items():
        make().train()
        before = {path: path.read_bytes() for path in sorted((tmp_path / name).rglob("*")) if path.is_file()}
        with pytest.raises(
            ValueError, match=rf"^run: .*{name} holds results of another run \(step-000000\d\d\), expected a folder"
        ):
            make()
        assert {path: path.read_bytes() for path in sorted((tmp_path / name).rglob("*")) if path.is_file()} == before
        make(resume=True)
        shutil.rmtree(tmp_path / name / "checkpoints")
        with pytest.raises(ValueError, match=r"another run \(metrics.jsonl\)"):
            make()


def test_a_checkpoint_moved_aside_outlives_the_start_of_a_resume(tmp_path: Path) -> None:
    aside = tmp_path / "checkpoints" / ".step-00000002.0123abcd.old"
    aside.mkdir(parents=True)
    Recorder(tmp_path).restore(None)
    assert Checkpoints(tmp_path).all() == [aside]
