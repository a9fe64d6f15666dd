"""Which rows and steps of a generation each update learns from, in which forward passes, with which weights.

A *window* is the part of a generation that one update learns from. Its weights are computed before any forward pass, from
counts over the whole window in all processes, so that cutting it into passes, or dealing it to processes, changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from discrete_grpo.core.loss import row_weights, unit_counts
from discrete_grpo.core.precision import place
from discrete_grpo.core.rollout import Rollout, num_selected
from discrete_grpo.core.step_selection import chosen_steps
from discrete_grpo.training.batch import Draw
from discrete_grpo.training.config import GRPOConfig

__all__ = ["Choice", "Chunk", "Counts", "Weights", "choose", "cut", "passes", "window_weights", "windows"]


@dataclass(frozen=True)
class Chunk:
    """Some steps of some trajectories: one forward pass.

    Attributes:
        rollout: the trajectories.
        steps: numbers of the steps.
        advantage: A.
        weight: of a unit of the policy and KL terms, see :func:`discrete_grpo.core.loss.row_weights`.
        mean_weight: of a site in the mean over all sites of the window.
        rows: numbers of the trajectories within the generation of this process.
        shard: number of the random stream they were drawn in; the gradients of a shard are added up first.
        stored: log π_old of the sites of replayed samples; None: they were drawn for this generation.
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
    """What the weights of a window depend on; on the CPU, since every process needs that of all others.

    Attributes:
        sites: of the chosen steps of each row.
        counted: False for rows that are out of the loss.
        needed: False for rows that no forward pass is spent on.
        window: number of the window each row is dealt to.
        max_units: the most units the chosen steps of a trajectory can have; a constant of policy and settings.
        units: of the chosen steps of each row, what the weights of the policy and KL terms count.
    """

    sites: Int[Tensor, " row"]
    counted: Bool[Tensor, " row"]
    needed: Bool[Tensor, " row"]
    window: Int[Tensor, " row"]
    max_units: int
    units: Int[Tensor, " row"]


@dataclass(frozen=True)
class Choice:
    """What the updates learn from in the draws of one shard.

    Attributes:
        steps: numbers of the chosen steps, a table [B, chosen] a draw.
        counts: of the rows of all draws.
    """

    steps: tuple[Int[Tensor, "batch chosen"], ...]
    counts: Counts


class Weights(NamedTuple):
    """Per row of a shard in one window: the weights of a :class:`Chunk`, and whether a forward pass is spent on the row."""

    weight: Float[Tensor, " row"]
    mean_weight: Float[Tensor, " row"]
    needed: Bool[Tensor, " row"]


def choose(draws: Sequence[Draw], config: GRPOConfig, generator: torch.Generator | None = None) -> Choice:
    """Draw the steps each row is trained on, and deal the rows to ``steps_per_generation`` windows."""
    fraction = config.timestep_fraction
    steps = tuple(chosen_steps(d.rollout.units, fraction, config.timestep_selection, generator) for d in draws)
    sites = [d.rollout.units.gather(1, s) for d, s in zip(draws, steps, strict=True)]
    each = torch.cat([s.sum(-1) for s in sites]).cpu()
    counts = Counts(
        each,
        torch.cat([d.counted for d in draws]).cpu(),
        torch.cat([d.needed for d in draws]).cpu(),
        _deal(len(each), config.steps_per_generation, generator),
        _most_units(draws[0].rollout, config),
        torch.cat([unit_counts(s, config.importance_sampling_level).sum(-1) for s in sites]).cpu(),
    )
    return Choice(steps, counts)


def _most_units(rollout: Rollout, config: GRPOConfig) -> int:
    """n_max of the chosen steps: never from the steps that this rollout happens to have."""
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
    """The weights of each window, for every shard of the run: each window is normalised by all of its rows."""
    sites, counted, needed, window = (torch.cat([c[k] for c in counts]) for k in range(4))  # type: ignore[misc]
    units, lengths, made = torch.cat([c.units for c in counts]), [len(c.sites) for c in counts], []
    for k in range(config.steps_per_generation):
        inside = window == k
        # Rows outside have weight 0 and are not counted: the same as rows that are not there.
        on = counted & inside
        weight = row_weights(units[:, None], config.loss_type, counts[0].max_units, on)
        mean_weight = row_weights(sites[:, None], "dapo", counts[0].max_units, on)
        forward = needed & inside
        forward = forward if bool(forward.any()) else inside  # an update without any signal still logs its entropy
        parts = (weight.split(lengths), mean_weight.split(lengths), forward.split(lengths))
        made.append([Weights(*part) for part in zip(*parts, strict=True)])
    return made


def cut(
    draws: Sequence[Draw], choice: Choice, weights: Weights, config: GRPOConfig, *, shard: int = 0, first: int = 0
) -> list[Chunk]:
    """The forward passes of one window on the draws of one shard; ``first`` is the number of their first row."""
    device = draws[0].rollout.group.device
    weight, mean_weight, needed = (place(w, device) for w in weights)
    chunks, start = [], 0
    for draw, chosen in zip(draws, choice.steps, strict=True):
        here = slice(start, start + len(draw.rollout))
        w, m = weight[here], mean_weight[here]
        for rows, part, pieces in passes(draw.rollout, chosen, needed[here], draw.refined, config):
            own = (draw.advantage[rows], w[rows], m[rows], rows + first + start, shard)
            chunks += [Chunk(part, piece, *own, _at(draw.old, rows, piece)) for piece in pieces]  # one copy of the states for all
        start = here.stop
    return chunks


def _at(old: Tensor | None, rows: Tensor, steps: Tensor) -> Tensor | None:
    return None if old is None else old[rows[:, None], steps]


def windows(draws: Sequence[Draw], config: GRPOConfig, generator: torch.Generator | None = None) -> list[list[Chunk]]:
    """The forward passes of each update of one round through the draws of a run of one shard."""
    choice = choose(draws, config, generator)
    return [cut(draws, choice, weights, config) for (weights,) in window_weights([choice.counts], config)]


def passes(
    rollout: Rollout, steps: Tensor, wanted: Tensor, refined: Tensor, config: GRPOConfig
) -> Iterator[tuple[Tensor, Rollout, Sequence[Tensor]]]:
    """Rows of like size together, their trajectories, and the pieces of their steps: a forward pass each.

    Refined rows stand in passes of their own, without the steps that none of them has drawn.
    """
    units = rollout.units.gather(1, steps)
    for part, again in ((wanted & ~refined, False), (wanted & refined, True)):
        order = part.nonzero()[:, 0]
        order = order[torch.argsort(rollout.size[order], stable=True)]
        for rows in order.split(config.per_device_batch_size) if len(order) else ():
            chosen = steps[rows][:, (units[rows] > 0).any(0)] if again else steps[rows]
            yield rows, rollout.index(rows), chosen.split(config.timestep_chunk or steps.shape[1], 1)
