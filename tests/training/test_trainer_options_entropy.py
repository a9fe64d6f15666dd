"""Options of a run that go by entropy or drift: the quantile of sites, rows that have drifted, the bonus and its controller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.categorical import Scores, score_sites
from discrete_grpo.training.minibatches import MicroBatch, train_rows, windows
from discrete_grpo.training.update import plan_update
from tests import trainer_parts
from tests.toys import share_of_class_two, tiny_policy, transformer_policy
from tests.training.trainer_options_parts import SMALL, moved


def scored(chunk: MicroBatch, policy: Any) -> Scores:
    return score_sites(policy.sites(chunk.rollout, chunk.steps))


def test_the_quantile_is_that_of_all_sites_of_the_update() -> None:
    config = GRPOConfig(**SMALL, top_entropy_quantile=0.3, per_device_batch_size=2, timestep_chunk=1)
    trainer = GRPOTrainer(tiny_policy().double(), share_of_class_two, config)
    chunks = windows(train_rows(trainer_parts.batches(trainer), config), config, trainer_parts.generator(trainer))[0]
    plan = plan_update(trainer.policy, chunks, [None] * len(chunks), config)
    scores = [scored(c, trainer.policy) for c in chunks]
    every = torch.cat([s.entropy[s.mask] for s in scores])
    assert plan.threshold is not None
    assert float(plan.threshold) == pytest.approx(float(torch.quantile(every, 0.7)), abs=1e-12)
    assert plan.mean_entropy == pytest.approx(float(every.mean()), abs=1e-12)
    keep: Any = plan.keep
    kept = sum(int(keep(s, c, config).sum()) for s, c in zip(scores, chunks, strict=True))
    assert kept == int((every >= plan.threshold - 1e-5).sum()) < 0.6 * len(every)


def test_the_drift_of_a_row_is_its_mean_over_all_its_sites() -> None:
    config = GRPOConfig(**SMALL, off_policy_mask_threshold=0.0, per_device_batch_size=5, timestep_chunk=3)
    trainer = GRPOTrainer(tiny_policy().double(), share_of_class_two, config)
    draws = train_rows(trainer_parts.batches(trainer), config)
    chunks = windows(draws, config, trainer_parts.generator(trainer))[0]
    assert plan_update(trainer.policy, chunks, [None] * len(chunks), config).drift is None  # on-policy nothing has drifted
    old = trainer.learner.old_log_probs(chunks)
    moved(trainer.module, 0.06)
    plan = plan_update(trainer.policy, chunks, old, config)
    assert plan.drift is not None
    sums, counts = torch.zeros(12).double(), torch.zeros(12)
    for chunk, before in zip(chunks, old, strict=True):
        with torch.no_grad():
            s = scored(chunk, trainer.policy)
        for b, row in enumerate(chunk.rows.tolist()):
            sums[row] += float((before - s.logp)[b][s.mask[b]].sum())  # type: ignore[operator]
            counts[row] += int(s.mask[b].sum())
    torch.testing.assert_close(plan.drift, sums / counts, rtol=0, atol=1e-12)
    keep: Any = plan.keep
    dropped = {int(r) for chunk in chunks for r in chunk.rows[~keep(scored(chunk, trainer.policy), chunk, config).flatten()]}
    assert dropped == {r for r in range(12) if draws[0].advantage[r] < 0 and sums[r] > 0}
    assert dropped


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_the_bonus_is_the_mean_entropy_whatever_the_weights_of_the_loss(loss_type: Any) -> None:
    config = GRPOConfig(**SMALL, max_steps=1, loss_type=loss_type, entropy_coef=0.3, per_device_batch_size=5, timestep_chunk=3)
    line = GRPOTrainer(tiny_policy().double(), share_of_class_two, config).train()[0]
    assert line["loss"] - line["policy_loss"] == pytest.approx(-0.3 * line["entropy"], abs=1e-12)


@pytest.mark.slow
def test_a_bonus_raises_the_entropy_and_the_controller_moves_its_weight() -> None:
    last = {}
    for coef in (0.0, 0.5):
        config = GRPOConfig(**SMALL | {"generation_batch_size": 32}, max_steps=12, entropy_coef=coef)
        last[coef] = GRPOTrainer(transformer_policy(), share_of_class_two, config).train()[-1]
    assert last[0.5]["entropy"] > last[0.0]["entropy"] + 0.05
    assert last[0.5]["entropy_coef"] == 0.5
    assert "entropy_coef" not in last[0.0]
    adaptive: dict[str, Any] = {"use_adaptive_entropy": True, "entropy_coef_delta": 0.1, "entropy_coef_max": 0.25}
    up = GRPOTrainer(transformer_policy(), share_of_class_two, GRPOConfig(**SMALL, max_steps=4, entropy_target=9.0, **adaptive))
    assert [line["entropy_coef"] for line in up.train()] == pytest.approx([0.0, 0.1, 0.2, 0.25])
    down = GRPOConfig(**SMALL, max_steps=2, entropy_target=0.0, entropy_coef=0.2, **adaptive)
    trainer = GRPOTrainer(transformer_policy(), share_of_class_two, down)
    assert [line["entropy_coef"] for line in trainer.train()] == [0.0, 0.0]  # above the target nothing is added
    assert trainer.controller is not None
    assert trainer.controller.coef == pytest.approx(0.0)


def test_an_update_without_a_known_reward_leaves_the_weight_of_the_bonus() -> None:
    def unknown(samples: Sequence[Any], **columns: Any) -> list[None]:
        return [None] * len(samples)

    config = GRPOConfig(**SMALL, max_steps=2, use_adaptive_entropy=True, entropy_coef=0.1, entropy_target=1e-3)
    trainer = GRPOTrainer(tiny_policy(), unknown, config)
    trainer.train()
    assert trainer.controller is not None
    assert trainer.controller.coef == 0.1
