"""Checks of arguments: the range of a number, and the nearest known name to a mistyped one."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

__all__ = [
    "LAST_SEED",
    "MOST_STEPS",
    "check_choices",
    "check_columns",
    "check_distinct",
    "check_fields",
    "check_folder_name",
    "check_function",
    "check_range",
    "check_samples",
    "check_sizes",
    "check_switch",
    "check_text",
    "check_whole",
    "did_you_mean",
    "nearest_name",
    "plain_number",
    "plain_scalar",
    "signature_of",
    "told_as",
]

FINITE = "a finite number"

LARGEST = 1e38
"""The largest size of a number that is not whole; in float32 numbers end soon after it."""

LAST_SEED = 2**32 - 1
"""The largest random seed of numpy. It is defined here because the modules of the settings must not import torch."""

MOST_STEPS = 10_000
"""The largest number of steps of a sampler. A rollout holds every state, so that many more would exhaust the memory."""


def check_range(
    name: str,
    value: int | float,
    *,
    least: int | float | None = None,
    above: int | float | None = None,
    most: int | float | None = None,
    below: int | float | None = None,
    note: str = "",
) -> None:
    """Raise ``ValueError`` unless ``value`` is a finite number within its bounds, and within ± 1e38 if it is not whole.

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
    if not isinstance(value, Real) or isinstance(value, bool):
        told = _range(least, above, most, below)
        raise ValueError(f"{name}: {value!r}, expected {told if told == FINITE else f'a number, {told}'}{note}")
    inside = (least is None or value >= least) and (above is None or value > above)
    inside = inside and (most is None or value <= most) and (below is None or value < below)
    finite = isinstance(value, Integral) or math.isfinite(value)  # a large integer has no float
    if inside and not finite:  # the range alone would not tell
        raise ValueError(f"{name}: {value}, expected {FINITE}{note}")
    if not inside:
        raise ValueError(f"{name}: {value}, expected {_range(least, above, most, below)}{note}")
    if not isinstance(value, Integral) and abs(value) > LARGEST:
        raise ValueError(f"{name}: {value}, expected at most {LARGEST} in size")


def check_whole(name: str, value: int, *, least: int | None = None, most: int | None = None, note: str = "") -> None:
    """Raise ``ValueError`` unless ``value`` is a whole number within its bounds, as :func:`check_range` does for any number.

    >>> check_whole("seeds", 2.5, least=0)
    Traceback (most recent call last):
    ValueError: seeds: 2.5, expected a whole number, at least 0
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        bounds = f", {_range(least, None, most, None)}" if least is not None or most is not None else ""
        raise ValueError(f"{name}: {value!r}, expected a whole number{bounds}{note}")
    check_range(name, value, least=least, most=most, note=note)


def _range(least: int | float | None, above: int | float | None, most: int | float | None, below: int | float | None) -> str:
    if least is not None and most is not None:
        return f"{least} to {most}"
    low = [f"at least {least}"] if least is not None else [f"more than {above}"] if above is not None else []
    high = [f"at most {most}"] if most is not None else [f"less than {below}"] if below is not None else []
    return " and ".join(low + high) or FINITE


def check_fields(
    settings: object,
    names: str,
    *,
    least: int | float | None = None,
    above: int | float | None = None,
    most: int | float | None = None,
    below: int | float | None = None,
) -> None:
    """Check the range of several fields of a dataclass, and that those of type int are whole; None passes where the type has it.

    Numbers of other libraries, such as numpy's, are replaced by Python's.

    Args:
        settings: the dataclass.
        names: names of the fields, with spaces between them.
        least: as for :func:`check_range`.
        above: likewise.
        most: likewise.
        below: likewise.

    Raises:
        ValueError: naming the field, the value and the range.
    """
    kinds = _kinds(cast(Hashable, type(settings)))
    for name in names.split():
        given = getattr(settings, name)
        value = plain_number(given)
        if value is not given:
            object.__setattr__(settings, name, value)  # the dataclass may be frozen
        if value is None and NoneType in kinds[name]:
            continue
        if int in kinds[name] and float not in kinds[name] and (isinstance(value, bool) or not isinstance(value, int)):
            check_whole(name, value, least=cast(Any, least), most=cast(Any, most))
        check_range(name, value, least=least, above=above, most=most, below=below)


def check_sizes(name: str, sizes: object, kind: type) -> None:
    """Raise ``ValueError`` unless ``sizes`` is a dataclass ``kind`` whose int fields are whole; it checks their ranges itself."""
    if not isinstance(sizes, kind):
        raise ValueError(f"{name}: a {type(sizes).__name__}, expected {kind.__name__}")
    for field_name, kinds in _kinds(cast(Hashable, type(sizes))).items():
        if kinds == (int,):
            check_whole(f"{name}.{field_name}" if name else field_name, getattr(sizes, field_name))


def plain_number(value: Any) -> Any:
    """Convert a number of another library, such as numpy, to Python's; return other values unchanged."""
    if isinstance(value, Integral) and not isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, Real) and not isinstance(value, int | float) else value


