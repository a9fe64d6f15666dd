"""Starts and resumes the commands with a run folder, and runs those of a recipe without one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from discrete_grpo.cli.changes import check_changes, written
from discrete_grpo.cli.commands import RUNS, UsageError, recipe_of
from discrete_grpo.cli.working_folder import append_working_folder, names_class
from discrete_grpo.core.checks import check_folder_name
from discrete_grpo.core.processes import is_first
from discrete_grpo.runs.folder import BENCHMARK, CONFIG, LEDGER, METRICS, OPTIMISED, RUN, check_free, check_unused

__all__ = ["resume", "score", "start"]

CALLS_COUNT = ("search", "optimise")
"""Commands whose scored samples are results, so that a run that failed after them is kept."""
T = TypeVar("T")


def _importing(read: Callable[[], T]) -> T:
    """Call ``read``; if a module is missing, such as that of a reward, append the working folder to ``sys.path`` and call again."""
    try:
        return read()
    except UsageError as error:
        if not isinstance(error.__cause__, ModuleNotFoundError):
            raise
        append_working_folder()
        return read()


def _parsed(command: str, arguments: Sequence[str]) -> tuple[Any, str]:
    """Return the recipe and its settings; only the user's own code is imported from the working folder."""
    from discrete_grpo.cli.parser import parse

    recipe, settings = _importing(lambda: parse(command, arguments))
    if names_class(str(getattr(recipe, "policy", ""))):
        append_working_folder()
    return recipe, settings


def start(command: str, arguments: Sequence[str]) -> None:
    """Make the run folder of a command and run it.

    Raises:
        UsageError: for arguments that do not fit, and for a folder that holds another run.
    """
    from discrete_grpo.recipes.failed_runs import withdrawn_on_failure

    recipe, settings = _parsed(command, arguments)
    check_folder_name("output_dir", recipe.output_dir)
    if hasattr(recipe, "lora"):
        from discrete_grpo.training.compatibility import check_adapters

        check_adapters(recipe.lora)
    folder = Path(recipe.output_dir)
    _, run = recipe_of(command)
    with withdrawn_on_failure(folder, calls_count=command in CALLS_COUNT):
        if is_first():  # it makes the folder; the others use it inside the run
            _write_settings(folder, command, settings)
        _guarded(folder, lambda: run(recipe))


def score(arguments: Sequence[str]) -> None:
    """Score the samples of a file, which the first word names."""
    words = list(arguments)
    if words and not words[0].startswith("-"):
        words[0] = f"--data={words[0]}"
    recipe, _ = _parsed("score", words)
    _, run = recipe_of("score")
    run(recipe)


def _write_settings(folder: Path, command: str, settings: str) -> None:
    """Make the folder of a run, and write the settings into it unless it holds another run."""
    from discrete_grpo.runs.recorder import write_json, write_text

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"output_dir: {folder} cannot be made a folder ({error.strerror})") from error
    if (folder / RUN).exists():
        raise UsageError(
            f"output_dir: {folder} already holds a run; "
            f"continue it with 'discrete-grpo resume {quote(str(folder))}' or name another folder"
        )
    check_unused(folder)
    check_free(folder / CONFIG, settings.encode("utf-8", "backslashreplace"))  # a kill below leaves this text
    write_text(folder / CONFIG, settings)
    write_json(folder / RUN, {"command": command})


def _has_results(folder: Path) -> bool:
    from discrete_grpo.recipes.failed_runs import has_results

    return has_results(folder, calls_count=_command_of(folder) in CALLS_COUNT)


def _kept(folder: Path, stopped: BaseException) -> str:
    """Say what a run that was stopped goes on from, in front of how to continue it."""
    from discrete_grpo.core.interrupt import Interrupted
    from discrete_grpo.core.scoring import RewardError
    from discrete_grpo.runs.settings import checkpoints_in

    if isinstance(stopped, Interrupted | RewardError) or _command_of(folder) in CALLS_COUNT:
        return "saved, " if _has_results(folder) else ""
    found = sorted(checkpoints_in(folder), key=lambda path: (path.parent.parent == folder, path.name))  # parts come first
    return f"the newest checkpoint is {found[-1].relative_to(folder)}, " if found else ""


