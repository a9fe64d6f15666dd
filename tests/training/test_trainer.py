"""The trainer: exact accumulation, first ratio 1, determinism, resume, EMA, what a failing reward leaves behind."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState

from discrete_grpo import GRPOConfig, GRPOTrainer, RewardError
from discrete_grpo.core.step_selection import select_steps
from discrete_grpo.runs.checkpoint import Checkpoints, load_training
from discrete_grpo.runs.files import write_sums
from discrete_grpo.runs.recorder import read_metrics, read_samples
from discrete_grpo.training.distributed import accelerator
from tests import trainer_parts
from tests.toys import share_of_class_two, tiny_policy

SMALL: dict[str, Any] = {"num_generations": 4, "generation_batch_size": 12, "learning_rate": 1e-2, "save_steps": 2}


def weights(trainer: GRPOTrainer) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in trainer.module.state_dict().items()}


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def gradient(config: GRPOConfig, stale: bool = False) -> torch.Tensor:
    """The gradient of one update in float64, before clipping; with ``stale`` the policy has moved since it sampled."""
    policy = tiny_policy().double()
    trainer = GRPOTrainer(policy, share_of_class_two, config)
    rollout = trainer_parts.sample(trainer)
    rewards = torch.tensor(share_of_class_two(rollout.samples), dtype=torch.float64)[:, None]
    chunks = trainer_parts.chunks_of(trainer, rollout, rewards)
    old = trainer.learner.old_log_probs(chunks)
    if stale:
        with torch.no_grad():
            for k, parameter in enumerate(policy.parameters()):
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(k), dtype=torch.float64))
    trainer.learner.update(trainer.step, chunks, old)
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
@pytest.mark.parametrize("level", ["token", "step", "step_mean", "sequence"])
def test_any_split_of_the_batch_gives_the_same_gradient(loss_type: Any, level: Any) -> None:
    common = SMALL | {"loss_type": loss_type, "importance_sampling_level": level, "beta": 0.1, "max_grad_norm": None}
    whole = gradient(GRPOConfig(**common, per_device_batch_size=12), stale=True)
    assert whole.abs().max() > 1e-6
    splits: Sequence[tuple[int, int | None]] = [(5, None), (1, None)]
    if level != "sequence":
        splits = [(12, 1), (5, None), (5, 3), (1, 3)]
    for rows, steps in splits:
        part = gradient(GRPOConfig(**common, per_device_batch_size=rows, timestep_chunk=steps), stale=True)
        torch.testing.assert_close(part, whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize("bf16", [False, True])
def test_the_first_ratio_of_a_generation_is_exactly_one(bf16: bool) -> None:
    config = GRPOConfig(**SMALL, max_steps=2, num_iterations=2, per_device_batch_size=5, timestep_chunk=3, bf16=bf16, ema_decay=0.9)
    policy = tiny_policy(temperature=0.7)
    trainer = GRPOTrainer(policy, share_of_class_two, config)
    rollout = trainer_parts.sample(trainer)
    rewards = torch.tensor(share_of_class_two(rollout.samples), dtype=torch.float64)[:, None]
    chunks = trainer_parts.chunks_of(trainer, rollout, rewards)
    old = trainer.learner.old_log_probs(chunks)
    for chunk, before in zip(chunks, old, strict=True):
        scores = trainer_parts.scores(trainer, chunk)
        assert scores.logp.dtype == torch.float32
        assert torch.equal(scores.logp, before)  # type: ignore[arg-type]


def test_a_second_iteration_uses_the_log_probs_of_the_policy_that_sampled() -> None:
    config = GRPOConfig(**SMALL | {"learning_rate": 0.03}, max_steps=4, num_iterations=2, epsilon=0.01)
    lines = GRPOTrainer(tiny_policy(), share_of_class_two, config).train()
    regions = [line["clip_ratio/region_mean"] for line in lines]
    assert regions[0] == regions[2] == 0.0
    assert regions[1] > 0.0
    assert regions[3] > 0.0


def test_learns_and_logs_trl_names() -> None:
    config = GRPOConfig(**SMALL | {"generation_batch_size": 32}, max_steps=30, beta=0.01)
    lines = GRPOTrainer(tiny_policy(), share_of_class_two, config).train()
    first, last = (sum(line["reward"] for line in part) / 5 for part in (lines[:5], lines[-5:]))
    assert last > first + 0.2
    expected = {
        "reward",
        "reward_std",
        "kl",
        "kl_forward",
        "entropy",
        "clip_ratio/region_mean",
        "frac_reward_zero_std",
        "grad_norm",
    }
    assert expected <= lines[-1].keys()
    assert lines[0]["kl"] == 0.0
    assert lines[-1]["kl"] > 0.0


def test_a_large_beta_holds_the_policy_at_the_reference() -> None:
    lines = {}
    for beta in (0.0001, 30.0):
        config = GRPOConfig(**SMALL | {"generation_batch_size": 32}, max_steps=20, beta=beta)
        lines[beta] = GRPOTrainer(tiny_policy(), share_of_class_two, config).train()[-1]
    assert lines[30.0]["kl"] < 0.2 * lines[0.0001]["kl"]


def test_same_seed_same_bits_other_seed_other_bits() -> None:
    runs = []
    for seed in (1, 1, 2):
        trainer = GRPOTrainer(tiny_policy(), share_of_class_two, GRPOConfig(**SMALL, max_steps=3, seed=seed, timestep_fraction=0.5))
        trainer.train()
        runs.append(weights(trainer))
    assert same_bits(runs[0], runs[1])
    assert not same_bits(runs[0], runs[2])


def strip(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "step_time"} for line in lines]


def test_resume_ends_with_the_same_bits(tmp_path: Path) -> None:
    options = SMALL | {"ema_decay": 0.8, "beta": 0.05, "num_iterations": 2, "timestep_fraction": 0.5, "lr_scheduler_type": "cosine"}
    config = GRPOConfig(**options, max_steps=8)
    whole = GRPOTrainer(tiny_policy(), share_of_class_two, config, run=tmp_path / "whole")
    whole.train()
    part = GRPOTrainer(tiny_policy(), share_of_class_two, config, run=tmp_path / "part")
    while part.step < 6:  # past the checkpoint at 4: what came after it must be forgotten and made again
        part.generation()
        if part.step == 4:
            part.save()
    resumed = GRPOTrainer(tiny_policy(seed=9), share_of_class_two, config, run=tmp_path / "part", resume=True)
    assert resumed.step == 4
    resumed.train()
    assert same_bits(weights(whole), weights(resumed))
    assert same_bits(dict(whole.best_policy.state_dict()), dict(resumed.best_policy.state_dict()))
    assert strip(read_metrics(tmp_path / "whole")) == strip(read_metrics(tmp_path / "part"))
    assert (tmp_path / "whole/samples.csv.gz").read_bytes() == (tmp_path / "part/samples.csv.gz").read_bytes()


@pytest.mark.parametrize("stated", [True, False])
def test_a_run_of_another_kind_of_device_is_refused_by_name(tmp_path: Path, stated: bool) -> None:
    config = GRPOConfig(**SMALL, max_steps=2)
    GRPOTrainer(tiny_policy(), share_of_class_two, config, run=tmp_path).train()
    folder = Checkpoints(tmp_path).latest()
    state = load_training(folder)
    assert state.pop("device") == "cpu"
    if stated:
        state["device"] = "cuda"
    else:  # by an earlier version, which does not say it; the state of a CUDA generator has 16 bytes
        state["shards"][0]["generator"] = torch.zeros(16, dtype=torch.uint8)
    torch.save(state, folder / "training.pt")
    write_sums(folder, ("config.json", "model.safetensors", "training.pt"))
    kind = "cuda" if stated else "another kind of device"
    with pytest.raises(ValueError, match=f"device: cpu, expected {kind} as in the run to resume"):
        GRPOTrainer(tiny_policy(), share_of_class_two, config, run=tmp_path, resume=True)


def test_every_sample_is_written_with_its_reward_and_advantage(tmp_path: Path) -> None:
    GRPOTrainer(tiny_policy(), share_of_class_two, GRPOConfig(**SMALL, max_steps=2), run=tmp_path).train()
    table = read_samples(tmp_path / "samples.csv.gz")
    assert list(table) == ["step", "group", "sample", "reward", "reward_share_of_class_two", "advantage"]
    assert table["step"] == ["1"] * 12 + ["2"] * 12
    for sample, reward in zip(table["sample"], table["reward"], strict=True):
        classes = [int(c) for c in sample.strip("()").split(",") if c.strip()]
        assert float(reward) == classes.count(2) / len(classes)


def told(samples: list[Any], **columns: Any) -> list[float]:
    """A reward that is the number of the condition that it is told."""
    return [float(one) for one in columns["number"]]


def test_the_conditions_of_samples_are_written_after_the_other_columns(tmp_path: Path) -> None:
    conditions: list[dict[str, Any]] = [{"number": np.float32(0.5), "kind": "a, b"}, {"number": 2, "parts": [1]}]
    config = GRPOConfig(**SMALL, max_steps=2)
    GRPOTrainer(tiny_policy(), told, config, columns=conditions, run=tmp_path).train()
    table = read_samples(tmp_path / "samples.csv.gz")
    assert list(table) == ["step", "group", "sample", "reward", "reward_told", "advantage", "number", "kind", "parts"]
    assert [float(number) for number in table["number"]] == [float(reward) for reward in table["reward"]]
    assert {*zip(table["number"], table["kind"], table["parts"], strict=True)} == {("0.5", "a, b", ""), ("2", "", "[1]")}


@pytest.mark.parametrize(
    ("first", "then", "names"),
    [
        (None, [{"number": 1}], []),  # as in a run of an earlier version
        ([{"number": 1, "kind": "a"}], [{"number": 2, "other": "b"}], ["number", "kind"]),
    ],
)
def test_a_resumed_run_keeps_the_columns_of_its_file(tmp_path: Path, first: Any, then: Any, names: list[str]) -> None:
    for steps, columns in ((1, first), (2, then)):
        config = GRPOConfig(**SMALL, max_steps=steps)
        GRPOTrainer(tiny_policy(), share_of_class_two, config, columns=columns, run=tmp_path, resume=steps > 1).train()
    table = read_samples(tmp_path / "samples.csv.gz")
    assert list(table)[6:] == names
    assert table["step"] == ["1"] * 12 + ["2"] * 12
    if names:
        assert (table["number"], table["kind"]) == (["1"] * 12 + ["2"] * 12, ["a"] * 12 + [""] * 12)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (lambda s: [1.0] * (len(s) - 1), "returned 11 values for 12 samples"),
        (lambda s: ["good"] * len(s), "returned 'good'"),
        (lambda s: [math.inf] * len(s), "returned inf"),
        (lambda s: 1 / 0, "raised ZeroDivisionError"),
        (lambda s: 3.0, "returned a float"),
    ],
)
def test_a_broken_reward_is_one_line_and_loses_nothing(tmp_path: Path, values: Any, said: str) -> None:
    calls = []

    def flaky(samples: Sequence[Any], **columns: Any) -> Any:
        calls.append(1)
        return share_of_class_two(samples) if len(calls) <= 3 else values(samples)

    config = GRPOConfig(**SMALL | {"save_steps": 100}, max_steps=6)
    trainer = GRPOTrainer(tiny_policy(), flaky, config, run=tmp_path / "a")
    with pytest.raises(RewardError, match="reward flaky") as error:
        trainer.train()
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert Checkpoints(tmp_path / "a").latest().name == "step-00000003"
    with pytest.raises(ValueError, match="reward_funcs: share_of_class_two, expected flaky"):
        GRPOTrainer(tiny_policy(seed=5), share_of_class_two, config, run=tmp_path / "a", resume=True)
    values = share_of_class_two
    resumed = GRPOTrainer(tiny_policy(seed=5), flaky, config, run=tmp_path / "a", resume=True)
    resumed.train()
    whole = GRPOTrainer(tiny_policy(), share_of_class_two, config)
    whole.train()
    assert same_bits(weights(resumed), weights(whole))


def test_unknown_rewards_are_left_out() -> None:
    def partly(samples: Sequence[Any], **columns: Any) -> list[float | None]:
        return [None if k % 4 == 0 else r for k, r in enumerate(share_of_class_two(samples))]

    lines = GRPOTrainer(tiny_policy(), partly, GRPOConfig(**SMALL, max_steps=2)).train()
    assert lines[0]["frac_reward_unknown"] == 0.25
    assert math.isfinite(lines[1]["reward"])

    def never(samples: Sequence[Any], **columns: Any) -> list[None]:
        return [None] * len(samples)

    trainer = GRPOTrainer(tiny_policy(), never, GRPOConfig(**SMALL, max_steps=1))
    before = weights(trainer)
    assert trainer.train()[0]["loss"] == 0.0
    assert same_bits(before, weights(trainer))


def test_conditions_reach_policy_and_reward() -> None:
    seen: list[tuple[int, int]] = []

    def reward(samples: Sequence[Any], num_nodes: Sequence[int], **columns: Any) -> list[float]:
        seen.extend((len(s), n) for s, n in zip(samples, num_nodes, strict=True))
        return [0.0] * len(samples)

    columns = [{"num_nodes": 2}, {"num_nodes": 4}]
    GRPOTrainer(tiny_policy(), reward, GRPOConfig(**SMALL, max_steps=4), columns=columns).train()
    assert all(length == wanted for length, wanted in seen)
    assert {n for _, n in seen} == {2, 4}


def test_several_rewards_are_weighed() -> None:
    def minus(samples: Sequence[Any], **columns: Any) -> list[float]:
        return [-r for r in share_of_class_two(samples)]

    config = GRPOConfig(**SMALL, max_steps=1, reward_weights=(1.0, 1.0))
    trainer = GRPOTrainer(tiny_policy(), [share_of_class_two, minus], config)
    line = trainer.train()[0]
    assert line["reward"] == 0.0
    assert line["frac_reward_zero_std"] == 1.0
    assert line["rewards/minus/mean"] == -line["rewards/share_of_class_two/mean"]


def test_averaged_weights_lag_behind_the_trained_ones() -> None:
    policy = tiny_policy()
    start = copy.deepcopy(policy.state_dict())
    trainer = GRPOTrainer(policy, share_of_class_two, GRPOConfig(**SMALL, max_steps=5, ema_decay=0.99))
    trainer.train()
    name = "network.node_out.weight"
    moved = (policy.state_dict()[name] - start[name]).norm()
    lagged = (trainer.best_policy.state_dict()[name] - start[name]).norm()
    assert 0 < lagged < moved


def test_select_steps_are_distinct_sorted_and_cover_all() -> None:
    units = torch.ones(500, 10, dtype=torch.long)
    steps = select_steps(units, 0.4, torch.Generator().manual_seed(0))
    assert steps.shape == (500, 4)
    assert (steps.diff(dim=1) > 0).all()
    counts = torch.bincount(steps.flatten(), minlength=10)
    assert ((counts - 200).abs() < 5 * math.sqrt(500 * 0.4 * 0.6)).all()
    assert select_steps(units, 1.0).tolist()[0] == list(range(10))
    assert select_steps(units, 0.001).shape == (500, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"reward_funcs": []}, "reward_funcs: none given"),
        ({"reward_funcs": None}, "reward_funcs: None, expected a function"),
        ({"config": GRPOConfig(reward_weights=(1.0, 2.0))}, "reward_weights: 2 weights, expected one per reward (1)"),
        ({"config": GRPOConfig(importance_sampling_level="sequence", timestep_chunk=2)}, "timestep_chunk: 2"),
        ({"columns": []}, "columns: an empty list"),
        ({"columns": ["a"]}, "columns: entry 0 is 'a', expected a mapping"),
        ({"columns": {"a": 1}}, "columns: {'a': 1}, expected a list of mappings"),
        ({"policy": object()}, "policy: object is no torch.nn.Module"),
        ({"resume": True}, "resume: True"),
        ({"sample_metrics": 3}, "sample_metrics: 3, expected a function of the samples of a generation"),
        ({"sample_metrics": lambda one, two: {}}, "expected a function of the samples of a generation"),
        ({"ledger": 3}, "ledger: 3, expected a ledger of calls"),
        ({"tracker": "wandb"}, "tracker: 'wandb', expected an object with the methods start, log, log_samples, close"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"policy": tiny_policy(), "reward_funcs": share_of_class_two} | arguments
    with pytest.raises((ValueError, TypeError)) as error:
        GRPOTrainer(**given)
    assert said in str(error.value)


def test_repr_and_table_show_the_progress() -> None:
    config = GRPOConfig(max_steps=3, num_generations=2, generation_batch_size=4)
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, config)
    assert repr(trainer) == "GRPOTrainer(GraphPolicy, rewards: share_of_class_two, update 0 of 3)"
    assert "<table>" not in trainer._repr_html_()
    line = trainer.update()
    assert line is not None
    assert repr(trainer).endswith(f"update 1 of 3, reward {line['reward']:.4g})")
    assert f"<tr><td>reward</td><td>{line['reward']:.4g}</td></tr>" in trainer._repr_html_()


def test_sizes_of_samples_are_logged() -> None:
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, GRPOConfig(num_generations=4, generation_batch_size=24, max_steps=1))
    sizes: list[int] = []

    def counted(samples: Any, **columns: Any) -> list[float]:
        sizes.extend(map(len, samples))
        return share_of_class_two(samples)

    trainer.sampler.rewards[0] = counted  # type: ignore[index]
    (line,) = trainer.train()
    assert len(sizes) == 24
    assert len(set(sizes)) > 1
    assert (line["size/mean"], line["size/min"], line["size/max"]) == (sum(sizes) / 24, min(sizes), max(sizes))


def test_a_resumed_run_takes_the_changed_settings_of_adam(tmp_path: Path) -> None:
    config = GRPOConfig(**SMALL | {"max_steps": 2, "save_steps": 1})
    GRPOTrainer(tiny_policy(), share_of_class_two, config, run=tmp_path).train()
    changed = dataclasses.replace(config, max_steps=3, weight_decay=0.5, adam_beta1=0.8, adam_beta2=0.7)
    resumed = GRPOTrainer(tiny_policy(), share_of_class_two, changed, run=tmp_path, resume=True)
    (group,) = resumed.state.optimizer.param_groups
    assert (group["weight_decay"], group["betas"]) == (0.5, (0.8, 0.7))
    assert all(int(kept["step"]) == 2 for kept in resumed.state.optimizer.state.values())


def test_the_environment_of_accelerate_scales_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for steps in ("1", "4"):
        monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", steps)
        found.append(GRPOTrainer(tiny_policy(), share_of_class_two, GRPOConfig(**SMALL | {"max_steps": 1})).train()[0]["grad_norm"])
    assert found[0] == found[1] > 0


def test_the_environment_of_accelerate_chooses_no_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    AcceleratorState._reset_state()  # what an earlier test made would decide
    assert accelerator().mixed_precision == "no"
