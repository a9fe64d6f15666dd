"""The content of the files that a user's task names, as a condition of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from discrete_grpo.rewards.task import Task

__all__ = ["FILES", "at_end", "files_of", "unwatched"]

FILES = "task_files"
"""Name of the condition: name of each file -> digest of its content, None where it is not compared."""


def files_of(task: Task) -> dict[str, str | None]:
    """Digests of the files that a task names, see :func:`~discrete_grpo.rewards.named_files.named_files`."""
    from discrete_grpo.rewards.named_files import named_files

    return named_files(task)


def at_end(task: Task, conditions: dict[str, Any]) -> dict[str, Any]:
    """The conditions of a job that has ended.

    A file that has changed since the job was planned, such as one that the task writes, is no longer compared.
    """
    before = conditions.get(FILES)
    if before is None:
        return conditions
    now = files_of(task)
    kept = {name: before.get(name) if before.get(name) == now.get(name) else None for name in sorted({**before, **now})}
    return {**conditions, FILES: kept}


def unwatched(conditions: Mapping[str, Any]) -> list[str]:
    """Names of the files of a row that are not compared."""
    return [name for name, digest in (conditions.get(FILES) or {}).items() if digest is None]