def resume(folder: Path, changes: Sequence[str] = ()) -> None:
    """Continue the run of a folder with its settings, from the start if it was stopped before its first checkpoint.

    Args:
        folder: the run folder.
        changes: options that replace settings in it, such as ``--grpo.max_steps=200``, and are stored in it.

    Raises:
        UsageError: if the folder holds no run of a command, or for a change of a setting that :func:`may_change` does not name.
    """
    from discrete_grpo.cli.parser import settings_text
    from discrete_grpo.runs.lock import locked_folder
    from discrete_grpo.runs.settings import put_back_on_refusal

    _check_is_run(folder)
    command = _command_of(folder)
    if command not in RUNS or not (folder / CONFIG).is_file():
        wrong = "config.yaml is missing" if command in RUNS else f"command {command!r}"
        raise UsageError(f"run: {folder} is no run folder of a command such as 'discrete-grpo train' ({wrong})")
    own = [f"--config={folder / CONFIG}", f"--output_dir={folder}"]
    changed: AbstractContextManager[None] = nullcontext()
    before = _importing(lambda: settings_text(command, own)) if changes else ""
    recipe, settings = _parsed(command, [*own, *changes])
    if changes:
        check_changes(command, before, settings)
        changed = written(folder, settings)
    _, run = recipe_of(command)
    with locked_folder(folder), put_back_on_refusal(folder), changed, _data_in_place():
        _guarded(folder, lambda: run(recipe, resume=True))


@contextmanager
def _data_in_place() -> Iterator[None]:
    """Say where a run that is resumed looks for its data, if it is not there."""
    try:
        yield
    except FileNotFoundError as error:
        if str(error).startswith("data: "):
            told = f"relative paths are looked up in the working folder, now {Path.cwd()}, which must be that of the run's start"
            error.args = (f"{error}; {told}",)
        raise


def _command_of(folder: Path) -> str:
    """The command that made a run folder."""
    file = folder / RUN
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["command"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        wanted = 'expected {"command": "train"} or the like, as the command that made the folder wrote it'
        raise UsageError(f"run: {file} is damaged ({type(error).__name__}: {error}), {wanted}") from error


def _check_is_run(folder: Path) -> None:
    """Raise UsageError, with what to do instead, for a folder without a run of a command."""
    if not folder.is_dir():
        within = Path("runs") / folder  # the location of runs of presets
        named = folder.name == str(folder) and (within / RUN).is_file()
        hint = f"; did you mean '{within.as_posix()}'?" if named else ""
        wanted = "expected a run folder of a command such as 'discrete-grpo train'"
        raise UsageError(f"run: {folder}: no such folder, {wanted}{hint}")
    if (folder / BENCHMARK).is_file():
        raise UsageError(f"run: {folder} is of a benchmark, expected one of a run; to go on, give the same command again")
    if (folder / RUN).is_file():
        return
    if any((folder / name).exists() for name in ("checkpoints", METRICS, LEDGER, OPTIMISED)):
        wanted = "expected one of a command; call it again with resume=True"
        raise UsageError(f"run: {folder} is of a run made from Python, {wanted}")
    if (folder / CONFIG).is_file():
        raise UsageError(f"run: {folder} is of a command that was stopped while it began; to go on, give the same command again")
    raise UsageError(f"run: {folder} is no run folder of a command such as 'discrete-grpo train'")


def _guarded(folder: Path, run: Callable[[], object]) -> None:
    """Run, and add to the message of an interrupted run how to continue it."""
    from discrete_grpo.core.scoring import NoScores, RewardError

    try:
        run()
    except (RewardError, KeyboardInterrupt) as stopped:
        if isinstance(stopped, NoScores) or (isinstance(stopped, RewardError) and not _has_results(folder)):
            raise  # no call is left, or the reward does not fit the conditions and nothing was done yet
        told = f"{str(stopped) or 'stopped'}; {_kept(folder, stopped)}continue with: discrete-grpo resume {quote(str(folder))}"
        stopped.args = (told,)
        raise
    except RuntimeError as error:
        from discrete_grpo.training.distributed import lost_process

        if not lost_process(error):
            raise
        reason = str(error).splitlines()[0].split(". ")[0]  # without the advice that follows it
        told = f"processes: the others of this run cannot be reached, as when one of them has ended ({reason})"
        again = f"; continue with: discrete-grpo resume {quote(str(folder))}, by the same launcher" if _has_results(folder) else ""
        raise RuntimeError(told + again) from error
    if is_first():
        print(f"finished: {folder}")
