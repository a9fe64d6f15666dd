"""Turns the request of a benchmark into jobs: resolves names, refuses invalid input."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from discrete_grpo.benchmarking import checks
from discrete_grpo.benchmarking.conditions import sources_of
from discrete_grpo.benchmarking.existing_rows import OWN, check_other_rows, is_done, notes_on_rows, row_conditions
from discrete_grpo.benchmarking.facts import circumstances, policy_facts
from discrete_grpo.benchmarking.folder import SCORES_FILE, benchmark_folder
from discrete_grpo.benchmarking.jobs import Job
from discrete_grpo.benchmarking.method import Method, as_method
from discrete_grpo.benchmarking.methods import METHODS
from discrete_grpo.benchmarking.suites import DEFAULT_METHODS, JOB_TIMEOUT, Suite, find_suite
from discrete_grpo.core.checks import check_range, check_whole, plain_number, told_as
from discrete_grpo.core.json_files import plain
from discrete_grpo.core.processes import usable_cores
from discrete_grpo.runs.console import print_notes

if TYPE_CHECKING:
    from discrete_grpo.rewards.task import Task

__all__ = ["Plan", "Request", "make_plan"]

DOCKING_OPTIONS = ("receptors", "exhaustiveness", "reference")
"""Options that only suites with docking tasks take."""
CLASSIFIER_OPTIONS = ("classifiers", "trusted")
"""Options that only suites with classifiers take."""


@dataclass(frozen=True)
class Request:
    """The request of a benchmark; see :func:`discrete_grpo.benchmarking.runner.benchmark`."""

    suite: Any
    tasks: Sequence[str | Task] | None = None
    methods: Sequence[str | Method | Callable[..., None]] | None = None
    policy: Any = None
    budget: int | None = None
    seeds: Sequence[int] = (0, 1, 2)
    jobs: int = 1
    output_dir: str | Path = "runs/benchmark"
    screen: str | None = None
    warm_start: str | None = None
    warm_start_calls: int | None = None
    receptors: str | None = None
    exhaustiveness: int = 1
    reference: str | None = None
    classifiers: str | None = None
    trusted: Sequence[str] = ()
    job_timeout: float | None = JOB_TIMEOUT

    def __post_init__(self) -> None:
        for name in ("budget", "jobs", "warm_start_calls", "exhaustiveness", "job_timeout"):
            object.__setattr__(self, name, plain_number(getattr(self, name)))
        object.__setattr__(self, "trusted", () if self.trusted is None else checks.listed("trusted", self.trusted, "types"))
        for name, what in (("tasks", "names and tasks"), ("methods", "methods")):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, checks.listed(name, given, what))
        for name, what in (("receptors", "folder"), ("reference", "SMILES file"), ("classifiers", "folder")):
            if (path := getattr(self, name)) is not None and not isinstance(path, str | Path):
                raise ValueError(f"{name}: {path!r}, expected the name of a {what}")
        if isinstance(self.policy, Path):
            object.__setattr__(self, "policy", str(self.policy))
        if isinstance(self.seeds, list | tuple | range):
            object.__setattr__(self, "seeds", tuple(plain_number(seed) for seed in self.seeds))


@dataclass(frozen=True)
class Plan:
    """The jobs of a benchmark and its description.

    Attributes:
        folder: the output folder.
        suite: its name.
        jobs: jobs in the order in which they run: by seed, then task, then method, so that a partial table is useful.
        done: jobs that have their row already.
        about: the suite, tasks, methods, policy, seeds and circumstances, as written to the results.
    """

    folder: Path
    suite: str
    jobs: tuple[Job, ...]
    done: tuple[Job, ...]
    about: dict[str, Any] = field(default_factory=dict)


def make_plan(request: Request) -> Plan:
    """Check a request and make its jobs.

    Raises:
        ValueError: in one line, for a request that cannot be run.
    """
    check_whole("jobs", request.jobs, least=1)
    if request.job_timeout is not None:
        check_range("job_timeout", request.job_timeout, above=0, note=" or None")
    checks.check_seeds(request.seeds)
    suite, tasks, default_policy, default_budget = _tasks(request)
    methods = _methods(request, tasks)
    budget = default_budget if request.budget is None else request.budget
    checks.check_budget(budget, methods)
    folder = benchmark_folder(request.output_dir, suite)
    checks.check_fit(methods, tasks)
    policy = default_policy if request.policy is None else request.policy
    with_policy = [method for method in methods if method.needs_policy]
    facts = _policy(policy, with_policy, tasks) if with_policy else None
    if facts is None and request.policy is not None:
        checks.check_known_policy(request.policy)
        print_notes(["policy: not used, as none of the methods draws from a policy"])
    made = circumstances()
    homes = [(task, OWN if any(task is one for one in request.tasks or ()) else suite) for task in tasks]
    jobs = tuple(
        Job(
            suite=home,
            task=task,
            method=method,
            policy=policy if method.needs_policy else None,
            budget=budget,
            seed=seed,
            folder=folder.absolute() / "jobs" / home / task.name / method.name / str(seed),
            cache=folder.absolute() / SCORES_FILE,
            conditions=row_conditions(home, task, method, budget, facts, made["version"]),
            made=made,
            workers=max(1, usable_cores() // request.jobs),
            sources=sources_of(task, method),
        )
        for seed in request.seeds
        for task, home in homes
        for method in methods
    )
    done = tuple(job for job in jobs if is_done(job))
    print_notes(notes_on_rows(jobs, done))
    check_other_rows(folder, jobs)
    return Plan(folder, suite, jobs, done, _about(suite, tasks, methods, facts, request.seeds, budget))


def _tasks(request: Request) -> tuple[str, list[Task], Any, int]:
    """Name of the suite, its chosen tasks, default policy and default budget."""
    if isinstance(request.suite, str):
        suite = find_suite(request.suite)
        return suite.name, _of_suite(suite, request), suite.policy, suite.budget
    given = list(request.suite.values()) if isinstance(request.suite, Mapping) else request.suite
    tasks: list[Task] = list(given) if isinstance(given, Sequence) else [given]
    _check_defaults(request, DOCKING_OPTIONS + CLASSIFIER_OPTIONS, "since tasks of your own have their settings")
    for one in request.tasks or ():
        if not isinstance(one, str):
            raise ValueError(f"tasks: {one!r}, expected the name of a task, since tasks of your own are in place of the suite here")
    for task in tasks:
        if not hasattr(task, "score") or not hasattr(task, "kind"):
            raise ValueError(f"suite: {task!r}, expected the name of a suite, a Task, or several")
    if not tasks:
        raise ValueError("suite: an empty list, expected the name of a suite, a Task, or several")
    checks.check_folder_names("suite", [task.name for task in tasks])
    known = {task.name: task for task in tasks}
    default = {"molecules": "smiles-zinc", "graphs": "planar-16"}.get(tasks[0].kind)
    return OWN, checks.chosen("tasks", cast("Sequence[str] | None", request.tasks), known), default, 10_000


def _check_defaults(request: Request, names: Sequence[str], reason: str) -> None:
    """Refuse options that were given although the tasks do not take them."""
    defaults = {one.name: one.default for one in fields(Request)}
    for name in names:
        if (value := getattr(request, name)) != defaults[name]:
            raise ValueError(f"{name}: {value!r}, expected none, {reason}")


def _of_suite(suite: Suite, request: Request) -> list[Task]:
    if not suite.classified:
        _check_defaults(request, CLASSIFIER_OPTIONS, f"since no task of {suite.name} has a classifier")
    if suite.fixed:
        _check_defaults(request, DOCKING_OPTIONS, f"since the tasks of {suite.name} dock nothing")
    check_whole("exhaustiveness", request.exhaustiveness, least=1)
    known = suite.tasks(request.receptors, request.exhaustiveness, request.reference)
    reserved: Mapping[str, str] = {}
    if suite.classified:
        from discrete_grpo.rewards.classifier import CLASSIFIED as reserved

        known = {**known, **_classified(request)}
    checks.chosen_tasks(request.tasks, dict.fromkeys(known), reserved)
    if not suite.fixed and (request.receptors is None or not Path(request.receptors).is_dir()):
        found = "none given" if request.receptors is None else f"{request.receptors!r} is no folder"
        raise ValueError(f"receptors: {found}, expected the folder of the prepared receptors (PDBQT) of suite {suite.name}")
    with told_as("receptors", "receptor"):
        return checks.chosen_tasks(request.tasks, known)


def _classified(request: Request) -> dict[str, Task]:
    """The tasks whose classifiers the user provides."""
    from discrete_grpo.rewards.classifier import CLASSIFIED, classifier_tasks

    if request.classifiers is not None:
        checked = None if request.tasks is None else [name for name in request.tasks if isinstance(name, str)]
        found = classifier_tasks(request.classifiers, trusted=request.trusted, checked=checked)
        for name in checked or ():
            if name in CLASSIFIED and name not in found:
                told = f"expected {name}.skops or {name}.onnx in it for task {name}"
                raise ValueError(f"classifiers: {str(request.classifiers)!r} holds {', '.join(found)} only, {told}")
        return found
    if request.trusted:
        raise ValueError(f"trusted: {list(request.trusted)}, expected none without a folder of classifiers")
    wanted = next((name for name in request.tasks or () if isinstance(name, str) and name in CLASSIFIED), None)
    if wanted is not None:
        raise ValueError(f"classifiers: none given, expected the folder of {wanted}.skops or {wanted}.onnx, which {wanted} needs")
    return {}


def _methods(request: Request, tasks: Sequence[Task]) -> list[Method]:
    kinds: set[str] = {task.kind for task in tasks}
    fitting = [name for name in DEFAULT_METHODS if kinds <= set(METHODS[name].task_kinds)]
    given = fitting if request.methods is None else request.methods
    names = [one for one in given if isinstance(one, str)]
    if names or not given:
        checks.chosen("methods", names, METHODS)
    methods = [METHODS[one] if isinstance(one, str) else as_method(one) for one in given]
    checks.check_folder_names("methods", [method.name for method in methods])
    for name, path in (("screen", request.screen), ("warm_start", request.warm_start)):
        if path is not None and not (isinstance(path, str | Path) and Path(path).is_file()):
            raise ValueError(f"{name}: {path!r} does not exist, expected a SMILES file")
    if request.screen is not None:
        if not any("file" in method.settings for method in methods):
            raise ValueError(f"screen: {request.screen!r}, expected none without the method random, which screens it")
        if kinds == {"molecules"}:
            from discrete_grpo.recipes.grpo_memory import check_warm_start
            from discrete_grpo.rewards.ledger import molecule_key

            check_warm_start(str(request.screen), molecule_key, "screen")
        methods = [replace(m, settings={**m.settings, "file": str(request.screen)}) if "file" in m.settings else m for m in methods]
    return _warmed(methods, kinds, request.warm_start, request.warm_start_calls)


def _warmed(methods: list[Method], kinds: set[str], file: str | None, calls: int | None) -> list[Method]:
    """The methods, with the warm-start file as a setting of those that have a memory."""
    from discrete_grpo.recipes.grpo_memory import check_warm_start
    from discrete_grpo.rewards.ledger import molecule_key

    if file is None:
        if calls is not None:
            raise ValueError(f"warm_start_calls: {calls}, expected none without a file to score (warm_start)")
        return methods
    if calls is not None:
        check_whole("warm_start_calls", calls, least=1)
    if kinds != {"molecules"}:
        raise ValueError(
            f"warm_start: {file!r}, expected none, since a SMILES file starts no search for {' and '.join(sorted(kinds))}"
        )
    if not any(method.warm for method in methods):
        able = ", ".join(name for name, method in METHODS.items() if method.warm)
        raise ValueError(f"warm_start: {file!r}, expected a method with a memory that it can fill, one of {able}")
    check_warm_start(file, molecule_key)
    told = {"warm_start": str(file), "warm_start_calls": calls}
    more = calls or 0
    return [replace(m, settings={**m.settings, **told}, least_budget=m.least_budget + more) if m.warm else m for m in methods]


def _policy(policy: Any, methods: Sequence[Method], tasks: Sequence[Task]) -> dict[str, Any]:
    """Load the policy once, check that it fits, and return its description."""
    if policy is None:
        told = " and ".join(sorted({task.kind for task in tasks}))
        raise ValueError(
            f"policy: None, expected a policy that makes samples for tasks of the kind {told}; none is bundled for them"
        )
    from discrete_grpo.core.seeding import seeded
    from discrete_grpo.recipes.loading import load, policy_object

    name = str(policy) if isinstance(policy, str | Path) else None
    with seeded(0):
        loaded = load(name) if name is not None else policy_object(copy.deepcopy(policy))
    checks.check_policy_fits(name or type(policy).__name__, loaded, methods, tasks)
    return policy_facts(name, loaded)


def _about(
    suite: str,
    tasks: Sequence[Task],
    methods: Sequence[Method],
    policy: Mapping[str, Any] | None,
    seeds: Sequence[int],
    budget: int,
) -> dict[str, Any]:
    return {
        "suite": suite,
        "budget": budget,
        "tasks": {
            task.name: {
                "about": task.about,
                "source": task.source,
                "kind": task.kind,
                "optimum": task.optimum,
                "settings": plain(dict(getattr(task.score, "settings", {}))),
                "published": dict(task.published),
                "published_prescreened": dict(task.published_prescreened),
            }
            for task in tasks
        },
        "methods": {m.name: _of_method(m) for m in methods},
        "seeds": list(seeds),
        "policies": {policy["name"]: dict(policy)} if policy is not None else {},
    }


def _of_method(method: Method) -> dict[str, Any]:
    told = {name: getattr(method, name) for name in ("about", "source", "uncounted")}
    return {**told, "settings": plain(dict(method.settings))}
