"""One gradient for every loss and option however an update is split, and windows that cover the generation."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.training.minibatches import train_rows, windows
from tests import trainer_parts
from tests.toys import share_of_class_two, tiny_policy
from tests.training.trainer_options_parts import FEW, SMALL, moved, reference


def gradients(config: GRPOConfig) -> list[Tensor]:
    """The gradient of each window of a generation in float64, of a policy that has moved since it sampled."""
    policy = tiny_policy(num_steps=3).double()
    trainer = GRPOTrainer(policy, share_of_class_two, config)
    if trainer.reference is not None:
        moved(reference(trainer), 0.05)
    batches = trainer_parts.batches(trainer)
    parts = windows(train_rows(batches, config), config, trainer_parts.generator(trainer))
    old = [trainer.learner.old_log_probs(chunks) for chunks in parts]
    moved(policy, 0.06)
    found, kept = [], copy.deepcopy(policy.state_dict())
    for chunks, before in zip(parts, old, strict=True):
        policy.load_state_dict(kept)
        trainer.learner.update(trainer.step, chunks, before)
        found.append(torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]))
    return found


def assert_splits_agree(options: dict[str, Any], rows: int, steps: int | None) -> list[Tensor]:
    whole = gradients(GRPOConfig(**FEW | options))
    part = gradients(GRPOConfig(**FEW | options, per_device_batch_size=rows, timestep_chunk=steps))
    assert len(part) == len(whole)
    for a, b in zip(part, whole, strict=True):
        assert b.abs().max() > 1e-6
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    return whole


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "cispo", "sapo"])
@pytest.mark.parametrize("level", ["token", "step", "step_mean", "sequence"])
def test_one_gradient_for_every_loss_level_and_split(loss_type: str, level: str) -> None:
    """Rows and timesteps; each of the two updates of a generation is normalised by its own disjoint part."""
    options = {"loss_type": loss_type, "importance_sampling_level": level, "steps_per_generation": 2, "beta": 0.1}
    assert_splits_agree(options | {"epsilon_high": 1.5}, 2, None if level == "sequence" else 2)


OPTIONS: dict[str, dict[str, Any]] = {
    "entropy": {"entropy_coef": 0.3},
    "adaptive entropy": {"entropy_coef": 0.3, "use_adaptive_entropy": True, "entropy_target": 5.0},
    "top entropy": {"top_entropy_quantile": 0.4},
    "off policy": {"off_policy_mask_threshold": 0.0},
    "k3": {"beta": 0.3, "kl_estimator": "k3"},
    "plain k3": {"beta": 0.3, "kl_estimator": "k3", "use_bias_correction_kl": False},
    "forward": {"beta": 0.3, "kl_direction": "forward"},
    "forward k1": {"beta": 0.3, "kl_direction": "forward", "kl_estimator": "k1"},
    "reward k1": {"beta": 0.3, "kl_in": "reward", "kl_estimator": "k1"},
    "both": {"beta": 0.3, "kl_in": "both", "scale_rewards": "none"},
    "forward, entropy": {"beta": 0.3, "kl_direction": "forward", "entropy_coef": 0.2, "kl_estimator": "k3"},
    "first": {"timestep_selection": "first", "timestep_fraction": 0.5},
    "last": {"timestep_selection": "last", "timestep_fraction": 0.5},
    "window": {"timestep_selection": "window", "timestep_fraction": 0.5},
    "delta": {"delta": 1.01, "epsilon": 0.001},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_one_gradient_for_every_option(option: str) -> None:
    found = assert_splits_agree(OPTIONS[option], 4, 2)
    plain = {k: v for k, v in OPTIONS[option].items() if k in ("beta", "scale_rewards", "epsilon")}
    without = gradients(GRPOConfig(**FEW | plain))
    assert (found[0] - without[0]).abs().max() > 1e-8, "the option changes nothing"


def test_windows_are_disjoint_and_cover_the_generation() -> None:
    config = GRPOConfig(**SMALL, steps_per_generation=5, per_device_batch_size=2)
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, config)
    draws = train_rows(trainer_parts.batches(trainer), config)
    parts = windows(draws, config, trainer_parts.generator(trainer))
    rows = [sorted({int(r) for chunk in part for r in chunk.rows}) for part in parts]
    assert [len(r) for r in rows] == [3, 3, 2, 2, 2]
    assert sorted(r for part in rows for r in part) == list(range(12))
    for part in parts:
        sites = sum(float((c.weight * c.rollout.units.gather(1, c.steps).sum(-1)).sum()) for c in part)
        assert sites == pytest.approx(1.0)  # dapo: the weights of a window's sites sum to 1
        for c in part:
            assert torch.equal(c.rollout.units, draws[0].rollout.units[c.rows])
            assert torch.equal(c.advantage, draws[0].advantage[c.rows])


def test_every_window_makes_an_update_and_iterations_repeat_them() -> None:
    calls = []

    def reward(samples: Sequence[Any], **columns: Any) -> list[float]:
        calls.append(len(samples))
        return share_of_class_two(samples)

    config = GRPOConfig(**SMALL, max_steps=7, steps_per_generation=3, num_iterations=2, epsilon=0.01)
    lines = GRPOTrainer(tiny_policy(), reward, config).train()
    assert len(lines) == 7
    assert calls == [12, 12]
    regions = [line["clip_ratio/region_mean"] for line in lines]
    assert regions[0] == regions[6] == 0.0  # only the first update of a generation is on-policy
    assert min(regions[1:6]) > 0
    once = GRPOTrainer(tiny_policy(), share_of_class_two, replace(config, num_iterations=1, max_steps=4)).train()
    assert [line["clip_ratio/region_mean"] > 0 for line in once] == [False, True, True, False]
