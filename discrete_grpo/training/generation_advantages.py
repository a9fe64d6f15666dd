"""Advantages of the rows of a generation, computed as the settings of a run say or by a custom function."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from discrete_grpo.core.advantages import advantages, sum_rewards
from discrete_grpo.core.reward_arguments import shape_or_type
from discrete_grpo.training.config import GRPOConfig

__all__ = ["AdvantageFunc", "advantages_of", "own_advantages", "reward_weights", "total_reward"]

AdvantageFunc = Callable[[Tensor, Tensor], Tensor]
"""Function ``(rewards [B, R], group [B]) -> advantages [B]`` of all rows of a generation, on the CPU.

Rewards are float64 with one column per reward, unweighted; NaN means unknown. Rows with equal numbers in ``group`` form a group.
"""


def reward_weights(rewards: Float[Tensor, "batch reward"], config: GRPOConfig) -> tuple[float, ...]:
    """The configured weight of each reward; 1 each by default."""
    return config.reward_weights or (1.0,) * rewards.shape[1]


def total_reward(rewards: Float[Tensor, "batch reward"], config: GRPOConfig) -> Float[Tensor, " batch"]:
    """The weighted sum of the rewards; NaN where all are unknown."""
    return sum_rewards(rewards, torch.tensor(reward_weights(rewards, config), dtype=torch.float64))


def advantages_of(
    rewards: Float[Tensor, "batch reward"],
    group: Int[Tensor, " batch"],
    config: GRPOConfig,
    kl: Float[Tensor, " batch"] | None = None,
) -> Float[Tensor, " batch"]:
    """Advantages with the options of ``config``; ``kl`` of each trajectory is a penalty in the reward.

    Raises:
        ValueError: if an advantage is beyond float32, in which losses are computed.
    """
    found = advantages(
        rewards,
        group,
        weights=reward_weights(rewards, config),
        multi_objective_aggregation=config.multi_objective_aggregation,
        scale_rewards=config.scale_rewards,
        baseline=config.baseline,
        clip=config.advantage_clip,
        kl=kl,
        beta=config.beta,
    )
    if bool((far := found.abs() > torch.finfo(torch.float32).max).any()):
        told = f"advantage: {float(found[far][0]):g}, expected a number of float32"
        raise ValueError(f"{told}; give smaller rewards, or scale_rewards 'group'")
    return found


def own_advantages(
    advantage_func: AdvantageFunc, rewards: Float[Tensor, "batch reward"], group: Int[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Compute the advantages by ``advantage_func`` in float64; 0 for rows whose rewards are all unknown.

    Raises:
        ValueError: if the function does not return a tensor with one finite number per row.
    """
    found = advantage_func(rewards.clone(), group.clone())
    if not isinstance(found, Tensor) or found.shape != group.shape:
        wanted = f"expected a tensor of shape {tuple(group.shape)}: one number per row"
        raise ValueError(f"advantage_func: returned {shape_or_type(found)}, {wanted}")
    known = torch.where(rewards.isnan().all(1), 0.0, found.detach().cpu().double())
    if not known.isfinite().all():
        row = int((~known.isfinite()).nonzero()[0, 0])
        raise ValueError(f"advantage_func: returned {known[row]} for rewards {rewards[row].tolist()}, expected a finite number")
    return known
