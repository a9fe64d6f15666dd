"""An external program as a reward."""

from __future__ import annotations

import math
import os
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.core.scoring import RewardError
from discrete_grpo.rewards.external import ExternalReward
from discrete_grpo.rewards.identity import reward_identity

PROGRAM = """
import json, os, subprocess, sys, time
print("loading a model")  # no answer: passed over
for line in sys.stdin:
    question = json.loads(line)
    number, sample = question["id"], question["sample"]
    reward = 1.0 if sample is None else float(len(sample))
    if sample == "pid":
        reward = os.getpid()
    if sample == "die":
        sys.exit("out of memory\\nreally")
    if sample == "hang":
        print("thinking", file=sys.stderr, flush=True)
        time.sleep(600)
    if sample == "child":
        reward = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid
    if sample == "garbage":
        print("{not json", flush=True)
        print("[" * 100_000, flush=True)
        print(json.dumps([number, 1.0]), flush=True)
        print(json.dumps({"id": number - 1, "reward": 99.0}), flush=True)
    special = {"null": None, "nan": float("nan"), "inf": float("inf"), "text": "x"}
    special |= {"column": question.get("aim"), "env": float(os.environ.get("AIM", 0)), "digits": "2.5", "huge": 10**400}
    print(json.dumps({"id": number, "reward": special.get(sample, reward)}), flush=True)
"""


@pytest.fixture
def make(tmp_path: Path) -> Any:
    made: list[ExternalReward] = []

    def build(text: str = PROGRAM, **options: Any) -> ExternalReward:
        (tmp_path / "score.py").write_text(text)
        made.append(ExternalReward([sys.executable, str(tmp_path / "score.py")], **options))
        return made[-1]

    yield build
    for reward in made:
        reward.close()


Make = Callable[..., ExternalReward]


def test_values_and_columns(make: Make) -> None:
    reward = make(environment={"AIM": "2.5"})
    assert reward(["a", "ccc", None, "column", "null", "nan", "env", 'é\n\u2028"'], aim=[0, 0, 0, 7.5, 0, 0, 0, 0]) == [
        1.0,
        3.0,
        1.0,
        7.5,
        None,
        None,
        2.5,
        4.0,
    ]
    assert reward.take_failures() == []
    assert (reward.name, reward([])) == ("score", [])


def test_the_program_stays_alive_between_calls(make: Make) -> None:
    reward = make()
    first = reward(["pid"])
    assert reward(["pid", "a"]) == [*first, 1.0]
    reward.close()
    assert reward(["pid"]) != first


def test_lines_that_are_no_answer_are_passed_over(make: Make) -> None:
    assert make()(["a", "garbage", "bb"]) == [1.0, 7.0, 2.0]


def test_a_death_costs_one_sample_and_shows_stderr(make: Make) -> None:
    reward = make()
    assert reward(["a", "die", "bb"]) == [1.0, None, 2.0]
    (failed,) = reward.take_failures()
    assert (failed.sample, failed.reason) == (
        "die",
        "the program ended with status 1; stderr: out of memory / really; stdout: loading a model",
    )


def test_a_hang_costs_one_sample_and_shows_stderr(make: Make) -> None:
    reward = make(timeout=1.0)
    assert reward(["a", "hang", "bb"]) == [1.0, None, 2.0]
    (failed,) = reward.take_failures()
    assert failed.reason == "no answer within 1 s; stderr: thinking; stdout: loading a model"


def test_a_program_that_reads_nothing_does_not_block(make: Make) -> None:
    reward = make("import time; time.sleep(600)", timeout=0.3, start_timeout=0.3)
    assert reward(["x" * 1_000_000]) == [None]
    assert reward.take_failures()[0].reason == "no answer within 0.6 s"


def test_what_is_no_number_costs_one_sample_and_not_the_program(make: Make) -> None:
    reward = make()
    before = reward(["pid"])
    assert reward(["inf", "text", "digits", "huge"]) == [None] * 4
    assert [f.reason for f in reward.take_failures()] == [
        "answered inf, expected a finite number or None",
        "answered 'x', expected a number or None",
        "answered '2.5', expected a number or None",
        f"answered 1{'0' * 196}..., expected a finite number or None",
    ]
    assert reward(["pid"]) == before


