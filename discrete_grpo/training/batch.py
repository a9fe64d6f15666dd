"""A generation: the groups that were drawn for one round of updates, their rewards, and what is learned from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from discrete_grpo.core.advantages import advantages, constant_groups, groups_without_signal, sum_magnitudes, sum_rewards
from discrete_grpo.core.precision import place
from discrete_grpo.core.rollout import Rollout
from discrete_grpo.training.config import GRPOConfig

__all__ = [
    "Batch",
    "Draw",
    "advantages_of",
    "draws_of",
    "groups_missing",
    "groups_of",
    "replay_metrics",
    "reward_metrics",
    "sample_table",
    "total_reward",
]


@dataclass(frozen=True)
class Batch:
    """Whole groups that were drawn and scored at once; the batches of a generation are compared within their groups only.

    Attributes:
        rollout: what was drawn.
        rewards: one column a reward, on the CPU; NaN means unknown.
        refined: rows that started from a finished sample [B].
        origins: number of the condition of each row; None without conditions.
        kl: of each trajectory to the reference, float64 on the CPU, where it is part of the reward; else None.
        old: log π_old of each site of replayed samples, which join groups of the last batch before them that was drawn; else
            None.
    """

    rollout: Rollout
    rewards: Float[Tensor, "batch reward"]
    refined: Bool[Tensor, " batch"]
    origins: Sequence[int | None]
    kl: Float[Tensor, " batch"] | None = None
    old: Float[Tensor, "batch step site"] | None = None

    @property
    def replayed(self) -> bool:
        """Whether these are samples of earlier generations."""
        return self.old is not None

    def bare(self) -> Batch:
        """Without the trajectories themselves: what other processes are told."""
        old = None if self.old is None else torch.empty(len(self.rollout), 0, 0)
        return replace(self, rollout=self.rollout.bare(), old=old)

    def on_cpu(self) -> Batch:
        """With the trajectories on the CPU, to be sent whole."""
        return replace(self, rollout=self.rollout.to("cpu"), old=None if self.old is None else self.old.cpu())


@dataclass(frozen=True)
class Draw:
    """What an update may learn from a batch.

    Attributes:
        rollout: the trajectories.
        advantage: A [B].
        counted: False for rows that are out of the loss and of its normaliser (an unknown reward) [B].
        needed: False for rows that no forward pass is spent on (a group without a signal, masked) [B].
        refined: rows that started from a finished sample; they stand in passes of their own [B].
        old: log π_old of each site of replayed samples; None: they were drawn for this generation.
    """

    rollout: Rollout
    advantage: Float[Tensor, " batch"]
    counted: Bool[Tensor, " batch"]
    needed: Bool[Tensor, " batch"]
    refined: Bool[Tensor, " batch"]
    old: Float[Tensor, "batch step site"] | None = None

    def of(self, batch: Batch) -> Draw:
        """The same of the trajectories of ``batch``, where those are."""
        device = batch.rollout.group.device
        marks = {name: place(getattr(self, name), device) for name in ("advantage", "counted", "needed", "refined")}
        return Draw(batch.rollout, **marks, old=batch.old)


def _weights(rewards: Tensor, config: GRPOConfig) -> tuple[float, ...]:
    return config.reward_weights or (1.0,) * rewards.shape[1]


def total_reward(rewards: Float[Tensor, "batch reward"], config: GRPOConfig) -> Float[Tensor, " batch"]:
    """The weighted sum of the rewards; NaN where all are unknown."""
    return sum_rewards(rewards, torch.tensor(_weights(rewards, config), dtype=torch.float64))


def advantages_of(
    rewards: Float[Tensor, "batch reward"],
    group: Int[Tensor, " batch"],
    config: GRPOConfig,
    kl: Float[Tensor, " batch"] | None = None,
) -> Float[Tensor, " batch"]:
    """Advantages as configured; ``kl`` of each trajectory is a penalty in the reward."""
    return advantages(
        rewards,
        group,
        weights=_weights(rewards, config),
        multi_objective_aggregation=config.multi_objective_aggregation,
        scale_rewards=config.scale_rewards,
        baseline=config.baseline,
        clip=config.advantage_clip,
        kl=kl,
        beta=config.beta,
    )


def groups_of(batches: Sequence[Batch]) -> Int[Tensor, " row"]:
    """The group of every row of a generation, distinct over the batches that were drawn; replayed ones join that before them."""
    ids, first, last = [], 0, 0
    for batch in batches:
        first = first if batch.replayed else last
        ids.append(batch.rollout.group.cpu() + first)
        last = max(last, int(ids[-1].max()) + 1)
    return torch.cat(ids)


def _without_signal(batches: Sequence[Batch], config: GRPOConfig) -> Bool[Tensor, " row"]:
    """By the rewards alone: a KL in the reward is no signal."""
    return groups_without_signal(
        torch.cat([b.rewards for b in batches]),
        groups_of(batches),
        weights=config.reward_weights,
        multi_objective_aggregation=config.multi_objective_aggregation,
    )


def groups_missing(batches: Sequence[Batch], groups: int, config: GRPOConfig) -> int:
    """How many more groups with a signal it takes to have ``groups`` of them."""
    return groups - int((~_without_signal(batches, config)).sum()) // config.num_generations


def draws_of(batches: Sequence[Batch], config: GRPOConfig) -> list[Draw]:
    """What the updates learn from, on the device of the rollouts; advantages are taken over all batches together."""
    kl = [b.kl for b in batches if b.kl is not None]
    rewards = torch.cat([b.rewards for b in batches])
    advantage = advantages_of(rewards, groups_of(batches), config, torch.cat(kl) if kl else None)
    known = ~total_reward(rewards, config).isnan()
    usable = torch.ones_like(known) if config.zero_std_groups == "keep" else ~_without_signal(batches, config)
    own, on, needed = (x.split([len(b.rollout) for b in batches]) for x in (advantage, known & usable, usable))
    return [Draw(b.rollout, own[k], on[k], needed[k], b.refined).of(b) for k, b in enumerate(batches)]


# -- what is logged


def reward_metrics(
    batches: Sequence[Batch], advantage: Float[Tensor, " row"], names: Sequence[str], config: GRPOConfig
) -> dict[str, float]:
    """Means and deviations of the rewards of a generation, under TRL's names."""
    rewards = torch.cat([b.rewards for b in batches])
    total = total_reward(rewards, config)
    sizes = sum_magnitudes(rewards, torch.tensor(_weights(rewards, config), dtype=torch.float64))
    line = {
        "reward": _mean(total),
        "reward_std": _std(total),
        "frac_reward_zero_std": float(constant_groups(total, groups_of(batches), sizes).double().mean()),
        "frac_reward_unknown": float(total.isnan().double().mean()),
        "advantages/abs_mean": float(advantage.abs().mean()),
    }
    for name, column in zip(names, rewards.unbind(-1), strict=True):
        line[f"rewards/{name}/mean"] = _mean(column)
        line[f"rewards/{name}/std"] = _std(column)
    if config.refine_fraction > 0:
        refined = torch.cat([b.refined for b in batches])
        line["frac_refined"] = float(refined.double().mean())
        line |= {"refined/reward": _mean(total[refined]), "fresh/reward": _mean(total[~refined])}
    return line


