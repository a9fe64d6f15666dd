"""Calling rewards: names, length and value checks, errors that say which reward failed and on what, and what was unknown."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from discrete_grpo.core.interrupt import watched
from discrete_grpo.core.rollout import Reward

__all__ = [
    "Accounts",
    "BudgetExhausted",
    "Failure",
    "Failures",
    "RewardError",
    "finite_number",
    "remembers",
    "reward_name",
    "reward_names",
    "score_one",
    "score_samples",
    "shown_value",
    "take_failures",
]


class RewardError(RuntimeError):
    """A reward that raised, or returned something that is not one number a sample."""


class BudgetExhausted(RuntimeError):
    """New samples were to be scored after the last call of the budget.

    Attributes:
        scores: what is known of the batch [B, R], float64: repeats and what costs nothing; NaN elsewhere.
    """

    def __init__(self, message: str, scores: Float[Tensor, "batch reward"]) -> None:
        super().__init__(message)
        self.scores = scores


@runtime_checkable
class Accounts(Protocol):
    """Who counts what is scored in a run, such as :class:`discrete_grpo.rewards.ledger.Ledger`."""

    turn: int
    """How often something was scored; what is counted up to here belongs to the run as it stands."""
    rank: int
    """Who scores next: calls of one turn are in order of this number."""

    @property
    def exhausted(self) -> bool:
        """Whether the budget is used up: nothing new can be scored any more."""
        ...

    def score(
        self, rewards: Sequence[Reward], samples: Sequence[Any], columns: Mapping[str, Sequence[Any]] | None = None
    ) -> Float[Tensor, "batch reward"]:
        """Every reward of every sample; see :func:`score_samples`."""
        ...

    def metrics(self) -> dict[str, float]:
        """What is logged with each batch."""
        ...

    def state_dict(self, turn: int | None = None) -> dict[str, Any]:
        """What a checkpoint keeps, up to ``turn``: tensors, numbers, strings and containers of them."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        ...


# -- what could not be scored


@dataclass(frozen=True)
class Failure:
    """A sample that a reward could not score, and why, in one line."""

    sample: Any
    reason: str


class Failures:
    """The samples that a reward could not score; too many in a row mean that the reward itself is broken.

    Args:
        name: the reward's, for the error.
        limit: how many failures without a single success between them end the run; None: any number is borne.
    """

    def __init__(self, name: str, limit: int | None = 32) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"max_failures: {limit}, expected at least 1 or None")
        self.name, self.limit = name, limit
        self.total = 0
        self._row = 0
        self._new: list[Failure] = []

    def success(self) -> None:
        """A sample was scored."""
        self._row = 0

    def add(self, sample: Any, reason: str) -> None:
        """A sample was not.

        Raises:
            RewardError: if it is the ``limit``-th in a row.
        """
        self.total += 1
        self._row += 1
        self._new.append(Failure(sample, reason))
        if self._row == self.limit:
            self._row = 0
            raise RewardError(f"reward {self.name}: the last {self.limit} samples all failed; for {shown_value(sample)}: {reason}")

    def take(self) -> list[Failure]:
        """Those since the last call."""
        new, self._new = self._new, []
        return new


def take_failures(rewards: Sequence[Reward]) -> dict[str, list[Failure]]:
    """By name of reward, the samples it could not score since the last call; only rewards that keep such a list (a pool)."""
    found = {name: getattr(reward, "take_failures", None) for name, reward in zip(reward_names(rewards), rewards, strict=True)}
    return {name: take() for name, take in found.items() if take is not None}


def remembers(reward: Reward) -> bool:
    """Whether what a reward says depends on what it has seen, which a checkpoint must keep (a diversity filter).

    A network has a ``state_dict`` too, of weights that stay as they are.
    """
    return callable(getattr(reward, "state_dict", None)) and not isinstance(reward, nn.Module)


# -- names


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


# -- scoring


