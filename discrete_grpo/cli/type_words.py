"""Types in the words of an error message."""

from __future__ import annotations

import types
import typing
from typing import Any

__all__ = ["is_plain", "takes_mapping", "type_words"]


def type_words(hint: Any) -> str:
    """A type in the words of an error message.

    >>> type_words(int | None), type_words(bool | typing.Literal["auto"])
    ('int or null', "bool or one of 'auto'")
    >>> type_words(tuple[float, float]), type_words(tuple[float, ...])
    ('a list of 2 float', 'a list of float')
    """
    if hint is type(None):
        return "null"
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(map(type_words, typing.get_args(hint)))
    if typing.get_origin(hint) is typing.Literal:
        return f"one of {', '.join(map(repr, typing.get_args(hint)))}"
    if typing.get_origin(hint) is tuple and len(set(typing.get_args(hint))) == 1:
        return f"a list of {len(typing.get_args(hint))} {type_words(typing.get_args(hint)[0])}"
    if typing.get_origin(hint) in (list, tuple):
        inner = type_words(typing.get_args(hint)[0])
        return f"a list of {'mappings' if inner == 'a mapping' else inner}"
    if typing.get_origin(hint) is dict or hint is dict:
        return "a mapping"
    return getattr(hint, "__name__", str(hint))


def takes_mapping(hint: Any) -> bool:
    """Whether a value of a type may be a mapping; True for every type that is not plain.

    >>> takes_mapping(str | list[dict[str, float]] | None), takes_mapping(int | dict[str, float])
    (False, True)
    """
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(map(takes_mapping, typing.get_args(hint)))
    return typing.get_origin(hint) is dict or hint is dict or not is_plain(hint)


def is_plain(hint: Any) -> bool:
    """Whether a type consists only of numbers, texts, booleans, lists and mappings, so that its words describe the accepted values.

    >>> is_plain(tuple[float, float] | None), is_plain(typing.Callable[..., float])
    (True, False)
    """
    inner = [part for part in typing.get_args(hint) if part is not Ellipsis]
    if typing.get_origin(hint) in (typing.Union, types.UnionType, list, tuple):
        return all(map(is_plain, inner))
    return typing.get_origin(hint) in (typing.Literal, dict) or hint in (int, float, str, bool, dict, type(None))
