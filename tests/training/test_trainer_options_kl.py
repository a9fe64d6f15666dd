"""Options of the KL to the reference: its estimators, where it stands, and a reference that follows."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.categorical import score_sites
from discrete_grpo.training.minibatches import train_rows, windows
from discrete_grpo.training.update import loss_terms, policy_scores, trajectory_kl
from tests import trainer_parts
from tests.toys import share_of_class_two, tiny_policy
from tests.training.trainer_options_parts import FEW, SMALL, moved, reference


def test_the_kl_in_the_reward_is_summed_over_the_whole_trajectory() -> None:
    pairs: list[tuple[Any, Any]] = list(itertools.product(("exact", "k1"), ("reverse", "forward")))
    for estimator, direction in pairs:
        config = GRPOConfig(
            **SMALL, beta=0.5, kl_in="reward", kl_estimator=estimator, kl_direction=direction, timestep_fraction=0.5,
            per_device_batch_size=5, timestep_chunk=3, scale_rewards="none",
        )  # fmt: skip
        trainer = GRPOTrainer(tiny_policy().double(), share_of_class_two, config)
        moved(reference(trainer), 0.1)
        batches = trainer_parts.batches(trainer)
        rollout = batches[0].rollout
        with torch.no_grad():
            own, other = trainer.policy.sites(rollout), reference(trainer).sites(rollout)
            s, ref_logp = score_sites(own, other), score_sites(other).logp
        d = ref_logp - s.logp
        wanted = {
            ("exact", "reverse"): s.kl,
            ("exact", "forward"): s.kl_forward,
            ("k1", "reverse"): -d,
            ("k1", "forward"): d.exp() * d,
        }[estimator, direction]
        assert wanted is not None
        kl = trajectory_kl(trainer.policy, reference(trainer), rollout, batches[0].refined, config)
        torch.testing.assert_close(kl, wanted.sum((1, 2)), rtol=0, atol=1e-12)
        found = train_rows(batches, config)[0].advantage
        reward = batches[0].rewards[:, 0] - 0.5 * kl
        mean = reward.view(3, 4).mean(1).repeat_interleave(4)
        torch.testing.assert_close(found, reward - mean, rtol=0, atol=1e-12)


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("bonus", [True, False])
@pytest.mark.parametrize(
    ("direction", "estimator"), [("reverse", "k2"), ("reverse", "k3"), ("forward", "k3"), ("forward", "exact")]
)
def test_the_penalty_in_the_loss(direction: Any, estimator: Any, corrected: bool, bonus: bool) -> None:
    config = GRPOConfig(**FEW, beta=0.5, kl_estimator=estimator, kl_direction=direction, use_bias_correction_kl=corrected)
    trainer = GRPOTrainer(tiny_policy(num_steps=3).double(), share_of_class_two, config)
    chunk = windows(train_rows(trainer_parts.batches(trainer), config), config, trainer_parts.generator(trainer))[0][0]
    old = policy_scores(trainer.policy, chunk).logp.detach()
    moved(trainer.module)
    found = loss_terms(trainer.policy, chunk, reference(trainer), config, old_logp=old, bonus=bonus)
    s, ref_logp = found.scores, policy_scores(reference(trainer), chunk).logp
    d, r = ref_logp - s.logp, (s.logp - old).exp()
    wanted = {
        ("reverse", "k2"): d.square() / 2,
        ("reverse", "k3"): d.exp() - d - 1,
        ("forward", "k3"): d.exp() * d - d.exp() + 1,
        ("forward", "exact"): s.kl_forward,
    }[direction, estimator]
    assert wanted is not None
    wanted = wanted * r if corrected and estimator != "exact" else wanted
    torch.testing.assert_close(found.kl, torch.where(s.mask, wanted, 0.0), rtol=0, atol=1e-12)
    assert (found.entropy is not None) == bonus


@pytest.mark.parametrize("where", ["loss", "reward", "both"])
def test_where_the_kl_stands(where: Any) -> None:
    config = GRPOConfig(**SMALL, max_steps=1, beta=0.5, kl_in=where)
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, config)
    moved(reference(trainer), 0.1)
    plain = GRPOTrainer(tiny_policy(), share_of_class_two, replace(config, beta=0.0)).train()[0]
    line = trainer.train()[0]
    assert (line["loss"] == line["policy_loss"]) == (where == "reward")
    assert (line["advantages/abs_mean"] == plain["advantages/abs_mean"]) == (where == "loss")
    assert line["reward"] == plain["reward"]  # what is logged has no penalty in it
    assert line["kl"] > 0


@pytest.mark.parametrize("alpha", [0.25, 1.0])
def test_the_reference_follows_every_so_many_updates(alpha: float) -> None:
    config = GRPOConfig(**SMALL, max_steps=3, beta=0.1, sync_ref_model=True, ref_model_mixup_alpha=alpha, ref_model_sync_steps=2)
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, config)

    def weights() -> tuple[Tensor, Tensor]:
        name = "network.node_out.weight"
        return trainer.module.state_dict()[name].clone(), reference(trainer).state_dict()[name].clone()

    seen = [weights()]
    for _ in range(3):
        trainer.generation()
        seen.append(weights())
    first = seen[0][1]
    assert torch.equal(seen[1][1], first)
    torch.testing.assert_close(seen[2][1], alpha * seen[2][0] + (1 - alpha) * first)
    assert torch.equal(seen[3][1], seen[2][1])
    assert not torch.equal(seen[2][1], first)
