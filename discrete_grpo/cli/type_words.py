"""Types in the words of an error message."""

from __future__ import annotations

import types
import typing
from typing import Any

__all__ = ["type_words"]


def type_words(hint: Any) -> str:
    """A type in the words of an error message.

    >>> type_words(int | None), type_words(bool | typing.Literal["auto"])
    ('int or null', "bool or one of 'auto'")
    """
    if hint is type(None):
        return "null"
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(map(type_words, typing.get_args(hint)))
    if typing.get_origin(hint) is typing.Literal:
        return f"one of {', '.join(map(repr, typing.get_args(hint)))}"
    if typing.get_origin(hint) in (list, tuple):
        return f"a list of {type_words(typing.get_args(hint)[0])}"
    if typing.get_origin(hint) is dict or hint is dict:
        return "a mapping"
    return getattr(hint, "__name__", str(hint))
