"""Runs whose reward fails at once or says nothing: their folders can be used again, files of the user stay."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo import GRPOConfig
from discrete_grpo.cli import main
from discrete_grpo.core.scoring import NoScores, RewardError
from discrete_grpo.recipes.failed_runs import withdrawn_on_failure
from discrete_grpo.recipes.loading import policy_object
from discrete_grpo.recipes.train import train
from tests.benchmarking.test_methods import chains
from tests.recipes.optimise_parts import SMALL, files, oxygens, run


def broken(samples: Sequence[str], **columns: Any) -> list[float]:
    raise OSError("no oracle")


def test_the_folder_of_a_run_that_failed_at_once_can_be_used_again(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match="no oracle"):
        run(tmp_path / "new", broken)
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(RewardError, match="no oracle"):
        run(tmp_path / "empty", broken)
    assert not list((tmp_path / "empty").iterdir())
    run(tmp_path / "empty", budget=12)
    before = files(tmp_path / "empty")
    with pytest.raises(ValueError, match="holds results of another run"):
        run(tmp_path / "empty", broken)
    assert files(tmp_path / "empty") == before


def test_other_files_stay_and_a_file_is_no_folder(tmp_path: Path) -> None:
    for name in ("notes.txt", "config.yaml", "run.json"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(RewardError, match="no oracle"):
        run(tmp_path, broken)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "notes.txt", "run.json"]
    assert (tmp_path / "config.yaml").read_text() == "mine"
    with pytest.raises(ValueError, match=r"^output_dir: .*notes.txt is a file, expected the name of a folder to make$"):
        run(tmp_path / "notes.txt", broken)
    with pytest.raises(ValueError, match=r"^output_dir: .*notes.txt is a file, expected the name of a folder to make$"):
        run(tmp_path / "notes.txt" / "run", broken)


def test_the_error_of_the_run_is_shown_where_the_folder_cannot_be_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(*_: Any, **__: Any) -> None:
        raise PermissionError("in use")

    monkeypatch.setattr("discrete_grpo.recipes.failed_runs._withdraw", locked)
    with pytest.raises(RewardError, match="no oracle"):
        run(tmp_path / "run", broken)


def test_the_folder_of_a_training_run_that_failed_at_once_can_be_used_again(tmp_path: Path) -> None:
    config = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=4)
    for evaluated in (0, 4):  # the reward is met in the evaluation, or in the first update, where a checkpoint is there already
        with pytest.raises(RewardError, match="no oracle"):
            train(chains(), broken, output_dir=tmp_path / f"run{evaluated}", grpo=config, evaluation_samples=evaluated)
    assert not (tmp_path / "run4").exists()
    assert (tmp_path / "run0" / "checkpoints").is_dir()
    train(chains(), oxygens, output_dir=tmp_path / "run4", grpo=config, evaluation_samples=4)


def test_a_failed_part_of_a_run_leaves_the_parts_that_ended_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    small = ["--codes=8", "--layers=1", "--heads=2", "--width=16", "--evaluation_samples=0", "--pretrain.max_steps=1"]
    loop = ("max_steps=4", "log_steps=1", "warmup_steps=0")
    small += [f"--{part}.{setting}" for part in ("autoencoder", "classifier") for setting in loop]

    def command(folder: str, *more: str) -> list[str]:
        return ["pretrain-digits", *small, *more, f"--output_dir={tmp_path / folder}"]

    assert main(command("first", "--autoencoder.learning_rate=1e30")) == 2
    assert not (tmp_path / "first").exists()
    assert main(command("second", "--classifier.learning_rate=1e30")) == 2
    assert sorted(path.name for path in (tmp_path / "second").iterdir()) == ["autoencoder", "classifier", "config.yaml", "run.json"]
    capsys.readouterr()
    assert main(["resume", str(tmp_path / "second")]) == 2  # as the setting is still the wrong one
    assert "loss" in capsys.readouterr().err
    kept = tmp_path / "third" / "autoencoder"
    (kept / "checkpoints" / "step-00000001").mkdir(parents=True)  # of another run
    assert main(command("third")) == 2
    assert "holds results of another run" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "third").iterdir()] == ["autoencoder"]


def test_scores_that_are_known_stay_where_a_run_is_withdrawn(tmp_path: Path) -> None:
    config = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=4)
    for _ in range(2):
        with pytest.raises(RewardError, match="no oracle"):
            train(chains(), [oxygens, broken], output_dir=tmp_path / "run", grpo=config, evaluation_samples=4)
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["scores.sqlite"]


@pytest.mark.parametrize("value", [None, float("nan")])
def test_a_reward_that_says_nothing_ends_the_run(value: Any, tmp_path: Path) -> None:
    def silent(samples: Sequence[str], **columns: Any) -> list[Any]:
        return [value] * len(samples)

    with pytest.raises(RewardError, match=r"^reward silent: unknown \(None or NaN\) for all of 1\d\d molecules, expected numbers$"):
        run(tmp_path, silent, budget=1000)
    assert (tmp_path / "checkpoints").is_dir()
    with pytest.raises(RewardError, match="for all of 20 molecules"):
        run(tmp_path / "small", silent, budget=20)
    with pytest.raises(NoScores, match=r"^reward silent: .* for all of 20 molecules, expected numbers$"):
        run(tmp_path / "small", silent, budget=20, resume=True)
    assert not (tmp_path / "small" / "optimise.json").exists()


def test_no_command_goes_on_with_a_run_that_spent_its_budget_without_a_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("discrete_grpo.recipes.optimise.load", lambda *_, **__: policy_object(chains()))
    settings = f"--settings={json.dumps(SMALL)}"
    (tmp_path / "says_nothing.py").write_text("def silent(samples, **columns):\n    return [None for s in samples]\n")
    words = ["optimise", "--reward=says_nothing.silent", "--max_oracle_calls=20", "--output_dir=run", settings]
    for line in (words, ["resume", "run"]):
        assert main(line) == 2
        said = capsys.readouterr().err
        assert "reward silent: unknown (None or NaN) for all of 20 molecules, expected numbers" in said
        assert "continue with" not in said


def test_scores_in_the_log_of_their_database_stay_too(tmp_path: Path) -> None:
    """Those of a connection that was not closed: the file alone would have lost them."""
    file = tmp_path / "run" / "scores.sqlite"
    held: list[sqlite3.Connection] = []

    def fail() -> None:
        with withdrawn_on_failure(tmp_path / "run", calls_count=False):
            held.append(sqlite3.connect(file))
            held[0].execute("PRAGMA journal_mode=WAL")
            held[0].execute("CREATE TABLE scores (score REAL)")
            held[0].execute("INSERT INTO scores VALUES (0.5)")
            held[0].commit()
            raise OSError("no oracle")

    (tmp_path / "run").mkdir()
    with pytest.raises(OSError, match="no oracle"):
        fail()
    assert sorted(path.name for path in file.parent.iterdir()) == ["scores.sqlite", "scores.sqlite-shm", "scores.sqlite-wal"]
    held[0].close()
