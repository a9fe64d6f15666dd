"""Rewards that fail or end the program: one line is said, and what was scored is kept."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.cli import main
from discrete_grpo.runs.recorder import read_metrics, read_samples
from tests.command_line import Refuse, lines, outcome, train

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "reward raises: raised KeyError: 'boom' (my_rewards.py, line "),
        ("short", "reward short: returned 1 values for"),
        ("infinite", "reward infinite: returned inf"),
    ],
)
def test_a_failing_reward_is_one_line(refuse: Refuse, name: str, said: str) -> None:
    line = refuse(*train(f"--reward=my_rewards.{name}", "--evaluation_samples=0", out="late"))
    assert line.startswith(said)
    assert line.endswith("continue with: discrete-grpo resume late")
    line = refuse(*train(f"--reward=my_rewards.{name}"))  # before anything is done: there is nothing to continue
    assert line.startswith(said)
    assert "continue with" not in line
    assert not Path("run/run.json").exists()


def test_a_search_that_learned_no_reward_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--rounds=1", "--population=4", "--children=2"]
    for name, told in (("nan", True), ("length", False)):
        assert main(["search", "--policy=tiny", f"--reward=my_rewards.{name}", f"--output_dir={name}", *sizes]) == 0
        said = "The reward of every sample of this search was unknown, in all of its 2 rounds, so it found nothing."
        assert (said in capsys.readouterr().err) == told


def test_a_reward_of_the_current_folder_and_unknown_values() -> None:
    assert main(train("--reward=my_rewards.nan")) == 0
    assert all(line["reward"] is None and line["frac_reward_unknown"] == 1.0 for line in read_metrics("run"))
    assert main(train("--reward=my_rewards.length", out="other")) == 0
    table = read_samples("other/samples.csv.gz")
    assert [float(r) for r in table["reward"]] == [float(len(s)) for s in table["sample"]]


def test_a_reward_that_fails_late_loses_nothing(refuse: Refuse) -> None:
    common = ["--reward=my_rewards.flaky", "--grpo.save_steps=100", "--grpo.max_steps=5"]
    assert main(train(*common, out="whole")) == 0
    Path("count").write_text("4")  # the call after the fourth of training fails
    line = refuse(*train(*common))
    assert line.startswith("reward flaky: raised OSError: the docking server is away (my_rewards.py, line ")
    assert line.endswith("); saved, continue with: discrete-grpo resume run")
    assert [m["step"] for m in read_metrics("run")] == [1, 2, 3, 4]
    assert [p.name for p in sorted(Path("run/checkpoints").iterdir())] == ["step-00000000", "step-00000004"]
    assert "raised OSError" in refuse("resume", "run")  # still away, still nothing lost
    Path("broken").unlink()
    Path("count").unlink()
    assert main(["resume", "run"]) == 0
    assert outcome("run") == outcome("whole")


def test_a_reward_that_does_not_fit_the_conditions_leaves_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = [a for a in train() if not a.startswith("--reward")] + ["--reward=keeps_scaffold"]
    assert main(wrong) == 2
    said = capsys.readouterr().err
    assert "scaffold: no such condition is given" in said
    assert "continue with" not in said
    assert not Path("run/run.json").exists()


ENDS = """
import pathlib, sys
def length(samples, **columns):
    stop = pathlib.Path("sto" + "p")
    if stop.exists():
        left = int(stop.read_text())
        stop.write_text(str(left - 1))
        if left == 0:
            ACTION
    return [float(len(s or "")) for s in samples]
length.cached_as = None
"""


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("sys.exit(0)", "raised SystemExit: 0"),
        ("raise KeyboardInterrupt", "raised KeyboardInterrupt:"),
        ("return {s: 1.0 for s in samples}", "returned a dict"),
        ("return [10**400] * len(samples)", "expected a finite number or None"),
        ('raise ValueError("\x1b[2J\x1b]0;owned\x07")', r"raised ValueError: \x1b[2J\x1b]0;owned\x07"),
    ],
)
def test_a_reward_that_would_end_the_program_leaves_a_run_that_resumes(
    action: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("ending.py").write_text(ENDS.replace("ACTION", action))
    sys.modules.pop("ending", None)
    Path("stop").write_text("2")  # the evaluation and one generation are scored
    arguments = [a for a in train() if not a.startswith("--reward")]
    assert main([*arguments, "--reward=ending.length"]) == 2
    (line,) = capsys.readouterr().err.strip().split("\n")[-1:]
    assert line.startswith("discrete-grpo: error: reward length: ")
    assert said in line
    assert line.endswith("; saved, continue with: discrete-grpo resume run")
    assert lines("run") == 1
    Path("stop").unlink()
    assert main(["resume", "run"]) == 0
    assert lines("run") == 3


def test_a_search_whose_reward_fails_keeps_what_was_scored(capsys: pytest.CaptureFixture[str]) -> None:
    Path("ending.py").write_text(ENDS.replace("ACTION", "sys.exit(0)"))
    sys.modules.pop("ending", None)
    options = ["--policy=tiny", "--output_dir=run", "--rounds=2", "--population=4", "--children=2", "--reward=ending.length"]
    Path("stop").write_text("0")
    assert main(["search", *options]) == 2
    assert "continue with" not in capsys.readouterr().err
    assert not Path("run").exists()  # nothing was scored
    Path("stop").write_text("1")
    assert main(["search", *options]) == 2
    said = "reward length: raised SystemExit: 0 (ending.py, line 9); saved, continue with: discrete-grpo resume run"
    assert said in capsys.readouterr().err
    assert main(["resume", "run"]) == 0
    assert Path("run/search.json").is_file()


def test_warnings_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    before = warnings.formatwarning

    def told(arguments: Any) -> None:
        print(warnings.formatwarning("reward \x1b[2J:\nlate", RuntimeWarning, "f.py", 1, ""))

    monkeypatch.setattr("discrete_grpo.cli.__main__._dispatch", told)
    assert main([]) == 0
    assert capsys.readouterr().out == "f.py:1: RuntimeWarning: reward \\x1b[2J:\nlate\n\n"
    assert warnings.formatwarning is before
