"""What every imported policy has to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.checkpoint import load_policy, save
from discrete_grpo.config import GRPOConfig
from discrete_grpo.policies.smiles import TokenPolicy
from discrete_grpo.rollout import group_contexts
from discrete_grpo.trainer import GRPOTrainer

__all__ = ["check_as_a_policy", "one_line"]


def check_as_a_policy(policy: TokenPolicy, folder: Path, columns: dict[str, Any]) -> None:
    """Draw, replay, save and load to the bit, and train."""
    policy.decode = None
    contexts = group_contexts(2, 8, [columns] * 2)
    rollout = policy.sample(contexts, generator=torch.Generator().manual_seed(0))
    (sites,) = policy.sites(rollout)
    replayed = sites.log_probs.gather(-1, sites.action.unsqueeze(-1)).flatten(1)
    torch.testing.assert_close(replayed.where(rollout.units > 0, 0.0), rollout.logp, atol=1e-4, rtol=1e-4)
    again = load_policy(save(folder, policy, metadata={"kind": "molecules"}))
    repeated = again.sample(contexts, generator=torch.Generator().manual_seed(0))
    assert repeated.samples == rollout.samples
    assert torch.equal(repeated.logp, rollout.logp)
    before = {name: t.clone() for name, t in policy.state_dict().items()}
    config = GRPOConfig(max_steps=2, num_generations=8, generation_batch_size=16, beta=0.1, learning_rate=1e-3)
    lines = GRPOTrainer(policy, length_reward, config, columns=[columns] * 2).train()
    assert len(lines) == 2
    moved = [name for name, t in policy.state_dict().items() if not torch.equal(t, before[name])]
    assert moved, "two updates change the weights"


def length_reward(samples: Sequence[str], **columns: Any) -> list[float]:
    return [float(len(s)) for s in samples]


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)