def test_a_program_that_does_not_exist_ends_the_run_in_one_line() -> None:
    with ExternalReward(["/no/such/program"], max_failures=2) as reward, pytest.raises(RewardError) as caught:
        reward(["a", "b", "c"])
    assert str(caught.value).startswith("reward program: the last 2 samples all failed; for 'b': cannot be started: ")


def test_children_of_the_program_end_with_it(make: Make) -> None:
    reward = make()
    (child,) = reward(["child"])
    reward.close()
    end = time.monotonic() + 20
    while _alive(int(child or 0)):
        assert time.monotonic() < end
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_nothing_goes_through_a_shell(make: Make, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    sample = f"$(touch {mark}); `touch {mark}`"
    assert make()([sample]) == [float(len(sample))]
    for command in (f"touch {mark}", [], [1]):
        with pytest.raises((ValueError, TypeError)):
            ExternalReward(command)  # type: ignore[arg-type]
    with ExternalReward([f"touch {mark}"], max_failures=None) as reward:
        assert reward(["a"]) == [None]
    assert not mark.exists()


def test_samples_that_json_does_not_know_are_refused(make: Make) -> None:
    for sample in (object(), math.nan):
        with pytest.raises(ValueError, match="cannot be written as JSON"):
            make()([sample])


def test_a_text_in_place_of_a_list_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^samples: 'CCO', expected a list of samples, such as \['CCO'\]$"):
        ExternalReward(["no-such-program"])("CCO")


def test_bad_arguments_fail_when_made() -> None:
    for options in ({"timeout": 0.0}, {"start_timeout": -1.0}, {"max_failures": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            ExternalReward(["true"], **options)


def test_identity_and_copies(make: Make) -> None:
    identities = [reward_identity(r) for r in (make(), make(timeout=5.0), make(version="2"), make(environment={"A": "1"}))]
    assert identities[0] == identities[1]
    assert len(set(identities)) == 3
    reward = make(timeout=5.0, name="mine")
    reward(["a"])
    again = pickle.loads(pickle.dumps(reward))
    assert (again.timeout, again.name, again(["bb"])) == (5.0, "mine", [2.0])
    again.close()


def test_without_groups_of_processes_the_program_itself_is_ended(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    reward = make("import time\nwhile True: time.sleep(1)", timeout=0.1, start_timeout=0.2)
    monkeypatch.delattr("os.killpg")  # as on Windows
    assert reward(["a"]) == [None]
    assert reward.take_failures()[0].reason == "no answer within 0.3 s"


@pytest.mark.parametrize("line", ["progress", '{"id": -1, "reward": 2.0}'])
def test_a_program_that_prints_without_end_is_late(line: str) -> None:
    endless = f"import sys\nfor asked in sys.stdin:\n    while True: print({line!r}, flush=True)\n"
    with ExternalReward([sys.executable, "-c", endless], timeout=0.5, start_timeout=0.5) as reward:
        assert reward(["C"]) == [None]
        (failed,) = reward.take_failures()
    assert failed.reason == f"no answer within 1 s; stdout: {line}"


@pytest.mark.parametrize("name", ["id", "sample"])
def test_a_column_with_the_name_of_a_field_of_the_request_is_refused(make: Any, name: str) -> None:
    said = f"^columns: '{name}', expected another name, as the program reads the {name} of the sample under it$"
    with pytest.raises(ValueError, match=said):
        make()(["a"], **{name: [1]})


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"OMP_NUM_THREADS": 1}, r"^environment\.OMP_NUM_THREADS: 1, expected a text, such as '1'$"),
        ({"A": "a\0b"}, r"^environment\.A: 'a\\x00b', expected a text"),
        ({1: "a"}, r"^environment: 1, expected the name of a variable as a text"),
        ({"A=B": "a"}, r"^environment: 'A=B', expected the name of a variable as a text, without =$"),
        (["A"], r"^environment: \['A'\], expected a mapping, such as \{'OMP_NUM_THREADS': '1'\}$"),
    ],
)
def test_variables_that_the_system_does_not_take_fail_when_made(make: Make, environment: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make(environment=environment)
