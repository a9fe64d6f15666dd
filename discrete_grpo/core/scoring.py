"""Calls of rewards: checks of lengths and values, errors that name the reward and the sample, unknown values."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from discrete_grpo.core.checks import check_samples, check_whole
from discrete_grpo.core.error_place import error_place
from discrete_grpo.core.interrupt import watched
from discrete_grpo.core.reward_arguments import reward_name, reward_names
from discrete_grpo.core.reward_hints import count_hint, error_hint
from discrete_grpo.core.reward_values import finite_number, reward_parts, same_folder, shown_value
from discrete_grpo.core.rollout import Reward

__all__ = [
    "Accounts",
    "BudgetExhausted",
    "Failure",
    "Failures",
    "NoScores",
    "RewardError",
    "finite_number",
    "score_one",
    "score_samples",
    "shown_value",
    "take_failures",
]


class RewardError(RuntimeError):
    """Raised when a reward raises, or does not return one number per sample."""


class NoScores(RewardError):
    """Raised when a run has used up its budget without a known score, so that it cannot continue."""


class BudgetExhausted(RuntimeError):
    """Raised when new samples are to be scored after the budget was used up.

    Attributes:
        scores: known scores of the batch [B, R], float64, from the cache or free of charge; NaN elsewhere.
    """

    def __init__(self, message: str, scores: Float[Tensor, "batch reward"]) -> None:
        super().__init__(message)
        self.scores = scores

    def __reduce__(self) -> tuple[type[BudgetExhausted], tuple[str, Float[Tensor, "batch reward"]]]:
        """Both arguments, so that a pool of processes can send it."""
        return BudgetExhausted, (str(self), self.scores)


@runtime_checkable
class Accounts(Protocol):
    """A counter of reward calls, such as :class:`discrete_grpo.rewards.ledger.Ledger`."""

    turn: int
    """Number of times that samples were scored; a checkpoint includes the calls up to its turn."""
    rank: int
    """Rank of the next caller; the calls of one turn are ordered by it."""

    @property
    def exhausted(self) -> bool:
        """Whether the budget is used up, so that no new sample can be scored."""
        ...

    def score(
        self,
        rewards: Sequence[Reward],
        samples: Sequence[Any],
        columns: Mapping[str, Sequence[Any]] | None = None,
        source: str | Sequence[str] = "",
    ) -> Float[Tensor, "batch reward"]:
        """Score every sample by every reward; see :func:`score_samples`. ``source`` says who proposed the samples."""
        ...

    def metrics(self) -> dict[str, float]:
        """Metrics that are logged with each batch; ``oracle/calls`` is the number of calls."""
        ...

    def state_dict(self, turn: int | None = None) -> dict[str, Any]:
        """State up to ``turn`` for a checkpoint: tensors, numbers, strings and containers of them."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        ...


# -- failures


@dataclass(frozen=True)
class Failure:
    """A sample that a reward could not score, and the reason in one line."""

    sample: Any
    reason: str


class Failures:
    """Record of the samples that a reward could not score; too many in a row end the run.

    Args:
        name: name of the reward, for the error.
        limit: number of successive failures that ends the run, at least 1; None never ends it.
    """

    def __init__(self, name: str, limit: int | None = 32) -> None:
        if limit is not None:
            check_whole("max_failures", limit, least=1, note=" or None")
        self.name, self.limit = name, limit
        self.total = 0
        self._row = 0
        self._new: list[Failure] = []

    def success(self) -> None:
        """Record that a sample was scored."""
        self._row = 0

    def add(self, sample: Any, reason: str) -> None:
        """Record that a sample could not be scored.

        Raises:
            RewardError: at the ``limit``-th successive failure.
        """
        self.total += 1
        self._row += 1
        self._new.append(Failure(sample, reason))
        if self._row == self.limit:
            self._row = 0
            raise RewardError(f"reward {self.name}: the last {self.limit} samples all failed; for {shown_value(sample)}: {reason}")

    def take(self) -> list[Failure]:
        """Return the failures since the last call."""
        new, self._new = self._new, []
        return new


def take_failures(rewards: Sequence[Reward]) -> dict[str, list[Failure]]:
    """Failures since the last call by name of the reward, for rewards that record them, such as a pool, or that contain one.

    A reward made of others has them in its attribute ``inner``, a tuple.
    """
    found = {name: _takes(reward) for name, reward in zip(reward_names(rewards), rewards, strict=True)}
    return {name: [failure for take in takes for failure in take()] for name, takes in found.items() if takes}


