"""Parts of the conditions of a row, and checks that they still hold where and when its job runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discrete_grpo.benchmarking.facts import short_sha256
from discrete_grpo.benchmarking.method import Method

if TYPE_CHECKING:
    from discrete_grpo.rewards.task import Task

__all__ = ["check_code", "check_files", "check_policy_facts", "of_code", "of_files", "of_policy", "sources_of"]


def of_policy(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Name and digests of a policy, from its :func:`~discrete_grpo.benchmarking.facts.policy_facts`."""
    return {"policy": facts["name"], "policy_sha256": facts["sha256"], "policy_settings_sha256": facts["settings_sha256"]}


def of_files(method: Method) -> dict[str, str]:
    """Digests of the files that the settings of a method name."""
    named = {name: value for name, value in method.settings.items() if isinstance(value, str) and Path(value).is_file()}
    return {f"{name}_sha256": short_sha256(value) for name, value in named.items()}


def of_code(value: Any) -> str | None:
    """A digest of the code of a user's function, independent of other code in its file; None if it cannot be inspected."""
    from discrete_grpo.rewards.identity import code_identity

    return code_identity(value)


def sources_of(task: Task, method: Method) -> dict[str, str]:
    """Digests of the files that define a task and a method, with the user's modules that they import, by name."""
    from discrete_grpo.rewards.sources import Sources, Unidentified, is_user_code

    found = Sources()
    for value in (task.score, method.run):
        name = getattr(value, "__module__", None) or type(value).__module__
        if is_user_code(name):
            found.add(name)
    try:
        return {name: str(digest) for name, digest in found.digests()}
    except Unidentified:  # a file cannot be read
        return {}


def check_policy_facts(facts: Mapping[str, Any], planned: Mapping[str, Any]) -> None:
    """Check that a policy that was loaded from a checkpoint is that of the plan.

    The weights of a new policy (``module:make``) can depend on the process that makes it, and are not compared.

    Raises:
        ValueError: naming what has changed.
    """
    if ":" not in facts["name"] or "@" in facts["name"]:
        _compare(of_policy(facts), planned)


def check_files(method: Method, planned: Mapping[str, Any]) -> None:
    """Check that the files which the settings of a method name are those of the plan.

    Raises:
        ValueError: naming what has changed.
    """
    now = of_files(method)
    _compare({name: now.get(name) for name in (f"{setting}_sha256" for setting in method.settings)}, planned)


def check_code(task: Task, method: Method, planned: Mapping[str, Any], sources: Mapping[str, str]) -> None:
    """Check that the code of a task and a method, imported in another process, is that of the plan.

    Digests of code also differ between processes for other reasons, such as the flags of Python, so they are compared only where
    a file has changed; and a file may change elsewhere.

    Args:
        task: the task.
        method: the method.
        planned: the conditions of the row.
        sources: what :func:`sources_of` gave when the benchmark was planned.

    Raises:
        ValueError: naming what has changed.
    """
    if sources_of(task, method) != sources:
        parts = {"task_source": task, "method_source": method.run}
        _compare({name: of_code(value) for name, value in parts.items() if name in planned}, planned)


def _compare(now: Mapping[str, Any], planned: Mapping[str, Any]) -> None:
    for name, value in now.items():
        if name in planned and planned[name] != value:
            what = name.removesuffix("_sha256").removesuffix("_source").replace("_", " ")
            told = f"{what}: changed while the benchmark ran ({name} was {planned[name]} and is {value})"
            raise ValueError(f"{told}; undo the change, or run the benchmark again in another folder")
