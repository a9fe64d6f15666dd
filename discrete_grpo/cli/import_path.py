"""The working folder on ``sys.path``: last, and only where a command names code of the user's.

A file there that is called like a library, ``torch.py`` say, must not be run because somebody looks at a folder.
"""

import os
import sys

__all__ = ["append_working_folder", "remove_working_folder"]


def remove_working_folder() -> None:
    """Take back what ``python -m`` does: it puts the working folder first on ``sys.path``.

    A checkout of this package that is not installed is found there, so that such a folder moves to the end instead.
    """
    folder = os.getcwd()  # noqa: PTH109  # pathlib is not imported yet, and would be looked for in this very folder
    if getattr(sys.flags, "safe_path", False) or not sys.path or sys.path[0] not in ("", folder):
        return
    del sys.path[0]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    if os.path.realpath(root) == os.path.realpath(folder) and folder not in sys.path:
        sys.path.append(folder)


def append_working_folder() -> None:
    """Let modules in the working folder be imported by name, after all others."""
    folder = os.getcwd()  # noqa: PTH109
    if "" not in sys.path and folder not in sys.path:
        sys.path.append(folder)
