"""The suites of tasks by name; a suite's module is imported when one of its tasks is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
        module: where the tasks are defined, as ``TASKS``.
        policy: the default policy.
        budget: the default number of oracle calls of a row.
        kind: of the samples: ``"molecules"``, ``"graphs"`` or ``"text"``.
    """

    name: str
    about: str
    module: str
    policy: str
    budget: int
    kind: str

    @property
    def tasks(self) -> Mapping[str, Task]:
        """The tasks by name."""
        found: Mapping[str, Task] = importlib.import_module(self.module).TASKS
        return found


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
            about="docking scores of five proteins, with gates of QED, SA and novelty",
            module="discrete_grpo.rewards.docking_targets",
            policy="smiles-zinc",
            budget=1_000,
            kind="molecules",
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
