"""Hints for mistyped names of modules and attributes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from discrete_grpo.core.checks import did_you_mean

__all__ = ["absent_attribute", "absent_module"]


def absent_module(name: str, folder: Path) -> str:
    """The continuation of an error about a module that does not exist: where it was looked for, and a near name."""
    parent, _, leaf = name.rpartition(".")
    place = folder.joinpath(*parent.split(".")) if parent else folder
    found = []
    if place.is_dir():
        found = [p.stem for p in place.iterdir() if p.suffix == ".py" or (p.is_dir() and p.name.isidentifier())]
    where = f" nor in {place}" if place.is_dir() else f", and {parent} is no package in {folder}"
    return f"; it is {'neither' if place.is_dir() else 'not'} installed{where}; {did_you_mean(leaf, found)}".rstrip("; ")


def absent_attribute(holder: ModuleType | type, name: str) -> str:
    """The text of an error about a name that a module or class does not have: its file, and a near name."""
    file = getattr(holder, "__file__", None)
    hint = did_you_mean(name, [other for other in vars(holder) if not other.startswith("_")]) if file else ""
    kind = "class" if isinstance(holder, type) else "module"
    text = f"{kind} {holder.__name__!r} has no attribute {name!r}" + (f" ({file})" if file else "")
    return f"{text}; {hint}".rstrip("; ")
