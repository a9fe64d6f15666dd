"""What an object consists of, for the identity of a reward: attributes and slots, or memory that only its class knows."""

from __future__ import annotations

import types
from typing import Any

from discrete_grpo.rewards.sources import source_file

__all__ = ["SLOT", "is_bookkeeping", "is_plain", "is_python", "is_set", "is_static"]

SLOT = types.MemberDescriptorType
"""Type of a slot in its class."""


def is_bookkeeping(name: str, part: Any) -> bool:
    """Whether Python itself, and not the author, added an attribute to a class."""
    code = callable(part) or isinstance(part, classmethod | staticmethod | property)
    return name.startswith("_abc_") or (name.startswith("__") and name.endswith("__") and not code)


def is_static(kind: type) -> bool:
    """Whether a class is written in C, not made by a class statement."""
    return not kind.__flags__ & (1 << 9)  # Py_TPFLAGS_HEAPTYPE


def is_set(slot: Any, value: Any) -> bool:
    """Whether a slot of an object has a value."""
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


def is_python(metaclass: type) -> bool:
    """Whether a metaclass is Python's own or has a source file."""
    return metaclass.__module__ == "builtins" or metaclass.__module__ == "abc" or source_file(metaclass.__module__) is not None


def is_plain(kind: type) -> bool:
    """Whether an object consists of its attributes and slots only: its memory has room for nothing else."""
    pointer = object.__basicsize__ // 2
    offsets = (kind.__dictoffset__, kind.__weakrefoffset__)
    slots = sum(isinstance(part, SLOT) for c in kind.__mro__ if not is_static(c) for part in vars(c).values())
    return kind.__itemsize__ == 0 and kind.__basicsize__ == object.__basicsize__ + pointer * (slots + sum(o > 0 for o in offsets))
