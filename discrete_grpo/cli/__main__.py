"""The program ``discrete-grpo COMMAND``: finds the command, runs it, and turns errors into one line and an exit code."""

from __future__ import annotations

from discrete_grpo.cli.working_folder import remove_working_folder

if __name__ == "__main__":  # before imports that a file in the working folder could shadow
    remove_working_folder()

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from discrete_grpo.cli.commands import COMMANDS, RECIPES, RUNS, UsageError
from discrete_grpo.core.checks import did_you_mean
from discrete_grpo.core.interrupt import sigterm_as_ctrl_c

__all__ = ["main"]


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("discrete-grpo")
    except PackageNotFoundError:
        return "unknown (run from a folder, not installed)"


def _dispatch(arguments: Sequence[str]) -> None:
    """Run a command; its modules are imported after the name is checked, so that a mistyped command fails at once."""
    command, rest = (arguments[0], arguments[1:]) if arguments else ("-h", ())
    asked = "-h" in rest or "--help" in rest
    if command in ("-h", "--help"):
        from discrete_grpo.cli.help import overview

        print(overview())
    elif command == "--version":
        print(_version())
    elif command in RECIPES and asked:
        from discrete_grpo.cli.help import run_help

        print(run_help(command))
        raise SystemExit(0)  # as argparse does for the other commands
    elif command in RUNS:
        _prepare()
        from discrete_grpo.cli.runs import start

        start(command, rest)
    elif command == "score":
        _prepare()
        from discrete_grpo.cli.runs import score

        score(rest)
    elif command in COMMANDS:
        _prepare()
        from discrete_grpo.cli.arguments import read_arguments
        from discrete_grpo.cli.calls import call

        call(command, read_arguments(command, rest))
    else:
        hint = f"{did_you_mean(command, COMMANDS)} ".lstrip()
        raise UsageError(f"command: {command!r} is unknown; {hint}known: {', '.join(COMMANDS)}")


def _prepare() -> None:
    """Set what has to be set before torch is imported."""
    from discrete_grpo.cli.allocator import keep_freed_memory
    from discrete_grpo.cli.threads import limit_spinning

    limit_spinning()
    keep_freed_memory()


def _printable(text: str) -> str:
    """Replace characters that would control the terminal."""
    if text.isprintable():
        return text
    from discrete_grpo.runs.console import printable

    return printable(text)


def _tell(text: str) -> None:
    """Print one line on standard error; it may contain any characters from a reward or a file."""
    print(f"discrete-grpo: {_printable(text)}", file=sys.stderr)


def _reader_left() -> bool:
    """Whether the reader of standard output has closed it; if so, the rest is discarded, so that the exit is silent."""
    import select

    if not hasattr(select, "poll"):  # Windows
        return False
    asked = select.poll()
    asked.register(sys.stdout.fileno(), select.POLLOUT)
    if not any(event & select.POLLERR for _, event in asked.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _names_argument(error: Exception) -> bool:
    """Whether a TypeError or ImportError begins with the name of an argument, as errors raised on purpose do."""
    name, colon, _ = str(error).partition(": ")
    return isinstance(error, TypeError | ImportError) and bool(colon) and name.isidentifier()


@contextmanager
def _readable_warnings() -> Iterator[None]:
    """Remove control characters from warnings inside the block, and print those of this program as one line."""
    before, own = warnings.formatwarning, Path(__file__).parents[2]

    def readable(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
        inside = [own / "discrete_grpo", *([own / "models", own / "datasets"] if (own / "setup.cfg").exists() else [])]
        if any(Path(filename).is_relative_to(folder) for folder in inside):
            return f"discrete-grpo: warning: {_printable(' '.join(str(message).split()))}\n"
        return "\n".join(map(_printable, before(message, category, filename, lineno, line).split("\n")))

    warnings.formatwarning = readable
    try:
        yield
    finally:
        warnings.formatwarning = before


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        arguments: the words after the program's name; None takes those of the process.

    Returns:
        0 on success, 2 for bad input or a failed reward, 130 if it was stopped by Ctrl-C or SIGTERM, 141 if the reader of its
        output closed it.
    """
    # oneDNN keeps the code it compiled for each of the last 1,024 shapes; for texts of all lengths in bfloat16 that is many GB.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [a for a in given if a != "--debug"]
    try:
        with sigterm_as_ctrl_c(), _readable_warnings():
            _dispatch(given)
            sys.stdout.flush()  # here and not at the exit, where an error could not be reported
    except KeyboardInterrupt as stopped:
        _tell(f"{str(stopped) or 'stopped'}")
        return 130
    except Exception as error:
        if debug:
            raise
        if isinstance(error, BrokenPipeError) and _reader_left():  # such as `discrete-grpo list | head`
            return 141
        said = " ".join(str(error).split())
        if not (isinstance(error, ValueError | OSError | RuntimeError | ArithmeticError) or _names_argument(error)):
            # not raised on purpose: name its class too
            said = f"{type(error).__name__}: {said}"
        _tell(f"error: {said or type(error).__name__}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
