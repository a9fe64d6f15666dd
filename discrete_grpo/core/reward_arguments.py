"""Checks of rewards before any call: their names, whether they have a memory, and whether a run can call them."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from discrete_grpo.core.checks import check_range, signature_of
from discrete_grpo.core.rollout import Reward

__all__ = [
    "check_at_least_one",
    "check_callables",
    "check_forgets",
    "checked_reward",
    "elsewhere",
    "function_names",
    "remembers",
    "reward_list",
    "reward_name",
    "reward_names",
    "shape_or_type",
]


def remembers(reward: Reward) -> bool:
    """Whether the values of a reward depend on earlier samples, as those of a diversity filter do.

    Such a reward has a ``state_dict`` that checkpoints store. A network has one too, but its weights do not change.
    """
    kind = reward if isinstance(reward, type) else type(reward)
    return callable(getattr(reward, "state_dict", None)) and not issubclass(kind, nn.Module)


def check_forgets(reward: Reward) -> None:
    """Refuse a reward with a memory inside another one, whose checkpoints and caches would not include that memory.

    Raises:
        ValueError: naming it.
    """
    if remembers(reward):
        wanted = "expected one that does not; a reward that remembers must be the outermost"
        raise ValueError(f"reward: {reward_name(reward)} remembers earlier samples, {wanted}")


def elsewhere(reward: Reward) -> bool:
    """Whether a reward is computed outside of this process, so that a thread that calls it only waits.

    Such a reward has a true attribute ``elsewhere``, as a pool of worker processes has.
    """
    return getattr(reward, "elsewhere", False) is True


def reward_name(reward: object) -> str:
    """Name of a reward in metrics and tables: its ``name`` or ``__name__``, else the name of its class.

    >>> reward_name(len)
    'len'
    """
    for attribute in ("name", "__name__"):
        found = getattr(reward, attribute, None)
        if isinstance(found, str) and found:
            return found
    function = getattr(reward, "func", None)  # functools.partial
    return type(reward).__name__ if function is None else reward_name(function)


def function_names(**functions: object) -> dict[str, str | None]:
    """Return the names of a user's functions by the argument that takes them; None where there is none.

    >>> function_names(advantage_func=len, surrogate_func=None)
    {'advantage_func': 'len', 'surrogate_func': None}
    """
    return {argument: None if function is None else reward_name(function) for argument, function in functions.items()}


def shape_or_type(value: object) -> str:
    """Return the shape of a tensor, or the type of any other value, for an error message about it.

    >>> import torch
    >>> shape_or_type(torch.zeros(2, 3)), shape_or_type([0.5])
    ('shape (2, 3)', 'a list')
    """
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def checked_reward(given: Any) -> Any:
    """Check the argument ``reward``: return one reward as it is, several as a list.

    Raises:
        ValueError: for anything that cannot be called.
    """
    if callable(given):
        return given
    several = None if isinstance(given, str | Mapping) or not isinstance(given, Iterable) else list(given)
    if several is None or not all(map(callable, several)):
        names = [one for one in ([given] if isinstance(given, str) else several or ()) if isinstance(one, str)]
        hint = f"; names such as {names[0]!r} are for the command line, in Python import the function" if names else ""
        raise ValueError(f"reward: {given!r}, expected a function of a list of samples, or a list of such functions{hint}")
    return several


def reward_list(reward_funcs: Any) -> list[Any]:
    """Return one reward or several as a list.

    Raises:
        ValueError: for what is neither a function nor a list.
    """
    if callable(reward_funcs):
        return [reward_funcs]
    if not isinstance(reward_funcs, Iterable):
        raise ValueError(f"reward_funcs: {reward_funcs!r}, expected a function reward(samples, **columns) or several")
    return list(reward_funcs)


def checked_weights(weights: Any, count: int) -> tuple[float, ...]:
    """The weights of ``count`` rewards in their sum; None means 1 each.

    Raises:
        ValueError: for anything else than one finite number per reward.
    """
    if weights is None:
        return (1.0,) * count
    if isinstance(weights, str) or not isinstance(weights, Sequence):
        raise ValueError(f"reward_weights: {weights!r}, expected a list of numbers, one per reward")
    if len(weights) != count:
        raise ValueError(f"reward_weights: {len(weights)} weights, expected one per reward ({count})")
    for weight in weights:
        check_range("reward_weights", weight)
    return tuple(weights)


def component_columns(rows: Sequence[Sequence[float]], names: Sequence[str]) -> dict[str, list[float]]:
    """Columns of a table with the scores by each of several rewards, to stand beside that of their sum; none for a single reward.

    >>> component_columns([[0.5, 1.0], [0.25, 2.0]], ["qed", "logp"]), component_columns([[0.5]], ["qed"])
    ({'reward_qed': [0.5, 0.25], 'reward_logp': [1.0, 2.0]}, {})
    """
    return {f"reward_{name}": [row[k] for row in rows] for k, name in enumerate(names)} if len(names) > 1 else {}


def check_callables(rewards: Sequence[Any], columns: Collection[str] | None = None) -> list[Any]:
    """Check that each reward can be called with a list of samples, and return the rewards.

    Args:
        rewards: the rewards.
        columns: names of the conditions, which each reward receives as keyword arguments; None if they are not known yet.

    Raises:
        ValueError: naming the first one that cannot.
    """
    for reward in rewards:
        if isinstance(reward, type):
            raise ValueError(f"reward: {reward.__name__} is a class, expected an instance, such as {reward.__name__}(...)")
        if not callable(reward):
            told = repr(reward) if isinstance(reward, str) else f"a {type(reward).__name__}"
            raise ValueError(f"reward: {told} cannot be called, expected a function of a list of samples")
        if (signature := signature_of(reward)) is None:
            continue
        try:
            _bind(signature, columns)
        except TypeError as error:
            told = f"reward: {reward_name(reward)}{signature} ({error}), expected a function of a list of samples and of columns as"
            given = f" (here {', '.join(columns)}), or **columns for those that it does not read" if columns else ""
            raise ValueError(f"{told} keywords{given}") from None
    return list(rewards)


def check_at_least_one(rewards: Sequence[Any], columns: Collection[str] | None = None) -> list[Any]:
    """Check that there is at least one reward, and return the rewards after :func:`check_callables`.

    Raises:
        ValueError: for none, and as :func:`check_callables`.
    """
    if not rewards:
        raise ValueError("reward: an empty list, expected at least one reward")
    return check_callables(rewards, columns)


def _bind(signature: inspect.Signature, columns: Collection[str] | None) -> None:
    """Raise TypeError where a function cannot be called with samples and these columns, or with any where they are not known."""
    if columns is None:  # only arguments that can be given as keywords may be columns
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        columns = [p.name for p in list(signature.parameters.values())[1:] if p.kind in kinds]
    signature.bind([], **dict.fromkeys(columns))


def reward_names(rewards: Sequence[Reward]) -> list[str]:
    """The names of several rewards, made distinct by a number if they repeat."""
    names: list[str] = []
    for reward in rewards:
        base = name = reward_name(reward)
        count = 2
        while name in names:
            name, count = f"{base}_{count}", count + 1
        names.append(name)
    return names
