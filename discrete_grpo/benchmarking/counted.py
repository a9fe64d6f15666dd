"""The view of a task that a method receives: its description, and a score that only the ledger can request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from discrete_grpo.rewards.ledger import Ledger
    from discrete_grpo.rewards.task import Task

__all__ = ["CountedTask"]


class CountedTask:
    """A task that can be scored only through one ledger, so that every score is counted.

    It has every attribute of the task except ``score``.

    Args:
        task: task to optimise.
        ledger: ledger that counts the calls; no other reward in it may have the name of the task.
        scorer: callable that scores in place of the task, such as a pool of processes; None means the task itself.
    """

    def __init__(self, task: Task, ledger: Ledger, scorer: Callable[..., Any] | None = None) -> None:
        self._task, self._ledger, self._scorer = task, ledger, task if scorer is None else scorer
        self.name = task.name
        ledger.owners[task.name] = self

    @property
    def cached_as(self) -> Any:
        """The task, whose cached scores are used."""
        return None if self._task.cached_as is None else self._task

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name == "score":
            raise AttributeError(self._refusal)
        return getattr(self._task, name)

    def __call__(self, samples: Sequence[Any], **columns: Sequence[Any]) -> Any:
        """Score samples for the ledger.

        Raises:
            RuntimeError: if called from elsewhere.
        """
        if not self._ledger.is_scoring(self):
            raise RuntimeError(self._refusal)
        return self._scorer(samples, **columns)

    @property
    def _refusal(self) -> str:
        told = f"task {self.name}: asked directly or wrapped in another reward, which counts no call"
        return f"{told}; score through the ledger: ledger.score([task], samples)"
