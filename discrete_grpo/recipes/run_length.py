"""Resuming a run with another number of updates than it began with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from discrete_grpo.core.checks import check_range
from discrete_grpo.runs.checkpoint import Checkpoints
from discrete_grpo.runs.console import print_notes
from discrete_grpo.runs.files import real_name
from discrete_grpo.training.config import GRPOConfig, PretrainConfig
from discrete_grpo.training.optim import learning_rate
from discrete_grpo.training.pretrain import decayed_rate

__all__ = ["check_run_length"]


def check_run_length(
    folder: Path, group: str, config: GRPOConfig | PretrainConfig, changed: Mapping[str, Any], *, rewarded: bool = True
) -> None:
    """Check the number of updates of a resumed run, and print how a changed number changes the learning rate.

    Args:
        folder: the run folder.
        group: name of the settings of the training loop in those of the run.
        config: the settings of the training loop.
        changed: previous values of the changed settings, by name.
        rewarded: false for a run whose updates are all off-line, and whose length is therefore not ``max_steps``.

    Raises:
        ValueError: for fewer updates than were made so far, or another number where it would have no effect.
    """
    before, made = changed.get(f"{group}.max_steps"), Checkpoints(folder).all()
    if before is not None and not rewarded:
        told = "as in the run to resume: without a reward its updates are those of offline_steps, which cannot change"
        raise ValueError(f"{group}.max_steps: {config.max_steps}, expected {before} {told}")
    if before is None or not made:
        return
    done = int(real_name(made[-1]).removeprefix("step-"))
    check_range(f"{group}.max_steps", config.max_steps, least=done, note=", the updates that were made")
    if done == 0 or not _decays(config):
        return
    earlier = {name.removeprefix(f"{group}."): value for name, value in changed.items() if name.startswith(f"{group}.")}
    was, now = _rate(done - 1, replace(config, **earlier)), _rate(done, config)
    told = f"learning rate: its decay ends at update {config.max_steps} in place of {before}"
    print_notes([f"{told}; update {done} had {was:.3g}, update {done + 1} has {now:.3g}" if config.max_steps > done else told])


def _decays(config: GRPOConfig | PretrainConfig) -> bool:
    return config.min_lr_rate < 1 if isinstance(config, PretrainConfig) else config.lr_scheduler_type != "constant"


def _rate(step: int, config: GRPOConfig | PretrainConfig) -> float:
    return decayed_rate(step, config) if isinstance(config, PretrainConfig) else learning_rate(step, config)
