"""Options of a run as a whole: they survive resume, other losses learn, bad ones are named, and all are documented."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.policies.surrogate import EagerLikelihood
from discrete_grpo.training.minibatches import train_rows, windows
from discrete_grpo.training.optim import learning_rate
from discrete_grpo.training.update import policy_scores
from tests import trainer_parts
from tests.toys import share_of_class_two, tiny_policy
from tests.training.trainer_options_parts import SMALL, moved, reference, two_values

ROOT = Path(__file__).parents[2]


def strip(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "step_time"} for line in lines]


def test_resume_with_everything_that_has_a_state(tmp_path: Path) -> None:
    config = GRPOConfig(
        **SMALL, max_steps=8, save_steps=100, beta=0.05, sync_ref_model=True, ref_model_sync_steps=3, steps_per_generation=2,
        use_adaptive_entropy=True, entropy_coef=0.1, entropy_target=0.85, entropy_coef_delta=0.03, zero_std_groups="resample",
        max_resampling_rounds=2, timestep_selection="window", timestep_fraction=0.6, top_entropy_quantile=0.8, kl_in="both",
    )  # fmt: skip
    whole = GRPOTrainer(tiny_policy(), two_values, config, run=tmp_path / "whole")
    whole.train()
    part = GRPOTrainer(tiny_policy(), two_values, replace(config), run=tmp_path / "part")
    for _ in range(2):
        part.generation()
    part.save()
    resumed = GRPOTrainer(tiny_policy(seed=9), two_values, config, run=tmp_path / "part", resume=True)
    assert resumed.step == 4
    resumed.train()
    assert strip(whole.history[4:]) == strip(resumed.history)
    assert all(
        torch.equal(a, b)
        for one, two in ((whole.module, resumed.module), (reference(whole), reference(resumed)))
        for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    )
    assert whole.controller is not None
    assert resumed.controller is not None
    assert whole.controller.coef == resumed.controller.coef
    assert len({line["entropy_coef"] for line in whole.history}) > 1


@pytest.mark.parametrize("loss_type", ["cispo", "sapo"])
def test_the_other_losses_learn(loss_type: Any) -> None:
    config = GRPOConfig(
        **SMALL | {"generation_batch_size": 32}, max_steps=24, steps_per_generation=2, loss_type=loss_type, epsilon_high=5.0
    )
    lines = GRPOTrainer(tiny_policy(), share_of_class_two, config).train()
    first, last = (sum(line["reward"] for line in part) / 6 for part in (lines[:6], lines[-6:]))
    assert last > first + 0.15
    names = {name for name in lines[-1] if "clip" in name}
    assert names == ({"cispo_clip_ratio"} if loss_type == "cispo" else set())


def test_a_policy_with_scores_of_its_own() -> None:
    """Estimates need log-probs only; what needs tables is refused."""
    config = GRPOConfig(**SMALL, beta=0.3, kl_estimator="k3")
    trainer = GRPOTrainer(EagerLikelihood(tiny_policy()), share_of_class_two, config)
    moved(reference(trainer), 0.1)
    chunks = windows(train_rows(trainer_parts.batches(trainer), config), config, trainer_parts.generator(trainer))[0]
    assert math.isfinite(trainer.learner.update(trainer.step, chunks, [None] * len(chunks))["loss"])
    assert policy_scores(trainer.policy, chunks[0]).kl is None
    for options, said in (
        ({"entropy_coef": 0.1}, "entropy_coef: 0.1, expected 0"),
        ({"use_adaptive_entropy": True}, "use_adaptive_entropy: True, expected False"),
        ({"beta": 0.1, "kl_direction": "forward"}, "kl_direction: 'forward', expected reverse"),
    ):
        policy = EagerLikelihood(tiny_policy())
        policy.forward_kl_gradient = "kl_direction" not in options  # as one whose kl_forward has no gradient
        with pytest.raises(ValueError, match="gives its scores itself") as error:
            GRPOTrainer(policy, share_of_class_two, GRPOConfig(**SMALL | options))
        assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loss_type": "cispo"}, "epsilon_high: None, expected the cap"),
        ({"sync_ref_model": True}, "sync_ref_model: True, expected a reference"),
        ({"kl_direction": "forward", "kl_estimator": "k2"}, "kl_estimator: 'k2', expected exact, k1 or k3"),
        ({"kl_estimator": "k1", "use_bias_correction_kl": False}, "kl_estimator: 'k1', expected use_bias_correction_kl"),
        ({"kl_estimator": "k1", "kl_in": "both"}, "kl_estimator: 'k1', expected exact with kl_in both"),
        ({"steps_per_generation": 65}, "steps_per_generation: 65, expected at most 64 (generation_batch_size)"),
        ({"steps_per_generation": 0}, "steps_per_generation: 0, expected at least 1"),
        ({"top_entropy_quantile": 0.0}, "top_entropy_quantile: 0.0, expected more than 0 and at most 1"),
        ({"delta": 0.2}, "delta: 0.2, expected at least 1"),
        ({"off_policy_mask_threshold": -0.1}, "off_policy_mask_threshold: -0.1, expected at least 0"),
        ({"entropy_coef_min": 0.5, "entropy_coef_max": 0.1}, "entropy_coef_max: 0.1, expected at least 0.5"),
        ({"adam_beta1": 1.0}, "adam_beta1: 1.0, expected at least 0 and less than 1"),
        ({"adam_beta2": -0.1}, "adam_beta2: -0.1, expected at least 0 and less than 1"),
        ({"ref_model_mixup_alpha": 1.1}, "ref_model_mixup_alpha: 1.1, expected 0 to 1"),
        ({"ref_model_sync_steps": 0}, "ref_model_sync_steps: 0, expected at least 1"),
        ({"sapo_temperature_neg": 0.0}, "sapo_temperature_neg: 0.0, expected more than 0"),
        ({"max_resampling_rounds": -1}, "max_resampling_rounds: -1, expected at least 0"),
        ({"timestep_selection": "middle"}, "timestep_selection: 'middle', expected one of random, first, last, window"),
        ({"zero_std_groups": "drop"}, "zero_std_groups: 'drop', expected one of keep, mask, resample"),
        ({"kl_in": "both of them"}, "kl_in: 'both of them', expected one of loss, reward, both"),
        ({"kl_estimator": "k4"}, "kl_estimator: 'k4', expected one of exact, k1, k2, k3"),
        ({"kl_direction": "sideways"}, "kl_direction: 'sideways', expected one of reverse, forward"),
        ({"loss_type": "bnpo"}, "loss_type: 'bnpo', expected one of grpo, dapo, dr_grpo, cispo, sapo"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=r"expected") as error:
        GRPOConfig(**options)
    assert str(error.value).startswith(said)


def test_every_option_is_documented_with_its_default() -> None:
    page = (ROOT / "docs/options.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \| .+\|$", page, re.M))
    assert rows == {field.name: repr(field.default) for field in fields(GRPOConfig)}
    functions = [cell for row in re.findall(r"^\|.*\| (.*) \|$", page, re.M) for cell in re.findall(r"`(\w+)\.(\w+)`", row)]
    assert len(functions) > 20
    rooms = {
        path.stem: path.parent.name
        for room in ("core", "training", "runs")
        for path in (ROOT / "discrete_grpo" / room).glob("*.py")
    }
    for module, name in functions:
        assert hasattr(importlib.import_module(f"discrete_grpo.{rooms[module]}.{module}"), name), f"{module}.{name}"


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_a_rate_that_has_decayed_stays_there(kind: Any) -> None:
    """Updates can be made by hand beyond ``max_steps``."""
    config = GRPOConfig(max_steps=3, warmup_steps=1, learning_rate=1.0, lr_scheduler_type=kind)
    rates = [learning_rate(step, config) for step in range(9)]
    assert rates[:2] == [1.0, 1.0]
    assert rates[2] == pytest.approx(0.5)
    assert rates[3:] == [0.0] * 6


def test_a_setting_without_an_effect_is_refused_in_new_runs_alone(tmp_path: Path) -> None:
    """Runs of earlier versions, which did not read it, go on."""
    config = GRPOConfig(**SMALL, max_steps=2, multi_objective_aggregation="normalize_then_sum")
    GRPOTrainer(tiny_policy(), two_values, replace(config, max_steps=1), run=tmp_path).train()
    other = replace(config, scale_rewards="batch")
    with pytest.raises(ValueError, match=r"^scale_rewards: 'batch', expected group with"):
        GRPOTrainer(tiny_policy(), two_values, other)
    resumed = GRPOTrainer(tiny_policy(), two_values, other, run=tmp_path, resume=True)
    assert len(resumed.train()) == 1


@pytest.mark.parametrize("bound", [None, 0.25])
def test_the_optimizer_steps_with_the_gradient_within_its_bound(bound: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def large(samples: Sequence[Any], **columns: Any) -> list[float]:
        return [100 * score for score in share_of_class_two(samples)]

    config = GRPOConfig(**SMALL | {"max_grad_norm": bound}, scale_rewards="none", max_steps=1)
    trainer = GRPOTrainer(tiny_policy(), large, config)
    step, norms = trainer.optimizer.step, list[float]()

    def listening() -> None:
        squares = [p.grad.double().square().sum() for p in trainer.module.parameters() if p.grad is not None]
        norms.append(float(torch.stack(squares).sum().sqrt()))
        step()

    monkeypatch.setattr(trainer.optimizer, "step", listening)
    line = trainer.train()[0]
    assert line["grad_norm"] > 1
    assert norms == [pytest.approx(bound or line["grad_norm"], rel=1e-4)]


def test_the_average_and_the_reference_follow_the_weights_of_the_step() -> None:
    """The first update copies into the average, and a reference of mixup 1 is the policy."""
    follow: dict[str, Any] = {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 1.0}
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, GRPOConfig(**SMALL, **follow, max_steps=1, ema_decay=0.9))
    start = [p.detach().clone() for p in trainer.module.parameters()]
    trainer.train()
    assert trainer.average is not None
    for after in (trainer.average.module, reference(trainer)):
        for before, own, other in zip(start, trainer.module.parameters(), after.parameters(), strict=True):
            assert not torch.equal(before, own)
            assert torch.equal(own, other)
