"""Whole numbers with a power of ten, such as ``1e5``, as they are written on command lines and in YAML files."""

from __future__ import annotations

import re
from decimal import Decimal

__all__ = ["written_out"]

_POWER = re.compile(r"\d+(\.\d+)?[eE]\+?\d{1,2}")


def written_out(text: str) -> str:
    """Write a whole number without its power of ten; return any other text unchanged.

    >>> written_out("2.5e3"), written_out("1e-3"), written_out("2.55e1"), written_out("many")
    ('2500', '1e-3', '2.55e1', 'many')
    """
    if not _POWER.fullmatch(text):
        return text
    found = Decimal(text)
    return str(int(found)) if found == found.to_integral_value() else text
