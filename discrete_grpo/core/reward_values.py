"""The values that a reward returns, the rewards inside it, and the working folder that it leaves as it was, in plain Python.

Worker processes of a reward pool import this module too, so it uses nothing beyond the standard library.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["finite_number", "reward_parts", "same_folder", "shown_value"]


def reward_parts(reward: Any) -> Iterator[Any]:
    """A reward and, at every depth, those in its attribute ``inner``, a tuple; a user's reward may have another ``inner``."""
    yield reward
    inner = getattr(reward, "inner", ())
    for part in inner if isinstance(inner, tuple) else ():
        yield from reward_parts(part)


def finite_number(value: Any) -> float:
    """Convert the value of a reward to a finite number, or to NaN if it is unknown (None, NaN or a masked entry of numpy).

    Raises:
        ValueError: for anything else, including strings of digits and complex numbers.

    >>> finite_number(None), finite_number(True)
    (nan, 1.0)
    """
    if value is None or type(value).__name__ == "MaskedConstant":  # of numpy, whose item() is 0
        return math.nan
    try:
        value = value.item() if callable(getattr(value, "item", None)) else value  # an array or tensor of one number
        if isinstance(value, str | bytes | bytearray | complex):
            raise TypeError
        number = float(value)
    except OverflowError:
        number = math.inf
    except Exception:  # a conversion can raise anything
        raise ValueError("expected a number or None") from None
    if math.isinf(number):
        raise ValueError("expected a finite number or None")
    return number


def shown_value(value: Any) -> str:
    """``repr`` of a value, cut to 200 characters; the name of its type if ``repr`` fails."""
    try:
        text = repr(value)
    except Exception:  # user classes can raise anything, and so can very long integers
        return f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:197]}..."


@contextmanager
def same_folder() -> Iterator[None]:
    """Go back to the working folder at the end: relative paths of the run must not depend on a reward that changes it."""
    folder = _folder()
    try:
        yield
    finally:
        if folder is not None and _folder() != folder:
            with suppress(OSError):  # it was removed meanwhile
                os.chdir(folder)


def _folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109  # importing pathlib takes a worker 5 ms
    except OSError:  # it was removed
        return None
