"""A method of reward optimisation as a value: its description, its settings, and the function that runs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from discrete_grpo.core.checks import check_function, check_text, check_whole
from discrete_grpo.rewards.task import Kind

if TYPE_CHECKING:
    from discrete_grpo.rewards.ledger import Ledger
    from discrete_grpo.rewards.task import Task

__all__ = ["Method", "as_method"]

POLICY_KINDS = ("tokens", "graph", "masked text")
TASK_KINDS: tuple[Kind, ...] = get_args(Kind)
NEVER_RUN = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
"""Kinds of functions whose call runs nothing."""


@dataclass(frozen=True)
class Method:
    """A method that spends the budget of a ledger on a task.

    It is called as ``run(task, policy, ledger, seed, **settings)``. It may score samples only by ``ledger.score([task],
    samples, source=...)``, so that every call counts, including those of prescreening and warm-up. It returns when it is
    done, or lets :class:`~discrete_grpo.core.scoring.BudgetExhausted` propagate. Equal seeds must give equal calls.

    Attributes:
        name: name in tables and on the command line, and of a folder.
        about: description in one line.
        source: publication of the method.
        run: the function, defined in a module so that worker processes can import it.
        settings: keyword arguments of the function, plain values, printed with every table.
        needs_policy: whether it starts from a policy; if not, ``policy`` is None.
        policy_kinds: kinds of policies it works with (``"tokens"``, ``"graph"``, ``"masked text"``); empty for any.
        task_kinds: kinds of tasks it works with.
        least_budget: the smallest budget that it accepts, such as the size of its first population.
        warm: whether it takes settings ``warm_start`` (a SMILES file) and ``warm_start_calls`` (how many of its molecules are
            scored first), with which its memory is filled.
        uncounted: effort that its calls do not include, such as the tasks on which its settings were chosen.

    Raises:
        ValueError: for a function that cannot be called with these settings, and other values out of their range.
    """

    name: str
    about: str
    source: str
    run: Callable[..., None]
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs_policy: bool = True
    policy_kinds: tuple[str, ...] = ()
    task_kinds: tuple[Kind, ...] = TASK_KINDS
    least_budget: int = 1
    uncounted: str = ""
    warm: bool = False

    def __post_init__(self) -> None:
        for key in ("name", "about", "source", "uncounted"):
            check_text(key, getattr(self, key), "a text")
        if not isinstance(self.settings, Mapping):
            raise ValueError(f"settings: {self.settings!r}, expected a mapping of arguments of the function")
        check_function(
            "methods", self.run, "(task, policy, ledger, seed)" + "".join(f", {key}" for key in self.settings), 4, **self.settings
        )
        if any(is_kind(called) for is_kind in NEVER_RUN for called in (self.run, getattr(self.run, "__call__", None))):  # noqa: B004
            raise ValueError(f"methods: {self.name} is a generator or a coroutine, expected a function that runs when it is called")
        check_whole("least_budget", self.least_budget, least=1)
        for key, known in {"policy_kinds": POLICY_KINDS, "task_kinds": TASK_KINDS}.items():
            given = getattr(self, key)
            if isinstance(given, str) or not set(given) <= set(known):
                raise ValueError(f"{key}: {given!r}, expected some of {', '.join(map(repr, known))} in a tuple")

    def __call__(self, task: Task, policy: Any, ledger: Ledger, seed: int) -> None:
        """Run the method with its settings."""
        self.run(task, policy, ledger, seed, **self.settings)


def as_method(given: Method | Callable[..., None]) -> Method:
    """A method as it is, or a plain function ``(task, policy, ledger, seed) -> None`` under its own name.

    Raises:
        ValueError: if it is neither.
    """
    if isinstance(given, Method):
        return given
    if not callable(given) or isinstance(given, type):
        raise ValueError(f"methods: {given!r}, expected the name of a method, a Method or a function (task, policy, ledger, seed)")
    name = getattr(given, "__name__", type(given).__name__).strip("<>").replace("_", "-")
    lines = (getattr(given, "__doc__", None) or "").strip().splitlines()
    return Method(name=name, about=lines[0] if lines else "a method of the user's own", source="", run=given)
