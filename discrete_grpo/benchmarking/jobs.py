"""One job of a benchmark: a method on a task with a seed, in a folder of its own.

A finished job has ``row.json``, written last and atomically, and ``calls.csv.gz``. A failed one has ``failed.json``. Any other
content of a folder is left by a killed job, which starts again from its beginning; since it is deterministic and the scores come
from the shared cache, it gives the same result.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discrete_grpo.benchmarking.conditions import check_code, check_files, check_policy_facts
from discrete_grpo.benchmarking.facts import policy_facts
from discrete_grpo.benchmarking.folder import CALLS, FAILED, ROW
from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.suites import SUITES
from discrete_grpo.benchmarking.task_files import at_end
from discrete_grpo.core.atomic import atomic_write
from discrete_grpo.core.csv_cells import csv_text
from discrete_grpo.core.error_place import error_place
from discrete_grpo.core.json_files import write_json
from discrete_grpo.core.reward_values import same_folder
from discrete_grpo.domains.global_random import seeded_everywhere

if TYPE_CHECKING:
    from discrete_grpo.rewards.ledger import Ledger
    from discrete_grpo.rewards.task import Task

__all__ = [
    "Job",
    "by_name",
    "run_job",
    "run_sent_job",
    "sample_key",
    "with_task",
    "write_failure",
]

SECONDS_PER_SAMPLE = 600.0
"""Seconds after which a sample of a pooled suite counts as not scorable."""


@dataclass(frozen=True)
class Job:
    """A method on a task with a seed.

    Attributes:
        suite: name of the suite.
        task: task to optimise.
        method: method that spends the budget.
        policy: name of the policy, or a policy, which is copied; None if the method needs none.
        budget: hard limit of oracle calls.
        seed: random seed of the method.
        folder: folder of this job only.
        cache: SQLite file of scores that all jobs share; it saves time and changes no count.
        conditions: conditions that a row depends on and stores; a row with other conditions does not count as this job's.
        made: the circumstances, kept with the row: version, commit, machine.
        workers: processes that score samples of a pooled suite, one sample each at a time.
        sources: digests of the files that define task and method, when the benchmark was planned.
    """

    suite: str
    task: Task
    method: Method
    policy: Any
    budget: int
    seed: int
    folder: Path
    cache: Path
    conditions: dict[str, Any]
    made: dict[str, Any]
    workers: int = 1
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Task, method and seed, for messages."""
        return f"{self.task.name}, {self.method.name}, seed {self.seed}"

    @property
    def identity(self) -> dict[str, Any]:
        """The first columns of its row."""
        return {"suite": self.suite, "task": self.task.name, "method": self.method.name, "seed": self.seed, "budget": self.budget}


def by_name(job: Job) -> Job:
    """The job in the form sent to another process: a task of a suite is named, as its functions need not be importable."""
    fixed = job.suite in SUITES and SUITES[job.suite].fixed and job.task.name in SUITES[job.suite].tasks()
    return replace(job, task=job.task.name) if fixed else job  # type: ignore[arg-type]


def with_task(job: Job) -> Job:
    """Replace the name of a task, as sent by :func:`by_name`, by the task itself."""
    return job if not isinstance(job.task, str) else replace(job, task=SUITES[job.suite].tasks()[job.task])


def sample_key(kind: str) -> Callable[[Any], str | None]:
    """Return the function to the canonical form by which calls are counted; for molecules, the canonical isomeric SMILES."""
    from discrete_grpo.rewards.ledger import molecule_key, text_key

    return molecule_key if kind == "molecules" else text_key


def run_sent_job(job: Job) -> dict[str, Any]:
    """Run a job that another process planned, whose code this process has imported after it, as :func:`run_job`."""
    return run_job(with_task(job), check=lambda one: check_code(one.task, one.method, one.conditions, one.sources))


def run_job(job: Job, *, check: Callable[[Job], None] | None = None) -> dict[str, Any]:
    """Run a job from its beginning, write its files and return its row.

    Any error of the method is written to ``failed.json`` and raised again; so are a policy or a file that is no longer that of the
    plan, and what ``check`` finds.
    """
    shutil.rmtree(job.folder, ignore_errors=True)
    job.folder.mkdir(parents=True)
    wall, cpu = time.perf_counter(), _cpu_seconds()
    try:
        if check is not None:
            check(job)
        with seeded_everywhere(0):  # loading may draw random numbers; the method is seeded afterwards
            policy = _policy(job)
        with seeded_everywhere(job.seed), _ledger(job) as ledger:
            stopped = _optimise(job, policy, ledger)
            check_files(job.method, job.conditions)
            spent = {"wall_seconds": round(time.perf_counter() - wall, 2), "cpu_seconds": round(_cpu_seconds() - cpu, 2)}
            row = _finish(job, ledger, {"stopped": stopped} | spent)
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        place = error_place(error) if isinstance(error, Exception) else ""
        write_failure(job, f"{type(error).__name__}: {said}{place}", traceback.format_exc())
        raise
    return row