def finite_number(value: Any) -> float:
    """A reward's value: a finite number, or NaN where it is unknown (None or NaN).

    Raises:
        ValueError: for anything else, also texts of digits and complex numbers, saying what was expected.

    >>> finite_number(None), finite_number(True)
    (nan, 1.0)
    """
    if value is None:
        return math.nan
    try:
        value = value.item() if callable(getattr(value, "item", None)) else value  # an array or tensor of one number
        if isinstance(value, str | bytes | bytearray | complex):
            raise TypeError
        number = float(value)
    except OverflowError:
        number = math.inf
    except Exception:  # whatever its conversion raises
        raise ValueError("expected a number or None") from None
    if math.isinf(number):
        raise ValueError("expected a finite number or None")
    return number


def shown_value(value: Any) -> str:
    """``repr`` of a sample or of a reward's value, cut to 200 characters; the type's name where it has none."""
    try:
        text = repr(value)
    except Exception:  # of somebody else's class, or an integer of too many digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:197]}..."


def _number(value: Any, name: str, sample: Any) -> float:
    try:
        return finite_number(value)
    except ValueError as error:
        raise RewardError(f"reward {name}: returned {shown_value(value)} for sample {shown_value(sample)}, {error}") from None


def _values(values: Any, name: str, count: int) -> list[Any]:
    """What a reward returned as a list of ``count``.

    Raises:
        RewardError: if it is none.
    """
    try:
        if isinstance(values, str | bytes | bytearray | memoryview | Mapping | Set):
            raise TypeError
        given = len(values)
    except TypeError:
        raise RewardError(f"reward {name}: returned a {type(values).__name__}, expected one number a sample") from None
    if given != count:
        raise RewardError(f"reward {name}: returned {given} values for {count} samples, expected one a sample")
    return list(values)


def _awaited(values: Awaitable[Any]) -> Any:
    """The result of an asynchronous reward, also where an event loop runs already (a notebook)."""

    async def wait() -> Any:
        return await values

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, wait()).result()


def score_one(
    reward: Reward, samples: Sequence[Any], columns: Mapping[str, Sequence[Any]] | None = None, *, name: str | None = None
) -> Float[Tensor, " batch"]:
    """One reward of every sample, float64; unknown (None or NaN) is NaN. A coroutine function is awaited.

    Raises:
        RewardError: in one line, if the reward raises anything (also ``SystemExit``), returns no sequence of as many values as
            there are samples (a generator, a mapping or a set is none), or a value that is no finite number.
        KeyboardInterrupt: after Ctrl-C, if the signal's handler raises it; one that the reward raises is its failure.
    """
    name = name or reward_name(reward)
    with watched() as interrupt:
        try:
            values = reward(list(samples), **(columns or {}))
            if inspect.isawaitable(values):
                values = _awaited(values)
            values = _values(values, name, len(samples))
        except RewardError as error:
            text = str(error)
            raise RewardError(text if text.startswith(f"reward {name}:") else f"reward {name}: {text}") from error
        except BaseException as error:  # SystemExit too, and a KeyboardInterrupt of the reward's own
            if isinstance(error, KeyboardInterrupt) and interrupt:
                raise
            said = " ".join(str(error).split())
            raise RewardError(f"reward {name}: raised {type(error).__name__}: {said}") from error
    return torch.tensor([_number(v, name, s) for v, s in zip(values, samples, strict=True)], dtype=torch.float64)


def score_samples(
    rewards: Sequence[Reward],
    samples: Sequence[Any],
    columns: Mapping[str, Sequence[Any]] | None = None,
    ledger: Accounts | None = None,
) -> Float[Tensor, "batch reward"]:
    """Every reward of every sample, float64; unknown (None or NaN) is NaN.

    Args:
        rewards: one or several.
        samples: what they score.
        columns: conditions by name, one value a sample.
        ledger: counts the samples and gives repeats from its cache; None: every sample is scored, nothing is counted.

    Raises:
        RewardError: in one line, if a reward raises, returns another number of values than there are samples, or a
            value that is no finite number.
        BudgetExhausted: if there is something new to score and the ledger's budget was used up before.
    """
    if ledger is not None:
        return ledger.score(rewards, samples, columns)
    result = torch.empty(len(samples), len(rewards), dtype=torch.float64)
    for k, (name, reward) in enumerate(zip(reward_names(rewards), rewards, strict=True)):
        result[:, k] = score_one(reward, samples, columns, name=name)
    return result
