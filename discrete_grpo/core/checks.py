"""The range check of numeric arguments: one line that names the argument, its value and the accepted range."""

from __future__ import annotations

import math

__all__ = ["check_range"]


def check_range(
    name: str,
    value: float,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    note: str = "",
) -> None:
    """Raise ``ValueError`` unless ``value`` is a finite number within its bounds.

    Args:
        name: the argument, as the user writes it.
        value: what was given.
        least: the smallest accepted value.
        above: a value that must be exceeded; at most one of ``least`` and ``above`` is given.
        most: the largest accepted value.
        below: a value that must not be reached; at most one of ``most`` and ``below`` is given.
        note: text after the range, such as ``" (block_size)"``.

    Raises:
        ValueError: naming the argument, the value and the range.

    >>> check_range("beta", -1.0, least=0)
    Traceback (most recent call last):
    ValueError: beta: -1.0, expected at least 0
    >>> check_range("top_p", 2.0, above=0, most=1)
    Traceback (most recent call last):
    ValueError: top_p: 2.0, expected more than 0 and at most 1
    """
    inside = not isinstance(value, float) or math.isfinite(value)
    inside = inside and (least is None or value >= least) and (above is None or value > above)
    inside = inside and (most is None or value <= most) and (below is None or value < below)
    if not inside:
        raise ValueError(f"{name}: {value}, expected {_range(least, above, most, below)}{note}")


def _range(least: float | None, above: float | None, most: float | None, below: float | None) -> str:
    if least is not None and most is not None:
        return f"{least} to {most}"
    low = [f"at least {least}"] if least is not None else [f"more than {above}"] if above is not None else []
    high = [f"at most {most}"] if most is not None else [f"less than {below}"] if below is not None else []
    return " and ".join(low + high) or "a finite number"