def replay_metrics(replayed: Sequence[Batch], config: GRPOConfig) -> dict[str, float]:
    """How many rows were replayed, and their mean reward."""
    totals = [total_reward(b.rewards, config) for b in replayed]
    return {"replay/rows": float(sum(map(len, totals))), "replay/reward": _mean(torch.cat(totals)) if totals else math.nan}


def sample_table(
    batches: Sequence[Batch], advantage: Float[Tensor, " row"], names: Sequence[str], config: GRPOConfig
) -> Mapping[str, Sequence[Any]]:
    """The samples of a generation by column, one entry a row; text is empty for a sample that stands for nothing."""
    rewards = torch.cat([b.rewards for b in batches])
    samples = ["" if s is None else str(s) for b in batches for s in b.rollout.samples]
    columns: dict[str, Sequence[Any]] = {"group": groups_of(batches).tolist(), "sample": samples}
    columns["reward"] = total_reward(rewards, config).tolist()
    columns |= {f"reward_{name}": column.tolist() for name, column in zip(names, rewards.unbind(-1), strict=True)}
    if config.refine_fraction > 0:
        columns["refined"] = torch.cat([b.refined for b in batches]).int().tolist()
    return columns | {"advantage": advantage.tolist()}


def _mean(values: Float[Tensor, " row"]) -> float:
    """Of those that are no NaN; NaN if there are none."""
    known = values[~values.isnan()]
    return float(known.mean()) if len(known) else math.nan


def _std(values: Tensor) -> float:
    known = values[~values.isnan()]
    return float(known.std()) if len(known) > 1 else math.nan
