"""What a run tells of itself: metrics and samples in its folder, failures of rewards, and a copy to a tracker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch

from discrete_grpo.core.scoring import Accounts
from discrete_grpo.runs.console import print_notes, progress
from discrete_grpo.runs.failures import FailureLog
from discrete_grpo.runs.recorder import Recorder, read_metrics
from discrete_grpo.runs.report.diagnosis import diagnosis
from discrete_grpo.runs.trackers import Tracker, best_distinct
from discrete_grpo.training.batch import replay_metrics, reward_metrics, sample_table, total_reward
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.sampler import Drawn

__all__ = ["RunLog", "Shown", "training_bar"]

Shown: TypeAlias = Callable[[int, Mapping[str, float]], None]
"""Takes the number of updates made and the metrics of the last one."""


@contextmanager
def training_bar(step: int, max_steps: int, ledger: Accounts | None = None) -> Iterator[Shown]:
    """Show how far a run has come: in oracle calls where it has a budget of them, else in updates.

    Args:
        step: updates made before, by the part of the run that this one continues.
        max_steps: updates of the whole run.
        ledger: counts the calls; None: there is no budget.
    """
    start = ledger.metrics() if ledger is not None else {}
    budget = "oracle/left" in start
    done = int(start["oracle/calls"]) if budget else step
    total = done + int(start["oracle/left"]) if budget else max_steps
    with progress("oracle calls" if budget else "training", total, done=done) as bar:

        def show(at: int, line: Mapping[str, float]) -> None:
            fields = {name: line[name] for name in ("reward", "valid", "kl") if name in line}
            if budget:
                bar.reach(int(line["oracle/calls"]), update=f"{at}/{max_steps}", **fields)
            else:
                bar.reach(at, **fields)

        yield show
        if budget and ledger is not None:  # the last calls may have been too few for an update
            bar.reach(int(ledger.metrics()["oracle/calls"]))


class RunLog:
    """Of the one process that writes.

    Args:
        config: settings of the run.
        names: of the rewards.
        run: folder; None: nothing is kept on disk.
        sample_metrics: extra metrics of each batch of samples.
        tracker: takes a copy, and every ``save_steps`` updates the best samples.
    """

    def __init__(
        self,
        config: GRPOConfig,
        names: Sequence[str],
        run: str | Path | None = None,
        sample_metrics: Callable[[Sequence[Any]], Mapping[str, float]] | None = None,
        tracker: Tracker | None = None,
    ) -> None:
        self.config, self.names, self.sample_metrics, self.tracker = config, names, sample_metrics, tracker
        self.recorder = Recorder(run) if run is not None else None
        self.failures = FailureLog(run) if run is not None else None
        self._shown: int | None = None  # the update for which the tracker last had samples

    def metrics(self, drawn: Drawn, ledger: Accounts | None = None) -> dict[str, float]:
        """What is logged of a generation, with each of its updates."""
        batches = drawn.batches
        line = reward_metrics(batches, drawn.advantage, self.names, self.config)
        if self.config.replay_samples > 0:
            line |= replay_metrics(drawn.replayed, self.config)
        if self.config.zero_std_groups == "resample":
            line["resampling_rounds"] = float(max(len(own) for own in drawn.every) - 1)
        for name in self.names:
            told = [found[name] for found in drawn.failures if name in found]
            line |= {f"rewards/{name}/failed": float(sum(len(found) for found in told))} if told else {}
        if self.sample_metrics is not None:
            line |= self.sample_metrics([s for b in batches for s in b.rollout.samples])
        return line | (ledger.metrics() if ledger is not None else {})

    def samples(self, step: int, drawn: Drawn) -> None:
        """Keep what was drawn for the updates from ``step`` on."""
        batches = drawn.batches
        if self.recorder is not None:
            self.recorder.record_samples(step, sample_table(batches, drawn.advantage, self.names, self.config))
        for found in drawn.failures if self.failures is not None else ():
            self.failures.add(step, found)  # type: ignore[union-attr]
        if self.tracker is not None and (self._shown is None or step - self._shown >= self.config.save_steps):
            totals = torch.cat([total_reward(b.rewards, self.config) for b in batches]).tolist()
            self.tracker.log_samples(step, *best_distinct([s for b in batches for s in b.rollout.samples], totals))
            self._shown = step

    def update(self, step: int, line: Mapping[str, float]) -> None:
        """Keep the metrics of an update."""
        if self.recorder is not None:
            self.recorder.record(step, line)
        if self.tracker is not None:
            self.tracker.log(step, line)

    def start(self, step: int) -> None:
        """The run is after update ``step``."""
        if self.tracker is not None:
            self.tracker.start(step)

    def finish(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """The run has come to its end: say so where nothing could be learned, and what to try.

        Args:
            lines: the metrics of its updates, where they are not on disk.
        """
        print_notes(diagnosis(lines if self.recorder is None else read_metrics(self.recorder.folder)))

    def close(self) -> None:
        """Nothing more will come."""
        if self.tracker is not None:
            self.tracker.close()

    def position(self) -> dict[str, Any] | None:
        """How far the files go, for a checkpoint."""
        return None if self.recorder is None else self.recorder.position()

    def restore(self, position: Mapping[str, Any] | None, drawn_for: int) -> None:
        """Cut the files back to a checkpoint whose last samples were drawn for update ``drawn_for``."""
        if self.recorder is not None:
            self.recorder.restore(position)
        if self.failures is not None:
            self.failures.forget_after(drawn_for)
