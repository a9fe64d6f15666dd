"""The conditions of a row of a benchmark, and the comparison of those of existing rows with those of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discrete_grpo.benchmarking.conditions import of_code, of_files, of_policy
from discrete_grpo.benchmarking.folder import CALLS, ROW
from discrete_grpo.benchmarking.jobs import Job
from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods import METHODS
from discrete_grpo.benchmarking.task_files import FILES, files_of, unwatched
from discrete_grpo.core.json_files import plain, read_json

if TYPE_CHECKING:
    from discrete_grpo.rewards.task import Task

__all__ = ["OWN", "check_other_rows", "is_done", "is_misplaced", "notes_on_rows", "row_conditions"]

OWN = "own"
"""Name of the suite of custom tasks, also of those given together with tasks of another suite."""
COMMON = ("version", "budget", "policy", "policy_sha256", "policy_settings_sha256")
"""Conditions that all rows of a table share, where they have them."""
ADDED_LATER = ("task_optimum", "policy_settings_sha256", FILES)
"""Conditions that rows of earlier versions lack."""


def row_conditions(
    suite: str, task: Task, method: Method, budget: int, policy: Mapping[str, Any] | None, version: str
) -> dict[str, Any]:
    """The conditions of a row, which becomes invalid if one of them changes."""
    found: dict[str, Any] = {"version": version, "budget": budget, "settings": dict(method.settings)}
    if method.needs_policy and policy is not None:
        found |= of_policy(policy)
    found |= of_files(method)
    if task.version != 1:
        found["task_version"] = task.version
    if told := getattr(task.score, "settings", None):
        found["task_settings"] = dict(told)
    if suite == OWN:
        found |= {"task_source": of_code(task), "task_optimum": task.optimum}  # at which a method may stop
        found[FILES] = files_of(task)
    if METHODS.get(method.name) is None or METHODS[method.name].run is not method.run:
        found["method_source"] = of_code(method.run)
    checked: dict[str, Any] = plain(found)
    return checked


def notes_on_rows(jobs: Sequence[Job], done: Sequence[Job]) -> list[str]:
    """Lines about existing rows: those that are kept without a comparison of all that they depend on, and those without calls."""
    found = {**_on_unseen_code(done), **_on_changed_files(done)}
    lost = [job for job in jobs if (job.folder / ROW).is_file() and not (job.folder / CALLS).is_file()]
    known = {job.folder for job in done}
    kept = [job for job in lost if job.folder in known]
    if kept:
        told = f"{CALLS}: {len(kept)} of the rows lack it and are kept, as {kept[0].cache.name} does not have their scores"
        found[f"{told}; to make one again, remove its folder, such as {kept[0].folder}"] = None
    if len(lost) > len(kept):
        told = f"{CALLS}: {len(lost) - len(kept)} of the rows lack it and are made again"
        found[f"{told} from the scores in {lost[0].cache.name}"] = None
    return list(found)


def _on_changed_files(done: Sequence[Job]) -> dict[str, None]:
    found: dict[str, None] = {}
    for job in done:
        for name in unwatched((read_json(job.folder / ROW) or {}).get("conditions") or {}):
            told = f"task {job.task.name!r}: {name} changed while its jobs ran, or cannot be read"
            found[f"{told}, so that an edit would not be noticed; its rows are kept, name another folder for new ones"] = None
    return found


def _on_unseen_code(done: Sequence[Job]) -> dict[str, None]:
    found: dict[str, None] = {}
    for job in done:
        for name, one in (("task_source", job.task.name), ("method_source", job.method.name)):
            if name in job.conditions and job.conditions[name] is None:
                told = f"{name.partition('_')[0]} {one!r}: its code cannot be inspected, so that an edit would not be noticed"
                found[f"{told}; its rows are kept, name another folder for new ones"] = None
    return found


def is_done(job: Job) -> bool:
    """Whether a job has its row, and its calls, too, unless the row alone can be kept.

    A row whose calls are lost is not done where the cache has its scores, so that the job, which is deterministic, makes the same
    row and its calls again. Elsewhere, as in a copy of a table without calls and scores, it is.

    Raises:
        ValueError: if it has one that was made under other conditions, or the row of another job, as in a renamed folder.
    """
    row = read_json(job.folder / ROW)
    if row is None:
        return False
    if is_misplaced(row, job.folder):
        other = ", ".join(str(row.get(name)) for name in ("suite", "task", "method", "seed"))
        raise ValueError(f"output_dir: {job.folder} holds the row of another job ({other}), expected its own; move it elsewhere")
    now = _flat(job.conditions)
    _refuse_changes(job.label, job.folder, _completed(_flat(row.get("conditions") or {}), now), now)
    return (job.folder / CALLS).is_file() or not _has_scores(job, row)


def is_misplaced(row: Mapping[str, Any], folder: Path) -> bool:
    """Whether a row lies in the folder of another job."""
    return tuple(str(row.get(name)) for name in ("suite", "task", "method", "seed")) != folder.parts[-4:]


def _has_scores(job: Job, row: Mapping[str, Any]) -> bool:
    """Whether the cache has the scores of the best samples of a row, which it hardly has without those of the others."""
    from discrete_grpo.rewards.cache import ScoreCache, check_cache_file
    from discrete_grpo.rewards.identity import reward_identity

    keys = [ScoreCache.key(reward_identity(job.task), sample, {}) for sample, _ in row.get("best") or ()]
    known = [key for key in keys if key is not None]
    if not known or not job.cache.is_file():
        return False
    try:
        check_cache_file(job.cache)
    except ValueError:
        return False
    cache = ScoreCache(job.cache)
    try:
        return len(cache.get(known)) == len(keys)
    finally:
        cache.close()


def check_other_rows(folder: Path, jobs: Sequence[Job]) -> None:
    """Compare the rows that the folder holds beside those of the jobs: one table has one budget, version and policy.

    Raises:
        ValueError: for a row of another budget, version or policy, of one of the methods with other settings, or of one of the
            tasks with another definition.
    """
    asked, by_method = {job.folder for job in jobs}, {job.method.name: _flat(job.conditions) for job in jobs}
    by_task = {(job.suite, job.task.name): _of_task(_flat(job.conditions)) for job in jobs}
    common = {name: job.conditions[name] for job in jobs for name in COMMON if name in job.conditions}
    for path in sorted(folder.glob(f"jobs/*/*/*/*/{ROW}")):
        row = None if path.parent in asked else read_json(path)
        if row is None or is_misplaced(row, path.parent):
            continue
        before, now = _flat(row.get("conditions") or {}), by_method.get(row["method"], common)
        now = {name: value for name, value in now.items() if name not in ADDED_LATER or name in before}
        names = {name for name in {**before, **now} if not name.startswith("task_")}
        if row["method"] not in by_method:  # conditions that both have; methods without a policy name none
            names = {name for name in COMMON if name in before and name in now}
        label = f"{row['task']}, {row['method']}, seed {row['seed']}"
        _refuse_changes(label, path.parent, *({name: one.get(name) for name in sorted(names)} for one in (before, now)))
        if (task := by_task.get((row["suite"], row["task"]))) is not None:
            _refuse_changes(label, path.parent, _completed(_of_task(before), task), task)


def _of_task(conditions: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in conditions.items() if name.startswith("task_")}


def _refuse_changes(label: str, folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    before, now = _by_file(before), _by_file(now)
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if changed:
        what = ", ".join(f"{name} was {before.get(name)} and is {now.get(name)}" for name in changed[:2])
        raise ValueError(f"output_dir: the row of {label} was made otherwise ({what}); remove {folder} or name another folder")


def _completed(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The conditions of a row; the current ones fill in those that older rows lack, and files that are not compared."""
    found = {name: now[name] for name in ADDED_LATER if name in now} | dict(before)
    if FILES in now:
        found[FILES] = {**found[FILES], **{name: now[FILES].get(name) for name in unwatched(found)}}
    return found


def _by_file(values: Mapping[str, Any]) -> dict[str, Any]:
    files = values.get(FILES) or {}
    return {k: v for k, v in values.items() if k != FILES} | {f"{FILES}.{name}": digest for name, digest in files.items()}


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    settings = values.get("settings") or {}
    return {k: v for k, v in values.items() if k != "settings"} | {f"settings.{k}": v for k, v in settings.items()}
