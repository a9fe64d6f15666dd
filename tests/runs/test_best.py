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
    best = max(range(1, 8), key=lambda k: rewards[k])  # the samples of update k + 1 are those of the policy after update k
    assert best < 7  # else the test says nothing
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
    worst = min(range(1, 8), key=lambda k: rewards[k])
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


def worths(run: Path) -> dict[int, float]:
    return {int(path.parent.name[5:]): worth(run, int(path.parent.name[5:])) for path in run.glob("checkpoints/*/metrics.json")}


def test_every_checkpoint_is_judged_by_the_samples_of_its_policy(tmp_path: Path) -> None:
    changed = {"save_steps": 3, "save_total_limit": 20, "learning_rate": 0.004}
    rewards = [line["reward"] for line in trainer(tmp_path, **changed).train()]
    # not the policy before training; and nothing is drawn from the last one, which has the newest generation before it
    assert worths(tmp_path) == {3: rewards[3], 6: rewards[6], 8: rewards[7]}
    more = trainer(tmp_path, resume=True, max_steps=10, **changed).train()
    assert worths(tmp_path) == {3: rewards[3], 6: rewards[6], 8: more[0]["reward"], 9: more[1]["reward"], 10: more[1]["reward"]}
    assert more[0]["reward"] != rewards[7]


def test_the_policy_that_an_update_has_ruined_is_not_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn = GRPOTrainer._learn

    def ruins(self: GRPOTrainer, queue: Any) -> dict[str, float]:
        line = learn(self, queue)
        if self.step == 3:
            for weight in self.module.parameters():
                weight.data.neg_()
        return line

    monkeypatch.setattr(GRPOTrainer, "_learn", ruins)
    made = trainer(tmp_path, max_steps=4, save_total_limit=20, load_best_model_at_end=True, learning_rate=0.004)
    rewards = [line["reward"] for line in made.train()]
    assert rewards[3] < min(rewards[:3])  # else the test says nothing
    best = 1 + max((0, 1), key=lambda k: rewards[k + 1])
    assert json.loads((tmp_path / "checkpoints/best.json").read_text())["checkpoint"] == f"step-{best:08d}"
    kept: nn.Module = read_policy(tmp_path / f"checkpoints/step-{best:08d}")
    assert all(torch.equal(a, b) for a, b in zip(made.best_policy.parameters(), kept.parameters(), strict=True))


def test_a_checkpoint_within_a_generation_is_not_compared(tmp_path: Path) -> None:
    changed = {"save_steps": 3, "save_total_limit": 20, "num_iterations": 2, "max_steps": 9, "learning_rate": 0.004}
    rewards = [line["reward"] for line in trainer(tmp_path, **changed).train()]
    assert rewards[2] == rewards[3] != rewards[4]
    assert worths(tmp_path) == {6: rewards[6], 9: rewards[8]}


@pytest.mark.parametrize("stopped", [1, 4, 5])
@pytest.mark.parametrize("limit", [1, 20])
def test_a_stop_at_any_update_changes_the_worth_of_none(tmp_path: Path, limit: int, stopped: int) -> None:
    changed = {"save_steps": 4, "save_total_limit": limit, "learning_rate": 0.004}
    rewards = [line["reward"] for line in trainer(tmp_path / "whole", **changed).train()]
    part = trainer(tmp_path / "part", **changed)
    part.save()
    for _ in range(stopped):
        part.update()
        if part.step == 4:
            part.save()
    part.save()
    trainer(tmp_path / "part", resume=True, **changed).train()
    known = {4: rewards[4], 8: rewards[7]}
    best = max(known, key=lambda step: known[step])
    for run in ("whole", "part"):
        assert worths(tmp_path / run) == {step: known[step] for step in known if limit > 1 or step in (best, 8)}
        assert json.loads((tmp_path / run / "checkpoints/best.json").read_text())["value"] == known[best]


def test_an_ended_run_that_is_taken_up_keeps_the_worth_of_its_end(tmp_path: Path) -> None:
    changed = {"save_steps": 4, "max_steps": 4, "learning_rate": 0.004}
    rewards = [line["reward"] for line in trainer(tmp_path, **changed).train()]
    (tmp_path / "checkpoints/step-00000004/metrics.json").unlink()
    trainer(tmp_path, resume=True, **changed).train()
    assert worths(tmp_path) == {4: rewards[3]}


def test_checkpoints_of_earlier_versions_are_judged_anew(tmp_path: Path) -> None:
    changed = {"save_steps": 2, "save_total_limit": 20, "learning_rate": 0.004}
    trainer(tmp_path, max_steps=2, **changed).train()
    folder = tmp_path / "checkpoints/step-00000002"
    state = torch.load(folder / "training.pt", weights_only=True)
    del state["best"], state["config"]
    torch.save(state, folder / "training.pt")
    (folder / "SHA256SUMS").unlink()
    (folder / "metrics.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"metrics": {"reward": 9.0}}))
    rewards = [line["reward"] for line in trainer(tmp_path, resume=True, max_steps=4, **changed).train()]
    assert worths(tmp_path) == {2: rewards[0], 4: rewards[1]}
    assert json.loads((tmp_path / "checkpoints/best.json").read_text())["value"] == max(rewards)


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
