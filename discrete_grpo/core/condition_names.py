"""Names that conditions cannot have, as the columns of sample tables have them."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["RESERVED", "reserved", "reserved_names"]

RESERVED = ("step", "group", "sample", "reward", "refined", "advantage", "smiles", "text", "image")
"""Names that the columns of sample tables have already."""
PREFIXES = ("reward_", "measured_")
"""Beginnings of the names of further columns of sample tables."""


def reserved(names: Iterable[object], also: Iterable[str] = ()) -> list[str]:
    """The names that a condition cannot have.

    >>> reserved(["logP", "reward", "measured_logP"])
    ['reward', 'measured_logP']
    """
    return [str(name) for name in names if name in (*RESERVED, *also) or str(name).startswith(PREFIXES)]


def reserved_names(also: Iterable[str] = ()) -> str:
    """These names, for messages."""
    return f"{', '.join((*RESERVED, *also))}, {' or '.join(f'{prefix}...' for prefix in PREFIXES)}"
