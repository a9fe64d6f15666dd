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


def worth(run: Path, step: int) -> float:
    return float(json.loads((run / f"checkpoints/step-{step:08d}/metrics.json").read_text())["reward"])


def test_the_best_checkpoint_is_kept_beside_the_newest(tmp_path: Path) -> None:
    rewards = [line["reward"] for line in trainer(tmp_path).train()]
    best = max(range(8), key=lambda k: rewards[k])  # the samples of update k + 1 are those of the policy after update k
    assert 0 < best < 7  # else the test says nothing
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
    worst = min(range(8), key=lambda k: rewards[k])
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


def test_every_checkpoint_is_judged_by_the_samples_of_its_policy(tmp_path: Path) -> None:
    changed = {"save_steps": 3, "save_total_limit": 20, "learning_rate": 0.004}
    rewards = [line["reward"] for line in trainer(tmp_path, **changed).train()]
    assert [worth(tmp_path, step) for step in (0, 3, 6)] == [rewards[0], rewards[3], rewards[6]]
    assert worth(tmp_path, 8) == rewards[7]  # nothing is drawn from the last one: the newest generation before it
    trainer(tmp_path, resume=True, max_steps=10, **changed).train()
    assert worth(tmp_path, 8) != rewards[7]


def test_the_policy_that_an_update_has_ruined_is_not_the_best(tmp_path: Path) -> None:
    def ruins(trainer: GRPOTrainer, _: Any) -> None:
        for weight in trainer.module.parameters():
            weight.data.neg_()

    def share_of_others(samples: Any, **columns: Any) -> list[float]:
        return [1 - share for share in share_of_class_two(samples)]

    config = replace(RUN, max_steps=4, save_steps=1, load_best_model_at_end=True, greater_is_better=True, learning_rate=1e-8)
    made = GRPOTrainer(transformer_policy(), share_of_others, config, run=tmp_path, on_update=ruins)
    rewards = [line["reward"] for line in made.train()]
    best = json.loads((tmp_path / "checkpoints/best.json").read_text())
    assert best["value"] == max(rewards)
    assert best["checkpoint"] == f"step-{rewards.index(max(rewards)):08d}"


def test_a_checkpoint_within_a_generation_is_judged_by_the_next_one(tmp_path: Path) -> None:
    changed = {"save_steps": 1, "save_total_limit": 20, "num_iterations": 2}
    rewards = [line["reward"] for line in trainer(tmp_path, **changed).train()]
    assert rewards[0] == rewards[1] != rewards[2]
    assert worth(tmp_path, 0) == rewards[0]
    assert worth(tmp_path, 2) == rewards[2]
    assert not (tmp_path / "checkpoints/step-00000001/metrics.json").exists()  # no sample was drawn from its policy


@pytest.mark.parametrize("limit", [1, 20])
def test_a_stop_between_two_checkpoints_changes_the_worth_of_none(tmp_path: Path, limit: int) -> None:
    changed = {"save_steps": 4, "save_total_limit": limit}
    rewards = [line["reward"] for line in trainer(tmp_path / "whole", **changed).train()]
    part = trainer(tmp_path / "part", **changed)
    part.save()
    part.update()
    part.save()
    for run in ("whole", "part"):
        trainer(tmp_path / run, resume=run == "part", **changed).train() if run == "part" else None
        known = {0: rewards[0], 4: rewards[4], 8: rewards[7]}
        there = {int(path.name[5:]) for path in Checkpoints(tmp_path / run).all()} & {*known}  # no regular one has another step
        assert {step: worth(tmp_path / run, step) for step in there} == {step: known[step] for step in there}
        assert json.loads((tmp_path / run / "checkpoints/best.json").read_text())["value"] == max(known.values())


def test_a_checkpoint_that_waits_is_not_removed(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 1, metric_for_best_model="reward")
    for step, awaited in ((1, 1), (2, 1), (3, 1)):
        store.save(step, transformer_policy(), metadata={}, training={}, awaited=awaited)
    assert [path.name for path in store.all()] == ["step-00000001", "step-00000003"]
    store.judge(1, {"reward": 0.5})
    store.judge(9, {"reward": 0.9})  # which is not there
    store.judge(3, {"reward": None})
    assert store.best() == store.folder / "step-00000001"
    assert json.loads((store.folder / "best.json").read_text())["value"] == 0.5
    store.save(3, transformer_policy(), metadata={}, training={})
    store.save(1, transformer_policy(), metadata={}, training={})
    assert store.best() == store.folder / "step-00000001"
