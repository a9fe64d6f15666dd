"""LoRA, compiled layers and activation checkpointing in whole runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from discrete_grpo.recipes.train import TrainRecipe, run_train
from discrete_grpo.rewards.molecules import qed
from discrete_grpo.runs.checkpoint import read_policy
from discrete_grpo.runs.recorder import read_metrics
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.lora import LoraOptions, add_lora, has_lora
from discrete_grpo.training.trainer import GRPOTrainer
from tests.toys import share_of_class_two, transformer_policy

SMALL = GRPOConfig(max_steps=4, num_generations=4, generation_batch_size=8, learning_rate=0.02, save_steps=2, beta=0.05, seed=1)


def adapted(run: Path, resume: bool = False, **changed: Any) -> GRPOTrainer:
    policy = transformer_policy()
    add_lora(policy, 2, 4, "all-linear", seed=3)
    return GRPOTrainer(policy, share_of_class_two, replace(SMALL, **changed), run=run, resume=resume)


def weights(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_with_adapters_goes_on_to_the_same_bits_and_ends_with_a_plain_policy(tmp_path: Path) -> None:
    whole = adapted(tmp_path / "whole")
    whole.train()
    adapted(tmp_path / "part", max_steps=2).train()
    resumed = adapted(tmp_path / "part", resume=True)
    resumed.train()
    assert same(weights(whole.module), weights(resumed.module))
    assert has_lora(whole.module)
    assert not has_lora(whole.best_policy)
    assert weights(whole.best_policy).keys() == weights(transformer_policy()).keys()
    assert same(weights(read_policy(tmp_path / "whole/checkpoints/step-00000004")), weights(whole.best_policy))
    assert not same(weights(whole.best_policy), weights(transformer_policy()))


def test_a_run_with_adapters_can_end_with_its_best_policy(tmp_path: Path) -> None:
    best: dict[str, Any] = {
        "metric_for_best_model": "reward",
        "greater_is_better": False,
        "save_steps": 1,
        "load_best_model_at_end": True,
    }
    made = adapted(tmp_path, **best)
    rewards = [line["reward"] for line in made.train()]
    worst = 1 + min(range(4), key=lambda k: rewards[k])
    assert same(weights(made.best_policy), weights(read_policy(tmp_path / f"checkpoints/step-{worst:08d}")))


def test_a_recipe_with_adapters_exports_a_plain_policy(tmp_path: Path) -> None:
    grpo = replace(SMALL, max_steps=1)
    run_train(TrainRecipe("qm9-small", qed, str(tmp_path), grpo, num_steps=3, evaluation_samples=0, lora=LoraOptions(r=2)))
    assert not has_lora(read_policy(tmp_path / "policy"))
    assert read_metrics(tmp_path)[0]["grad_norm"] > 0  # type: ignore[operator]


def test_layers_computed_again_give_the_same_bits(tmp_path: Path) -> None:
    made = [
        GRPOTrainer(transformer_policy(), share_of_class_two, replace(SMALL, checkpoint_layers=again), run=tmp_path / str(again))
        for again in (False, True)
    ]
    for trainer in made:
        trainer.train()
    assert same(weights(made[0].module), weights(made[1].module))
    assert made[1].module.network.checkpoint_layers  # type: ignore[union-attr]


def test_the_policy_and_its_reference_are_compiled_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What compiled layers compute is held by tests/training/test_compiled.py."""
    seen: list[nn.Module] = []
    monkeypatch.setattr("discrete_grpo.training.trainer.compile_network", seen.append)
    made = GRPOTrainer(transformer_policy(), share_of_class_two, replace(SMALL, torch_compile=True))
    assert seen == [made.module, made.reference]
    GRPOTrainer(transformer_policy(), share_of_class_two, SMALL)
    assert len(seen) == 2
