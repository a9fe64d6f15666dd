"""Runs that are stopped or killed resume and end with the same bits."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from discrete_grpo.cli import main, runs
from discrete_grpo.cli.commands import RUNS
from tests.command_line import GRPO, PRETRAIN, Refuse, lines, outcome, train

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, ForkServerProcess

pytestmark = pytest.mark.usefixtures("here")
ROOT = Path(__file__).parents[2]
IMPORTED = ["pytest", "jsonargparse", "torch._dynamo", "discrete_grpo.recipes.train", "discrete_grpo.recipes.pretraining.molecules"]


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "discrete_grpo.cli", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def in_process(said: str, arguments: list[str]) -> None:
    """Run a command as the whole of this process, with what it says in a file."""
    file = os.open(said, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.exit(main(arguments))


@pytest.fixture(scope="session")
def forks() -> ForkServerContext:
    """Starts processes that have imported the libraries and computed nothing, which saves each the time of the imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


@pytest.fixture
def fork(forks: ForkServerContext) -> Callable[..., ForkServerProcess]:
    """Start a command in such a process of its own; what it says is appended to the file ``said``."""

    def started(*arguments: str) -> ForkServerProcess:
        process = forks.Process(target=in_process, args=("said", list(arguments)), daemon=True)
        process.start()
        return process

    return started


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str] | ForkServerProcess, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        code = process.poll() if isinstance(process, subprocess.Popen) else process.exitcode
        assert code is None, process.communicate() if isinstance(process, subprocess.Popen) else Path("said").read_text()
        assert time.monotonic() < end
        time.sleep(0.002)


LONG = [*GRPO, "--grpo.max_steps=20", "--grpo.ema_decay=0.9", "--grpo.beta=0.01", "--evaluation_samples=8", "--num_steps=4"]


def long_train(out: str, *more: str) -> list[str]:
    return ["train", "demo", "--policy=tiny", f"--output_dir={out}", *LONG, *more]


