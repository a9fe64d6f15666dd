"""A function that is called after every update: what it sees, how it ends a run, what a resume does, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import discrete_grpo
from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.interrupt import Interrupted
from discrete_grpo.core.scoring import RewardError
from discrete_grpo.runs.checkpoint import Checkpoints
from discrete_grpo.runs.recorder import read_metrics
from tests.toys import share_of_class_two, tiny_policy

SMALL: dict[str, Any] = {"num_generations": 4, "generation_batch_size": 12, "learning_rate": 1e-2, "max_steps": 4, "save_steps": 3}


def trainer_of(run: Path | None = None, **more: Any) -> GRPOTrainer:
    settings = {name: more.pop(name) for name in list(more) if name in GRPOConfig.__dataclass_fields__}
    return GRPOTrainer(tiny_policy(), share_of_class_two, GRPOConfig(**SMALL | settings), run=run, **more)


def weights(trainer: GRPOTrainer) -> list[list[float]]:
    return [p.detach().flatten().tolist() for p in trainer.module.parameters()]


def test_it_sees_every_update_after_its_checkpoint_and_changes_no_bits(tmp_path: Path) -> None:
    seen: list[tuple[int, float, list[str]]] = []

    def note(trainer: GRPOTrainer, metrics: Mapping[str, float]) -> None:
        seen.append((trainer.step, metrics["reward"], [path.name for path in Checkpoints(tmp_path).all()]))
        assert isinstance(metrics, dict)
        metrics.clear()  # of a copy

    watched, plain = trainer_of(tmp_path, on_update=note), trainer_of()
    lines = watched.train()
    assert [(step, reward) for step, reward, _ in seen] == [(k + 1, line["reward"]) for k, line in enumerate(lines)]
    begin = "step-00000000"
    assert [names for *_, names in seen] == [[begin], [begin], [begin, "step-00000003"], ["step-00000003", "step-00000004"]]
    plain.train()
    assert weights(watched) == weights(plain)


def test_true_ends_the_run_after_a_checkpoint_and_a_resume_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    first = trainer_of(tmp_path, on_update=lambda trainer, metrics: trainer.step == 2, num_iterations=3)
    assert len(first.train()) == 2, "between two updates of a generation"
    assert Checkpoints(tmp_path).latest().name == "step-00000002"
    second = trainer_of(tmp_path, on_update=lambda trainer, metrics: False, resume=True, num_iterations=3)
    second.train()
    whole = trainer_of(num_iterations=3)
    whole.train()
    assert weights(second) == weights(whole)
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3, 4]


def test_its_errors_leave_a_checkpoint_of_the_last_update(tmp_path: Path) -> None:
    def fails(trainer: GRPOTrainer, metrics: Mapping[str, float]) -> None:
        if trainer.step == 2:
            raise KeyError("my own")

    with pytest.raises(KeyError, match="my own"):
        trainer_of(tmp_path, on_update=fails).train()
    assert Checkpoints(tmp_path).latest().name == "step-00000002"


def test_a_run_that_it_starts_and_that_is_stopped_leaves_a_checkpoint_too(tmp_path: Path) -> None:
    def stopped(trainer: GRPOTrainer, metrics: Mapping[str, float]) -> None:
        raise Interrupted("stopped at update 1 of 9")

    with pytest.raises(Interrupted, match="update 1 of 9"):
        trainer_of(tmp_path, on_update=stopped).train()
    assert Checkpoints(tmp_path).latest().name == "step-00000001"


def test_the_checkpoint_that_it_ends_with_counts_among_the_best(tmp_path: Path) -> None:
    options: dict[str, Any] = {"metric_for_best_model": "reward", "save_steps": 4}
    trainer = trainer_of(tmp_path, on_update=lambda trainer, metrics: trainer.step == 3, **options)
    trainer.train()
    assert trainer.checkpoints is not None
    best = trainer.checkpoints.best()
    assert best is not None
    assert best.name == "step-00000003"
    assert trainer.ended
    trainer.train()  # goes on
    assert (trainer.step, trainer.ended) == (4, False)


@pytest.mark.parametrize("true", [np.mean([0.5, 1.0]) > 0.7, torch.tensor([1.0]).mean() > 0.7])
def test_truths_of_numpy_and_torch_are_answers(true: Any) -> None:
    assert len(trainer_of(on_update=lambda trainer, metrics: true).train()) == 1


def test_other_answers_and_other_things_are_refused() -> None:
    answer: Any = 0.5
    wanted = "on_update: returned 0.5, expected True (the run ends here), False or None"
    with pytest.raises(ValueError, match=re.escape(wanted)):
        trainer_of(on_update=lambda trainer, metrics: answer).train()
    nothing: Any = "stop"
    with pytest.raises(ValueError, match=r"on_update: 'stop', expected a function of \(trainer, metrics\)"):
        trainer_of(on_update=nothing)
    short: Any = lambda: None  # noqa: E731
    with pytest.raises(
        ValueError, match=r"on_update: <lambda>\(\) \(too many positional arguments\), expected a function of \(trainer, metrics\)"
    ):
        trainer_of(on_update=short)


def test_train_measures_and_exports_what_it_ended_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def enough(trainer: GRPOTrainer, metrics: Mapping[str, float]) -> bool:
        return trainer.step == 1

    grpo = GRPOConfig(**SMALL | {"generation_batch_size": 4, "max_steps": 3})
    options: dict[str, Any] = {"output_dir": tmp_path / "run", "grpo": grpo, "num_steps": 2, "evaluation_samples": 4}
    table = discrete_grpo.train("qm9-small", share_of_atoms, **options, on_update=enough)
    assert set(table) == {"before", "after"}
    assert len(read_metrics(tmp_path / "run")) == 1
    assert (tmp_path / "run/policy/model.safetensors").exists()
    capsys.readouterr()
    discrete_grpo.train("qm9-small", share_of_atoms, **options, resume=True)
    assert len(read_metrics(tmp_path / "run")) == 3, "a resumed run goes on"
    assert "on_update: was" in capsys.readouterr().err


def share_of_atoms(samples: list[str | None], **columns: Any) -> list[float]:
    return [len(sample or "") / 20 for sample in samples]


def test_metrics_of_samples_that_raise_are_named_and_the_run_is_saved(tmp_path: Path) -> None:
    calls: list[int] = []

    def shares(samples: Any) -> dict[str, float]:
        calls.append(len(samples))
        return {"share": {1: 0.5, 2: 0.5}[len(calls)]}

    trainer = trainer_of(tmp_path, sample_metrics=shares)
    with pytest.raises(RewardError, match=r"^sample_metrics: raised KeyError: 3 \(test_on_update\.py, line \d+\)"):
        trainer.train()
    assert trainer.step == 2
    assert [path.name for path in Checkpoints(tmp_path).all()][-1] == "step-00000002"
