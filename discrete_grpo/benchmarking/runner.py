"""Benchmarks of reward optimisation: methods x tasks x seeds as jobs in processes, resumable after a kill at any moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discrete_grpo.benchmarking.existing_rows import is_done
from discrete_grpo.benchmarking.folder import FAILED, ROW, SCORES_FILE
from discrete_grpo.benchmarking.jobs import Job, by_name, run_job
from discrete_grpo.benchmarking.markdown import write_markdown
from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.page import write_page
from discrete_grpo.benchmarking.plan import Plan, Request, make_plan
from discrete_grpo.benchmarking.processes import portable, run_in_processes
from discrete_grpo.benchmarking.results import Results, note_run, notes_on_misplaced, read_results, write_results
from discrete_grpo.benchmarking.suites import JOB_TIMEOUT
from discrete_grpo.core.interrupt import Interrupted, interruptible
from discrete_grpo.core.json_files import read_json
from discrete_grpo.core.processes import check_one_process
from discrete_grpo.runs.console import print_notes
from discrete_grpo.runs.database import move_if_damaged
from discrete_grpo.runs.lock import locked_folder

if TYPE_CHECKING:
    from discrete_grpo.rewards.task import Task

__all__ = ["benchmark", "write_files"]

PAGE_SECONDS = 60.0
"""Seconds between two pages that are written while jobs run."""


def benchmark(
    suite: str | Task | Sequence[Task] | Mapping[str, Task],
    *,
    tasks: Sequence[str | Task] | None = None,
    methods: Sequence[str | Method | Callable[..., None]] | None = None,
    policy: Any = None,
    budget: int | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    jobs: int = 1,
    output_dir: str | Path = "runs/benchmark",
    screen: str | None = None,
    warm_start: str | None = None,
    warm_start_calls: int | None = None,
    receptors: str | None = None,
    exhaustiveness: int = 1,
    reference: str | None = None,
    classifiers: str | None = None,
    trusted: Sequence[str] = (),
    job_timeout: float | None = JOB_TIMEOUT,
    command: str | None = None,
) -> Results:
    """Run methods on tasks with several seeds, each within the same budget, and compare them in a table and a page.

    A row that ``output_dir`` has already is kept, and a job that was not finished runs again from its beginning. So the same call
    continues a benchmark that was stopped, and one with more tasks, methods or seeds adds rows to it.

    Args:
        suite: name of a suite (pmo, guacamol, docking, graphs, enumerated), or tasks of your own.
        tasks: names of tasks of the suite, and tasks of your own beside them; None takes all of the suite.
        methods: names of methods, :class:`Method` values, or functions ``(task, policy, ledger, seed) -> None``; None takes
            best-of-prior and random.
        policy: name of the policy that methods start from, as for :func:`~discrete_grpo.recipes.loading.load_policy`, or a
            policy, of which each job has a copy; None takes that of the suite.
        budget: oracle calls of each row: different valid samples that are scored, whatever for; None takes that of the suite.
        seeds: whole numbers, one row each.
        jobs: worker processes at a time, each with one thread, at least 1; in suite docking they share the cores for scoring.
        output_dir: folder to make, or the folder of a benchmark of the same suite.
        screen: SMILES file that method ``random`` screens; None takes the bundled small molecules.
        warm_start: SMILES file whose molecules the methods with a memory score first, each counted as a call with the source
            ``file``; None starts with an empty memory.
        warm_start_calls: how many of them, the first different valid ones, at least 1; None takes all that the budget covers.
        receptors: folder of the prepared receptors that the tasks of suite docking need.
        exhaustiveness: exhaustiveness of the search in suite docking, at least 1.
        reference: SMILES file of the policy's training molecules, with which rows of suite docking have their novel hits.
        classifiers: folder of ``drd2.skops``, ``gsk3b.skops`` or ``jnk3.skops`` (or ``.onnx``), with which suite pmo has these
            tasks too.
        trusted: types in these files that may be instantiated, as for :class:`~discrete_grpo.rewards.classifier.Classifier`.
        job_timeout: seconds after which a job counts as hanging and is ended; None waits for ever.
        command: command that the results name; None names this function.

    Returns:
        All rows in ``output_dir``; ``results.json``, ``results.md`` and ``results.html`` hold them too.

    Raises:
        ValueError: in one line, for unknown names, a budget below a method's first population, a policy that does not fit, a row
            in ``output_dir`` that was made with other settings, and the like.
        OSError: if the disk is full; what is finished is kept.
        Interrupted: after Ctrl-C; what is finished is kept.
    """
    request = Request(
        suite,
        tasks=tasks,
        methods=methods,
        policy=policy,
        budget=budget,
        seeds=seeds,
        jobs=jobs,
        output_dir=output_dir,
        screen=screen,
        warm_start=warm_start,
        warm_start_calls=warm_start_calls,
        receptors=receptors,
        exhaustiveness=exhaustiveness,
        reference=reference,
        classifiers=classifiers,
        trusted=trusted,
        job_timeout=job_timeout,
    )
    check_one_process("benchmark")
    plan = make_plan(request)
    try:
        plan.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"output_dir: {plan.folder} cannot be made ({error.strerror}), expected a folder to write in") from error
    with locked_folder(plan.folder):
        try:
            note_run(plan, command or "discrete_grpo.benchmark(...)")
            _run(plan, request)
            found = write_files(plan.folder)
            asked = [job.identity for job in plan.jobs]
            now = tuple(row for row in found.failed if any(one.items() <= row.items() for one in asked))
            return replace(found, failed_now=now)
        except OSError as error:
            why = error.strerror or error
            told = f"output_dir: {plan.folder} cannot be written ({why}); finished rows are kept, and the same command goes on"
            raise OSError(told) from error


def _run(plan: Plan, request: Request) -> None:
    from discrete_grpo.rewards import cache

    move_if_damaged(plan.folder / SCORES_FILE, cache.SCORES)
    todo = [job for job in plan.jobs if not is_done(job)]  # also since the plan was made, before the folder was locked
    done = len(plan.jobs) - len(todo)
    if done:
        print_notes([f"{done} of {len(plan.jobs)} rows are there already"])
    reasons = {job.folder: portable(by_name(job)) for job in todo}
    here = [job for job in todo if reasons[job.folder] is not None]
    away = [job for job in todo if reasons[job.folder] is None]
    if here:
        why = reasons[here[0].folder]
        told = f"{len(here)} jobs run in this process, one at a time and" if len(here) > 1 else "1 job runs in this process,"
        print_notes([f"{told} without a time limit: {why}"])
    progress = _Progress(plan, done)
    try:
        with interruptible(told=b"") as stop:
            for job in run_in_processes(away, limit=request.jobs, time_limit=request.job_timeout, stop=stop):
                progress.over(job)
        for job in here:
            with suppress(Exception, SystemExit):  # it is written down, and costs its own row only
                run_job(job)
            progress.over(job)
    except KeyboardInterrupt as stopped:
        write_files(plan.folder)
        raise Interrupted(f"stopped; finished rows are in {plan.folder}, and the same command goes on") from stopped


class _Progress:
    """Prints one line per finished job, and writes the results so far at most once a minute."""

    def __init__(self, plan: Plan, done: int) -> None:
        self.plan, self.count, self.written = plan, done, time.monotonic()

    def over(self, job: Job) -> None:
        """Report a finished job."""
        self.count += 1
        row, failed = read_json(job.folder / ROW), read_json(job.folder / FAILED)
        if row is not None:
            said = (
                f"AUC top-10 {row['auc_top10']:.3f}, best {_shown(row['top1'])}, {row['calls']} calls, {row['wall_seconds']:.0f} s"
            )
            if row["auc_top10"] < 0:
                said += "; scores are negative, but the area counts a method without calls as 0: add a constant to the scores"
        else:
            said = f"failed: {(failed or {}).get('error', 'no row')}"
        print_notes([f"{self.count}/{len(self.plan.jobs)}  {job.label}: {said}"])
        if time.monotonic() - self.written > PAGE_SECONDS:
            _write(read_results(self.plan.folder))
            self.written = time.monotonic()


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def write_files(folder: str | Path) -> Results:
    """Write ``results.json``, ``results.md`` and ``results.html`` from all rows in the folder of a benchmark.

    Raises:
        ValueError: if it holds no benchmark.
    """
    results = read_results(folder)
    print_notes(notes_on_misplaced(results))
    _write(results)
    return results


def _write(results: Results) -> None:
    write_results(results)
    write_markdown(results)
    write_page(results)