def write_failure(job: Job, reason: str, details: str = "") -> None:
    """Write the reason why a job has no row."""
    job.folder.mkdir(parents=True, exist_ok=True)
    write_json(job.folder / FAILED, {**job.identity, "error": reason[:500], "details": details, "conditions": job.conditions})


def _optimise(job: Job, policy: Any, ledger: Ledger) -> str:
    """Run the method; return whether the budget or the method itself ended it."""
    try:
        with same_folder(), _counted(job, ledger) as task:
            job.method(task, policy, ledger, job.seed)
    except Exception as error:
        if not _says_exhausted(error):
            raise
    return "budget" if ledger.exhausted else "method"


def _says_exhausted(error: BaseException | None) -> bool:
    """Whether an error is the end of the budget, also within a reward that the method itself calls, such as a diversity filter."""
    from discrete_grpo.core.scoring import BudgetExhausted, RewardError

    while isinstance(error, RewardError):
        error = error.__cause__
    return isinstance(error, BudgetExhausted)


@contextlib.contextmanager
def _counted(job: Job, ledger: Ledger) -> Iterator[Any]:
    """The view of the task that the method receives.

    A task of a suite whose scorer can crash is scored in separate processes, so that a sample on which it crashes is unknown and
    the job continues.
    """
    from discrete_grpo.benchmarking.counted import CountedTask

    if job.suite not in SUITES or not SUITES[job.suite].pooled:
        yield CountedTask(job.task, ledger)
        return
    from discrete_grpo.rewards.pool import RewardPool

    with RewardPool(job.task, workers=job.workers, timeout=SECONDS_PER_SAMPLE) as pool:
        yield CountedTask(job.task, ledger, pool)


def _policy(job: Job) -> Any:
    """A separate policy for the job, as methods train it."""
    if not job.method.needs_policy or job.policy is None:
        return None
    if isinstance(job.policy, str):
        from discrete_grpo.recipes.loading import load

        loaded = load(job.policy)
        check_policy_facts(policy_facts(job.policy, loaded), job.conditions)
        return loaded.policy
    import copy

    return copy.deepcopy(job.policy).eval()


@contextlib.contextmanager
def _ledger(job: Job) -> Iterator[Ledger]:
    """Open the ledger of a job in its folder; a finished job has its calls in ``calls.csv.gz`` instead."""
    from discrete_grpo.rewards.ledger import open_ledger

    key = sample_key(job.task.kind)
    with open_ledger(job.folder, key, max_oracle_calls=job.budget, reward_cache=str(job.cache)) as ledger:
        yield ledger


def _finish(job: Job, ledger: Ledger, more: dict[str, Any]) -> dict[str, Any]:
    from discrete_grpo.benchmarking.measures import measure

    scores = ledger.history().of(job.task.name)
    if scores and all(map(math.isnan, scores)):
        raise ValueError(f"scores: all {len(scores)} of {job.task.name} are unknown (None or NaN), expected a number for some")
    row = {
        **job.identity,
        **measure(ledger, job.budget, job.task.kind, job.task.name),
        **_numbers_of_suite(job, ledger),
        **more,
        "conditions": at_end(job.task, job.conditions),
        "made": job.made,
    }
    _write_calls(job, ledger)
    ledger.close()
    for file in job.folder.glob("ledger.sqlite*"):
        file.unlink()
    write_json(job.folder / ROW, row)
    return row


def _numbers_of_suite(job: Job, ledger: Ledger) -> dict[str, float | None]:
    if job.suite not in SUITES or not SUITES[job.suite].numbers:
        return {}
    history = ledger.history()
    return SUITES[job.suite].row_numbers(job.task, history.keys, history.of(job.task.name))


def _write_calls(job: Job, ledger: Ledger) -> None:
    """``calls.csv.gz``: call number from 1, canonical sample, score (empty where unknown), source."""
    history = ledger.history()
    scores = history.of(job.task.name)
    column = "smiles" if job.task.kind == "molecules" else "sample"
    calls = enumerate(zip(history.keys, scores, history.sources, strict=True), 1)
    rows = ((k, key, "" if score != score else repr(score), source) for k, (key, score, source) in calls)
    text = csv_text([("call", column, "score", "source"), *rows])
    with atomic_write(job.folder / CALLS) as file:
        file.write(gzip.compress(text.encode("utf-8", "surrogatepass"), mtime=0))


def _cpu_seconds() -> float:
    """Processor seconds of this process and of its finished children."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system
