"""Rewards of a run in worker processes: the setting ``reward_workers``, and a hint when it would save time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from discrete_grpo.core.processes import is_first, usable_cores
from discrete_grpo.core.reward_arguments import elsewhere, remembers, reward_name
from discrete_grpo.core.reward_values import reward_parts
from discrete_grpo.core.rollout import Reward
from discrete_grpo.rewards.external import ExternalReward
from discrete_grpo.rewards.pool import RewardPool
from discrete_grpo.runs.console import print_notes

__all__ = ["in_workers", "tell_slow"]

POOL_TIMEOUT = 60.0
"""Seconds per sample that a pool gives a reward, besides those of external programs in it."""
SLOW = 0.05
"""Seconds per sample above which a line says that worker processes would save time."""
WORTH_TELLING = 5.0
"""Seconds of a whole evaluation below which no line is printed."""


@contextmanager
def in_workers(rewards: Sequence[Reward], workers: int) -> Iterator[list[Reward]]:
    """Yield the rewards, each scored by ``workers`` worker processes until the block ends; with 0, all are scored in this one.

    A reward that runs in other processes already is kept. So is one whose scores depend on other samples of the same or earlier
    calls, since each process receives only a part of them; a line names it.

    Raises:
        ValueError: if a reward cannot be sent to another process.
    """
    with ExitStack() as pools:
        yield [_pooled(reward, workers, pools) for reward in rewards] if workers else list(rewards)


def _pooled(reward: Reward, workers: int, pools: ExitStack) -> Reward:
    return pools.enter_context(RewardPool(reward, workers=workers, **_limits(reward))) if _divisible(reward) else reward


def _limits(reward: Reward) -> dict[str, Any]:
    """Limits of a pool that leave external programs the time, and the number of failures, that they were given."""
    programs = [one for one in reward_parts(reward) if isinstance(one, ExternalReward)]
    if not programs:
        return {}
    seconds = POOL_TIMEOUT + sum(one.timeout + one.start_timeout for one in programs)
    return {"timeout": seconds} | ({"max_failures": reward.failures.limit} if isinstance(reward, ExternalReward) else {})


def _divisible(reward: Reward) -> bool:
    if _any(reward, elsewhere):
        return False
    if not _apart(reward):
        if is_first():
            print_notes([f"reward_workers: {reward_name(reward)} stays in this process, as its scores depend on other samples"])
        return False
    return True


def _apart(reward: Any) -> bool:
    """Whether each sample can be scored by itself."""
    return not _any(reward, lambda one: remembers(one) or getattr(one, "cached_as", one) is None)


def _any(reward: Any, test: Callable[[Any], bool]) -> bool:
    """Whether a reward, or one inside it, passes a test."""
    return any(map(test, reward_parts(reward)))


def tell_slow(rewards: Sequence[Reward], seconds: float, samples: int) -> None:
    """Print a line that ``samples`` samples took ``seconds`` to score, if several processes would be faster."""
    cores = usable_cores()
    here = [reward for reward in rewards if not _any(reward, elsewhere) and _apart(reward)]
    if cores > 1 and here and seconds > WORTH_TELLING and seconds > SLOW * samples:
        told = f"rewards: {seconds / samples:.2g} s per sample in this process"
        print_notes([f"{told}; reward_workers={cores} would score in {cores}"])
