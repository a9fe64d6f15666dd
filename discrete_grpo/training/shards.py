"""Independent random streams that the groups of a generation are drawn in, dealt out evenly to the processes.

What is drawn depends on the number of shards, never on the number of processes: two processes with a shard each draw what one
process with two shards does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from discrete_grpo.core.rollout import Policy
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.elites import Memory
from discrete_grpo.training.replay_buffer import Replay

__all__ = ["Shard", "check_shards", "make_shards", "num_shards"]


@dataclass
class Shard:
    """A stream of randomness and what was found with it.

    Attributes:
        number: of the shard, from 0.
        generator: of everything random that is its own.
        memory: good samples to start from again; None: nothing is refined.
        replay: good samples to learn from again; None: nothing is replayed.
    """

    number: int
    generator: torch.Generator
    memory: Memory | None = None
    replay: Replay | None = None

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        good = {"memory": self.memory, "replay": self.replay}
        return {"generator": self.generator.get_state()} | {k: None if v is None else v.state() for k, v in good.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """What :meth:`state` gave."""
        self.generator.set_state(state["generator"])
        if self.memory is not None:
            self.memory.load(state["memory"] or ())  # none in a checkpoint of a run without
        if self.replay is not None:
            self.replay.load(state.get("replay") or ())


def num_shards(config: GRPOConfig, processes: int, stored: int | None = None) -> int:
    """How many shards a run has: as configured, or as in the checkpoint it goes on from, or one a process."""
    return config.generation_shards or stored or processes


def check_shards(count: int, config: GRPOConfig, processes: int) -> None:
    """Raise unless ``count`` shards can be dealt to the processes, and the groups to the shards.

    Raises:
        ValueError: naming what does not go into what.
    """
    if count % processes:
        raise ValueError(f"generation_shards: {count}, expected a multiple of the number of processes ({processes})")
    if config.num_groups % count:
        wanted = f"num_generations ({config.num_generations}) times a multiple of generation_shards ({count})"
        raise ValueError(f"generation_batch_size: {config.generation_batch_size}, expected {wanted}")


def make_shards(
    policy: Policy, config: GRPOConfig, count: int, *, rank: int = 0, processes: int = 1, device: torch.device | str = "cpu"
) -> list[Shard]:
    """The shards of one process, each with a seed of its own; the first has the run's."""
    own = count // processes
    shards = []
    for number in range(rank * own, (rank + 1) * own):
        seed = (config.seed + number * 0x9E3779B97F4A7C15) % 2**63  # far apart also for neighbouring seeds of a run
        memory = Memory(policy, config.refine_memory, config.refine_time) if config.refine_fraction > 0 else None
        replay = Replay(policy, config) if config.replay_samples > 0 else None
        shards.append(Shard(number, torch.Generator(device).manual_seed(seed), memory, replay))
    return shards
