"""Checks of the settings of a method, a mapping by name, and of a run that is resumed with other settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from discrete_grpo.core.checks import did_you_mean
from discrete_grpo.runs.settings import flat_settings

__all__ = ["check_known_settings", "check_same", "told_within", "whole_numbers"]


def told_within(name: str, check: Callable[[], object]) -> None:
    """Call ``check``, and prefix its error by ``name``."""
    try:
        check()
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def check_known_settings(name: str, given: Any, known: Mapping[str, Any]) -> None:
    """Raise ValueError unless ``given`` is a mapping whose names are in ``known``, with values of the same types or None."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{name}: {given!r}, expected a mapping of {', '.join(known)}")
    for key, value in given.items():
        if key not in known:
            hint = f"{did_you_mean(key, known)} ".lstrip()
            raise ValueError(f"{name}: {key!r} is unknown; {hint}known: {', '.join(known)}")
        if value is None and type(known[key]) is not bool:
            continue  # the function that takes the setting checks whether it may be None
        kind = type(known[key])
        fits = isinstance(value, (int, float) if kind is float else kind)
        if kind is not dict and (not fits or isinstance(value, bool) is not (kind is bool)):
            raise ValueError(f"{name}: {key} {value!r}, expected {kind.__name__}")


def whole_numbers(given: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings that are whole numbers but were written as 1e2 to int.

    >>> whole_numbers({"draws": 1e2, "kappa": 1.0}, {"draws": 160, "kappa": 0.3})
    {'draws': 100, 'kappa': 1.0}
    """
    return {
        name: int(value) if type(known.get(name)) is int and isinstance(value, float) and value.is_integer() else value
        for name, value in given.items()
    }


def check_same(name: str, given: Any, kept: Any) -> None:
    """Check that a run to resume was made with the same value; for two mappings, the error names only the entries that differ.

    Raises:
        ValueError: naming both values.

    >>> check_same("settings", {"draws": 3, "seed": 1}, {"draws": 4, "seed": 1})
    Traceback (most recent call last):
    ...
    ValueError: settings: draws 3, expected draws 4 as in the run to resume
    """
    if given == kept:
        return
    if isinstance(given, Mapping) and isinstance(kept, Mapping):
        flat, old = flat_settings(given), flat_settings(kept)
        others = [key for key in dict.fromkeys([*flat, *old]) if key not in flat or key not in old or flat[key] != old[key]]
        given, kept = (", ".join(f"{key} {part.get(key)}" for key in others) for part in (flat, old))
    raise ValueError(f"{name}: {given}, expected {kept} as in the run to resume")
