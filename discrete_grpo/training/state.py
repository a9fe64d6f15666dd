"""The parts of a run that move, and how they get into a checkpoint and out of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from discrete_grpo.core.entropy import EntropyController
from discrete_grpo.core.rollout import Policy, Reward
from discrete_grpo.core.scoring import Accounts, remembers
from discrete_grpo.runs.checkpoint import tensors_to_cpu
from discrete_grpo.training.distributed import Processes
from discrete_grpo.training.lora import current_names
from discrete_grpo.training.randomness import global_state, restore_global_state
from discrete_grpo.training.sampler import GroupSampler

__all__ = ["Parts", "check_device_kind"]


def check_device_kind(state: Mapping[str, Any], generator: torch.Tensor, device: torch.device) -> None:
    """Raise unless a checkpoint's random states can be used on ``device``.

    A generator's state is of the kind of device it was drawn on, and no other kind continues its stream.

    Args:
        state: the training state; its entry ``device`` names the kind, and checkpoints of earlier versions lack it.
        generator: the state of one of its generators.
        device: where the run would go on.

    Raises:
        ValueError: naming both kinds.
    """
    same_size = len(generator) == len(torch.Generator(device).get_state())
    kind = state.get("device", device.type if same_size else "another kind of device")
    if kind != device.type:
        said = "whose random states only that kind of device can continue"
        raise ValueError(
            f"device: {device.type}, expected {kind} as in the run to resume, {said}; "
            "resume there, or begin a new run from its weights"
        )


@dataclass(frozen=True)
class Parts:
    """What a run is made of.

    Attributes:
        module: the policy.
        optimizer: of its weights.
        average: moving average of its weights; None: off.
        reference: of the KL; None: off.
        controller: of the entropy bonus; None: off.
        rewards: those that remember samples have a ``state_dict``.
        ledger: counts what is scored; None: nothing is counted.
        sampler: draws, with the shards of this process.
        processes: of the run.
    """

    module: nn.Module
    optimizer: Any
    average: nn.Module | None
    reference: Policy | None
    controller: EntropyController | None
    rewards: Sequence[Reward]
    ledger: Accounts | None
    sampler: GroupSampler
    processes: Processes

    def snapshot(self) -> dict[str, Any]:
        """What drawing and scoring move in this process, as it is now; later changes do not reach it."""
        return {
            "shards": [tensors_to_cpu(shard.state()) for shard in self.sampler.shards],
            "turn": self.ledger.turn if self.ledger is not None else 0,
            "rewards": [copy.deepcopy(cast(Any, r).state_dict()) if remembers(r) else None for r in self.rewards],
            "random": global_state(),
        }

    def drawing(self, snapshots: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The snapshots of all processes as entries of a checkpoint, and the ledger as it was when they were taken."""
        return {
            "shards": [state for snapshot in snapshots for state in snapshot["shards"]],
            "random": [snapshot["random"] for snapshot in snapshots],
            "reward_states": snapshots[0]["rewards"],
            "ledger": self.ledger.state_dict(snapshots[0]["turn"]) if self.ledger is not None else None,
        }

    def learning(self) -> dict[str, Any]:
        """What updates move, the same in all processes."""
        return {
            "weights": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state_dict() if self.average is not None else None,
            "reference": cast(nn.Module, self.reference).state_dict() if self.reference is not None else None,
            "entropy": self.controller.state_dict() if self.controller is not None else None,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`drawing` and :meth:`learning` gave."""
        self.module.load_state_dict(current_names(state["weights"]))
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(current_names(state["average"]))
        if self.reference is not None:
            cast(nn.Module, self.reference).load_state_dict(current_names(state["reference"]))
        if self.controller is not None and state["entropy"]:
            self.controller.load_state_dict(state["entropy"])
        self._restore_drawing(state)

    def _restore_drawing(self, state: Mapping[str, Any]) -> None:
        if self.ledger is not None and state["ledger"] is not None:
            self.ledger.load_state_dict(state["ledger"])
        for reward, kept in zip(self.rewards, state["reward_states"], strict=True):
            if kept is not None and remembers(reward):
                cast(Any, reward).load_state_dict(kept)
        for shard in self.sampler.shards:
            shard.load(state["shards"][shard.number])
        if self.processes.rank < len(state["random"]):
            restore_global_state(state["random"][self.processes.rank])
