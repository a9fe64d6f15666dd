"""Detects rewards that were edited before a run is resumed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from discrete_grpo.core.json_files import read_json
from discrete_grpo.core.reward_arguments import reward_names
from discrete_grpo.rewards.identity import code_identity
from discrete_grpo.rewards.named_files import named_files
from discrete_grpo.runs.console import print_notes
from discrete_grpo.runs.folder import REWARDS
from discrete_grpo.runs.recorder import write_json

__all__ = ["changed_rewards", "tell_changed_rewards"]


def tell_changed_rewards(folder: Path, rewards: Sequence[Any], *, resume: bool) -> None:
    """Store the identities of the rewards of a new run, or print a line for each change in those of a resumed run.

    Args:
        folder: the run folder; a run of an earlier version has no identities there, and nothing is printed.
        rewards: the rewards as they were given, before they score anything.
        resume: whether the run goes on.
    """
    if resume and ((folder / REWARDS).exists() or (folder / "checkpoints").exists()):
        print_notes(changed_rewards(folder, rewards))
        if (folder / REWARDS).is_file() and read_json(folder / REWARDS) is None:
            print_notes([f"{folder / REWARDS} is damaged, so it is not known whether the rewards have changed since the run began"])
    else:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / REWARDS, _identities(rewards))


def changed_rewards(folder: Path, rewards: Sequence[Any]) -> list[str]:
    """Describe how the rewards differ from those that the run began with: their code, their values, or files that they name.

    Rewards without an identity, and files that are not there, are not compared.
    """
    known, told = read_json(folder / REWARDS) or {}, []
    for name, now in _identities(rewards).items():
        stored = known.get(name)
        before = stored if isinstance(stored, dict) else {"code": stored}  # earlier versions stored the digest of the code alone
        if None not in (before.get("code"), now["code"]) and before["code"] != now["code"]:
            told.append(f"reward {name}: {_SINCE.format('its code or its values have', 'code')}")
        files = before.get("files") or {}
        changed = [path for path, digest in now["files"].items() if files.get(path, digest) != digest]
        told += [f"reward {name}: {_SINCE.format(f'{path}, which it names, has', 'file')}" for path in changed]
    return told


_SINCE = "{} changed since the run began; scores so far are those of the old {}"


def _identities(rewards: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Digests of the code and of the files of each reward; folders are left out, as a reward may work in them."""
    found = {}
    for name, reward in zip(reward_names(rewards), rewards, strict=True):
        files = {path: digest for path, digest in named_files(reward).items() if not Path(path).is_dir()}
        found[name] = {"code": code_identity(reward), "files": files}
    return found
