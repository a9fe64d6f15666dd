"""Stores the settings of a run in its folder, and reports changed ones when the run is resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from discrete_grpo.core.json_files import read_json
from discrete_grpo.core.processes import is_first
from discrete_grpo.runs.console import print_notes
from discrete_grpo.runs.files import real_name
from discrete_grpo.runs.folder import PARTS, REWARDS, SETTINGS
from discrete_grpo.runs.recorder import write_json, write_text

__all__ = [
    "checkpoints_in",
    "flat_settings",
    "put_back_on_refusal",
    "tell_changed_settings",
    "tell_new_folder",
]


def tell_changed_settings(
    folder: Path,
    settings: Mapping[str, Any],
    *,
    resume: bool,
    fixed: Sequence[str] = (),
    check: Callable[[Mapping[str, Any]], object] | None = None,
) -> None:
    """Store the settings of a new run, or print one line for each changed setting of a resumed run and store the new value.

    Args:
        folder: the run folder; a run of an earlier version has no settings there, and nothing is printed.
        settings: numbers, texts, lists and mappings by name.
        resume: whether the run is resumed.
        fixed: names of settings that a resumed run keeps, whatever is given.
        check: called with the previous values of the changed settings before anything is printed or stored; what it raises is
            passed on.
    """
    before = (read_json(folder / SETTINGS) or {}) if resume else {}
    now = flat_settings(json.loads(json.dumps(settings, default=str)))  # in the form in which they are read from a file
    others = {name: before[name] for name, value in now.items() if before.get(name, value) != value}
    if check is not None:
        check(others)
    for name, old in others.items():
        goes_on = f"was {old} in the run so far, is {now[name]} from here on"
        print_notes([f"{name}: {f'{now[name]} is not used, the run goes on with {old}' if name in fixed else goes_on}"])
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / SETTINGS, now | {name: old for name, old in others.items() if name in fixed})


@contextmanager
def put_back_on_refusal(folder: Path) -> Iterator[None]:
    """Restore the stored settings and rewards of a run if the block fails before it writes a checkpoint."""
    noted = {file: file.read_text(encoding="utf-8") for name in (SETTINGS, REWARDS) if (file := folder / name).is_file()}
    seen = checkpoints_in(folder)
    try:
        yield
    except BaseException:
        if is_first() and checkpoints_in(folder) == seen:
            for file, text in noted.items():
                write_text(file, text)
        raise


def checkpoints_in(folder: Path) -> set[Path]:
    """Paths of the checkpoints of a run, those of its parts included; unfinished ones that killed writes left do not count."""
    found = (path for part in ("", *PARTS) for path in (folder / part / "checkpoints").glob("*"))
    return {path.with_name(name) for path in found if not (name := real_name(path)).startswith(".")}


def tell_new_folder(folder: Path) -> None:
    """Print one line that a new run begins if the folder to resume does not exist, as its name may be misspelt."""
    if not folder.exists():
        print_notes([f"output_dir: {folder} is new, so there is no run to resume, and this one begins"])


def flat_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The entries by name; those of an inner mapping as ``outer.inner``.

    >>> flat_settings({"a": 1, "b": {"c": 2}})
    {'a': 1, 'b.c': 2}
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        inner = isinstance(value, Mapping)
        found |= {f"{name}.{key}": part for key, part in flat_settings(value).items()} if inner else {name: value}
    return found
