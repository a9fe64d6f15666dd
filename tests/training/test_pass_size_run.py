"""Sizes of passes in a run: decided once, kept on resume, and refused where they are no sizes."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.cli.parser import parse
from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.training import pass_size as module
from discrete_grpo.training.offline import OfflineTrainer, ScoredSamples
from discrete_grpo.training.pass_size import PassSize, with_passes
from discrete_grpo.training.rollout_queue import cut_as_before
from tests.families import FAMILIES
from tests.toys import share_of_class_two, tiny_policy, transformer_policy
from tests.training.test_pass_size import AUTO, GRPO

# -- in a run


def trained(config: GRPOConfig, run: Path | None = None, **options: Any) -> GRPOTrainer:
    trainer = GRPOTrainer(transformer_policy(layers=1), share_of_class_two, config, run=run, **options)
    trainer.train()
    return trainer


def weights(trainer: GRPOTrainer) -> list[Tensor]:
    return [p.detach() for p in trainer.module.parameters()]


def test_a_run_equals_one_that_is_given_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    free = trained(dataclasses.replace(GRPO, **AUTO, max_steps=2))
    assert (free.config.per_device_batch_size, free.config.timestep_chunk) == (16, None)
    assert "passes: auto -> 16 trajectories, all steps, about " in capsys.readouterr().err
    given = trained(dataclasses.replace(GRPO, per_device_batch_size=16, timestep_chunk=None, max_steps=2))
    assert "passes" not in capsys.readouterr().err
    assert all(torch.equal(a, b) for a, b in zip(weights(free), weights(given), strict=True))


def test_a_resumed_run_keeps_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = dataclasses.replace(GRPO, **AUTO, max_steps=2)
    monkeypatch.setattr(module, "pass_size", lambda *_: PassSize(5, 2))
    whole = trained(config)
    trained(dataclasses.replace(config, max_steps=1), tmp_path)
    monkeypatch.setattr(module, "pass_size", lambda *_: PassSize(16, 1))
    resumed = trained(config, tmp_path, resume=True)
    assert "passes: auto -> 5 trajectories, 2 steps, as the run began" in capsys.readouterr().err
    assert resumed.config.passes == (5, 2)
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(resumed), strict=True))


def test_ratios_of_whole_trajectories_keep_no_chunk_of_steps() -> None:
    config = dataclasses.replace(GRPO, importance_sampling_level="sequence", per_device_batch_size="auto", timestep_chunk="auto")
    assert with_passes(transformer_policy(), config, None, nullcontext, kept=(8, 1)).passes == (8, None)
    said = "importance_sampling_level: 'sequence', expected the level of the run, whose forward passes have 1 steps"
    with pytest.raises(ValueError, match=said):
        cut_as_before(config, {"per_device_batch_size": 8, "timestep_chunk": 1})


def test_a_resumed_run_takes_a_number_that_is_given_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(GRPO, **AUTO)
    monkeypatch.setattr(module, "pass_size", lambda *_: PassSize(5, 2))
    trained(dataclasses.replace(config, max_steps=1), tmp_path)
    fewer = dataclasses.replace(config, max_steps=2, per_device_batch_size=3)
    assert trained(fewer, tmp_path, resume=True).config.passes == (3, 2)


def test_a_compiled_policy_is_measured_as_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("compiled")

    policy = tiny_policy()
    for layer in policy.network.modules():
        monkeypatch.setattr(layer, "_compiled_call_impl", refuse, raising=False)
    config = dataclasses.replace(GRPO, max_steps=1, **AUTO)
    with pytest.raises(RuntimeError, match="compiled"):
        policy.sample(group_contexts(1, 2))
    found = module.with_passes(policy, config, None, nullcontext)
    assert found.passes[0] == 16


def test_shards_are_checked_before_any_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measure_passes", lambda *_: pytest.fail("measured"))
    with pytest.raises(ValueError, match=r"^generation_batch_size: 16"):
        GRPOTrainer(tiny_policy(), share_of_class_two, dataclasses.replace(GRPO, generation_shards=3, **AUTO))


def test_offline_updates_decide_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["ab", "ba", "aab", "bb"]
    data = ScoredSamples(texts, torch.arange(4.0))
    config = dataclasses.replace(GRPO, **AUTO)
    monkeypatch.setattr(module, "pass_size", lambda *_: PassSize(3, 2))
    OfflineTrainer(FAMILIES["tokens"].make(), data, config, steps=1, run=tmp_path).train()
    monkeypatch.setattr(module, "pass_size", lambda *_: PassSize(16, 1))
    trainer = OfflineTrainer(FAMILIES["tokens"].make(), data, config, steps=2, run=tmp_path, resume=True)
    assert trainer.config.passes == (3, 2)
    assert "grad_norm" in trainer.train()[-1]


def test_a_full_device_is_answered_with_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore lines.")

    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, dataclasses.replace(GRPO, timestep_chunk=2))
    monkeypatch.setattr(type(trainer.learner), "update", full)
    with pytest.raises(torch.OutOfMemoryError, match=r"^out of memory in an update: lower per_device_batch_size or .*2 GiB\.\)$"):
        trainer.train()


# -- settings


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("per_device_batch_size", "all", "per_device_batch_size: 'all', expected a whole number, at least 1, or 'auto'"),
        ("timestep_chunk", "8", "timestep_chunk: '8', expected a whole number, at least 1, or 'auto'"),
        ("per_device_batch_size", 0, "per_device_batch_size: 0, expected at least 1"),
        ("timestep_chunk", 0, "timestep_chunk: 0, expected at least 1"),
    ],
)
def test_other_values_are_refused(name: str, value: Any, text: str) -> None:
    with pytest.raises(ValueError, match="^" + text):
        GRPOConfig(**{name: value})


def test_numbers_that_are_needed_are_not_none() -> None:
    for name in ("max_steps", "seed", "generation_batch_size", "per_device_batch_size", "steps_per_generation"):
        with pytest.raises(ValueError, match=f"^{name}: None, expected a whole number, (at least 1|0 to)"):
            GRPOConfig(**cast(Any, {name: None}))
    with pytest.raises(ValueError, match=r"^learning_rate: None, expected a number, more than 0"):
        GRPOConfig(learning_rate=cast(Any, None))
    assert GRPOConfig(timestep_chunk=None, patience=None, delta=None, max_grad_norm=None).passes == (64, None)


def test_whole_numbers_take_no_fractions() -> None:
    for name in ("max_steps", "num_generations", "per_device_batch_size", "timestep_chunk", "patience", "seed", "save_steps"):
        with pytest.raises(ValueError, match=f"^{name}: 2.5, expected a whole number"):
            GRPOConfig(**cast(Any, {name: 2.5}))
    assert GRPOConfig(learning_rate=1, delta=2, ema_decay=0.5).delta == 2


def test_outside_of_a_trainer_auto_is_no_number() -> None:
    with pytest.raises(ValueError, match=r"^timestep_chunk: 'auto', expected a number outside of a trainer"):
        _ = GRPOConfig(timestep_chunk="auto").passes


def test_the_command_takes_auto() -> None:
    recipe, settings = parse("train", ["demo", "--grpo.per_device_batch_size=auto", "--grpo.timestep_chunk=auto"])
    assert (recipe.grpo.per_device_batch_size, recipe.grpo.timestep_chunk) == ("auto", "auto")
    assert "per_device_batch_size: auto" in settings
