"""Draws and scores the groups of a generation.

The groups are drawn in *shards*, independent random streams that are distributed evenly over the processes. Samples depend on the
number of shards and not on the number of processes: two processes with one shard each draw the same as one process with two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor

from discrete_grpo.core.checks import plain_number
from discrete_grpo.core.drawing import draw
from discrete_grpo.core.reward_arguments import elsewhere
from discrete_grpo.core.rollout import Policy, Reward, Rollout, SizeDrawer, group_contexts, is_observer
from discrete_grpo.core.scoring import Accounts, BudgetExhausted, Failure, RewardError, score_samples, take_failures
from discrete_grpo.training.background import Job
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.distributed import ProcessGroup
from discrete_grpo.training.elites import EliteBuffer
from discrete_grpo.training.generation_advantages import AdvantageFunc, total_reward
from discrete_grpo.training.group_starts import GroupStart, group_starts, seen_columns
from discrete_grpo.training.minibatches import Batch, TrainRows, groups_missing, train_rows
from discrete_grpo.training.replay_buffer import ReplayBuffer
from discrete_grpo.training.size_dealing import dealt, sizes_are_dealt

__all__ = [
    "Generation",
    "GroupSampler",
    "Shard",
    "check_shards",
    "make_shards",
    "num_shards",
    "scores_while_drawing",
]


# -- shards


@dataclass
class Shard:
    """A random stream and the best samples drawn with it.

    Attributes:
        number: number of the shard, from 0.
        generator: random generator of the shard.
        elites: samples that groups start from again; None if nothing is refined.
        replay: samples that are trained on again; None if nothing is replayed.
    """

    number: int
    generator: torch.Generator
    elites: EliteBuffer | None = None
    replay: ReplayBuffer | None = None

    def state(self) -> dict[str, Any]:
        """The shard as tensors and plain values, for a checkpoint."""
        good = {"memory": self.elites, "replay": self.replay}
        return {"generator": self.generator.get_state()} | {k: None if v is None else v.state() for k, v in good.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state`."""
        self.generator.set_state(state["generator"])
        if self.elites is not None:
            self.elites.load(state["memory"] or ())  # None in a checkpoint of a run that refined nothing
        if self.replay is not None:
            self.replay.load(state.get("replay") or ())


def num_shards(config: GRPOConfig, processes: int, stored: int | None = None) -> int:
    """Number of shards of a run: as configured, else as in the checkpoint to resume, else one per process."""
    return config.generation_shards or stored or processes


