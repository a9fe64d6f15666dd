"""The command line ``discrete-grpo``: its commands, their options and the presets."""

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; see :func:`discrete_grpo.cli.__main__.main`."""
    from discrete_grpo.cli.__main__ import main as run

    return run(arguments)