def _takes(reward: object) -> list[Callable[[], list[Failure]]]:
    """The methods ``take_failures`` of a reward and of those inside it."""
    takes = (getattr(part, "take_failures", None) for part in reward_parts(reward))
    return [take for take in takes if callable(take)]


# -- scoring


def _number(value: Any, name: str, sample: Any) -> float:
    try:
        return finite_number(value)
    except ValueError as error:
        raise RewardError(f"reward {name}: returned {shown_value(value)} for sample {shown_value(sample)}, {error}") from None


def _values(values: Any, name: str, count: int) -> list[Any]:
    """Convert the result of a reward to a list of ``count`` values.

    Raises:
        RewardError: if it is not a sequence of ``count`` values.
    """
    try:
        if isinstance(values, str | bytes | bytearray | memoryview | Mapping | Set):
            raise TypeError
        given = len(values)
    except TypeError:
        told = f"returned a {type(values).__name__}, expected one number per sample{count_hint(values)}"
        raise RewardError(f"reward {name}: {told}") from None
    if given != count:
        raise RewardError(f"reward {name}: returned {given} values for {count} samples, expected one per sample")
    return list(values)


def _awaited(values: Awaitable[Any]) -> Any:
    """The result of an asynchronous reward, also if an event loop is running, as in a notebook."""

    async def wait() -> Any:
        return await values

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, wait()).result()


def _called(reward: Reward, samples: Sequence[Any], columns: Mapping[str, Sequence[Any]]) -> Any:
    """Call a reward. A process that it forks ends here if it comes back from the call, as it would go on as a second run."""
    own = os.getpid()
    try:
        values = reward(list(samples), **columns)
        return _awaited(values) if inspect.isawaitable(values) else values
    finally:
        if os.getpid() != own:
            os._exit(1)


def score_one(
    reward: Reward, samples: Sequence[Any], columns: Mapping[str, Sequence[Any]] | None = None, *, name: str | None = None
) -> Float[Tensor, " batch"]:
    """Score every sample by one reward, in float64; unknown values (None or NaN) are NaN. A coroutine function is awaited.

    Raises:
        ValueError: for a text in place of a list of samples.
        RewardError: in one line, if the reward raises (including ``SystemExit``; with the line of a user's own file), does not
            return a sequence of one value per sample (generators, mappings and sets are refused), or returns a value that is not a
            finite number.
        KeyboardInterrupt: after Ctrl-C, if the handler of the signal raises it; if the reward itself raises it, it is a failure.
    """
    check_samples(samples)
    name = name or reward_name(reward)
    with watched() as interrupt, same_folder():
        try:
            values = _called(reward, samples, columns or {})
            values = _values(values, name, len(samples))
        except RewardError as error:
            text = str(error)
            raise RewardError(text if text.startswith(f"reward {name}:") else f"reward {name}: {text}") from error
        except BaseException as error:  # includes SystemExit, and a KeyboardInterrupt that the reward raises
            if isinstance(error, KeyboardInterrupt) and interrupt:
                raise
            said = " ".join(str(error).split())
            ends = f"{error_place(error)}{error_hint(error, samples)}"
            raise RewardError(f"reward {name}: raised {type(error).__name__}: {said}{ends}") from error
    return torch.tensor([_number(v, name, s) for v, s in zip(values, samples, strict=True)], dtype=torch.float64)


def score_samples(
    rewards: Sequence[Reward],
    samples: Sequence[Any],
    columns: Mapping[str, Sequence[Any]] | None = None,
    ledger: Accounts | None = None,
    source: str = "",
) -> Float[Tensor, "batch reward"]:
    """Score every sample by every reward, in float64; unknown values (None or NaN) are NaN.

    Args:
        rewards: one reward or several.
        samples: samples to score.
        columns: conditions by name, with one value per sample.
        ledger: counter of calls, which returns repeated samples from its cache; None scores every sample.
        source: source of the samples, for the ledger.

    Raises:
        RewardError: in one line, if a reward raises, does not return one value per sample, or returns a value that is not a finite
            number.
        BudgetExhausted: if there are new samples to score and the budget of the ledger was used up before.
    """
    if ledger is not None:
        return ledger.score(rewards, samples, columns, source)
    result = torch.empty(len(samples), len(rewards), dtype=torch.float64)
    for k, (name, reward) in enumerate(zip(reward_names(rewards), rewards, strict=True)):
        result[:, k] = score_one(reward, samples, columns, name=name)
    return result
