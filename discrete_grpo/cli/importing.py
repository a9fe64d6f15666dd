"""Resolves import paths of a command line; errors during the import of a module become one line."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from discrete_grpo.cli.commands import UsageError
from discrete_grpo.cli.working_folder import append_working_folder, names_class
from discrete_grpo.core.error_place import error_place
from discrete_grpo.core.suggestions import absent_attribute, absent_module

__all__ = ["imported", "value_at"]


def value_at(option: str, path: str) -> Any:
    """The value that ``module:attribute`` names; the module may lie in the working folder.

    Raises:
        UsageError: naming the option, if there is none.
    """
    if not names_class(path):
        dotted = ":".join(path.rpartition(".")[::2])
        such = dotted if names_class(dotted) else "my_module:my_value"
        raise UsageError(f"{option}: {path!r}, expected a name or an import path such as {such}")
    append_working_folder()
    module, _, name = path.partition(":")
    return imported(f"{option}: {path}:", module, name)


def imported(said: str, module: str, name: str) -> Any:
    """An attribute of a module, or of a class of a module.

    Args:
        said: beginning of the error message.
        module: the import path of the module or class.
        name: the attribute.

    Raises:
        UsageError: if the module cannot be imported, or has no such attribute, with the nearest name.
    """
    try:
        holder = _import(module)
    except ModuleNotFoundError as error:
        raise UsageError(f"{said} {error}{absent_module(str(error.name), Path.cwd())}") from error
    except SystemExit as error:
        told = "ended the program when it was imported, expected what a script does under if __name__ == '__main__'"
        raise UsageError(f"{said} {module}.py {told}") from error
    except Exception as error:  # importing the user's file may raise any error
        raise UsageError(f"{said} {' '.join(str(error).split()) or type(error).__name__}{error_place(error)}") from error
    if not hasattr(holder, name):
        raise UsageError(f"{said} {absent_attribute(holder, name)}")
    return getattr(holder, name)


def _import(path: str) -> ModuleType | type:
    """A module, or a class of a module."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        parent, _, name = path.rpartition(".")
        if not parent or error.name != path:
            raise
        found = getattr(importlib.import_module(parent), name, None)
        if not isinstance(found, type):
            raise
        return found