def check_shards(count: int, config: GRPOConfig, processes: int) -> None:
    """Check that shards can be distributed evenly over the processes, and groups over the shards.

    Raises:
        ValueError: if the numbers do not divide, a shard has fewer rows than updates, or a process has too few shards for
            ``score_while_drawing``.
    """
    if count % processes:
        raise ValueError(f"generation_shards: {count}, expected a multiple of the number of processes ({processes})")
    if config.num_groups % count:
        wanted = f"num_generations ({config.num_generations}) times a multiple of generation_shards ({count})"
        raise ValueError(f"generation_batch_size: {config.generation_batch_size}, expected {wanted}")
    if config.steps_per_generation > (rows := config.generation_batch_size // count):
        wanted = f"at most the rows of each of the {count} generation_shards ({rows})"
        raise ValueError(f"steps_per_generation: {config.steps_per_generation}, expected {wanted}")
    if config.score_while_drawing is True and count < 2 * processes:
        wanted = f"generation_shards of at least 2 per process (here {count // processes})"
        raise ValueError(f"score_while_drawing: True, expected {wanted}")


def scores_while_drawing(config: GRPOConfig, rewards: Sequence[Reward], shards: int) -> bool:
    """Whether a process with ``shards`` shards scores the groups of one while it draws those of the next.

    ``auto`` means yes if every reward runs in a pool of worker processes: the thread that waits for them then takes no CPU time
    from sampling, and no reward runs outside the main thread, where signal handlers are not allowed.
    """
    pooled = all(map(elsewhere, rewards))
    return shards > 1 and (pooled if config.score_while_drawing == "auto" else bool(config.score_while_drawing))


def make_shards(
    policy: Policy, config: GRPOConfig, count: int, *, rank: int = 0, processes: int = 1, device: torch.device | str = "cpu"
) -> list[Shard]:
    """The shards of one process, each with a seed of its own; the first shard has the seed of the run."""
    own = count // processes
    shards = []
    for number in range(rank * own, (rank + 1) * own):
        seed = (config.seed + number * 0x9E3779B97F4A7C15) % 2**63  # distinct also for neighbouring seeds of runs
        elites = EliteBuffer(policy, config.refine_memory, config.refine_time) if config.refine_fraction > 0 else None
        replay = ReplayBuffer(policy, config) if config.replay_samples > 0 else None
        shards.append(Shard(number, torch.Generator(device).manual_seed(seed), elites, replay))
    return shards


# -- sampling


@dataclass(frozen=True)
class Drawn:
    """Groups of a shard that are not scored yet, with their starts."""

    shard: Shard
    starts: Sequence[GroupStart]
    rollout: Rollout


@dataclass(frozen=True)
class Generation:
    """The samples drawn between updates, with rewards and advantages.

    Attributes:
        mine: batches of each shard of this process.
        every: batches of each shard of the run. Those of other processes lack trajectories, except for the states that the policy
            learns from, and have samples only in the first process.
        rows: rows to train on, one list per shard of this process.
        advantage: advantage of each row drawn in the run, on the CPU.
        failures: samples that could not be scored, by process and reward.
    """

    mine: list[list[Batch]]
    every: list[list[Batch]]
    rows: list[list[TrainRows]]
    advantage: Tensor
    failures: list[dict[str, list[Failure]]]

    @property
    def batches(self) -> list[Batch]:
        """All batches of the run that were drawn in this generation."""
        return [batch for batch in chain(*self.every) if not batch.replayed]

    @property
    def replayed(self) -> list[Batch]:
        """All batches of the run with samples of earlier generations."""
        return [batch for batch in chain(*self.every) if batch.replayed]


def observed_states(policy: Policy) -> tuple[str, ...] | None:
    """Names of the states that a policy reads when it observes a generation; None if it declares none and may read all."""
    if not is_observer(policy):
        return ()
    names = getattr(policy, "observed_states", None)
    return None if names is None else tuple(names)


def with_samples(batch: Batch, samples: Sequence[Any]) -> Batch:
    """The batch with other samples, or without samples if they need not be sent."""
    return replace(batch, rollout=replace(batch.rollout, samples=tuple(samples) or (None,) * len(batch.rollout)))


def gather_samples(mine: Sequence[Sequence[Batch]], processes: ProcessGroup) -> Iterator[tuple[Any, ...]] | None:
    """The samples of each batch of the run in the first process, which logs them; None in the others."""
    found = processes.gather_to_first([batch.rollout.samples for batches in mine for batch in batches])
    return None if found is None else chain(*found)


@dataclass(frozen=True)
class GroupSampler:
    """Draws whole groups from a policy and scores them.

    Attributes:
        policy: policy that draws the samples.
        rewards: rewards that score them.
        config: settings.
        columns: conditions, one mapping per group, in an order drawn anew for every generation; None for unconditional ones.
        shards: shards of this process.
        processes: all processes of the run.
        ledger: counter of reward calls; None if calls are not counted.
        reward_kl: function that returns the KL of each trajectory of a batch, or None if the KL is not part of the reward.
        precision: function that returns the autocast context of the networks.
        advantage_func: function that computes the advantages; None for that of the settings.
    """

    policy: Policy
    rewards: Sequence[Reward]
    config: GRPOConfig
    columns: Sequence[Mapping[str, Any]] | None
    shards: Sequence[Shard]
    processes: ProcessGroup
    ledger: Accounts | None
    reward_kl: Callable[[Batch], Tensor | None]
    precision: Callable[[], AbstractContextManager[Any]]
    advantage_func: AdvantageFunc | None = None

    def __post_init__(self) -> None:
        if self.columns is not None:  # numbers of numpy would not go into a checkpoint
            plain = [{name: plain_number(value) for name, value in row.items()} for row in self.columns]
            object.__setattr__(self, "columns", plain)

    @property
    def groups(self) -> int:
        """Number of groups per shard."""
        return self.config.num_groups // (len(self.shards) * self.processes.count)

    def starts(self, shard: Shard, count: int | None = None) -> list[GroupStart]:
        """Starts of ``count`` groups."""
        number = self.groups if count is None else count
        return group_starts(number, self.columns, shard.elites, self.config.refine_fraction, shard.generator)

    def sample(self, shard: Shard, starts: Sequence[GroupStart]) -> Rollout:
        """Draw one group per start."""
        contexts = group_contexts(len(starts), self.config.num_generations, [s.columns for s in starts])
        with self.precision():
            added = {name for start in starts for name in start.added}
            return draw(self.policy, contexts, generator=shard.generator, added=added)

    def batch(self, shard: Shard, count: int | None = None, *, sizes: Sequence[int] | None = None) -> Batch:
        """Draw and score ``count`` groups, of these sizes if they are given."""
        drawn = self._drawn(shard, count, sizes=sizes)
        return self._scored(drawn, self._score(drawn))

    def _drawn(self, shard: Shard, count: int | None = None, *, sizes: Sequence[int] | None = None) -> Drawn:
        starts = self.starts(shard, count)
        if sizes is not None:
            starts = [start.of_size(size) for start, size in zip(starts, sizes, strict=True)]
        return Drawn(shard, starts, self.sample(shard, starts))

    def _score(self, drawn: Drawn) -> Tensor:
        """Return the rewards of drawn groups [B, R]."""
        if self.ledger is not None:
            self.ledger.rank = drawn.shard.number
        columns = seen_columns(drawn.rollout, drawn.starts)
        return score_samples(self.rewards, drawn.rollout.samples, columns, self.ledger, "policy")

    def _share(self, drawn: Drawn) -> Tensor:
        """Return the rewards of the groups that a shard draws first.

        If earlier shards of the generation used up the budget, new samples have no reward; the run trains on those scored before.
        """
        try:
            return self._score(drawn)
        except BudgetExhausted as spent:
            if drawn.shard is self.shards[0]:
                raise
            return spent.scores

    def _scored(self, drawn: Drawn, rewards: Tensor) -> Batch:
        rows = [s for s in drawn.starts for _ in range(self.config.num_generations)]
        batch = Batch(drawn.rollout, rewards, torch.tensor([s.refined for s in rows]), [s.origin for s in rows])
        return replace(batch, kl=self.reward_kl(batch))

    def _dealt_sizes(self) -> Sequence[Sequence[int] | None]:
        """Sizes of the groups of each shard of this process, dealt by the first process; None if shards draw their own."""
        count = len(self.shards) * self.processes.count
        if not sizes_are_dealt(self.policy, self.columns, shards=count, refines=self.config.refine_fraction > 0):
            return [None] * len(self.shards)

        def work() -> list[list[int]]:
            if not self.processes.first:
                return []
            drawer = cast(SizeDrawer, self.policy)
            return dealt(drawer.draw_sizes(self.config.num_groups, generator=self.shards[0].generator), count)

        every = self.processes.run_all(work)[0]
        return [every[shard.number] for shard in self.shards]

    def _all_batches(self, sizes: Sequence[Sequence[int] | None]) -> list[list[Batch]]:
        """The groups of each shard of this process, of these sizes where they were dealt.

        With ``score_while_drawing`` the groups of one shard are scored in a thread while those of the next are drawn. Each shard
        has a generator of its own, and shards are scored one after the other, so that all results are the same.
        """
        if not scores_while_drawing(self.config, self.rewards, len(self.shards)):
            firsts = (self._drawn(shard, sizes=own) for shard, own in zip(self.shards, sizes, strict=True))
            return [self._completed(drawn.shard, self._scored(drawn, self._share(drawn))) for drawn in firsts]
        found, drawn = list[list[Batch]](), self._drawn(self.shards[0], sizes=sizes[0])
        for k, shard in enumerate(self.shards):
            job = Job(partial(self._share, drawn), drawn.rollout.group.device)
            try:
                ahead = self._drawn(self.shards[k + 1], sizes=sizes[k + 1]) if k + 1 < len(self.shards) else None
            except Exception:
                job.wait()  # no scoring continues while the error is handled
                raise
            found.append(self._completed(shard, self._scored(drawn, job.result())))
            drawn = ahead or drawn
        return found

    def batches(self, shard: Shard) -> list[Batch]:
        """The groups of a shard: those drawn first, those that replace groups without a signal, and replayed samples."""
        return self._completed(shard, self.batch(shard))

    def _completed(self, shard: Shard, first: Batch) -> list[Batch]:
        """The groups drawn first, and what joins them."""
        found = [first]
        for _ in range(self.config.max_resampling_rounds if self.config.zero_std_groups == "resample" else 0):
            missing = groups_missing(found, self.groups, self.config)
            if not missing:
                break
            try:
                found.append(self.batch(shard, missing))
            except BudgetExhausted:  # the scored samples are trained on
                break
        return found if shard.replay is None else found + shard.replay.join(found[0], shard.generator)

    def draw(self) -> Generation:
        """Draw and score a generation, in all processes.

        Raises:
            RewardError, BudgetExhausted: in all processes, if in any.
        """
        mine: list[list[Batch]] = []
        several, sizes = self.processes.count > 1, self._dealt_sizes()

        def work() -> tuple[list[list[Batch]], int, dict[str, list[Failure]]]:
            mine.extend(self._all_batches(sizes))
            told = [[self._told(batch) for batch in own] for own in mine] if several else mine
            return told, self.ledger.turn if self.ledger is not None else 0, take_failures(self.rewards)

        found = self.processes.run_all(work)
        if self.ledger is not None:
            self.ledger.turn = max(turn for _, turn, _ in found)
        every = [batches for told, _, _ in found for batches in told]
        if several and (samples := gather_samples(mine, self.processes)) is not None:
            every = [[with_samples(batch, next(samples)) for batch in own] for own in every]
        rows = self._rows(list(chain(*every)))
        fresh = [own for own in rows if own.old is None]
        if is_observer(self.policy):
            for own in fresh:
                self.policy.observe(own.rollout, own.advantage)
        advantage = torch.cat([own.advantage for own in fresh]).cpu()
        return Generation(mine, every, self._own(mine, every, rows), advantage, [told for _, _, told in found])

    def _rows(self, batches: Sequence[Batch]) -> list[TrainRows]:
        """The rows with their advantages; an error of a custom function ends the run as an error of a reward does."""
        if self.advantage_func is None:
            return train_rows(batches, self.config)
        found = list[TrainRows]()

        def work() -> None:
            try:
                found.extend(train_rows(batches, self.config, self.advantage_func))
            except Exception as error:
                own = str(error).startswith("advantage_func: ")
                raise RewardError(str(error) if own else f"advantage_func: {type(error).__name__}: {error}") from error

        self.processes.run_all(work)
        return found

    def _told(self, batch: Batch) -> Batch:
        """Return the part of a batch that other processes need: rewards and marks, and the states from which the policy learns."""
        names = observed_states(self.policy)
        if names is None:
            return batch.on_cpu()
        states = {name: batch.rollout.states[name].cpu() for name in names}
        told = with_samples(batch.bare(), ())
        return replace(told, rollout=replace(told.rollout, states=states, columns={}))

    def _own(self, mine: list[list[Batch]], every: list[list[Batch]], rows: Sequence[TrainRows]) -> list[list[TrainRows]]:
        """The rows of the shards of this process, with their trajectories."""
        rest, own = iter(rows), list[list[TrainRows]]()
        places = {shard.number: k for k, shard in enumerate(self.shards)}
        for number, batches in enumerate(every):
            part = [next(rest) for _ in batches]
            if number in places:
                own.append([d.of(b) for d, b in zip(part, mine[places[number]], strict=True)])
        return own

    def remember(self, mine: Sequence[Sequence[Batch]]) -> None:
        """Add the batches to the buffers of each shard, before the policy is updated."""
        for shard, batches in zip(self.shards, mine, strict=True):
            for batch in (b for b in batches if not b.replayed):
                total = total_reward(batch.rewards, self.config)
                if shard.elites is not None:
                    shard.elites.add(batch.rollout, total, batch.origins)
                if shard.replay is not None:
                    with self.precision():
                        shard.replay.add(batch, total)
