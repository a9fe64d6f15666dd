"""Logs metrics, samples and reward failures of a GRPO run: to files, to a tracker and to a progress bar."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from discrete_grpo.core.advantages import constant_groups, sum_magnitudes
from discrete_grpo.core.condition_cells import condition_cells
from discrete_grpo.core.scoring import Accounts
from discrete_grpo.runs.console import print_notes, progress
from discrete_grpo.runs.failures import FailureLog
from discrete_grpo.runs.recorder import METRICS, Recorder, read_metrics
from discrete_grpo.runs.report.diagnosis import diagnosis
from discrete_grpo.runs.trackers import Tracker, Trackers, best_distinct
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.generation_advantages import reward_weights, total_reward
from discrete_grpo.training.minibatches import Batch, groups_of
from discrete_grpo.training.sampler import Generation

__all__ = ["RunLog", "Shown", "check_names", "replay_metrics", "reward_metrics", "sample_table", "training_bar"]

Shown: TypeAlias = Callable[[int, Mapping[str, float]], None]
"""Callback that takes the number of updates made and the metrics of the last one."""


def check_names(found: Mapping[str, float], taken: Collection[str]) -> None:
    """Raise ``ValueError`` if a metric of the samples has the name of one of the trainer."""
    if twice := sorted(found.keys() & set(taken)):
        raise ValueError(f"sample_metrics: {twice[0]!r} is a metric of the trainer, expected another name")


@contextmanager
def training_bar(step: int, max_steps: int, ledger: Accounts | None = None) -> Iterator[Shown]:
    """Show the progress of a run: in reward calls if they have a budget, else in updates.

    Args:
        step: number of updates made before the run was resumed.
        max_steps: number of updates of the whole run.
        ledger: counter of reward calls; None if there is no budget.
    """
    start = ledger.metrics() if ledger is not None else {}
    budget = "oracle/left" in start
    done = int(start["oracle/calls"]) if budget else step
    total = done + int(start["oracle/left"]) if budget else max_steps
    with progress("oracle calls" if budget else "training", total, done=done) as bar:

        def show(at: int, line: Mapping[str, float]) -> None:
            fields = {name: line[name] for name in ("reward", "valid", "kl") if name in line}
            if budget and "oracle/calls" in line:  # a generation of a run without a ledger has no calls
                bar.reach(int(line["oracle/calls"]), update=f"{at}/{max_steps}", **fields)
            elif not budget:
                bar.reach(at, **fields)

        yield show
        if budget and ledger is not None:  # the last calls may have been too few for an update
            bar.reach(int(ledger.metrics()["oracle/calls"]))


def reward_metrics(
    batches: Sequence[Batch], advantage: Float[Tensor, " row"], names: Sequence[str], config: GRPOConfig
) -> dict[str, float]:
    """Means and standard deviations of the rewards of a generation, under TRL's names, and the sizes of its samples."""
    rewards = torch.cat([b.rewards for b in batches])
    total = total_reward(rewards, config)
    sizes = sum_magnitudes(rewards, torch.tensor(reward_weights(rewards, config), dtype=torch.float64))
    line = {
        "reward": _mean(total),
        "reward_std": _std(total),
        "frac_reward_zero_std": float(constant_groups(total, groups_of(batches), sizes).double().mean()),
        "frac_reward_unknown": float(total.isnan().double().mean()),
        "advantages/abs_mean": float(advantage.abs().mean()),
    }
    size = torch.cat([b.rollout.size.cpu() for b in batches]).double()
    line |= {"size/mean": float(size.mean()), "size/min": float(size.min()), "size/max": float(size.max())}
    for name, column in zip(names, rewards.unbind(-1), strict=True):
        line[f"rewards/{name}/mean"] = _mean(column)
        line[f"rewards/{name}/std"] = _std(column)
    if config.refine_fraction > 0:
        refined = torch.cat([b.refined for b in batches])
        line["frac_refined"] = float(refined.double().mean())
        line |= {"refined/reward": _mean(total[refined]), "fresh/reward": _mean(total[~refined])}
    return line


def replay_metrics(replayed: Sequence[Batch], config: GRPOConfig) -> dict[str, float]:
    """Number of replayed rows, and their mean reward."""
    totals = [total_reward(b.rewards, config) for b in replayed]
    return {"replay/rows": float(sum(map(len, totals))), "replay/reward": _mean(torch.cat(totals)) if totals else math.nan}


def sample_table(
    batches: Sequence[Batch],
    advantage: Float[Tensor, " row"],
    names: Sequence[str],
    config: GRPOConfig,
    conditions: Sequence[Mapping[str, Any]] | None = None,
) -> Mapping[str, Sequence[Any]]:
    """Columns of the table of samples, one entry per row; the sample is None where it is invalid.

    The conditions that have a form as :func:`~discrete_grpo.core.condition_cells.condition_cells` follow the advantage, one column
    per name, None in a row whose condition lacks it.
    """
    rewards = torch.cat([b.rewards for b in batches])
    samples = [s for b in batches for s in b.rollout.samples]
    columns: dict[str, Sequence[Any]] = {"group": groups_of(batches).tolist(), "sample": samples}
    columns["reward"] = total_reward(rewards, config).tolist()
    columns |= {f"reward_{name}": column.tolist() for name, column in zip(names, rewards.unbind(-1), strict=True)}
    if config.refine_fraction > 0:
        columns["refined"] = torch.cat([b.refined for b in batches]).int().tolist()
    columns["advantage"] = advantage.tolist()
    given = [{} if conditions is None or k is None else conditions[k] for b in batches for k in b.origins]
    own = [name for name in _written(conditions or ()) if name not in ("step", "refined", *columns)]
    return columns | {name: condition_cells(condition.get(name) for condition in given) or [] for name in own}