def plain_scalar(value: Any) -> Any:
    """Convert an array or tensor of one element to Python's number, or another scalar of a library; return other values unchanged.

    Two tensors of equal content are different keys of a mapping, unlike these.
    """
    try:
        return value.item()
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return value


def check_choices(settings: object) -> None:
    """Check the fields of a dataclass whose type is bool or a ``Literal``, or one of them and None.

    Raises:
        ValueError: naming the field, the value and the choices.
    """
    for name, kinds in _kinds(cast(Hashable, type(settings))).items():
        value, some = getattr(settings, name), [kind for kind in kinds if kind is not NoneType]
        if some == [bool] and not isinstance(value, bool) and not (value is None and NoneType in kinds):
            raise ValueError(f"{name}: {value!r}, expected True or False")
        if any(get_origin(kind) is not Literal for kind in some) or (value is None and NoneType in kinds):
            continue
        choices = [choice for kind in some for choice in get_args(kind)]
        if not isinstance(value, str | int | float) or value not in choices:  # arrays cannot be compared so
            raise ValueError(f"{name}: {value!r}, expected one of {', '.join(map(str, choices))}")


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a function; None if it has none, as some functions written in C."""
    try:
        return inspect.signature(function)
    except (ValueError, TypeError):
        return None


def check_function(name: str, value: Any, wanted: str, count: int, **keywords: Any) -> None:
    """Raise ``ValueError`` unless ``value`` can be called with ``count`` arguments and these keywords.

    >>> check_function("score", len, "one sample", 1)
    >>> check_function("score", 3, "one sample", 1)
    Traceback (most recent call last):
    ValueError: score: 3, expected a function of one sample
    """
    if not callable(value):
        raise ValueError(f"{name}: {value!r}, expected a function of {wanted}")
    if (signature := signature_of(value)) is None:
        return
    try:
        signature.bind(*[None] * count, **keywords)
    except TypeError as error:
        called = getattr(value, "__name__", type(value).__name__)
        raise ValueError(f"{name}: {called}{signature} ({error}), expected a function of {wanted}") from None


def check_text(name: str, value: object, expected: str) -> None:
    """Raise ``ValueError`` unless ``value`` is text.

    >>> check_text("data", [1, 2], "the name of a file")
    Traceback (most recent call last):
    ValueError: data: a list, expected the name of a file
    """
    if not isinstance(value, str):
        raise ValueError(f"{name}: a {type(value).__name__}, expected {expected}")


def check_samples(samples: object, name: str = "samples", of: str = "samples") -> None:
    """Raise ``ValueError`` for a text in place of a list, whose characters would be read.

    >>> check_samples("CCO")
    Traceback (most recent call last):
    ValueError: samples: 'CCO', expected a list of samples, such as ['CCO']
    """
    if isinstance(samples, str):
        raise ValueError(f"{name}: {samples!r}, expected a list of {of}, such as [{samples!r}]")


def check_columns(columns: Mapping[str, Sequence[Any]], count: int) -> None:
    """Raise ``ValueError`` unless every column has one value per sample.

    >>> check_columns({"label": [3, 5]}, 3)
    Traceback (most recent call last):
    ValueError: label: 2 values, expected one per sample (3)
    """
    for name, values in columns.items():
        if len(values) != count:
            raise ValueError(f"{name}: {len(values)} values, expected one per sample ({count})")


def check_distinct(name: str, values: Sequence[Hashable]) -> None:
    """Raise ``ValueError`` for a value that is given a second time.

    >>> check_distinct("seeds", [0, 1, 0])
    Traceback (most recent call last):
    ValueError: seeds: 0 is given twice, expected each once
    """
    if twice := [value for value, count in Counter(values).items() if count > 1]:
        raise ValueError(f"{name}: {twice[0]!r} is given twice, expected each once")


def check_folder_name(name: str, value: object) -> None:
    """Raise ``ValueError`` unless ``value`` names a folder; blank text would mean the current folder.

    >>> check_folder_name("output_dir", "")
    Traceback (most recent call last):
    ValueError: output_dir: '', expected the name of a folder to make
    """
    if not isinstance(value, str | PurePath) or not str(value).strip():
        raise ValueError(f"{name}: {value!r}, expected the name of a folder to make")
    if str(value).partition("/")[0] == "~":  # the shell replaces it at the start of a word only
        raise ValueError(f"{name}: {str(value)!r}, expected a path without ~, such as {str(Path(value).expanduser())!r}")


def check_switch(name: str, value: object) -> None:
    """Raise ``ValueError`` unless ``value`` is True, False or ``auto``; numbers are none of these."""
    if not (isinstance(value, bool) or (isinstance(value, str) and value == "auto")):
        raise ValueError(f"{name}: {value!r}, expected True, False or 'auto'")


@cache
def _kinds(settings: Any) -> dict[str, tuple[Any, ...]]:
    """The types that the value of each field of a dataclass may have."""
    hints = get_type_hints(settings)
    found = {field.name: hints[field.name] for field in fields(settings)}
    return {name: get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,) for name, hint in found.items()}


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return a question that names the known name nearest to a mistyped one, or an empty text where none is near.

    Args:
        name: the mistyped name.
        known: the accepted names; upper and lower case count as equal.
        cutoff: the smallest similarity of an answer, from 0 to 1, as :func:`difflib.get_close_matches` measures it.

    >>> did_you_mean("trian", ["train", "sample"]), did_you_mean("QEDD", ["qed"]), did_you_mean("x", ["train"])
    ("did you mean 'train'?", "did you mean 'qed'?", '')
    """
    near = nearest_name(name, known, cutoff)
    return "" if near is None else f"did you mean {near!r}?"


def nearest_name(name: str, known: Iterable[str], cutoff: float) -> str | None:
    """Return the known name nearest to a mistyped one, or None where none is near; see :func:`did_you_mean`."""
    import difflib  # only a mistyped name needs it

    folded = {other.casefold(): other for other in known}
    near = difflib.get_close_matches(name.casefold(), folded, 1, cutoff)
    return folded[near[0]] if near else None


@contextmanager
def told_as(argument: str, was: str = "data") -> Iterator[None]:
    """Replace the name ``was`` at the beginning of an error by the name of the caller's own argument.

    >>> with told_as("reference"):
    ...     raise ValueError("data: no graphs, expected at least one")
    Traceback (most recent call last):
    ...
    ValueError: reference: no graphs, expected at least one
    """
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        if str(error).startswith(f"{was}: "):
            error.args = (str(error).replace(was, argument, 1),)
        raise
