"""Memories of rewards, such as those of diversity filters, as they are at the beginning of a run."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch

from discrete_grpo.core.atomic import atomic_write
from discrete_grpo.core.reward_arguments import remembers
from discrete_grpo.core.rollout import Reward
from discrete_grpo.runs.files import explained
from discrete_grpo.runs.serialization import CheckpointError

__all__ = ["RewardMemories"]


class RewardMemories:
    """The states of stateful rewards at the beginning of a run, to which every evaluation resets the rewards.

    The scores of rewards such as a diversity filter depend on their memory. If the memory included the training between both
    evaluations, their numbers would not be comparable; and training must not remember the samples of an evaluation.

    Args:
        rewards: rewards of the run.
        file: file of the memories in the run folder, for a run that is resumed in the same program with the same rewards; None
            writes none.
        resume: whether to read them from the file if it exists.
    """

    def __init__(self, rewards: Sequence[Reward], file: Path | None = None, *, resume: bool = False) -> None:
        able = [reward for reward in rewards if remembers(reward) and callable(getattr(reward, "load_state_dict", None))]
        self._rewards = [cast(Any, reward) for reward in able]
        if resume and file is not None and file.is_file():
            self._first = _read_memories(file, len(self._rewards))
            return
        self._first = [copy.deepcopy(reward.state_dict()) for reward in self._rewards]
        if file is not None and self._rewards:
            with explained(file, lambda: "the run has not begun"), atomic_write(file) as out:
                torch.save(self._first, out)
        elif file is not None and not resume:
            file.unlink(missing_ok=True)  # the file of another run, whose results were removed

    def begin(self) -> None:
        """Set the rewards to their initial memories, with which a run begins."""
        self._load(self._first)

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Set the rewards to their initial memories inside the block, and restore the current ones afterwards."""
        now = [copy.deepcopy(reward.state_dict()) for reward in self._rewards]
        self._load(self._first)
        try:
            yield
        finally:
            self._load(now)

    def _load(self, memories: Sequence[Any]) -> None:
        for reward, memory in zip(self._rewards, memories, strict=True):
            reward.load_state_dict(copy.deepcopy(memory))


def _read_memories(file: Path, rewards: int) -> list[Any]:
    """The memories of a file, one per reward.

    Raises:
        CheckpointError: if the file is damaged, or holds another number of memories.
    """
    try:
        found = torch.load(file, weights_only=True)
    except Exception as error:  # of many kinds, by where the file ends
        raise CheckpointError(f"{file} is damaged, and the first memories of the rewards are lost with it") from error
    if not isinstance(found, list) or len(found) != rewards:
        held = len(found) if isinstance(found, list) else "no"
        raise CheckpointError(f"{file} holds the memories of {held} rewards, expected those of {rewards} as given now")
    return found
