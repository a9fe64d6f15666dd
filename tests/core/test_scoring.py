"""Calling rewards: what comes back, and one line that says what went wrong."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from rdkit.Chem import rdMolDescriptors
from torch import Tensor

from discrete_grpo.core.interrupt import interruptible
from discrete_grpo.core.reward_arguments import check_at_least_one, check_callables, checked_reward, reward_name, reward_names
from discrete_grpo.core.reward_hints import LIST
from discrete_grpo.core.scoring import Failures, RewardError, finite_number, score_one, score_samples, shown_value, take_failures
from discrete_grpo.rewards import pool_worker
from discrete_grpo.rewards.combine import WeightedSum
from discrete_grpo.rewards.molecules import Target, qed


def given(*values: Any) -> Any:
    """A reward that returns what it is told to, whatever it is asked."""

    def reward(samples: list[Any], **columns: Any) -> Any:
        return list(values)

    return reward


def test_one_column_a_reward_and_unknown_is_nan() -> None:
    found = score_samples([given(1, True), given(None, math.nan), given(torch.tensor(2.5), np.float32(3))], ["a", "b"])
    assert found.dtype == torch.float64
    assert found[:, [0, 2]].tolist() == [[1.0, 2.5], [1.0, 3.0]]
    assert found[:, 1].isnan().all()
    assert score_samples([given()], []).shape == (0, 1)
    assert score_samples([], ["a", "b", "c"]).shape == (3, 0)


def test_columns_reach_the_reward_and_samples_are_a_list_of_its_own() -> None:
    def reward(samples: list[str], *, aim: Sequence[float], **columns: Any) -> list[float]:
        samples.reverse()
        return [float(x) for x in aim]

    samples = ["a", "b"]
    assert score_one(reward, samples, {"aim": [1.0, 2.0], "other": [0, 0]}).tolist() == [1.0, 2.0]
    assert samples == ["a", "b"]


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (given(1.0), "reward reward: returned 1 values for 2 samples, expected one per sample"),
        (given(1.0, 2.0, 3.0), "reward reward: returned 3 values for 2 samples, expected one per sample"),
        (given(1.0, math.inf), "reward reward: returned inf for sample 'b', expected a finite number or None"),
        (given(1.0, -math.inf), "reward reward: returned -inf for sample 'b', expected a finite number or None"),
        (given(1.0, "x"), "reward reward: returned 'x' for sample 'b', expected a number or None"),
        (given([1.0], 1.0), "reward reward: returned [1.0] for sample 'a', expected a number or None"),
        (lambda samples: 1.0, f"reward <lambda>: returned a float, expected one number per sample{LIST}"),
        (lambda samples: 1 / 0, "reward <lambda>: raised ZeroDivisionError: division by zero"),
        (lambda samples: sys.exit(0), "reward <lambda>: raised SystemExit: 0"),
        (lambda samples: _raise(KeyboardInterrupt("mine")), "reward <lambda>: raised KeyboardInterrupt: mine"),
        (lambda samples: _raise(asyncio.CancelledError()), "reward <lambda>: raised CancelledError: "),
        (lambda samples: (1.0 for _ in samples), "reward <lambda>: returned a generator, expected one number per sample"),
        (lambda samples: map(float, samples), "reward <lambda>: returned a map, expected one number per sample"),
        (lambda samples: dict.fromkeys(samples, 1.0), "reward <lambda>: returned a dict, expected one number per sample"),
        (lambda samples: {1.0, 2.0}, "reward <lambda>: returned a set, expected one number per sample"),
        (lambda samples: frozenset({1.0, 2.0}), "reward <lambda>: returned a frozenset, expected one number per sample"),
        (lambda samples: "12", "reward <lambda>: returned a str, expected one number per sample"),
        (lambda samples: b"12", "reward <lambda>: returned a bytes, expected one number per sample"),
        (lambda samples: bytearray(2), "reward <lambda>: returned a bytearray, expected one number per sample"),
        (lambda samples: torch.tensor(1.0), f"reward <lambda>: returned a Tensor, expected one number per sample{LIST}"),
        (given(1.0, "0.5"), "reward reward: returned '0.5' for sample 'b', expected a number or None"),
        (given(1.0, b"0.5"), "reward reward: returned b'0.5' for sample 'b', expected a number or None"),
        (
            given(1.0, np.array("0.5")),
            "reward reward: returned array('0.5', dtype='<U3') for sample 'b', expected a number or None",
        ),
        (given(1.0, 1j), "reward reward: returned 1j for sample 'b', expected a number or None"),
        (given(1.0, np.complex64(1)), f"reward reward: returned {np.complex64(1)!r} for sample 'b', expected a number or None"),
        (given(1.0, torch.tensor(1 + 0j)), "reward reward: returned tensor(1.+0.j) for sample 'b', expected a number or None"),
        (given(1.0, torch.ones(2)), "reward reward: returned tensor([1., 1.]) for sample 'b', expected a number or None"),
        (given(1.0, 10**400), f"reward reward: returned 1{'0' * 196}... for sample 'b', expected a finite number or None"),
        (given(1.0, 10**5000), "reward reward: returned a int for sample 'b', expected a finite number or None"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_wrong_is_said_in_one_line(reward: Any, said: str) -> None:
    with pytest.raises(RewardError) as caught:
        score_samples([reward], ["a", "b"])
    assert re.sub(r" \(test_scoring.py, line \d+\)$", "", str(caught.value)) == said


def _raise(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize("wrap", [lambda r: r, lambda r: WeightedSum((r,), (1.0,)), lambda r: Target(r, 1.0, 1.0)])
def test_wrapped_rewards_are_held_to_the_same_and_named(wrap: Any) -> None:
    def inner(samples: list[str], **columns: Any) -> Any:
        return answers[0](samples)

    answers: list[Any] = [lambda samples: {1.0, 2.0}]
    for answer, said in ((answers[0], "inner: returned a set"), (lambda samples: sys.exit(0), "inner: raised SystemExit: 0")):
        answers[0] = answer
        with pytest.raises(RewardError, match=said):
            score_one(wrap(inner), ["C", "CC"])


def test_ctrl_c_in_a_reward_is_the_users() -> None:
    def slow(samples: list[str], **columns: Any) -> list[float]:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
        return [1.0]

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        score_one(slow, ["a"])
    with pytest.raises(KeyboardInterrupt):
        score_one(WeightedSum((slow,), (1.0,)), ["a"])
    assert signal.getsignal(signal.SIGINT) is before


def test_the_first_ctrl_c_of_a_run_lets_the_reward_finish_and_the_second_does_not() -> None:
    def interrupted(samples: list[str], **columns: Any) -> list[float]:
        os.kill(os.getpid(), signal.SIGINT)
        return [1.0]

    with interruptible() as stop:
        assert score_one(interrupted, ["a"]).tolist() == [1.0]
        assert stop
        with pytest.raises(KeyboardInterrupt):
            score_one(interrupted, ["a"])


def test_outside_the_main_thread_a_keyboard_interrupt_is_the_rewards() -> None:
    with ThreadPoolExecutor(1) as threads, pytest.raises(RewardError, match="raised KeyboardInterrupt"):
        threads.submit(score_one, lambda samples: _raise(KeyboardInterrupt()), ["a"]).result()


def test_an_error_of_several_lines_becomes_one() -> None:
    def reward(samples: list[str]) -> list[float]:
        raise RuntimeError("one\n  two")

    with pytest.raises(RewardError, match=r"^reward reward: raised RuntimeError: one two \(test_scoring.py, line \d+\)$"):
        score_samples([reward], ["a"])


def test_an_error_names_the_line_of_the_users_file_that_led_to_it() -> None:
    def reward(samples: list[str]) -> list[float]:
        return [float(json.loads(sample)) for sample in samples]

    line = reward.__code__.co_firstlineno + 1
    with pytest.raises(RewardError, match=rf"^reward reward: raised JSONDecodeError: .* \(test_scoring.py, line {line}\)$"):
        score_one(reward, ["1", "two"])


def test_an_error_of_a_bundled_reward_names_no_line() -> None:
    with pytest.raises(RewardError, match=r"^reward .*: raised .*[^)]$"):
        score_one(Target(qed, 1.0, 0.5), [3])


def test_a_reward_that_forgets_invalid_samples_is_told_what_they_are() -> None:
    hint = "a sample that is invalid is None, and its score may be None or a number"
    with pytest.raises(RewardError, match=f"object of type 'NoneType' has no len\\(\\) \\(test_scoring.py, line \\d+\\); {hint}$"):
        score_one(lambda samples, **columns: [len(s) for s in samples], ["C", None])
    with pytest.raises(RewardError, match=r"has no len\(\) \(test_scoring.py, line \d+\)$"):  # its own None
        score_one(lambda samples, **columns: [len(None)], ["C"])  # type: ignore[arg-type]


def test_a_function_of_one_sample_is_told_that_it_is_given_a_list() -> None:
    wrong: list[Any] = [lambda mol: mol.GetNumAtoms(), math.sqrt, rdMolDescriptors.CalcTPSA, lambda mol: 0.5]
    for reward in wrong:
        with pytest.raises(RewardError, match=r"it is given a list of samples \(discrete_grpo\.molecule_reward makes a reward of"):
            score_one(reward, ["CCO"])


def test_a_reward_that_expects_objects_is_told_that_samples_are_text() -> None:
    passes = "molecule_reward passes RDKit molecules; rewards_see in train, or a GraphView, passes graphs"
    said = f"samples are text, such as 'CCO': {passes}"
    wrong: list[Any] = [lambda mol: mol.GetNumAtoms(), rdMolDescriptors.CalcTPSA, nx.density]
    for reward in wrong:
        with pytest.raises(RewardError, match=f"; {said}$"):
            score_one(lambda samples, reward=reward: [reward(s) for s in samples], ["CCO", "CC"])
    for own in (np.ones(2), "CCO and more", 3):  # an object of the reward's own
        with pytest.raises(RewardError, match=r"no attribute 'nodes' \(test_scoring.py, line \d+\)$"):
            score_one(lambda samples, own=own: [own.nodes for _ in samples], ["CCO", "CC"])


def test_a_name_in_the_place_of_a_reward_is_told_to_be_imported() -> None:
    with pytest.raises(
        ValueError, match=r"^reward: 'qed', expected .*; names such as 'qed' are for the command line, in Python import"
    ):
        checked_reward("qed")


def test_an_error_that_names_its_reward_is_not_named_twice() -> None:
    def pool(samples: list[str]) -> list[float]:
        raise RewardError("reward pool: the last 3 samples all failed")

    def wrapped(samples: list[str]) -> list[float]:
        return pool(samples)

    for reward, said in ((pool, "reward pool: the last 3 s"), (wrapped, "reward wrapped: reward pool: the last 3 s")):
        with pytest.raises(RewardError, match=f"^{said}"):
            score_samples([reward], ["a"])


def test_a_coroutine_function_is_awaited_with_and_without_a_running_loop() -> None:
    async def later(samples: list[float], **columns: Any) -> list[float]:
        await asyncio.sleep(0)
        return [2 * s for s in samples]

    async def notebook() -> Tensor:
        return score_samples([later], [1.0, 2.0])  # type: ignore[list-item]

    assert score_samples([later], [1.0, 2.0]).tolist() == [[2.0], [4.0]]  # type: ignore[list-item]
    assert asyncio.run(notebook()).tolist() == [[2.0], [4.0]]

    async def fails(samples: list[float]) -> list[float]:
        raise KeyError("x")

    with pytest.raises(RewardError, match="reward fails: raised KeyError: 'x'"):
        score_samples([fails], [1.0])  # type: ignore[list-item]


def test_a_reward_that_changes_the_working_folder_changes_it_for_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()

    def moves(samples: list[str], **columns: Any) -> list[float]:
        os.chdir("work")
        if samples == ["bad"]:
            raise OSError("away")
        return [1.0] * len(samples)

    for _ in range(2):
        assert score_one(moves, ["C"]).tolist() == [1.0]
        assert Path.cwd() == tmp_path
    with pytest.raises(RewardError, match="away"):
        score_one(moves, ["bad"])
    assert Path.cwd() == tmp_path


def test_names() -> None:
    class Named:
        name = "mine"

    assert reward_name(Named()) == "mine"
    assert reward_names([given(), given(), given()]) == ["reward", "reward_2", "reward_3"]


def test_finite_number() -> None:
    assert math.isnan(finite_number(None))
    assert math.isnan(finite_number(math.nan))
    assert [math.isnan(finite_number(value)) for value in np.ma.masked_invalid([math.nan, 1.0])] == [True, False]
    for wrong in (math.inf, "x", "0.5", b"1", 1j, 10**400, [], object()):
        with pytest.raises(ValueError, match="expected a"):
            finite_number(wrong)


@pytest.mark.parametrize(
    "value",
    [None, math.nan, True, 2, np.float32(0.5), np.int64(3), np.ma.masked, torch.tensor(1.5), np.array([2.0]), "1", 10**400],
)
def test_a_worker_of_a_pool_takes_the_same_values_as_the_process_of_a_run(value: Any) -> None:
    try:
        number = finite_number(value)
        wanted: tuple[float | None, str | None] = (None if math.isnan(number) else number, None)
    except ValueError as error:
        wanted = (None, f"returned {shown_value(value)}, {error}")
    assert pool_worker.answer(given(value), ["a"], {}) == [wanted]


def test_failures_in_a_row_end_the_run_and_a_success_between_them_does_not() -> None:
    failures = Failures("dock", limit=3)
    for _ in range(4):
        failures.add("a", "late")
        failures.add("b", "late")
        failures.success()
    assert failures.total == 8
    assert [f.sample for f in failures.take()] == ["a", "b"] * 4
    assert failures.take() == []
    failures.add("a", "late")
    failures.add("b", "late")
    with pytest.raises(RewardError, match=r"^reward dock: the last 3 samples all failed; for 'c': no answer$"):
        failures.add("c", "no answer")
    endless = Failures("dock", limit=None)
    for _ in range(100):
        endless.add("a", "late")
    with pytest.raises(ValueError, match="max_failures: 0"):
        Failures("dock", limit=0)


def test_failures_are_taken_by_name() -> None:
    class Keeps:
        name = "keeps"

        def __init__(self) -> None:
            self.failures = Failures("keeps")

        def take_failures(self) -> Any:
            return self.failures.take()

        def __call__(self, samples: list[str], **columns: Any) -> list[float | None]:
            for s in samples:
                self.failures.add(s, "late")
            return [None] * len(samples)

    rewards = [given(1.0), Keeps(), Keeps()]
    score_samples(rewards, ["a"])
    found = take_failures(rewards)
    assert list(found) == ["keeps", "keeps_2"]
    assert found["keeps"][0].reason == "late"
    assert take_failures(rewards) == {"keeps": [], "keeps_2": []}


# -- checks before a run


def with_column(samples: Any, target: Any) -> Any: ...
def with_keyword(samples: Any, *, target: Any) -> Any: ...
def with_position(samples: Any, target: Any, /) -> Any: ...
def with_any(samples: Any, **columns: Any) -> Any: ...
def only_keywords(*, samples: Any) -> Any: ...


@pytest.mark.parametrize(
    ("reward", "columns", "fits"),
    [
        (with_any, None, True),
        (with_any, (), True),
        (with_any, ("target",), True),
        (with_column, None, True),
        (with_column, ("target",), True),
        (with_column, (), False),
        (with_keyword, None, True),
        (with_keyword, ("target",), True),
        (with_keyword, (), False),
        (with_keyword, ("other", "target"), False),
        (with_position, None, False),
        (with_position, ("target",), False),
        (only_keywords, None, False),
        (lambda *given, **columns: None, None, True),
        (lambda *given, target: None, None, True),
    ],
)
def test_a_reward_that_cannot_be_called_with_the_columns_is_refused(reward: Any, columns: Any, fits: bool) -> None:
    if fits:
        assert check_callables([reward], columns) == [reward]
    else:
        with pytest.raises(ValueError, match=rf"^reward: {reward.__name__}\(.*expected a function of a list of samples and of"):
            check_callables([reward], columns)


def test_no_reward_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^reward: an empty list, expected at least one reward$"):
        check_at_least_one([])


def test_a_number_of_failures_is_a_whole_one() -> None:
    with pytest.raises(ValueError, match=r"max_failures: 2\.5, expected a whole number, at least 1 or None"):
        Failures("reward", 2.5)  # type: ignore[arg-type]


def test_a_process_that_a_reward_forks_ends_where_the_run_would_go_on(tmp_path: Path) -> None:
    def forks(samples: list[str], **columns: Any) -> list[float]:
        if (child := os.fork()) == 0:
            raise SystemExit(0)
        os.waitpid(child, 0)
        return [1.0] * len(samples)

    own, seen = os.getpid(), tmp_path / "seen"
    try:
        assert score_one(forks, ["a"]).tolist() == [1.0]
    except RewardError:
        if os.getpid() == own:
            raise
    if os.getpid() != own:  # the child, which would go on with the other tests
        seen.touch()
        os._exit(0)
    assert not seen.exists()
