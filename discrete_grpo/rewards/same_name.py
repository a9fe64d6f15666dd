"""Checks that rewards with equal names are the same reward, since a ledger keeps scores by the name of the reward."""

from __future__ import annotations

import functools
import types
from typing import Any

from discrete_grpo.core.rollout import Reward
from discrete_grpo.rewards.identity import Unidentified, identify

__all__ = ["check_same_reward"]


def check_same_reward(name: str, before: Reward, now: Reward) -> None:
    """Refuse a reward with the name of another one; the same reward is accepted, also if it was created again or moved to workers.

    Rewards are the same if they have the same identity (:func:`~discrete_grpo.rewards.identity.identify`), or, where one has none,
    the same code and the same rewards inside.

    Raises:
        ValueError: in one line that says where both come from and how a reward is renamed.
    """
    if _same(before, now):
        return
    places = dict.fromkeys(map(_place, (before, now)))
    both = " and ".join(places) if len(places) > 1 else f"{_place(now)} with other values"
    wanted = "expected different names: rename one, or give it an attribute name (a text)"
    raise ValueError(f"rewards: {name!r} is the name of two rewards of this ledger, {both}; {wanted}")


def _same(one: Any, other: Any) -> bool:
    one, other = _itself(one), _itself(other)
    if one is other or (isinstance(one, types.MethodType) and one == other):  # every access to a method makes a new object
        return True
    try:
        return identify(one) == identify(other)
    except Unidentified:
        inside = [tuple(getattr(reward, "inner", ())) for reward in (one, other)]
        same_parts = len(inside[0]) == len(inside[1]) and all(map(_same, *inside))
        return _code(one) == _code(other) and same_parts


def _itself(reward: Any) -> Any:
    """Return the reward whose scores this one gives, such as that of a pool of worker processes; else the reward itself."""
    while not isinstance(reward, type) and callable(given := getattr(reward, "cached_as", None)):
        reward = given
    return reward


def _code(reward: Any) -> Any:
    """Return the code object of a function, or the class of any other callable."""
    while isinstance(reward, functools.partial):
        reward = reward.func
    return getattr(reward, "__code__", type(reward))


def _place(reward: Any) -> str:
    """The import path of a reward, with the line of a function."""
    while isinstance(reward, functools.partial):
        reward = reward.func
    named = reward if hasattr(reward, "__qualname__") else type(reward)
    code = getattr(reward, "__code__", None)
    return f"{named.__module__}.{named.__qualname__}" + ("" if code is None else f" (line {code.co_firstlineno})")
