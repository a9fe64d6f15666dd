"""The place in a user's own code where an error was raised."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

__all__ = ["error_place"]

_PACKAGE = Path(__file__).parents[1]


def error_place(error: BaseException) -> str:
    r"""Return the file and line in a user's code where an error was raised, as a suffix in brackets for its message.

    It is the innermost line of the traceback in a file outside this package, the standard library and installed packages. The
    text is empty if there is none, and for a ``SyntaxError``, whose own message ends with its place.

    >>> try:
    ...     exec(compile("scores = {}\nscores['CCO']", "/home/me/my_reward.py", "exec"))
    ... except KeyError as error:
    ...     error_place(error)
    ' (my_reward.py, line 2)'
    """
    if isinstance(error, SyntaxError):
        return ""
    places = [(Path(f.filename), f.lineno) for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")]
    own = [("notebook cell" if "ipykernel" in file.parent.name else file.name, n) for file, n in places if not _installed(file)]
    return f" ({own[-1][0]}, line {own[-1][1]})" if own else ""


def _installed(file: Path) -> bool:
    """Whether a file belongs to this package, to the standard library or to an installed package."""
    if not {"site-packages", "dist-packages"}.isdisjoint(file.parts):
        return True
    folders = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(file.is_relative_to(folder) for folder in (_PACKAGE, *folders))
