"""What a run says on the terminal: how far it has come, in calls or updates, and at its end why it learned nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.core.sample_metrics import SampleMetrics
from discrete_grpo.core.scoring import RewardError
from discrete_grpo.rewards.cache import ScoreCache
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.runs.recorder import read_metrics
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.trainer import GRPOTrainer
from tests.toys import share_of_class_two, tiny_policy

CONFIG = GRPOConfig(max_steps=4, num_generations=4, generation_batch_size=8, save_steps=2, learning_rate=1e-3)


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_the_bar_counts_updates_and_a_resumed_run_counts_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    GRPOTrainer(tiny_policy(), share_of_class_two, replace(CONFIG, max_steps=2), run=tmp_path).train()
    assert shown(capsys)[-1].startswith("training 2/2  ")
    resumed = GRPOTrainer(tiny_policy(), share_of_class_two, CONFIG, run=tmp_path, resume=True)
    resumed.update()
    capsys.readouterr()
    resumed.train()
    assert shown(capsys)[-1].startswith("training 4/4  ")


def budgeted(folder: Path, calls: int, *, resume: bool = False, **changed: Any) -> GRPOTrainer:
    folder.mkdir(exist_ok=True)
    ledger = Ledger(folder / "ledger.sqlite", max_oracle_calls=calls, cache=ScoreCache())
    return GRPOTrainer(tiny_policy(), share_of_class_two, replace(CONFIG, **changed), run=folder, resume=resume, ledger=ledger)


def test_with_a_budget_the_bar_counts_calls_and_a_resumed_run_counts_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    budgeted(tmp_path, 30, max_steps=2).train()
    calls = int(read_metrics(tmp_path)[-1]["oracle/calls"] or 0)
    assert 0 < calls < 30
    assert shown(capsys)[-1].startswith(f"oracle calls {calls}/30  ")
    resumed = budgeted(tmp_path, 30, resume=True, max_steps=500)
    resumed.train()
    assert resumed.step < 500
    last = shown(capsys)[-1]
    assert last.startswith("oracle calls 30/30  ")
    assert f"update {resumed.step}/500" in last


def equal(samples: Sequence[Any], **columns: Any) -> list[float]:
    return [0.5] * len(samples)


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_run_without_a_signal_says_so_at_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str], on_disk: bool) -> None:
    run = tmp_path if on_disk else None
    GRPOTrainer(tiny_policy(), equal, CONFIG, run=run).train()
    *_, said, tip = shown(capsys)
    assert said.startswith("No group of this run had a signal: in all of its 4 updates")
    assert tip.startswith("Try: ")


def test_a_run_without_a_valid_sample_says_so_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    GRPOTrainer(tiny_policy(), equal, CONFIG, sample_metrics=lambda samples: {"valid": 0.0}).train()
    assert "Every sample of this run was invalid" in shown(capsys)[-2]


def test_a_run_with_a_signal_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    GRPOTrainer(tiny_policy(), share_of_class_two, CONFIG).train()
    assert shown(capsys)[-1].startswith("training 4/4")


def test_a_budget_that_comes_with_a_resume_has_a_bar_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first updates then finish a generation whose calls nobody counted."""
    config = replace(CONFIG, num_iterations=2, save_steps=1)
    GRPOTrainer(tiny_policy(), share_of_class_two, replace(config, max_steps=1), run=tmp_path).train()
    resumed = budgeted(tmp_path, 1000, resume=True, num_iterations=2, save_steps=1)
    assert len(resumed.train()) == 3


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (3, "sample_metrics: returned 3, expected a mapping of names to numbers"),
        ({"length": "3"}, "sample_metrics: 'length' is '3', expected a number"),
        ({"length": [3.0]}, "sample_metrics: 'length' is [3.0], expected a number"),
        ({"reward": 99.0}, "sample_metrics: 'reward' is a metric of the trainer, expected another name"),
    ],
)
def test_metrics_of_samples_are_numbers_under_names_of_their_own(found: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        GRPOTrainer(tiny_policy(), equal, CONFIG, sample_metrics=lambda samples: found).train()


@pytest.mark.parametrize("name", ["entropy", "policy_loss", "clip_ratio/low_mean", "step_time"])
def test_no_metric_of_samples_has_the_name_of_one_of_an_update(name: str) -> None:
    """It would be overwritten."""
    said = f"sample_metrics: '{name}' is a metric of the trainer, expected another name"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        GRPOTrainer(tiny_policy(), share_of_class_two, CONFIG, sample_metrics=lambda samples: {name: -1.0}).train()


def test_an_advantage_beyond_float32_is_told_before_an_update() -> None:
    def huge(samples: Sequence[Any], **columns: Any) -> list[float]:
        return [1e39 * k for k in range(len(samples))]

    config = replace(CONFIG, scale_rewards="none")
    said = r"^advantage: -?\S+e\+\d+, expected a number of float32; give smaller rewards, or scale_rewards 'group'$"
    with pytest.raises(ValueError, match=said):
        GRPOTrainer(tiny_policy(), huge, config).train()


def third_fails(count: list[int]) -> Any:
    count[0] += 1
    if count[0] == 3:
        raise KeyError("x")
    return {"m": 1.0}


@pytest.mark.parametrize("kind", ["plain", "describe", "summarise", "none"])
def test_sample_metrics_that_fail_lose_no_update(kind: str, tmp_path: Path) -> None:
    count = [0]

    def failing(*arguments: Any) -> Any:
        found = third_fails(count) if kind != "none" or count[0] < 2 else {"m": None}
        return [0] * len(arguments[0]) if kind == "describe" else found

    metrics: Any = {
        "plain": failing,
        "none": failing,
        "describe": SampleMetrics(failing, lambda samples, described: {"m": 1.0}),
        "summarise": SampleMetrics(lambda samples: [0] * len(samples), failing),
    }[kind]
    run = GRPOTrainer(tiny_policy(), share_of_class_two, replace(CONFIG, max_steps=4), run=tmp_path, sample_metrics=metrics)
    with pytest.raises(RewardError, match=r"^sample_metrics: "):
        run.train()
    assert run.step == 2
    assert run.checkpoints is not None
    assert run.checkpoints.all()[-1].name == "step-00000002"


def test_a_tracker_gets_samples_every_save_steps_updates() -> None:
    class Steps:
        def __init__(self) -> None:
            self.steps: list[int] = []

        def start(self, step: int) -> None: ...
        def log(self, step: int, metrics: Any) -> None: ...
        def close(self) -> None: ...

        def log_samples(self, step: int, samples: Sequence[str], captions: Sequence[str]) -> None:
            self.steps.append(step)

    tracker = Steps()
    GRPOTrainer(tiny_policy(), share_of_class_two, replace(CONFIG, max_steps=6), tracker=tracker).train()
    assert tracker.steps == [1, 3, 5]
