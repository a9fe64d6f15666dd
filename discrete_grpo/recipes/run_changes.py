"""Rewards and settings of a run that were changed between its parts, told when the run goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from discrete_grpo.core.scoring import reward_names
from discrete_grpo.recipes.method_settings import flat_settings
from discrete_grpo.rewards.identity import code_identity
from discrete_grpo.runs.console import print_notes
from discrete_grpo.runs.recorder import REWARDS, SETTINGS, write_json

__all__ = ["changed_rewards", "tell_changed_rewards", "tell_changed_settings"]


def tell_changed_rewards(folder: Path, rewards: Sequence[Any], *, resume: bool) -> None:
    """Note the identities of the rewards of a new run, or print one line for each that has another one in a resumed run.

    Args:
        folder: the run folder; a run of an earlier version has no identities there, and nothing is printed.
        rewards: the rewards as they were given, before they score anything.
        resume: whether the run goes on.
    """
    if resume:
        told = "its code or its values have changed since the run began; scores so far are those of the old code"
        print_notes([f"reward {name}: {told}" for name in changed_rewards(folder, rewards)])
    else:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / REWARDS, _identities(rewards))


def tell_changed_settings(folder: Path, settings: Mapping[str, Any], *, resume: bool) -> None:
    """Note the settings of a new run, or print one line for each that is another one in a resumed run, and note the new one.

    Args:
        folder: the run folder; a run of an earlier version has no settings there, and nothing is printed.
        settings: numbers, texts, lists and mappings by name.
        resume: whether the run goes on.
    """
    now = flat_settings(json.loads(json.dumps(settings)))  # as a file gives them back
    if resume:
        before = _read(folder / SETTINGS)
        others = {name: before[name] for name, value in now.items() if before.get(name, value) != value}
        print_notes([f"{name}: was {old} in the run so far, is {now[name]} from here on" for name, old in others.items()])
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / SETTINGS, now)


def changed_rewards(folder: Path, rewards: Sequence[Any]) -> list[str]:
    """Names of the rewards whose identity is not the one that the run folder keeps; where either has none, nothing is known."""
    known = _read(folder / REWARDS)
    pairs = {name: (known.get(name), identity) for name, identity in _identities(rewards).items()}
    return [name for name, (old, new) in pairs.items() if None not in (old, new) and old != new]


def _identities(rewards: Sequence[Any]) -> dict[str, str | None]:
    return {name: code_identity(reward) for name, reward in zip(reward_names(rewards), rewards, strict=True)}


def _read(path: Path) -> dict[str, Any]:
    """The entries of a file; none where it is missing or damaged."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return kept if isinstance(kept, dict) else {}
