"""Locks of run folders: a second process is refused, and a lock ends with its process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from discrete_grpo import benchmark
from discrete_grpo.cli import main
from discrete_grpo.recipes.failed_runs import withdrawn_on_failure
from discrete_grpo.runs.lock import locked_folder

HOLD = """
import sys
from discrete_grpo.runs.lock import locked_folder
with locked_folder(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Path]:
    """A folder in which another process works while the test runs."""
    folder = tmp_path / "run"
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        yield folder
        other.kill()


def test_a_second_process_is_refused_and_changes_nothing(busy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = f"another process is working in {busy}, expected one at a time"
    with pytest.raises(ValueError, match=said), locked_folder(busy):
        pytest.fail("the folder was taken")
    with pytest.raises(ValueError, match=said), withdrawn_on_failure(busy, calls_count=False):
        pytest.fail("the folder was taken")
    assert main(["train", "demo", f"--output_dir={busy}"]) == 2
    assert said in capsys.readouterr().err
    assert list(busy.iterdir()) == []
    with pytest.raises(ValueError, match=said):
        benchmark("pmo", tasks=["qed"], methods=["best-of-prior"], budget=100, seeds=[0], output_dir=busy)
    assert list(busy.iterdir()) == []
    (busy / "run.json").write_text('{"command": "train"}')
    (busy / "config.yaml").write_text("policy: qm9-small\n")
    assert main(["resume", str(busy)]) == 2
    assert said in capsys.readouterr().err
    assert {path.name for path in busy.iterdir()} == {"run.json", "config.yaml"}


def test_two_builds_of_shards_do_not_share_a_folder(busy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = busy / ".shard-00000.bin.0123456789ab.tmp"
    written.touch()
    (busy.parent / "some.smi").write_text("CCO\nCC\n")
    words = ["preprocess", str(busy.parent / "some.smi"), "--jobs=1"]
    assert main([*words, f"--output_dir={busy}"]) == 2
    assert f"output_dir: another process is working in {busy}, expected one at a time" in capsys.readouterr().err
    assert list(busy.iterdir()) == [written]


def test_a_lock_ends_with_its_block_and_leaves_no_empty_folder(tmp_path: Path) -> None:
    for _ in range(2):
        with locked_folder(tmp_path / "new"), locked_folder(tmp_path / "new"):  # a command and what it calls
            assert (tmp_path / "new").is_dir()
    assert list(tmp_path.iterdir()) == []
    with locked_folder(tmp_path / "kept"):
        (tmp_path / "kept/metrics.jsonl").touch()
    assert (tmp_path / "kept").is_dir()


def test_a_folder_that_cannot_be_made_is_left_to_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with locked_folder(tmp_path / "file" / "run"), locked_folder(tmp_path / "file"):
        pass
    assert (tmp_path / "file").is_file()


def test_a_forked_child_holds_no_lock(tmp_path: Path) -> None:
    with locked_folder(tmp_path):
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:  # a reward's own worker, which outlives the run
            os.read(reading, 1)
            os._exit(0)
    code = f"from discrete_grpo.runs.lock import locked_folder\nwith locked_folder({str(tmp_path)!r}): print('free')"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    try:
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
        assert done.stdout == "free\n", done.stderr
    finally:
        os.write(writing, b"x")
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


def test_a_refused_run_leaves_no_empty_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--policy=runs/nothing", "--reward=qed", "--output_dir=runs/new/x"]) == 2
    assert not [*tmp_path.iterdir()]
    Path("runs").mkdir()
    with locked_folder("runs/a/b"), locked_folder("runs/a/c"):
        Path("runs/a/c/file").touch()
    assert sorted(path.as_posix() for path in Path("runs").rglob("*")) == ["runs/a", "runs/a/c", "runs/a/c/file"]


def test_a_path_is_not_compared_with_names_of_bundled_policies(capsys: pytest.CaptureFixture[str]) -> None:
    for name, told in (("tree-64-sequence", "did you mean 'tree-64-sequences'?"), ("runs/tree-64-sequence", "(bundled: digits")):
        assert main(["train", f"--policy={name}", "--reward=qed"]) == 2
        assert told in capsys.readouterr().err
