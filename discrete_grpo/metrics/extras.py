"""Optional packages of metrics, and how to install them."""

from __future__ import annotations

import importlib

__all__ = ["missing_package"]


def missing_package(module: str, package: str, extra: str) -> str:
    """Return what to install for a metric, as the end of a sentence about it, or an empty text if the package is installed.

    >>> missing_package("json", "json", "none"), missing_package("no_such_module", "no-such-package", "fcd")
    ('', "needs no-such-package; pip install 'discrete-grpo[fcd]'")
    """
    try:
        importlib.import_module(module)
    except ImportError:
        return f"needs {package}; pip install 'discrete-grpo[{extra}]'"
    return ""
