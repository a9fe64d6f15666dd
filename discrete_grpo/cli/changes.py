"""Changes to the settings of a run, as options of ``discrete-grpo resume``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from discrete_grpo.cli.commands import UsageError
from discrete_grpo.core.processes import is_first
from discrete_grpo.runs.folder import CONFIG

__all__ = ["check_changes", "may_change", "written"]

_MAY_CHANGE = {
    "train": (
        *("grpo.max_steps", "grpo.patience", "grpo.patience_threshold", "grpo.save_steps", "grpo.save_total_limit"),
        *("grpo.metric_for_best_model", "grpo.greater_is_better"),
        *("stop_above", "stop_metric", "stop_after", "max_oracle_calls", "reward_workers", "report_to"),
    ),
    "optimise": ("max_oracle_calls", "save_rounds", "reward_workers"),
    "search": ("rounds", "max_oracle_calls", "reward_workers"),
}
_PRETRAINING = (
    *("pretrain.max_steps", "pretrain.log_steps", "pretrain.save_steps", "pretrain.save_total_limit"),
    *("pretrain.metric_for_best_model", "pretrain.greater_is_better"),
)

_GROWING = ("max_oracle_calls", "rounds")
"""Limits that a run may already have reached."""


def may_change(command: str) -> tuple[str, ...]:
    """Names of the settings of a command that determine how long a run lasts, what it keeps, who scores and where metrics go."""
    return _MAY_CHANGE.get(command, _PRETRAINING)


def check_changes(command: str, before: str, after: str) -> None:
    """Raise UsageError for a setting that differs and may not change.

    Args:
        command: the command that made the run.
        before: settings of the run, as YAML.
        after: requested settings.
    """
    from discrete_grpo.cli.parser import loaded
    from discrete_grpo.runs.settings import flat_settings

    old, new = (flat_settings(loaded(text, "config")) for text in (before, after))
    may = may_change(command)
    for name in (name for name in {**old, **new} if old.get(name) != new.get(name)):
        given, had = new.get(name), old.get(name)
        if name not in may:
            told = f"{name}: {given}, expected {had} as in the run to resume"
            other = "; for other settings begin a new run with --policy=RUN" if command in ("train", "optimise") else ""
            raise UsageError(f"{told}; what may change is {', '.join(may)}{other}")
        if name in _GROWING and given is not None and (had is None or given < had):
            raise UsageError(f"{name}: {given}, expected {'null' if had is None else f'at least {had}'} as in the run to resume")


@contextmanager
def written(folder: Path, settings: str) -> Iterator[None]:
    """Write the settings of a resumed run; if the run refuses them before it writes a checkpoint, restore the old ones."""
    from discrete_grpo.core.scoring import RewardError
    from discrete_grpo.runs.recorder import write_text
    from discrete_grpo.runs.settings import checkpoints_in

    file = folder / CONFIG
    own, seen = file.read_text(encoding="utf-8"), checkpoints_in(folder)
    if is_first() and settings != own:
        write_text(file, settings)
    try:
        yield
    except (KeyboardInterrupt, RewardError):  # the run continues with them
        raise
    except BaseException:
        if is_first() and checkpoints_in(folder) == seen:
            write_text(file, own)
        raise
