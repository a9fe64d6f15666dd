"""Any deal of a generation to shards, windows and passes gives one gradient: every loss, every ratio level, float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import Tensor

from discrete_grpo.config import GRPOConfig
from discrete_grpo.generation import Draw
from discrete_grpo.rollout import Rollout, group_contexts
from discrete_grpo.updates import Plan, chunk_loss, policy_scores, terms_of
from discrete_grpo.windows import Chunk, choose, cut, window_weights
from tests.toys import tiny_policy

HINTS = get_type_hints(GRPOConfig)
LOSSES, LEVELS = get_args(HINTS["loss_type"]), get_args(HINTS["importance_sampling_level"])
BASE = GRPOConfig(generation_batch_size=16, num_generations=4, epsilon_high=5.0, beta=0.1)


def generation() -> tuple[Any, Any, Rollout, Tensor, Tensor]:
    """A policy, a reference, trajectories of different sizes, advantages, and which rows count."""
    policy, reference = tiny_policy().double(), tiny_policy(seed=1).double()
    generator = torch.Generator().manual_seed(0)
    rollout = policy.sample(group_contexts(4, 4), generator=generator)
    counted = torch.ones(16, dtype=torch.bool)
    counted[[2, 9]] = False
    return policy, reference, rollout, torch.randn(16, generator=generator, dtype=torch.float64), counted


def gradient(policy: Any, reference: Any, chunks: list[Chunk], config: GRPOConfig) -> list[Tensor]:
    """Off-policy: log π_old is the policy's own, moved a little, the same for the same site."""
    policy.zero_grad()
    for chunk in chunks:
        logp = policy_scores(policy, chunk).logp.detach()
        old = logp + 0.1 * torch.sin(1e3 * logp)
        terms = terms_of(policy, chunk, reference, config, old_logp=old, bonus=False)
        chunk_loss(terms, chunk, old, Plan(), config).loss.backward()
    return [p.grad.clone() for p in policy.parameters() if p.grad is not None]


def dealt(rollout: Rollout, advantage: Tensor, counted: Tensor, shards: list[list[int]], config: GRPOConfig) -> list[Chunk]:
    """The passes of the only window, with the rows dealt to shards."""
    draws = []
    for rows in map(torch.tensor, shards):
        refined = torch.zeros(len(rows), dtype=torch.bool)
        draws.append(Draw(rollout.index(rows), advantage[rows], counted[rows], ~refined, refined))
    choices = [choose([draw], config) for draw in draws]
    (weights,) = window_weights([choice.counts for choice in choices], config)
    parts = zip(draws, choices, weights, strict=True)
    return [chunk for k, (draw, choice, own) in enumerate(parts) for chunk in cut([draw], choice, own, config, shard=k)]


@pytest.mark.parametrize(("loss_type", "level"), list(product(LOSSES, LEVELS)))
def test_any_deal_gives_one_gradient(loss_type: Any, level: Any) -> None:
    policy, reference, rollout, advantage, counted = generation()
    config = replace(BASE, loss_type=loss_type, importance_sampling_level=level, per_device_batch_size=16)
    whole = gradient(policy, reference, dealt(rollout, advantage, counted, [list(range(16))], config), config)
    assert max(float(g.abs().max()) for g in whole) > 1e-6
    chunk = None if level == "sequence" else 3
    small = replace(config, per_device_batch_size=3, timestep_chunk=chunk)
    for shards in ([[0, 1, 2, 3], list(range(4, 16))], [[15, 3, 8], [1, 2, 9, 0], [*range(4, 8), *range(10, 15)]]):
        found = gradient(policy, reference, dealt(rollout, advantage, counted, shards, small), small)
        for a, b in zip(found, whole, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_windows_over_shards_are_disjoint_and_each_has_its_own_normaliser() -> None:
    _, _, rollout, advantage, counted = generation()
    config = replace(BASE, steps_per_generation=3)
    draw = Draw(rollout, advantage, counted, torch.ones_like(counted), torch.zeros_like(counted))
    choices = [choose([draw], config, torch.Generator().manual_seed(k)) for k in range(2)]
    windows = window_weights([choice.counts for choice in choices], config)
    assert len(windows) == 3
    for k in range(2):
        forward = torch.stack([window[k].needed for window in windows]).int()
        assert (forward.sum(0) == 1).all()
    for window in windows:
        sites = [choices[k].counts.sites * own.weight for k, own in enumerate(window)]
        assert float(sum(s.sum() for s in sites)) == pytest.approx(1.0)  # dapo: a mean over all units of the window


def test_a_window_without_a_signal_anywhere_still_has_passes() -> None:
    _, _, rollout, advantage, _ = generation()
    none = torch.zeros(16, dtype=torch.bool)
    draw = Draw(rollout, advantage, none, none, none)
    choice = choose([draw], BASE)
    (idle,) = window_weights([choice.counts, choice.counts], BASE)
    assert idle[0].needed.all()
    some = choice.counts._replace(needed=~none)
    (first, second) = window_weights([choice.counts, some], BASE)[0]
    assert not first.needed.any()
    assert second.needed.all()