@pytest.fixture(scope="session")
def unbroken(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """The results of the long run when nothing stops it; the number of its checkpoints must not matter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("unbroken"))
        shutil.copytree(tiny, "tiny")
        assert main(long_train("run", "--grpo.save_steps=1000")) == 0
        return outcome("run")


def test_ctrl_c_saves_and_resume_ends_with_the_same_bits(unbroken: tuple[Any, ...]) -> None:
    process = start(*long_train("run", "--grpo.save_steps=1000"))
    wait_for(lambda: lines("run") > 0, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in said
    done = lines("run")
    assert 0 < done < 20
    last = said.rstrip("\n").split("\n")[-1]
    assert last == f"discrete-grpo: stopped at update {done} of 20; saved, continue with: discrete-grpo resume run"
    assert (Path("run/checkpoints") / f"step-{done:08d}").is_dir()
    assert main(["resume", "run"]) == 0
    assert outcome("run") == unbroken


def test_ctrl_c_outside_the_loop_says_how_to_resume(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stopped(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("discrete_grpo.recipes.evaluations.sample_policy", stopped)
        assert main(train()) == 130
    assert "stopped; continue with: discrete-grpo resume run" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr("discrete_grpo.training.trainer.GRPOTrainer.update", stopped)  # a second Ctrl-C ends an update at once
        assert main(["resume", "run"]) == 130
        assert "stopped; the newest checkpoint is checkpoints/step-00000000, continue with" in capsys.readouterr().err
        moved = Path("run/checkpoints/.step-00000001.01234567.old")  # by a kill in the middle of a write
        shutil.copytree("run/checkpoints/step-00000000", moved)
        assert main(["resume", "run"]) == 130
        said = "stopped; the newest checkpoint is checkpoints/step-00000001, continue with: discrete-grpo resume run"
        assert said in capsys.readouterr().err
        shutil.rmtree(moved, ignore_errors=True)
    assert main(["resume", "run"]) == 0
    assert main(train(out="whole")) == 0
    assert outcome("run") == outcome("whole")


@pytest.mark.slow
def test_sigkill_at_random_moments_of_training(unbroken: tuple[Any, ...], fork: Callable[..., ForkServerProcess]) -> None:
    chance = random.Random(0)

    def writing() -> bool:  # in the middle of a checkpoint
        return any(Path("run/checkpoints").glob(".step-*.tmp"))

    moments: list[Callable[[], bool]] = [
        lambda: lines("run") >= chance.randrange(1, 5),
        writing,
        lambda: lines("run") > 8 and writing(),
    ]
    for k, moment in enumerate(moments):
        process = fork(*(long_train("run") if k == 0 else ["resume", "run"]))
        wait_for(moment, process)
        time.sleep(chance.random() * 0.01 * (k == 0))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert lines("run") < 20
    assert main(["resume", "run"]) == 0
    assert outcome("run") == unbroken
    assert not list(Path("run/checkpoints").glob(".*"))


@pytest.mark.slow
def test_a_pretraining_that_is_killed_and_stopped(fork: Callable[..., ForkServerProcess]) -> None:
    def command(out: str) -> list[str]:
        more = ["--pretrain.max_steps=40", "--pretrain.save_steps=4", "--pretrain.log_steps=3", "--evaluation_samples=4"]
        return ["pretrain", *PRETRAIN, *more, f"--output_dir={out}"]

    assert main(command("whole")) == 0
    process = fork(*command("run"))
    wait_for(lambda: lines("run") > 3 and any(Path("run/checkpoints").glob("step-*")), process)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert lines("run") < lines("whole")
    before = lines("run")
    process = fork("resume", "run")
    wait_for(lambda: lines("run") > before, process)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    process.join(timeout=120)
    said = Path("said").read_text()
    assert process.exitcode == 130, said
    assert "saved, continue with: discrete-grpo resume run" in said
    assert main(["resume", "run"]) == 0
    assert outcome("run") == outcome("whole")


def test_resume_passes_over_damaged_checkpoints(refuse: Refuse) -> None:
    assert main(train()) == 0
    before = outcome("run")
    newest, older = sorted(Path("run/checkpoints").iterdir(), reverse=True)
    os.truncate(newest / "training.pt", 500)
    with pytest.warns(RuntimeWarning, match="is taken instead"):
        assert main(["resume", "run"]) == 0
    assert outcome("run") == before
    for checkpoint in (newest, older):
        os.truncate(checkpoint / "training.pt", 500)
    line = refuse("resume", "run")
    assert "holds no checkpoint to resume from" in line
    assert "truncated" in line
    assert outcome("run") == before
    shutil.rmtree("run/checkpoints")
    assert refuse("resume", "run").startswith("run: holds samples of updates but no checkpoint to go on from; was run/checkpoints")
    assert outcome("run") == before
    Path("run/config.yaml").unlink()
    assert "run: run is no run folder" in refuse("resume", "run")
    Path("run/run.json").write_text('{"command": "rm"}')
    assert "run: run is no run folder" in refuse("resume", "run")


def killed(path: Path, content: Any) -> None:
    """Leave what a kill in the middle of an atomic write leaves."""
    path.with_name(f".{path.name}.0123456789ab.tmp").touch()
    raise KeyboardInterrupt


@pytest.mark.parametrize("command", RUNS)
@pytest.mark.parametrize("write", ["write_text", "write_json"])
def test_a_command_that_was_killed_while_it_wrote_its_settings_can_be_given_again(
    command: str, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [command, "--output_dir=run", *(["--data=good.smi"] if command == "sft" else [])]
    ran: list[Any] = []
    monkeypatch.setattr("discrete_grpo.cli.runs.recipe_of", lambda name: (None, ran.append))
    with monkeypatch.context() as patch:
        patch.setattr(f"discrete_grpo.runs.recorder.{write}", killed)
        assert main(arguments) == 130
    assert not Path("run/run.json").exists()
    assert ran == []
    assert main(arguments) == 0
    assert len(ran) == 1
    assert json.loads(Path("run/run.json").read_text()) == {"command": command}


@pytest.mark.parametrize("count", ["1", "2"])
def test_the_end_of_another_process_is_told_with_how_to_go_on(
    count: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(recipe: Any) -> None:
        Path("run/checkpoints").mkdir()
        raise RuntimeError("[pair.cc:537] Read error [127.0.0.1]:9433: Connection reset by peer. Gloo may be misused.\nA trace")

    monkeypatch.setenv("WORLD_SIZE", count)
    monkeypatch.setattr("discrete_grpo.cli.runs.recipe_of", lambda name: (None, run))
    assert main(["train", "--output_dir=run"]) == 2
    said = capsys.readouterr().err
    told = "processes: the others of this run cannot be reached, as when one of them has ended"
    reason = "([pair.cc:537] Read error [127.0.0.1]:9433: Connection reset by peer)"
    assert said.startswith(f"discrete-grpo: error: {told} {reason}") == (count == "2")
    assert ("continue with: discrete-grpo resume run" in said) == (count == "2")


def test_of_several_processes_only_the_first_makes_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert main(train()) == 0
    assert not Path("run/run.json").exists()
    assert not Path("run/config.yaml").exists()


def test_one_thread() -> None:
    assert torch.get_num_threads() == 1  # same bits in the subprocesses and here


def test_ctrl_c_in_a_command_without_a_run_says_that_it_stopped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("discrete_grpo.recipes.evaluate.evaluate_file", stopped)
    assert main(["evaluate", "good.smi"]) == 130
    assert capsys.readouterr().err == "discrete-grpo: stopped\n"


def test_a_run_without_rewards_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("scored.csv").write_text("smiles,y\n" + "".join(f"{'C' * k},{k}\n" for k in (1, 2, 3, 4)))
    options = ["--data=scored.csv", "--score_column=y", "--offline_steps=2", "--reward=[]"]
    with monkeypatch.context() as patch:
        patch.setattr("discrete_grpo.recipes.train._finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(train(*options)) == 130
    assert main(["resume", "run"]) == 0
    assert Path("run/policy/model.safetensors").is_file()


@pytest.mark.parametrize("phase", ["before", "after"])
def test_sigterm_during_an_evaluation_ends_as_ctrl_c_does(phase: str, capsys: pytest.CaptureFixture[str]) -> None:
    asks = "len(samples) == 5 and Path('run/metrics.jsonl').exists() is " + str(phase == "after")
    Path("ends.py").write_text(
        "import signal\nfrom pathlib import Path\n"
        f"def ends(samples, **columns):\n    if {asks}: signal.raise_signal(signal.SIGTERM)\n    return [1.0] * len(samples)\n"
        "ends.cached_as = None\n"
    )
    before = signal.getsignal(signal.SIGTERM)
    assert main(train("--reward=ends.ends", "--evaluation_samples=5", "--grpo.max_steps=1")) == 130
    assert "discrete-grpo: stopped; " in capsys.readouterr().err.splitlines()[-1]
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_checkpoint_that_a_run_goes_on_from_is_the_newest_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"command": "pretrain-digits"}')
    assert runs._kept(tmp_path, KeyboardInterrupt()) == ""
    for name, told in (
        ("autoencoder/checkpoints/step-00000009", "autoencoder/checkpoints/step-00000009"),
        ("checkpoints/step-00000001", "checkpoints/step-00000001"),
        ("checkpoints/step-00000002", "checkpoints/step-00000002"),
        ("classifier/checkpoints/step-00000030", "checkpoints/step-00000002"),
    ):
        (tmp_path / name).mkdir(parents=True)
        assert runs._kept(tmp_path, KeyboardInterrupt()) == f"the newest checkpoint is {told}, "
