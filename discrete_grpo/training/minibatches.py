"""From the scored groups of a generation to the micro-batches of each update.

Rewards become advantages over all groups of a generation (:func:`train_rows`). Each update is trained on one *window*: a part of
the rows, at some of their steps. The weights of a window are computed before any forward pass, from counts over the whole window
in all processes, so that neither its division into micro-batches nor the number of processes changes the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from discrete_grpo.core.advantages import groups_without_signal
from discrete_grpo.core.loss import row_weights, unit_counts
from discrete_grpo.core.precision import place
from discrete_grpo.core.rollout import Rollout
from discrete_grpo.core.step_selection import chosen_steps, num_selected
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.generation_advantages import AdvantageFunc, advantages_of, own_advantages, total_reward

__all__ = [
    "Batch",
    "Counts",
    "MicroBatch",
    "MiniBatches",
    "StepChoice",
    "TrainRows",
    "Weights",
    "choose_steps",
    "groups_missing",
    "groups_of",
    "microbatches",
    "passes",
    "recounted",
    "train_rows",
    "window_weights",
    "windows",
]


# -- rewards and advantages


@dataclass(frozen=True)
class Batch:
    """Whole groups that were drawn and scored at once.

    Attributes:
        rollout: the trajectories.
        rewards: one column per reward, on the CPU; NaN means unknown.
        refined: rows that started from a finished sample [B].
        origins: number of the condition of each row; None without conditions.
        kl: KL of each trajectory to the reference, float64 on the CPU, if it is part of the reward; else None.
        old: log π_old of each site of replayed samples, which belong to groups of the last batch drawn before them; None for
            samples that were drawn in this generation.
    """

    rollout: Rollout
    rewards: Float[Tensor, "batch reward"]
    refined: Bool[Tensor, " batch"]
    origins: Sequence[int | None]
    kl: Float[Tensor, " batch"] | None = None
    old: Float[Tensor, "batch step site"] | None = None

    @property
    def replayed(self) -> bool:
        """Whether the samples were drawn in earlier generations."""
        return self.old is not None

    def bare(self) -> Batch:
        """A copy without states and log-probs, as it is sent to other processes."""
        old = None if self.old is None else torch.empty(len(self.rollout), 0, 0)
        return replace(self, rollout=self.rollout.bare(), old=old)

    def on_cpu(self) -> Batch:
        """A copy with all tensors on the CPU, for policies that learn from the trajectories of all processes."""
        return replace(self, rollout=self.rollout.to("cpu"), old=None if self.old is None else self.old.cpu())


@dataclass(frozen=True)
class TrainRows:
    """The rows of a batch with their advantages, as updates are trained on them.

    Attributes:
        rollout: the trajectories.
        advantage: A [B].
        counted: False for rows that are left out of the loss and of its normaliser (an unknown reward) [B].
        needed: False for rows that need no forward pass (masked, in a group of equal rewards) [B].
        refined: rows that started from a finished sample; they form micro-batches of their own [B].
        old: log π_old of each site of replayed samples; None for samples drawn in this generation.
    """

    rollout: Rollout
    advantage: Float[Tensor, " batch"]
    counted: Bool[Tensor, " batch"]
    needed: Bool[Tensor, " batch"]
    refined: Bool[Tensor, " batch"]
    old: Float[Tensor, "batch step site"] | None = None

    def of(self, batch: Batch) -> TrainRows:
        """A copy with the trajectories of ``batch``, on their device."""
        device = batch.rollout.group.device
        marks = {name: place(getattr(self, name), device) for name in ("advantage", "counted", "needed", "refined")}
        return TrainRows(batch.rollout, **marks, old=batch.old)


def groups_of(batches: Sequence[Batch]) -> Int[Tensor, " row"]:
    """Group number of each row of a generation, distinct between batches; replayed rows have groups of the batch before them."""
    ids, first, last = [], 0, 0
    for batch in batches:
        first = first if batch.replayed else last
        ids.append(batch.rollout.group.cpu() + first)
        last = max(last, int(ids[-1].max()) + 1)
    return torch.cat(ids)


def _without_signal(batches: Sequence[Batch], config: GRPOConfig) -> Bool[Tensor, " row"]:
    """Rows whose group has no signal, judged by the rewards alone; a KL in the reward is no signal."""
    return groups_without_signal(
        torch.cat([b.rewards for b in batches]),
        groups_of(batches),
        weights=config.reward_weights,
        multi_objective_aggregation=config.multi_objective_aggregation,
    )


def groups_missing(batches: Sequence[Batch], groups: int, config: GRPOConfig) -> int:
    """Number of groups with a signal that are missing from ``groups``."""
    return groups - int((~_without_signal(batches, config)).sum()) // config.num_generations


def train_rows(batches: Sequence[Batch], config: GRPOConfig, advantage_func: AdvantageFunc | None = None) -> list[TrainRows]:
    """The rows of each batch with their advantages, computed over all batches together, by ``advantage_func`` if given."""
    kl = [b.kl for b in batches if b.kl is not None]
    rewards = torch.cat([b.rewards for b in batches])
    if advantage_func is not None:
        advantage = own_advantages(advantage_func, rewards, groups_of(batches))
    else:
        advantage = advantages_of(rewards, groups_of(batches), config, torch.cat(kl) if kl else None)
    known = ~total_reward(rewards, config).isnan()
    usable = torch.ones_like(known) if config.zero_std_groups == "keep" else ~_without_signal(batches, config)
    own, on, needed = (x.split([len(b.rollout) for b in batches]) for x in (advantage, known & usable, usable))
    return [TrainRows(b.rollout, own[k], on[k], needed[k], b.refined).of(b) for k, b in enumerate(batches)]


# -- windows and micro-batches


@dataclass(frozen=True)
class MicroBatch:
    """Some steps of some trajectories: the input of one forward pass.

    Attributes:
        rollout: the trajectories.
        steps: numbers of the steps.
        advantage: A.
        weight: weight of each unit in the policy and KL terms, see :func:`discrete_grpo.core.loss.row_weights`.
        mean_weight: weight of each site in the mean over all sites of the window.
        rows: numbers of the trajectories within the generation of this process.
        shard: number of the shard they were drawn in; the gradients of a shard are summed first.
        stored: log π_old of each site of replayed samples; None for samples drawn in this generation.
    """

    rollout: Rollout
    steps: Int[Tensor, "batch step"]
    advantage: Float[Tensor, " batch"]
    weight: Float[Tensor, " batch"]
    mean_weight: Float[Tensor, " batch"]
    rows: Int[Tensor, " batch"]
    shard: int = 0
    stored: Float[Tensor, "batch step site"] | None = None


class Counts(NamedTuple):
    """The counts from which the weights of a window are computed; on the CPU, since processes exchange them.

    Attributes:
        sites: number of sites at the chosen steps of each row.
        counted: False for rows that are left out of the loss.
        needed: False for rows that need no forward pass.
        window: number of the window of each row.
        max_units: n_max, the largest possible number of units of a trajectory times the chosen share of its steps.
        units: number of units at the chosen steps of each row, see :func:`discrete_grpo.core.loss.unit_counts`.
    """

    sites: Int[Tensor, " row"]
    counted: Bool[Tensor, " row"]
    needed: Bool[Tensor, " row"]
    window: Int[Tensor, " row"]
    max_units: int
    units: Int[Tensor, " row"]


@dataclass(frozen=True)
class StepChoice:
    """The steps that updates are trained on, and the windows of the rows, for one shard.

    Attributes:
        steps: numbers of the chosen steps, one table [B, chosen] per batch.
        counts: counts of the rows of all batches.
    """

    steps: tuple[Int[Tensor, "batch chosen"], ...]
    counts: Counts


class Weights(NamedTuple):
    """Weights of each row of a shard in one window, see :class:`MicroBatch`, and whether the row needs a forward pass."""

    weight: Float[Tensor, " row"]
    mean_weight: Float[Tensor, " row"]
    needed: Bool[Tensor, " row"]


def choose_steps(batches: Sequence[TrainRows], config: GRPOConfig, generator: torch.Generator | None = None) -> StepChoice:
    """Choose the steps of each row at random, and assign the rows to ``steps_per_generation`` windows."""
    fraction = config.timestep_fraction
    steps = tuple(chosen_steps(d.rollout.units, fraction, config.timestep_selection, generator) for d in batches)
    each = torch.cat([d.rollout.units.gather(1, s).sum(-1) for d, s in zip(batches, steps, strict=True)]).cpu()
    counts = Counts(
        each,
        torch.cat([d.counted for d in batches]).cpu(),
        torch.cat([d.needed for d in batches]).cpu(),
        _deal(len(each), config.steps_per_generation, generator),
        *_units(batches, steps, config),
    )
    return StepChoice(steps, counts)


def recounted(choice: StepChoice, batches: Sequence[TrainRows], config: GRPOConfig) -> StepChoice:
    """The same steps and windows with the units of another importance sampling level."""
    most, units = _units(batches, choice.steps, config)
    return replace(choice, counts=choice.counts._replace(max_units=most, units=units))


def _units(batches: Sequence[TrainRows], steps: Sequence[Tensor], config: GRPOConfig) -> tuple[int, Int[Tensor, " row"]]:
    """The largest possible number of units at the chosen steps, and the number of each row, see :class:`Counts`."""
    sites = [d.rollout.units.gather(1, s) for d, s in zip(batches, steps, strict=True)]
    units = torch.cat([unit_counts(s, config.importance_sampling_level).sum(-1) for s in sites]).cpu()
    return _most_units(batches[0].rollout, config), units


def _most_units(rollout: Rollout, config: GRPOConfig) -> int:
    """n_max of the chosen steps; it does not depend on the number of steps of this rollout."""
    steps = rollout.max_units if rollout.max_steps is None else rollout.max_steps
    chosen = num_selected(steps, config.timestep_fraction)
    return chosen if config.importance_sampling_level == "step" else math.ceil(rollout.max_units * chosen / steps)


def _deal(count: int, parts: int, generator: torch.Generator | None) -> Int[Tensor, " row"]:
    window = torch.zeros(count, dtype=torch.long)
    if parts > 1:
        device = "cpu" if generator is None else generator.device
        order = torch.randperm(count, generator=generator, device=device).cpu()
        for k, rows in enumerate(order.tensor_split(parts)):
            window[rows] = k
    return window


def window_weights(counts: Sequence[Counts], config: GRPOConfig) -> list[list[Weights]]:
    """Weights of each window for each shard of the run; each window is normalised by all of its rows."""
    sites, counted, needed, window = (torch.cat([c[k] for c in counts]) for k in range(4))  # type: ignore[misc]
    units, lengths, made = torch.cat([c.units for c in counts]), [len(c.sites) for c in counts], []
    for k in range(config.steps_per_generation):
        inside = window == k
        # Rows outside the window have weight 0 and are not counted.
        on = counted & inside
        weight = row_weights(units[:, None], config.loss_type, counts[0].max_units, on)
        mean_weight = row_weights(sites[:, None], "dapo", counts[0].max_units, on)
        forward = needed & inside
        forward = forward if bool(forward.any()) else inside  # an update without a signal still logs its entropy
        parts = (weight.split(lengths), mean_weight.split(lengths), forward.split(lengths))
        made.append([Weights(*part) for part in zip(*parts, strict=True)])
    return made


def microbatches(
    batches: Sequence[TrainRows], choice: StepChoice, weights: Weights, config: GRPOConfig, *, shard: int = 0, first: int = 0
) -> list[MicroBatch]:
    """The micro-batches of one window in one shard; ``first`` is the number of the first row of the shard."""
    device = batches[0].rollout.group.device
    weight, mean_weight, needed = (place(weights.weight, device), place(weights.mean_weight, device), weights.needed)
    found, start = [], 0
    for batch, chosen in zip(batches, choice.steps, strict=True):
        here = slice(start, start + len(batch.rollout))
        w, m = weight[here], mean_weight[here]
        for rows, part, pieces in passes(batch.rollout, chosen, needed[here], batch.refined, config):
            own = (batch.advantage[rows], w[rows], m[rows], rows + first + start, shard)
            found += [MicroBatch(part, piece, *own, _at(batch.old, rows, piece)) for piece in pieces]  # they share the states
        start = here.stop
    return found


def _at(old: Tensor | None, rows: Tensor, steps: Tensor) -> Tensor | None:
    return None if old is None else old[rows[:, None], steps]


def windows(batches: Sequence[TrainRows], config: GRPOConfig, generator: torch.Generator | None = None) -> list[list[MicroBatch]]:
    """The micro-batches of each update of one pass over a generation, in a run with one shard."""
    choice = choose_steps(batches, config, generator)
    return [microbatches(batches, choice, weights, config) for (weights,) in window_weights([choice.counts], config)]


def passes(
    rollout: Rollout, steps: Tensor, wanted: Tensor, refined: Tensor, config: GRPOConfig
) -> Iterator[tuple[Tensor, Rollout, Sequence[Tensor]]]:
    """Split trajectories into forward passes: numbers of rows of like size, their trajectories, and pieces of their steps.

    Refined rows form passes of their own, without the steps that none of them has drawn.
    """
    units = rollout.units.gather(1, steps)
    most, chunk = config.passes
    sizes, on, second = (x.cpu() for x in (rollout.size, wanted, refined))  # numbers of rows are computed on the host
    for part, again in ((on & ~second, False), (on & second, True)):
        order = part.nonzero()[:, 0]
        order = order[torch.argsort(sizes[order], stable=True)]
        for rows in order.split(most) if len(order) else ():
            at = place(rows, steps.device)
            chosen = steps[at][:, (units[at] > 0).any(0)] if again else steps[at]
            own = replace(rollout.index(at, rows), largest=int(sizes[rows].max()))
            yield at, own, chosen.split(chunk or steps.shape[1], 1)


@dataclass
class MiniBatches:
    """The mini-batches of one generation in one process, and the number of updates made on them.

    Attributes:
        shards: numbers of the shards of this process.
        rows: rows of each shard.
        choices: chosen steps of each shard.
        parts: micro-batches of each window.
        metrics: metrics of the generation, logged with each of its updates.
        config: settings that they were cut with.
        old: log π_old of each micro-batch; None where there is only one update and nothing is replayed.
        done: number of updates made.
    """

    shards: Sequence[int]
    rows: Sequence[Sequence[TrainRows]]
    choices: Sequence[StepChoice]
    parts: list[list[MicroBatch]]
    metrics: dict[str, float]
    config: GRPOConfig
    old: list[list[Tensor | None]] = field(default_factory=list)
    done: int = 0

    @staticmethod
    def of(
        shards: Sequence[int],
        rows: Sequence[Sequence[TrainRows]],
        choices: Sequence[StepChoice],
        weights: Sequence[Sequence[Weights]],
        config: GRPOConfig,
        metrics: Mapping[str, float],
    ) -> MiniBatches:
        """Split the rows into micro-batches; ``weights[k][i]`` belong to window k in the i-th shard of this process."""
        parts: list[list[MicroBatch]] = [[] for _ in weights]
        first = 0
        for i, number in enumerate(shards):
            for part, own in zip(parts, weights, strict=True):
                part += microbatches(rows[i], choices[i], own[i], config, shard=number, first=first)
            first += sum(len(batch.rollout) for batch in rows[i])
        old = [[micro.stored for micro in part] for part in parts]
        return MiniBatches(shards, rows, choices, parts, dict(metrics), config, old)

    @property
    def updates(self) -> int:
        """Number of updates made on this generation in all."""
        return self.config.num_iterations * len(self.parts)

    def next(self) -> tuple[list[MicroBatch], list[Tensor | None]]:
        """The micro-batches of the next update, and log π_old of each."""
        k = self.done % len(self.parts)
        return self.parts[k], self.old[k]
