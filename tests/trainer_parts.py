"""A trainer taken apart: one batch, one update, one forward pass at a time."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from discrete_grpo.core.categorical import Scores
from discrete_grpo.core.rollout import Rollout
from discrete_grpo.training.generation_advantages import advantages_of, total_reward
from discrete_grpo.training.group_starts import GroupStart
from discrete_grpo.training.minibatches import Batch, MicroBatch, TrainRows, windows
from discrete_grpo.training.trainer import GRPOTrainer
from discrete_grpo.training.update import policy_scores


def generator(trainer: GRPOTrainer) -> torch.Generator:
    return trainer.sampler.shards[0].generator


def starts(trainer: GRPOTrainer) -> list[GroupStart]:
    return trainer.sampler.starts(trainer.sampler.shards[0])


def sample(trainer: GRPOTrainer, of: list[GroupStart] | None = None) -> Rollout:
    return trainer.sampler.sample(trainer.sampler.shards[0], starts(trainer) if of is None else of)


def batches(trainer: GRPOTrainer) -> list[Batch]:
    return trainer.sampler.batches(trainer.sampler.shards[0])


def advantages(trainer: GRPOTrainer, rewards: Tensor, group: Tensor) -> Tensor:
    return advantages_of(rewards, group, trainer.config)


def chunks(
    trainer: GRPOTrainer, rollout: Rollout, advantage: Tensor, total: Tensor, refined: Tensor | None = None
) -> list[MicroBatch]:
    """The forward passes of one update on all of a rollout."""
    on = torch.ones(len(rollout), dtype=torch.bool)
    draw = TrainRows(rollout, advantage, ~total.isnan(), on, ~on if refined is None else refined)
    return windows([draw], replace(trainer.config, steps_per_generation=1), generator(trainer))[0]


def chunks_of(trainer: GRPOTrainer, rollout: Rollout, rewards: Tensor) -> list[MicroBatch]:
    """The same, given the rewards [B, R]."""
    return chunks(trainer, rollout, advantages(trainer, rewards, rollout.group), total_reward(rewards, trainer.config))


def scores(trainer: GRPOTrainer, chunk: MicroBatch) -> Scores:
    with trainer.precision():
        return policy_scores(trainer.policy, chunk, trainer.reference)
