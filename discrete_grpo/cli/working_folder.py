"""Handling of the working folder on ``sys.path``: it is last, and added only if a command names the user's code.

A file there with the name of a library, such as ``torch.py``, must not be executed just because a command runs in that folder.
"""

import os
import sys

__all__ = ["append_working_folder", "names_class", "remove_working_folder"]


def remove_working_folder() -> None:
    """Remove the working folder that ``python -m`` puts first on ``sys.path``.

    A checkout of this package that is not installed is imported from there; such a folder moves to the end instead.
    """
    folder = os.getcwd()  # noqa: PTH109  # pathlib is not imported yet, and would be looked for in this very folder
    if getattr(sys.flags, "safe_path", False) or not sys.path or sys.path[0] not in ("", folder):
        return
    del sys.path[0]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    if os.path.realpath(root) == os.path.realpath(folder) and folder not in sys.path:
        sys.path.append(folder)


def append_working_folder() -> None:
    """Make modules in the working folder importable, after all others."""
    folder = os.getcwd()  # noqa: PTH109
    if "" not in sys.path and folder not in sys.path:
        sys.path.append(folder)


def names_class(policy: str) -> bool:
    """Whether the name of a policy is that of a class in a module.

    >>> names_class("my_module:MyPolicy"), names_class("my_module:MyPolicy@runs/mine")
    (True, True)
    >>> names_class("runs/demo"), names_class("C:/runs/demo")
    (False, False)
    """
    module, colon, name = policy.split("@")[0].partition(":")
    return bool(colon) and all(part.isidentifier() for part in module.split(".")) and name.isidentifier()
