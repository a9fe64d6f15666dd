"""Detects rewards that were edited before a run is resumed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from discrete_grpo.core.json_files import read_json
from discrete_grpo.core.reward_arguments import reward_names
from discrete_grpo.rewards.identity import code_identity
from discrete_grpo.runs.console import print_notes
from discrete_grpo.runs.folder import REWARDS
from discrete_grpo.runs.recorder import write_json

__all__ = ["changed_rewards", "tell_changed_rewards"]


def tell_changed_rewards(folder: Path, rewards: Sequence[Any], *, resume: bool) -> None:
    """Store the identities of the rewards of a new run, or print one line for each reward of a resumed run whose identity changed.

    Args:
        folder: the run folder; a run of an earlier version has no identities there, and nothing is printed.
        rewards: the rewards as they were given, before they score anything.
        resume: whether the run goes on.
    """
    if resume and ((folder / REWARDS).exists() or (folder / "checkpoints").exists()):
        told = "its code or its values have changed since the run began; scores so far are those of the old code"
        print_notes([f"reward {name}: {told}" for name in changed_rewards(folder, rewards)])
        if (folder / REWARDS).is_file() and read_json(folder / REWARDS) is None:
            print_notes([f"{folder / REWARDS} is damaged, so it is not known whether the rewards have changed since the run began"])
    else:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / REWARDS, _identities(rewards))


def changed_rewards(folder: Path, rewards: Sequence[Any]) -> list[str]:
    """Names of the rewards whose identity differs from the stored one; rewards without an identity are not compared."""
    known = read_json(folder / REWARDS) or {}
    pairs = {name: (known.get(name), identity) for name, identity in _identities(rewards).items()}
    return [name for name, (old, new) in pairs.items() if None not in (old, new) and old != new]


def _identities(rewards: Sequence[Any]) -> dict[str, str | None]:
    return {name: code_identity(reward) for name, reward in zip(reward_names(rewards), rewards, strict=True)}
