"""Calling rewards: names, length and value checks, and errors that say which reward failed and on what."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from discrete_grpo.rollout import Reward

__all__ = ["RewardError", "reward_name", "reward_names", "score_samples"]


class RewardError(RuntimeError):
    """A reward that raised, or returned something that is not one number a sample."""


def reward_name(reward: object) -> str:
    """What a reward is called in metrics and tables: its ``name`` or ``__name__``, else its class's name.

    >>> reward_name(len)
    'len'
    """
    for attribute in ("name", "__name__"):
        found = getattr(reward, attribute, None)
        if isinstance(found, str) and found:
            return found
    function = getattr(reward, "func", None)  # functools.partial
    return type(reward).__name__ if function is None else reward_name(function)


def reward_names(rewards: Sequence[Reward]) -> list[str]:
    """The names of several rewards, made distinct by a number where they repeat."""
    names: list[str] = []
    for reward in rewards:
        base = name = reward_name(reward)
        count = 2
        while name in names:
            name, count = f"{base}_{count}", count + 1
        names.append(name)
    return names


def _number(value: Any, name: str, sample: Any) -> float:
    if value is None:
        return math.nan
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise RewardError(f"reward {name}: returned {value!r} for sample {sample!r}, expected a number or None") from None
    if math.isinf(number):
        raise RewardError(f"reward {name}: returned {number} for sample {sample!r}, expected a finite number or None")
    return number


def score_samples(
    rewards: Sequence[Reward], samples: Sequence[Any], columns: Mapping[str, Sequence[Any]] | None = None
) -> Float[Tensor, "batch reward"]:
    """Every reward of every sample, float64; unknown (None or NaN) is NaN.

    Raises:
        RewardError: in one line, if a reward raises, returns another number of values than there are samples, or a
            value that is no finite number.
    """
    result = torch.empty(len(samples), len(rewards), dtype=torch.float64)
    for k, (name, reward) in enumerate(zip(reward_names(rewards), rewards, strict=True)):
        try:
            values = reward(list(samples), **(columns or {}))
        except Exception as error:
            said = " ".join(str(error).split())
            raise RewardError(f"reward {name}: raised {type(error).__name__}: {said}") from error
        try:
            count = len(values)
        except TypeError:
            raise RewardError(f"reward {name}: returned a {type(values).__name__}, expected one number a sample") from None
        if count != len(samples):
            raise RewardError(f"reward {name}: returned {count} values for {len(samples)} samples, expected one a sample")
        result[:, k] = torch.tensor([_number(v, name, s) for v, s in zip(values, samples, strict=True)], dtype=torch.float64)
    return result
