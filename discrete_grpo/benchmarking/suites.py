"""The suites of tasks by name; the module of a suite is imported when one of its tasks is requested."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from discrete_grpo.core.checks import did_you_mean

if TYPE_CHECKING:
    from discrete_grpo.rewards.task import Task

__all__ = ["DEFAULT_METHODS", "JOB_TIMEOUT", "SUITES", "Suite", "find_suite"]

DEFAULT_METHODS = ("best-of-prior", "random")
"""The methods of a benchmark that names none: the controls."""
JOB_TIMEOUT = 14_400.0
"""Seconds after which a job counts as hanging, unless another limit is given."""


@dataclass(frozen=True)
class Suite:
    """A set of tasks that are reported together.

    Attributes:
        name: as it is given to ``discrete-grpo benchmark``.
        about: one line.
        module: where the tasks are defined, as ``TASKS``; or as ``TARGETS`` with a function ``docking_task``, where each needs a
            file of the user's.
        policy: the default policy.
        budget: the default number of oracle calls of a row.
        fixed: whether its tasks need no files of the user.
        pooled: whether a sample can crash its scorer, which then runs in a separate process.
        numbers: entries of a row that only this suite has, and their headings; its module computes them by ``row_numbers``.
        classified: whether it includes the tasks of :mod:`discrete_grpo.rewards.classifier`, for which the user provides files.
    """

    name: str
    about: str
    module: str
    policy: str
    budget: int
    fixed: bool = True
    pooled: bool = False
    numbers: Mapping[str, str] = field(default_factory=dict)
    classified: bool = False

    def lines(self) -> dict[str, str]:
        """One line about each task."""
        module = importlib.import_module(self.module)
        return {name: one.about for name, one in (module.TASKS if self.fixed else module.TARGETS).items()}

    def row_numbers(self, task: Task, samples: Sequence[str], scores: Sequence[float]) -> dict[str, float | None]:
        """The entries :attr:`numbers` of a row, from all calls and their scores (NaN where unknown)."""
        if not self.numbers:
            return {}
        found: dict[str, float | None] = importlib.import_module(self.module).row_numbers(task, samples, scores)
        return found

    def tasks(self, receptors: str | None = None, exhaustiveness: int = 1, reference: str | None = None) -> Mapping[str, Task]:
        """The tasks by name.

        Args:
            receptors: folder of the receptors of docking tasks.
            exhaustiveness: of the search of docking tasks.
            reference: SMILES file of the training molecules, for the novel hits of docking tasks.
        """
        module = importlib.import_module(self.module)
        if self.fixed:
            found: Mapping[str, Task] = module.TASKS
            return found
        made = partial(module.docking_task, data=receptors, exhaustiveness=exhaustiveness, reference=reference)
        return _Made(module.TARGETS, made)


class _Made(Mapping[str, Any]):
    """Tasks that are made when they are asked for, since each needs a file."""

    def __init__(self, names: Iterable[str], make: Callable[[str], Any]) -> None:
        self._names, self._make = tuple(names), make

    def __getitem__(self, name: str) -> Any:
        return self._make(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite(
            name="pmo",
            about="practical molecular optimisation (Gao et al., 2022): the tasks that RDKit alone can score",
            module="discrete_grpo.rewards.pmo",
            policy="smiles-zinc",
            budget=10_000,
            classified=True,
        ),
        Suite(
            name="guacamol",
            about="the goal-directed suite of GuacaMol (Brown et al., 2019)",
            module="discrete_grpo.rewards.guacamol",
            policy="smiles-zinc",
            budget=10_000,
            numbers={"guacamol_score": "GuacaMol's score"},
        ),
        Suite(
            name="docking",
            about="docking scores of five proteins",
            module="discrete_grpo.rewards.docking_targets",
            policy="smiles-zinc",
            budget=1_000,
            fixed=False,
            pooled=True,
            numbers={"novel_hits": "novel hits", "hit_ratio": "novel hits (share)", "top5_score": "novel top-5 % score"},
        ),
        Suite(
            name="graphs",
            about="plain graphs: a property counts where the graph is valid",
            module="discrete_grpo.rewards.graph_tasks",
            policy="planar-16",
            budget=2_000,
        ),
        Suite(
            name="enumerated",
            about="tasks with a known optimum on all molecules of at most 7 atoms C, N, O and F",
            module="discrete_grpo.rewards.enumerated_tasks",
            policy="qm9-small",
            budget=1_000,
        ),
    )
}
"""The suites by name."""


def find_suite(name: str) -> Suite:
    """The suite of a name.

    Raises:
        ValueError: if there is none, with the nearest name.
    """
    if name not in SUITES:
        hint = f"{did_you_mean(name, SUITES)} ".lstrip()
        raise ValueError(f"suite: {name!r} is unknown; {hint}known: {', '.join(SUITES)}")
    return SUITES[name]