def _written(conditions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the conditions all of whose values the table can hold."""
    names = dict.fromkeys(name for condition in conditions for name in condition)
    return [name for name in names if condition_cells(condition.get(name) for condition in conditions) is not None]


def _as_begun(table: Mapping[str, Sequence[Any]], begun: Sequence[str] | None) -> Mapping[str, Sequence[Any]]:
    """The table with the columns of its file; a resumed run can have another ``refined`` column and other conditions.

    A column that the file lacks is left out; a column that the run no longer has is filled with 0 or left empty.
    """
    if begun is None or _always(begun) != _always(list(table)):
        return table
    rows = len(table["sample"])
    return {name: table.get(name, [0 if name == "refined" else None] * rows) for name in begun}


def _always(names: Sequence[str]) -> list[str]:
    """The columns that every run has, however it was resumed."""
    end = names.index("advantage") + 1 if "advantage" in names else len(names)
    return [name for name in names[:end] if name != "refined"]


def _mean(values: Float[Tensor, " row"]) -> float:
    """Mean of the values that are not NaN; NaN if there are none."""
    known = values[~values.isnan()]
    return float(known.mean()) if len(known) else math.nan


def _std(values: Tensor) -> float:
    known = values[~values.isnan()]
    return float(known.std()) if len(known) > 1 else math.nan


class RunLog:
    """Log of a run; created on rank 0 only.

    Args:
        config: settings of the run.
        names: names of the rewards.
        run: folder of the run; None writes nothing to disk.
        tracker: tracker that receives all metrics, and the best samples every ``save_steps`` updates.
        conditions: one mapping per condition of the run, for the table of samples; None without conditions.
    """

    def __init__(
        self,
        config: GRPOConfig,
        names: Sequence[str],
        run: str | Path | None = None,
        tracker: Tracker | None = None,
        conditions: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.config, self.names, self.conditions = config, names, conditions
        self.tracker = tracker
        if tracker is not None and not isinstance(tracker, Trackers):
            self.tracker = Trackers({type(tracker).__name__: tracker})  # one that fails is switched off
        self.recorder = Recorder(run) if run is not None else None
        self.failures = FailureLog(run) if run is not None else None
        self._shown: int | None = None  # the update of the samples that the tracker received last

    def metrics(
        self, generation: Generation, found: Mapping[str, float], ledger: Accounts | None = None, before: float | None = None
    ) -> dict[str, float]:
        """Metrics of a generation, logged with each of its updates.

        Args:
            generation: the generation.
            found: metrics of the samples of the generation.
            ledger: counter of reward calls; None if calls are not counted.
            before: number of calls before it was drawn, for the metric of its new calls; None omits that metric.
        """
        batches = generation.batches
        line = reward_metrics(batches, generation.advantage, self.names, self.config)
        if self.config.replay_samples > 0:
            line |= replay_metrics(generation.replayed, self.config)
        if self.config.zero_std_groups == "resample":
            line["resampling_rounds"] = float(max(len(own) for own in generation.every) - 1)
        for name in self.names:
            told = [failed[name] for failed in generation.failures if name in failed]
            line |= {f"rewards/{name}/failed": float(sum(map(len, told)))} if told else {}
        check_names(found, line.keys())
        line |= dict(found) | (ledger.metrics() if ledger is not None else {})
        return line if before is None else line | {"oracle/new_calls": line["oracle/calls"] - before}

    def samples(self, step: int, generation: Generation) -> None:
        """Write the samples of the generation that is trained on from update ``step`` on."""
        batches = generation.batches
        if self.recorder is not None:
            table = sample_table(batches, generation.advantage, self.names, self.config, self.conditions)
            self.recorder.record_samples(step, _as_begun(table, self.recorder.columns))
        for found in generation.failures if self.failures is not None else ():
            self.failures.add(step, found)  # type: ignore[union-attr]
        if self.tracker is not None and (self._shown is None or step - self._shown >= self.config.save_steps):
            totals = torch.cat([total_reward(b.rewards, self.config) for b in batches]).tolist()
            self.tracker.log_samples(step, *best_distinct([s for b in batches for s in b.rollout.samples], totals))
            self._shown = step

    def update(self, step: int, line: Mapping[str, float]) -> None:
        """Write the metrics of an update."""
        if self.recorder is not None:
            self.recorder.record(step, line)
        if self.tracker is not None:
            self.tracker.log(step, line)

    def start(self, step: int) -> None:
        """Set the step of the tracker to update ``step``, after which the run starts or resumes."""
        if self.tracker is not None:
            self.tracker.start(step)

    def finish(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """At the end of the run, print a diagnosis if the policy could not learn.

        Args:
            lines: metrics of all updates, used if they are not on disk.
        """
        if self.recorder is not None and (self.recorder.folder / METRICS).exists():  # not if the budget ended at once
            lines = read_metrics(self.recorder.folder)
        print_notes(diagnosis(lines))

    def close(self) -> None:
        """Close the tracker."""
        if self.tracker is not None:
            self.tracker.close()

    def position(self) -> dict[str, Any] | None:
        """Lengths of the files, for a checkpoint."""
        return None if self.recorder is None else self.recorder.position()

    def restore(self, position: Mapping[str, Any] | None, drawn_for: int) -> None:
        """Truncate the files to a checkpoint whose last samples were drawn for update ``drawn_for``."""
        if self.recorder is not None:
            self.recorder.restore(position)
        if self.failures is not None:
            self.failures.forget_after(drawn_for)
