"""Groups without a signal: kept, masked, or drawn again."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.training.minibatches import Batch, TrainRows, groups_missing, groups_of, train_rows, windows
from tests import trainer_parts
from tests.toys import tiny_policy, transformer_policy
from tests.training.trainer_options_parts import SMALL, moved, two_values


def test_masked_groups_are_as_good_as_absent() -> None:
    found = {}
    for how in ("keep", "mask"):
        config = GRPOConfig(**SMALL | {"generation_batch_size": 40}, zero_std_groups=how, beta=0.2, entropy_coef=0.1)
        trainer = GRPOTrainer(transformer_policy().double(), two_values, config)
        batch = trainer.sampler.batch(trainer.sampler.shards[0], 10)
        dull = batch.rewards.view(10, 4).std(1) == 0
        assert 0 < int(dull.sum()) < 10
        rows = (~dull).repeat_interleave(4).nonzero()[:, 0]
        alone = Batch(batch.rollout.index(rows), batch.rewards[rows], batch.refined[rows], [None] * len(rows))
        for name, batches in ((how, [batch]), ("absent", [alone])):
            chunks = windows(train_rows(batches, config), config, trainer_parts.generator(trainer))[0]
            kept = copy.deepcopy(trainer.module.state_dict())
            moved(trainer.module, 0.01)
            trainer.learner.update(trainer.step, chunks, [None] * len(chunks))
            found[name] = torch.cat([p.grad.flatten() for p in trainer.module.parameters() if p.grad is not None])
            trainer.module.load_state_dict(kept)
    torch.testing.assert_close(found["mask"], found["absent"], rtol=0, atol=1e-12)
    assert (found["keep"] - found["mask"]).abs().max() > 1e-4


def test_resampling_fills_the_generation_with_groups_that_have_a_signal() -> None:
    config = GRPOConfig(**SMALL | {"generation_batch_size": 24}, zero_std_groups="resample", max_resampling_rounds=50)
    trainer = GRPOTrainer(transformer_policy(), two_values, config)
    batches = trainer_parts.batches(trainer)
    assert len(batches) > 1
    for k in range(1, len(batches)):  # no more groups than are missing
        assert len(batches[k].rollout) == 4 * groups_missing(batches[:k], config.num_groups, config)
    assert groups_missing(batches, config.num_groups, config) == 0
    group = groups_of(batches)
    assert torch.equal(group.bincount(), torch.full((int(group.max()) + 1,), 4))
    draws: list[TrainRows] = train_rows(batches, config)
    assert sum(int(d.counted.sum()) for d in draws) == 24
    chunks = windows(draws, config, trainer_parts.generator(trainer))[0]
    rows = torch.cat([c.rows for c in chunks])
    assert len(rows.unique()) == 24  # no forward pass for the others
    advantage = torch.cat([d.advantage for d in draws])
    for g in group[rows].unique():
        own = advantage[group == g]
        assert own.abs().max() > 0
        assert float(own.sum()) == pytest.approx(0.0, abs=1e-12)


def test_resampling_is_bounded_and_an_update_without_any_signal_changes_nothing(tmp_path: Path) -> None:
    calls = []

    def nothing(samples: Sequence[Any], **columns: Any) -> list[float]:
        calls.append(len(samples))
        return [0.5] * len(samples)

    config = GRPOConfig(**SMALL, max_steps=1, zero_std_groups="resample", max_resampling_rounds=2, beta=0.1)
    trainer = GRPOTrainer(tiny_policy(), nothing, config, run=tmp_path)
    before = copy.deepcopy(trainer.module.state_dict())
    line = trainer.train()[0]
    assert calls == [12, 12, 12]
    assert line["resampling_rounds"] == 2
    assert line["loss"] == 0.0
    assert line["frac_reward_zero_std"] == 1.0
    assert line["entropy"] > 0
    assert all(torch.equal(a, b) for a, b in zip(before.values(), trainer.module.state_dict().values(), strict=True))
    lines = (tmp_path / "samples.csv.gz").stat().st_size
    assert lines > 0


def test_a_budget_that_ends_while_groups_are_drawn_again_trains_on_what_was_scored() -> None:
    def equal(samples: Sequence[Any], **columns: Any) -> list[float]:
        return [0.5] * len(samples)

    config = GRPOConfig(**SMALL, zero_std_groups="resample", max_resampling_rounds=3, max_steps=2)
    policy = tiny_policy(sizes=(0.0, 0.0, 0.0, 0.0, 1.0))
    ledger = Ledger(key=str, max_oracle_calls=6)
    lines = GRPOTrainer(policy, equal, config, ledger=ledger).train()
    assert ledger.calls == 6
    assert [line["oracle/calls"] for line in lines] == [6.0]
    assert lines[0]["resampling_rounds"] == 0.0
