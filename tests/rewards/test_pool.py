"""Rewards in worker processes: what hangs, dies or raises costs one sample, and nothing is left behind."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from discrete_grpo.core.reward_arguments import reward_name
from discrete_grpo.core.reward_hints import LIST
from discrete_grpo.core.scoring import RewardError, score_samples
from discrete_grpo.rewards.cache import ScoreCache
from discrete_grpo.rewards.combine import WeightedSum
from discrete_grpo.rewards.external import ExternalReward
from discrete_grpo.rewards.identity import reward_identity
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.rewards.molecules import qed
from discrete_grpo.rewards.pool import RewardPool
from tests import pool_rewards

CODE = Path(pool_rewards.__file__).read_text().splitlines()
RAISED = f" (pool_rewards.py, line {next(n for n, code in enumerate(CODE, 1) if code.strip().startswith('raise raised'))})"
"""Where ``moody`` raises."""
BAD = ["die", "segfault", "raise", "short", "inf", "text"]


def wait_until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.fixture(scope="module")
def moody() -> Iterator[RewardPool]:
    """One pool that many tests share: it must stand whatever came before."""
    with RewardPool(pool_rewards.moody, workers=2, timeout=60.0, retries=0) as pool:
        yield pool


# -- values


def test_values_come_in_order_whoever_is_slow() -> None:
    with RewardPool(pool_rewards.slow_first, workers=2) as pool:
        assert pool([0.3, 0.0, 0.01, 0.0, 0.02, 0.0]) == [0.3, 0.0, 0.01, 0.0, 0.02, 0.0]
        assert pool([]) == []


def test_columns_go_with_their_samples() -> None:
    for size in (1, 3):
        with RewardPool(pool_rewards.plus_column, workers=2, chunk_size=size) as pool:
            assert pool([1.0, 2.0, 3.0, 4.0], add=[10.0, 20.0, 30.0, 40.0], other="abcd") == [11.0, 22.0, 33.0, 44.0]


def test_asynchronous_rewards() -> None:
    with RewardPool(pool_rewards.later, workers=1, chunk_size=2) as pool:
        assert pool([1.0, 2.0, 3.0]) == [2.0, 4.0, 6.0]


def test_an_import_path_with_arguments_is_made_in_the_worker() -> None:
    with RewardPool("tests.pool_rewards.Scaled", {"factor": 2.5}, workers=1) as pool:
        assert pool(["ab"]) == [5.0]
        assert pool.name == "Scaled"


def test_it_is_a_reward_like_any_other() -> None:
    with RewardPool(pool_rewards.length, workers=1, chunk_size=4) as pool:
        assert score_samples([pool], ["CCO", "", "c1ccccc1"]).flatten().tolist() == [3.0, 0.0, 8.0]
    with RewardPool(qed, workers=1, chunk_size=4) as pool:
        assert reward_name(pool) == "qed"
        assert reward_identity(pool) == reward_identity(qed) == reward_identity(RewardPool("discrete_grpo.rewards.molecules.qed"))
        again = pickle.loads(pickle.dumps(pool))
        assert (again.workers, again.chunk_size, again.failures.limit) == (1, 4, 32)
        again.close()


# -- failures


def test_each_misbehaviour_costs_one_sample(moody: RewardPool) -> None:
    found = moody(["a", *BAD, "b", "nan", "none", "c"])
    assert found == [1.0, *[None] * len(BAD), 1.0, None, None, 1.0]
    failed = {failure.sample: failure.reason for failure in moody.take_failures()}
    assert failed == {
        "die": "its worker exited with status 3",
        "segfault": "its worker was killed by SIGSEGV",
        "raise": f"raised RuntimeError: two lines{RAISED}",
        "short": "returned 0 values for 1 samples, expected one per sample",
        "inf": "returned inf, expected a finite number or None",
        "text": "returned 'x', expected a number or None",
    }  # NaN and None are the reward's own words for unknown
    assert moody.take_failures() == []
    assert moody(["a"]) == [1.0]


def test_what_is_no_number_and_what_would_end_a_program_cost_one_sample_and_no_worker(moody: RewardPool) -> None:
    bad = ["exit", "interrupt", "generator", "dict", "set", "digits", "digit", "complex", "huge", "one", "molecule"]
    moody(["a"])
    before = {seat.worker._process.pid for seat in moody._seats}  # type: ignore[attr-defined]
    assert moody([*bad, "a"]) == [*[None] * len(bad), 1.0]
    assert before <= {seat.worker._process.pid for seat in moody._seats}  # type: ignore[attr-defined]
    assert {failure.sample: failure.reason for failure in moody.take_failures()} == {
        "exit": f"raised SystemExit: 0{RAISED}",
        "interrupt": f"raised KeyboardInterrupt: {RAISED}",
        "generator": "returned a generator, expected one number per sample",
        "dict": "returned a dict, expected one number per sample",
        "set": "returned a set, expected one number per sample",
        "digits": "returned a str, expected one number per sample",
        "digit": "returned '0.5', expected a number or None",
        "complex": "returned 1j, expected a number or None",
        "huge": f"returned 1{'0' * 196}..., expected a finite number or None",
        "one": f"returned a float, expected one number per sample{LIST}",
        "molecule": f"raised AttributeError: 'str' object has no attribute 'GetAtoms'{RAISED}; samples are text, such as "
        "'molecule': molecule_reward passes RDKit molecules; rewards_see in train, or a GraphView, passes graphs",
    }


@pytest.mark.parametrize("hang", ["hang", "hang in C"])
def test_a_hang_costs_one_sample_and_its_worker(hang: str) -> None:
    with RewardPool(pool_rewards.moody, workers=1, timeout=0.5, retries=0) as pool:
        pool(["a"])
        lost = [seat.worker._process.pid for seat in pool._seats]  # type: ignore[attr-defined]
        assert pool(["a", hang, "b"]) == [1.0, None, 1.0]
        assert not any(map(alive, lost))
        assert [(f.sample, f.reason) for f in pool.take_failures()] == [(hang, "no answer within 0.5 s per sample")]


@pytest.mark.parametrize("bad", BAD)
def test_a_chunk_loses_only_the_guilty_one(bad: str) -> None:
    samples = [f"fine {k}" for k in range(7)]
    samples[4] = bad
    with RewardPool(pool_rewards.moody, workers=1, retries=0, chunk_size=7) as pool:
        assert pool(samples) == [1.0] * 4 + [None] + [1.0] * 2
        assert [failure.sample for failure in pool.take_failures()] == [bad]


def test_a_second_try_may_do(tmp_path: Path) -> None:
    samples = [str(tmp_path / name) for name in "ab"]
    with RewardPool(pool_rewards.dies_once, workers=1, retries=1) as pool:
        assert pool(samples) == [1.0, 1.0]
        assert pool.take_failures() == []
    (tmp_path / "a").unlink()
    with RewardPool(pool_rewards.dies_once, workers=1, retries=0) as pool:
        assert pool(samples) == [None, 1.0]


def test_nothing_but_failures_ends_the_run() -> None:
    with RewardPool(pool_rewards.moody, workers=1, retries=0, max_failures=3) as pool:
        assert pool(["raise", "raise", "a", "raise", "raise", "a"]) == [None, None, 1.0, None, None, 1.0]
        with pytest.raises(RewardError, match=r"^reward moody: the last 3 samples all failed; for 'raise': raised RuntimeError"):
            score_samples([pool], ["raise"] * 5)
        assert pool(["a"]) == [1.0]


def test_a_worker_that_died_between_calls_is_replaced_for_nothing() -> None:
    with RewardPool(pool_rewards.who, workers=1, retries=0) as pool:
        (before,) = pool(["a"])
        os.kill(int(before or 0), signal.SIGKILL)
        wait_until(lambda: not alive(int(before or 0)))
        after = pool(["a", "b"])
        assert None not in after
        assert before not in after


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere an end that was closed with something unread is not told apart")
def test_a_worker_that_died_before_it_read_its_samples_costs_nothing() -> None:
    with RewardPool(pool_rewards.who, workers=1, retries=0) as pool:
        before = int(pool(["a"])[0] or 0)
        os.kill(before, signal.SIGSTOP)  # so that it cannot read what it is sent
        killer = threading.Timer(0.3, os.kill, (before, signal.SIGKILL))
        killer.start()
        after = pool(["a", "b"])
        killer.join()
        assert None not in after
        assert before not in after
        assert pool.take_failures() == []


def test_samples_that_no_worker_lives_to_read_are_given_up() -> None:
    class Dies:
        messages = 0

        def send(self, samples: list[str], columns: dict[str, list[Any]]) -> None:
            pass

        def receive(self) -> tuple[Any, ...]:
            self.messages += 1
            if self.messages == 1:
                return ("ready",)
            raise ConnectionResetError("its worker was killed by SIGKILL")

        def kill(self) -> None:
            pass

    with RewardPool(pool_rewards.length, workers=1, retries=0) as pool:
        pool._backend = SimpleNamespace(start=lambda payload: Dies(), wait=lambda workers, timeout: list(workers))
        assert pool(["a"]) == [None]
        assert [(f.sample, f.reason) for f in pool.take_failures()] == [("a", "its worker was killed by SIGKILL")]


def test_a_reward_that_cannot_be_made_is_told_in_one_line() -> None:
    with RewardPool("tests.pool_rewards.CannotBeMade", workers=2) as pool, pytest.raises(RewardError) as caught:
        score_samples([pool], ["a"])
    assert str(caught.value) == "reward CannotBeMade: a worker could not start: FileNotFoundError: no receptor.pdbqt"


def test_a_text_in_place_of_a_list_is_refused() -> None:
    with (
        RewardPool("discrete_grpo.rewards.molecules.qed") as pool,
        pytest.raises(ValueError, match=r"^samples: 'CCO', expected a list of samples, such as \['CCO'\]$"),
    ):
        pool("CCO")


def test_samples_that_cannot_be_sent_are_told(moody: RewardPool) -> None:
    with pytest.raises(RewardError, match="reward moody: samples or columns cannot be sent to a worker"):
        moody([lambda: None])
    assert moody(["a"]) == [1.0]


def test_bad_arguments_fail_when_made() -> None:
    for arguments, said in (
        ({"workers": 0}, "workers: 0"),
        ({"retries": -1}, "retries: -1"),
        ({"chunk_size": 0}, "chunk_size: 0"),
        ({"timeout": 0.0}, r"timeout: 0\.0"),
        ({"start_timeout": -1.0}, r"start_timeout: -1\.0"),
        ({"max_failures": 0}, "max_failures: 0"),
        ({"retries": None}, "retries: None"),
        ({"chunk_size": None}, "chunk_size: None"),
        ({"start_timeout": None}, "start_timeout: None"),
        ({"backend": "threads"}, "backend: 'threads'"),
        ({"init_args": {"x": 1}}, "init_args: "),
    ):
        with pytest.raises((ValueError, TypeError), match=said.partition(":")[0]):  # TypeError: the beartype run
            RewardPool(pool_rewards.length, **arguments)
    for reward in ("tests.pool_rewards.nothing", "no_such_module.reward", "length", "tests.pool_rewards.__doc__"):
        with pytest.raises(ValueError, match="reward: "):
            RewardPool(reward)
    with pytest.raises(ValueError, match=r"init_args: .*'tests\.pool_rewards\.length', which is no class"):
        RewardPool("tests.pool_rewards.length", {"x": 1})
    with pytest.raises(ValueError, match=r"reward: <lambda> cannot be sent to another process"):
        RewardPool(lambda samples: [])


def test_a_reward_of_the_script_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(samples: list[str], **columns: Any) -> list[float]:
        return []

    mine.__module__, mine.__qualname__ = "__main__", "mine"
    monkeypatch.setattr(sys.modules["__main__"], "mine", mine, raising=False)
    with pytest.raises(ValueError, match="reward: mine stands in the script itself, which workers cannot import"):
        RewardPool(mine)
    kind = type("Mine", (pool_rewards.Scaled,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Mine", kind, raising=False)
    for made in (kind(2.0), functools.partial(mine, aim=1), functools.lru_cache(mine)):
        with pytest.raises(ValueError, match=r"reward: .* stands in the script itself, which workers cannot import"):
            RewardPool(made)
    assert RewardPool(ExternalReward(["python", "pkg/__main__.py"])).name == "__main__"  # only a name of a file


# -- with the rest


def test_a_reward_that_names_its_own_failures() -> None:
    with RewardPool(pool_rewards.Picky(), workers=1, retries=0, chunk_size=4) as pool:
        assert pool(["a", "bad", "unknown", "b"]) == [1.0, None, None, 1.0]
        assert [(f.sample, f.reason) for f in pool.take_failures()] == [("bad", "a reason of its own")]


def test_failures_of_a_reward_inside_another_are_told() -> None:
    inside = WeightedSum((ExternalReward(["false"], max_failures=None),), (1.0,))
    with RewardPool(inside, workers=1, retries=0, max_failures=3) as pool:
        assert pool(["C"]) == [None]
        assert [(f.sample, f.reason[:31]) for f in pool.take_failures()] == [("C", "the program ended with status 1")]
        with pytest.raises(RewardError, match="the last 3 samples all failed"):
            pool(["CC", "CCC", "CCCC"])


def test_the_ledger_asks_the_pool_for_new_samples_only(moody: RewardPool) -> None:
    ledger = Ledger(cache=ScoreCache())
    found = ledger.score([moody], ["a", "die", "a", "b"]).flatten()
    assert found.nan_to_num(-1.0).tolist() == [1.0, -1.0, 1.0, 1.0]
    moody.take_failures()
    assert ledger.score([moody], ["b", "a"]).flatten().tolist() == [1.0, 1.0]
    assert ledger.calls == 3


def test_a_sample_costs_little(moody: RewardPool) -> None:
    moody(["a"] * 20)
    start = time.perf_counter()
    moody(["a"] * 500)
    assert (time.perf_counter() - start) / 500 < 0.01  # 0.05 ms alone on a core
