"""Drawing and scoring the groups of a generation: what this process draws, and what it is told of the others'."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from discrete_grpo.core.rollout import Observer, Policy, Reward, Rollout, group_contexts
from discrete_grpo.core.scoring import Accounts, Failure, score_samples, take_failures
from discrete_grpo.training.batch import Batch, Draw, draws_of, groups_missing, total_reward
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.distributed import Processes
from discrete_grpo.training.elites import Start, group_starts, seen_columns
from discrete_grpo.training.shards import Shard

__all__ = ["Drawn", "GroupSampler"]


@dataclass(frozen=True)
class Drawn:
    """A generation.

    Attributes:
        mine: the batches of each shard of this process.
        every: those of each shard of the run; without trajectories, unless the policy learns from them.
        draws: what updates learn from, a list a shard of this process.
        advantage: of every row that was drawn in the run, on the CPU.
        failures: by process and reward, what could not be scored.
    """

    mine: list[list[Batch]]
    every: list[list[Batch]]
    draws: list[list[Draw]]
    advantage: Tensor
    failures: list[dict[str, list[Failure]]]

    @property
    def batches(self) -> list[Batch]:
        """Those that were drawn in the run, in one row."""
        return [batch for batch in chain(*self.every) if not batch.replayed]

    @property
    def replayed(self) -> list[Batch]:
        """The samples of earlier generations that join them."""
        return [batch for batch in chain(*self.every) if batch.replayed]


@dataclass(frozen=True)
class GroupSampler:
    """Draws whole groups from a policy and has them scored.

    Attributes:
        policy: what draws.
        rewards: what scores.
        config: settings.
        columns: conditions to go through; None for none.
        shards: of this process.
        processes: of the run.
        ledger: counts what is scored; None: nothing is counted.
        penalty: the KL of each trajectory of a batch, where it is part of the reward; else gives None.
        precision: makes the context that networks are run in.
    """

    policy: Policy
    rewards: Sequence[Reward]
    config: GRPOConfig
    columns: Sequence[Mapping[str, Any]] | None
    shards: Sequence[Shard]
    processes: Processes
    ledger: Accounts | None
    penalty: Callable[[Batch], Tensor | None]
    precision: Callable[[], AbstractContextManager[Any]]

    @property
    def groups(self) -> int:
        """Groups a shard."""
        return self.config.num_groups // (len(self.shards) * self.processes.count)

    def starts(self, shard: Shard, count: int | None = None) -> list[Start]:
        """What ``count`` groups start from."""
        number = self.groups if count is None else count
        return group_starts(number, self.columns, shard.memory, self.config.refine_fraction, shard.generator)

    def sample(self, shard: Shard, starts: Sequence[Start]) -> Rollout:
        """Whole groups, each of one context."""
        contexts = group_contexts(len(starts), self.config.num_generations, [s.columns for s in starts])
        with self.precision():
            return self.policy.sample(contexts, generator=shard.generator)

    def batch(self, shard: Shard, count: int | None = None) -> Batch:
        """``count`` groups, scored."""
        starts = self.starts(shard, count)
        rollout = self.sample(shard, starts)
        if self.ledger is not None:
            self.ledger.rank = shard.number
        rewards = score_samples(self.rewards, rollout.samples, seen_columns(rollout, starts), self.ledger)
        rows = [s for s in starts for _ in range(self.config.num_generations)]
        batch = Batch(rollout, rewards, torch.tensor([s.refined for s in rows]), [s.origin for s in rows])
        return replace(batch, kl=self.penalty(batch))

    def batches(self, shard: Shard) -> list[Batch]:
        """The groups of a shard; with ``resample`` also what was drawn in the place of those without a signal; what joins them."""
        found = [self.batch(shard)]
        for _ in range(self.config.max_resampling_rounds if self.config.zero_std_groups == "resample" else 0):
            missing = groups_missing(found, self.groups, self.config)
            if not missing:
                break
            found.append(self.batch(shard, missing))
        return found if shard.replay is None else found + shard.replay.join(found[0], shard.generator)

    def draw(self) -> Drawn:
        """A generation, in all processes.

        Raises:
            RewardError, BudgetExhausted: in all of them, if in any.
        """
        mine: list[list[Batch]] = []
        whole = isinstance(self.policy, Observer)  # it learns from the trajectories of all processes

        def work() -> tuple[list[list[Batch]], int, dict[str, list[Failure]]]:
            mine.extend(self.batches(shard) for shard in self.shards)
            told = mine if self.processes.count == 1 else [[b.on_cpu() if whole else b.bare() for b in own] for own in mine]
            return told, self.ledger.turn if self.ledger is not None else 0, take_failures(self.rewards)

        found = self.processes.share(work)
        if self.ledger is not None:
            self.ledger.turn = max(turn for _, turn, _ in found)
        every = [batches for told, _, _ in found for batches in told]
        draws = draws_of(list(chain(*every)), self.config)
        fresh = [draw for draw in draws if draw.old is None]
        if isinstance(self.policy, Observer):
            for draw in fresh:
                self.policy.observe(draw.rollout, draw.advantage)
        advantage = torch.cat([d.advantage for d in fresh]).cpu()
        return Drawn(mine, every, self._own(mine, every, draws), advantage, [told for _, _, told in found])

    def _own(self, mine: list[list[Batch]], every: list[list[Batch]], draws: Sequence[Draw]) -> list[list[Draw]]:
        """Of the draws of all shards those of this process, with their trajectories."""
        rest, own = iter(draws), list[list[Draw]]()
        places = {shard.number: k for k, shard in enumerate(self.shards)}
        for number, batches in enumerate(every):
            part = [next(rest) for _ in batches]
            if number in places:
                own.append([d.of(b) for d, b in zip(part, mine[places[number]], strict=True)])
        return own

    def remember(self, mine: Sequence[Sequence[Batch]]) -> None:
        """Let each shard keep the best of what it drew, before the policy moves."""
        for shard, batches in zip(self.shards, mine, strict=True):
            for batch in (b for b in batches if not b.replayed):
                total = total_reward(batch.rewards, self.config)
                if shard.memory is not None:
                    shard.memory.add(batch.rollout, total, batch.origins)
                if shard.replay is not None:
                    with self.precision():
                        shard.replay.add(batch, total)
