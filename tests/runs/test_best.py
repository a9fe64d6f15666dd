"""The best checkpoint of a run: kept however old, found again after a resume, and what the run ends with if asked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from discrete_grpo.runs.checkpoint import Checkpoints, read_policy
from discrete_grpo.training.config import GRPOConfig, PretrainConfig
from discrete_grpo.training.trainer import GRPOTrainer
from tests.toys import share_of_class_two, transformer_policy

RUN = GRPOConfig(
    max_steps=8, num_generations=4, generation_batch_size=8, learning_rate=0.02, save_steps=1, save_total_limit=1, seed=2,
    metric_for_best_model="reward",
)  # fmt: skip


def trainer(run: Path, **changed: Any) -> GRPOTrainer:
    resume = changed.pop("resume", False)
    return GRPOTrainer(transformer_policy(), share_of_class_two, replace(RUN, **changed), run=run, resume=resume)


def test_the_best_checkpoint_is_kept_beside_the_newest(tmp_path: Path) -> None:
    rewards = [line["reward"] for line in trainer(tmp_path).train()]
    best = 1 + max(range(8), key=lambda k: rewards[k])
    assert best < 8  # else the test says nothing
    found = Checkpoints(tmp_path, 1, metric_for_best_model="reward")
    assert found.best() == tmp_path / f"checkpoints/step-{best:08d}"
    assert [path.name for path in found.all()] == [f"step-{k:08d}" for k in (best, 8)]
    assert json.loads((tmp_path / "checkpoints/best.json").read_text())


def test_the_best_is_found_again_after_a_resume(tmp_path: Path) -> None:
    trainer(tmp_path / "whole").train()
    trainer(tmp_path / "part", max_steps=4).train()
    trainer(tmp_path / "part", resume=True).train()
    assert (tmp_path / "whole/checkpoints/best.json").read_text() == (tmp_path / "part/checkpoints/best.json").read_text()


def test_a_run_can_end_with_its_best_policy(tmp_path: Path) -> None:
    made = trainer(tmp_path, load_best_model_at_end=True, greater_is_better=False)
    rewards = [line["reward"] for line in made.train()]
    worst = 1 + min(range(8), key=lambda k: rewards[k])
    kept: nn.Module = read_policy(tmp_path / f"checkpoints/step-{worst:08d}")
    assert worst < 8
    assert all(torch.equal(a, b) for a, b in zip(made.best_policy.parameters(), kept.parameters(), strict=True))


def test_a_metric_that_is_not_logged_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"metric_for_best_model: 'rewrad'.*reward"):
        trainer(tmp_path, metric_for_best_model="rewrad").train()


@pytest.mark.parametrize("config", [GRPOConfig, PretrainConfig])
def test_settings_of_the_best_without_a_metric_are_one_line(config: Any) -> None:
    with pytest.raises(ValueError, match="load_best_model_at_end: True, expected metric_for_best_model"):
        config(load_best_model_at_end=True)
    with pytest.raises(ValueError, match="load_best_model_at_end: True, expected a run folder"):
        GRPOTrainer(transformer_policy(), share_of_class_two, replace(RUN, load_best_model_at_end=True))


def test_a_stop_between_two_checkpoints_changes_the_worth_of_none(tmp_path: Path) -> None:
    changed = {"save_steps": 4, "save_total_limit": 20}
    rewards = [line["reward"] for line in trainer(tmp_path / "whole", **changed).train()]
    part = trainer(tmp_path / "part", **changed)
    for _ in range(2):
        part.update()
    part.save()
    trainer(tmp_path / "part", resume=True, **changed).train()
    for step in (4, 8):
        for run in ("whole", "part"):
            found = json.loads((tmp_path / f"{run}/checkpoints/step-{step:08d}/config.json").read_text())["metrics"]
            assert found["reward"] == pytest.approx(sum(rewards[step - 4 : step]) / 4)
