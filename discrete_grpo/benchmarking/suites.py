"""The suites of tasks by name; a suite's module is imported when one of its tasks is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
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
        kind: of the samples: ``"molecules"``, ``"graphs"`` or ``"text"``.
        fixed: whether its tasks need nothing from the user.
        pooled: whether a sample can crash its scorer, which is then run in a process of its own.
    """

    name: str
    about: str
    module: str
    policy: str
    budget: int
    kind: str
    fixed: bool = True
    pooled: bool = False

    def lines(self) -> dict[str, str]:
        """One line about each task."""
        module = importlib.import_module(self.module)
        return {name: one.about for name, one in (module.TASKS if self.fixed else module.TARGETS).items()}

    def tasks(self, receptors: str | None = None, exhaustiveness: int = 1) -> Mapping[str, Task]:
        """The tasks by name.

        Args:
            receptors: folder of the receptors of docking tasks.
            exhaustiveness: of the search of docking tasks.
        """
        module = importlib.import_module(self.module)
        if self.fixed:
            found: Mapping[str, Task] = module.TASKS
            return found
        return _Made(module.TARGETS, partial(module.docking_task, data=receptors, exhaustiveness=exhaustiveness))


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
            kind="molecules",
        ),
        Suite(
            name="guacamol",
            about="the goal-directed suite of GuacaMol (Brown et al., 2019)",
            module="discrete_grpo.rewards.guacamol",
            policy="smiles-zinc",
            budget=10_000,
            kind="molecules",
        ),
        Suite(
            name="docking",
            about="docking scores of five proteins",
            module="discrete_grpo.rewards.docking_targets",
            policy="smiles-zinc",
            budget=1_000,
            kind="molecules",
            fixed=False,
            pooled=True,
        ),
        Suite(
            name="graphs",
            about="plain graphs: a property counts where the graph is valid",
            module="discrete_grpo.rewards.graph_tasks",
            policy="planar-16",
            budget=2_000,
            kind="graphs",
        ),
        Suite(
            name="enumerated",
            about="tasks with a known optimum on all molecules of at most 7 atoms C, N, O and F",
            module="discrete_grpo.rewards.enumerated_tasks",
            policy="qm9-small",
            budget=1_000,
            kind="molecules",
        ),
    )
}
"""The suites by name."""


def find_suite(name: str) -> Suite:
    """The suite of a name.

    Raises:
        ValueError: if there is none; the nearest name is given.
    """
    if name not in SUITES:
        hint = f"{did_you_mean(name, SUITES)} ".lstrip()
        raise ValueError(f"suite: {name!r} is unknown; {hint}known: {', '.join(SUITES)}")
    return SUITES[name]
