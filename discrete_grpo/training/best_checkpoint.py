"""Comparison of the checkpoints of a run by the samples that their policies draw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from discrete_grpo.runs.checkpoint import Checkpoints, load_weights
from discrete_grpo.training.distributed import ProcessGroup
from discrete_grpo.training.lora import has_lora, merge_lora

__all__ = ["BestCheckpoint"]


class BestCheckpoint:
    """Gives each regular checkpoint the metric of the generation that is drawn from it.

    The metrics of an update are those of samples drawn before it, so they say nothing about the weights that it leads to: an
    update that ruins the policy has the best reward of the run. Three checkpoints are treated in another way:

    - that of the policy before training is not compared;
    - one within a generation has no samples of its own and is not compared;
    - no generation follows the checkpoint at the end of a run. It is compared by the last one before it, until the run is
      continued.

    Args:
        checkpoints: those of the run; None where it has no folder.
        processes: the processes of the run, which call all methods together; the first one writes.
    """

    def __init__(self, checkpoints: Checkpoints | None, processes: ProcessGroup) -> None:
        self.checkpoints = None if checkpoints is None or checkpoints.metric_for_best_model is None else checkpoints
        self.processes = processes
        self.awaited: int | None = None  # step of the newest regular checkpoint, until a generation is drawn after it
        self.fresh = False  # whether that generation is drawn from the weights of the checkpoint
        self.newest: dict[str, float] = {}  # the metric of the newest generation

    def saved(self, step: int, *, fresh: bool) -> None:
        """Await a generation for the checkpoint of ``step``; ``fresh`` is false for one within a generation."""
        if self.checkpoints is not None and step > 0:
            self.awaited, self.fresh = step, fresh

    def drew(self, line: Mapping[str, float]) -> None:
        """Compare the awaited checkpoint by the metrics of the first update on a new generation."""
        if self.checkpoints is None:
            return
        name = self.checkpoints.metric_for_best_model or ""
        self.newest = {name: line[name]} if name in line else {}
        step, self.awaited = self.awaited, None
        if self.fresh:
            self._compare(step)

    def ended(self) -> None:
        """Compare the checkpoint at the end of the run, if it is still awaited, by the newest generation."""
        self._compare(self.awaited)

    def _compare(self, step: int | None) -> None:
        kept, line = self.checkpoints, self.newest
        if kept is not None and step is not None:
            self.processes.run_all(lambda: kept.judge(step, line) if self.processes.first else None)

    def restarted(self) -> None:
        """Compare no checkpoint by the next generation, since other weights draw it."""
        self.awaited = None

    def load_best(self, module: nn.Module) -> None:
        """Load the weights of the best checkpoint, if there is one, into ``module``, whose adapters are merged for it."""
        best = None if self.checkpoints is None else self.checkpoints.best()
        if best is not None:
            load_weights(best, merge_lora(module) if has_lora(module) else module)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint of the run."""
        return {"awaited": self.awaited, "fresh": self.fresh, "newest": dict(self.newest)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`."""
        self.awaited, self.fresh, self.newest = state["awaited"], bool(state["fresh"]), dict(state["newest"])
