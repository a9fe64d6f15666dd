"""Rewards that hold processes, in a fork of the process that started them: the parent's stay the parent's."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, cast

import pytest

from discrete_grpo.rewards.external import ExternalReward
from discrete_grpo.rewards.pool import RewardPool

PROGRAM = "import json, sys\nfor line in sys.stdin:\n    asked = json.loads(line)\n"
PROGRAM += "    print(json.dumps({'id': asked['id'], 'reward': len(asked['sample'])}), flush=True)\n"

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")


def length(samples: list[str | None], **columns: Any) -> list[float]:
    return [float(len(sample or "")) for sample in samples]


def in_fork(work: Callable[[], bool]) -> bool:
    """Whether ``work`` is true in a fork."""
    if (child := os.fork()) == 0:
        code = 2
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture(params=["pool", "external"])
def reward(request: pytest.FixtureRequest) -> Any:
    if request.param == "pool":
        made: Any = RewardPool(length, workers=1, timeout=60)
    else:
        made = ExternalReward([sys.executable, "-c", PROGRAM])
    with made:
        yield made


def process_of(reward: Any) -> Any:
    return cast(Any, reward._seats[0].worker)._process if isinstance(reward, RewardPool) else reward._running[0].process


def test_a_fork_that_closes_it_leaves_the_parent_its_processes(reward: Any) -> None:
    assert reward(["CC"]) == [2.0]
    process = process_of(reward)

    def closed() -> bool:
        reward.close()
        return True

    assert in_fork(closed)
    assert reward(["CCC"]) == [3.0]
    assert process_of(reward) is process
    assert process.poll() is None


@pytest.mark.slow
def test_a_fork_scores_with_processes_of_its_own(reward: Any) -> None:
    assert reward(["CC"]) == [2.0]
    process = process_of(reward)

    def scored() -> bool:
        with reward:
            return bool(reward(["C", "CCCC"]) == [1.0, 4.0] and process_of(reward).pid != process.pid)

    assert in_fork(scored)
    assert reward(["CCC"]) == [3.0]
    assert process_of(reward) is process
