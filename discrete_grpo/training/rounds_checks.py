"""Checks the components of the loop over rounds before any of them is called."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from discrete_grpo.core.reward_arguments import reward_name
from discrete_grpo.training.memory import Remembered, ScoredMemory
from discrete_grpo.training.rounds_config import RoundsConfig

__all__ = ["check_parts"]

METHODS = {"ledger": ("score",), "screen": ("observe", "forget", "merit"), "proposers": ("propose",)}
"""Mapping of an argument to the methods that it must have."""


def check_parts(**parts: Any) -> None:
    """Refuse components of :class:`~discrete_grpo.training.rounds.Rounds` that lack a required method.

    Args:
        **parts: the arguments of the loop by name.

    Raises:
        ValueError: in one line that names the argument.
    """
    _check_kinds("config", [parts["config"]], RoundsConfig)
    for name in ("proposers", "known"):
        if isinstance(parts[name], str) or not hasattr(parts[name], "__iter__"):
            raise ValueError(f"{name}: {_shown(parts[name])}, expected a list")
    _check_kinds("memory", [parts["memory"]], ScoredMemory)
    _check_kinds("drawable", [one for one in [parts["drawable"]] if one is not None], ScoredMemory, " or None")
    _check_kinds("known", parts["known"], Remembered, ", as in the list kept of a ScoredMemory")
    several = parts["reward"] if isinstance(parts["reward"], list | tuple) else [parts["reward"]]
    if not several:
        raise ValueError("reward: none given, expected at least one")
    functions = [(name, parts[name]) for name in ("objective", "key", "rewrite", "contexts")]
    for name, value in [*(("reward", one) for one in several), *functions]:
        none = " or None" if name in ("rewrite", "contexts") else ""
        of_objects = name in ("reward", "objective")  # a class would be called in the place of its object; that of a key may be str
        if (isinstance(value, type) and of_objects) or not (callable(value) or (none and value is None)):
            raise ValueError(f"{name}: {_shown(value)}, expected a function{none}")
    _check_methods("ledger", parts["ledger"])
    if parts["screen"] is not None:
        _check_methods("screen", parts["screen"])
    for proposer in parts["proposers"]:
        _check_methods("proposers", proposer)
        if not isinstance(getattr(proposer, "name", None), str):
            raise ValueError(f"proposers: {_shown(proposer)} has no name, expected a text, by which the ledger counts its samples")


def _check_kinds(argument: str, given: Iterable[Any], kind: type, note: str = "") -> None:
    for one in given:
        if not isinstance(one, kind):
            raise ValueError(f"{argument}: {_shown(one)}, expected a {kind.__name__}{note}")


def _check_methods(argument: str, part: Any) -> None:
    missing = [name for name in METHODS[argument] if isinstance(part, type) or not callable(getattr(part, name, None))]
    if missing:
        wanted = f"expected an object with {', '.join(METHODS[argument])}"
        raise ValueError(f"{argument}: {_shown(part)} has no method {missing[0]}, {wanted}")


def _shown(part: Any) -> str:
    """A part in an error: the name of a function or class, else the type."""
    if isinstance(part, type):
        return f"the class {part.__name__}"
    if part is None or callable(part):
        return "None" if part is None else reward_name(part)
    name = type(part).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
