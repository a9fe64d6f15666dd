"""Every option of a run inside the trainer: one gradient however it is split, what it changes, and that it survives resume."""

from __future__ import annotations

import copy
import importlib
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.categorical import Scores, score_sites
from discrete_grpo.policies.surrogate import EagerLikelihood
from discrete_grpo.training.minibatches import Batch, MicroBatch, TrainRows, groups_missing, groups_of, train_rows, windows
from discrete_grpo.training.update import loss_terms, plan_update, policy_scores, trajectory_kl
from tests import trainer_parts
from tests.toys import share_of_class_two, tiny_policy

ROOT = Path(__file__).parents[2]

SMALL: dict[str, Any] = {"num_generations": 4, "generation_batch_size": 12, "learning_rate": 1e-2, "max_grad_norm": None}


FEW: dict[str, Any] = SMALL | {"num_generations": 3, "generation_batch_size": 6}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def moved(module: torch.nn.Module, size: float = 0.02) -> None:
    """Away from where it was, by the same steps every time."""
    with torch.no_grad():
        for k, parameter in enumerate(module.parameters()):
            parameter.add_(size * torch.randn(parameter.shape, generator=seeded(k), dtype=parameter.dtype))


def reference(trainer: GRPOTrainer) -> Any:
    assert trainer.reference is not None
    return trainer.reference


def gradients(config: GRPOConfig) -> list[Tensor]:
    """The gradient of each window of a generation in float64, of a policy that has moved since it sampled."""
    policy = tiny_policy(num_steps=3).double()
    trainer = GRPOTrainer(policy, share_of_class_two, config)
    if trainer.reference is not None:
        moved(reference(trainer), 0.05)
    batches = trainer_parts.batches(trainer)
    parts = windows(train_rows(batches, config), config, trainer_parts.generator(trainer))
    old = [trainer.learner.old_log_probs(chunks) for chunks in parts]
    moved(policy, 0.06)
    found, kept = [], copy.deepcopy(policy.state_dict())
    for chunks, before in zip(parts, old, strict=True):
        policy.load_state_dict(kept)
        trainer.learner.update(trainer.step, chunks, before)
        found.append(torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]))
    return found


def assert_splits_agree(options: dict[str, Any], rows: int, steps: int | None) -> list[Tensor]:
    whole = gradients(GRPOConfig(**FEW | options))
    part = gradients(GRPOConfig(**FEW | options, per_device_batch_size=rows, timestep_chunk=steps))
    assert len(part) == len(whole)
    for a, b in zip(part, whole, strict=True):
        assert b.abs().max() > 1e-6
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    return whole


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "cispo", "sapo"])
@pytest.mark.parametrize("level", ["token", "step", "step_mean", "sequence"])
def test_one_gradient_for_every_loss_level_and_split(loss_type: str, level: str) -> None:
    """Rows and timesteps; each of the two updates of a generation is normalised by its own disjoint part."""
    options = {"loss_type": loss_type, "importance_sampling_level": level, "steps_per_generation": 2, "beta": 0.1}
    assert_splits_agree(options | {"epsilon_high": 1.5}, 2, None if level == "sequence" else 2)


OPTIONS: dict[str, dict[str, Any]] = {
    "entropy": {"entropy_coef": 0.3},
    "adaptive entropy": {"entropy_coef": 0.3, "use_adaptive_entropy": True, "entropy_target": 5.0},
    "top entropy": {"top_entropy_quantile": 0.4},
    "off policy": {"off_policy_mask_threshold": 0.0},
    "k3": {"beta": 0.3, "kl_estimator": "k3"},
    "plain k3": {"beta": 0.3, "kl_estimator": "k3", "use_bias_correction_kl": False},
    "forward": {"beta": 0.3, "kl_direction": "forward"},
    "forward k1": {"beta": 0.3, "kl_direction": "forward", "kl_estimator": "k1"},
    "reward k1": {"beta": 0.3, "kl_in": "reward", "kl_estimator": "k1"},
    "both": {"beta": 0.3, "kl_in": "both", "scale_rewards": "none"},
    "forward, entropy": {"beta": 0.3, "kl_direction": "forward", "entropy_coef": 0.2, "kl_estimator": "k3"},
    "first": {"timestep_selection": "first", "timestep_fraction": 0.5},
    "last": {"timestep_selection": "last", "timestep_fraction": 0.5},
    "window": {"timestep_selection": "window", "timestep_fraction": 0.5},
    "delta": {"delta": 1.01, "epsilon": 0.001},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_one_gradient_for_every_option(option: str) -> None:
    found = assert_splits_agree(OPTIONS[option], 4, 2)
    plain = {k: v for k, v in OPTIONS[option].items() if k in ("beta", "scale_rewards", "epsilon")}
    without = gradients(GRPOConfig(**FEW | plain))
    assert (found[0] - without[0]).abs().max() > 1e-8, "the option changes nothing"


def test_windows_are_disjoint_and_cover_the_generation() -> None:
    config = GRPOConfig(**SMALL, steps_per_generation=5, per_device_batch_size=2)
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, config)
    draws = train_rows(trainer_parts.batches(trainer), config)
    parts = windows(draws, config, trainer_parts.generator(trainer))
    rows = [sorted({int(r) for chunk in part for r in chunk.rows}) for part in parts]
    assert [len(r) for r in rows] == [3, 3, 2, 2, 2]
    assert sorted(r for part in rows for r in part) == list(range(12))
    for part in parts:
        sites = sum(float((c.weight * c.rollout.units.gather(1, c.steps).sum(-1)).sum()) for c in part)
        assert sites == pytest.approx(1.0)  # dapo: the weights of a window's sites sum to 1
        for c in part:
            assert torch.equal(c.rollout.units, draws[0].rollout.units[c.rows])
            assert torch.equal(c.advantage, draws[0].advantage[c.rows])


def test_every_window_makes_an_update_and_iterations_repeat_them() -> None:
    calls = []

    def reward(samples: Sequence[Any], **columns: Any) -> list[float]:
        calls.append(len(samples))
        return share_of_class_two(samples)

    config = GRPOConfig(**SMALL, max_steps=7, steps_per_generation=3, num_iterations=2, epsilon=0.01)
    lines = GRPOTrainer(tiny_policy(), reward, config).train()
    assert len(lines) == 7
    assert calls == [12, 12]
    regions = [line["clip_ratio/region_mean"] for line in lines]
    assert regions[0] == regions[6] == 0.0  # only the first update of a generation is on-policy
    assert min(regions[1:6]) > 0
    once = GRPOTrainer(tiny_policy(), share_of_class_two, replace(config, num_iterations=1, max_steps=4)).train()
    assert [line["clip_ratio/region_mean"] > 0 for line in once] == [False, True, True, False]


# -- what each option does


def scored(chunk: MicroBatch, policy: Any) -> Scores:
    return score_sites(policy.sites(chunk.rollout, chunk.steps))


def test_the_quantile_is_that_of_all_sites_of_the_update() -> None:
    config = GRPOConfig(**SMALL, top_entropy_quantile=0.3, per_device_batch_size=2, timestep_chunk=1)
    trainer = GRPOTrainer(tiny_policy().double(), share_of_class_two, config)
    chunks = windows(train_rows(trainer_parts.batches(trainer), config), config, trainer_parts.generator(trainer))[0]
    plan = plan_update(trainer.policy, chunks, [None] * len(chunks), config)
    scores = [scored(c, trainer.policy) for c in chunks]
    every = torch.cat([s.entropy[s.mask] for s in scores])
    assert plan.threshold is not None
    assert float(plan.threshold) == pytest.approx(float(torch.quantile(every, 0.7)), abs=1e-12)
    assert plan.mean_entropy == pytest.approx(float(every.mean()), abs=1e-12)
    keep: Any = plan.keep
    kept = sum(int(keep(s, c, config).sum()) for s, c in zip(scores, chunks, strict=True))
    assert kept == int((every >= plan.threshold - 1e-5).sum()) < 0.6 * len(every)


def test_the_drift_of_a_row_is_its_mean_over_all_its_sites() -> None:
    config = GRPOConfig(**SMALL, off_policy_mask_threshold=0.0, per_device_batch_size=5, timestep_chunk=3)
    trainer = GRPOTrainer(tiny_policy().double(), share_of_class_two, config)
    draws = train_rows(trainer_parts.batches(trainer), config)
    chunks = windows(draws, config, trainer_parts.generator(trainer))[0]
    assert plan_update(trainer.policy, chunks, [None] * len(chunks), config).drift is None  # on-policy nothing has drifted
    old = trainer.learner.old_log_probs(chunks)
    moved(trainer.module, 0.06)
    plan = plan_update(trainer.policy, chunks, old, config)
    assert plan.drift is not None
    sums, counts = torch.zeros(12).double(), torch.zeros(12)
    for chunk, before in zip(chunks, old, strict=True):
        with torch.no_grad():
            s = scored(chunk, trainer.policy)
        for b, row in enumerate(chunk.rows.tolist()):
            sums[row] += float((before - s.logp)[b][s.mask[b]].sum())  # type: ignore[operator]
            counts[row] += int(s.mask[b].sum())
    torch.testing.assert_close(plan.drift, sums / counts, rtol=0, atol=1e-12)
    keep: Any = plan.keep
    dropped = {int(r) for chunk in chunks for r in chunk.rows[~keep(scored(chunk, trainer.policy), chunk, config).flatten()]}
    assert dropped == {r for r in range(12) if draws[0].advantage[r] < 0 and sums[r] > 0}
    assert dropped


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_the_bonus_is_the_mean_entropy_whatever_the_weights_of_the_loss(loss_type: Any) -> None:
    config = GRPOConfig(**SMALL, max_steps=1, loss_type=loss_type, entropy_coef=0.3, per_device_batch_size=5, timestep_chunk=3)
    line = GRPOTrainer(tiny_policy().double(), share_of_class_two, config).train()[0]
    assert line["loss"] - line["policy_loss"] == pytest.approx(-0.3 * line["entropy"], abs=1e-12)


def test_a_bonus_raises_the_entropy_and_the_controller_moves_its_weight() -> None:
    last = {}
    for coef in (0.0, 0.5):
        config = GRPOConfig(**SMALL | {"generation_batch_size": 32}, max_steps=12, entropy_coef=coef)
        last[coef] = GRPOTrainer(tiny_policy(), share_of_class_two, config).train()[-1]
    assert last[0.5]["entropy"] > last[0.0]["entropy"] + 0.05
    assert last[0.5]["entropy_coef"] == 0.5
    assert "entropy_coef" not in last[0.0]
    adaptive: dict[str, Any] = {"use_adaptive_entropy": True, "entropy_coef_delta": 0.1, "entropy_coef_max": 0.25}
    up = GRPOTrainer(tiny_policy(), share_of_class_two, GRPOConfig(**SMALL, max_steps=4, entropy_target=9.0, **adaptive))
    assert [line["entropy_coef"] for line in up.train()] == pytest.approx([0.0, 0.1, 0.2, 0.25])
    down = GRPOConfig(**SMALL, max_steps=2, entropy_target=0.0, entropy_coef=0.2, **adaptive)
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, down)
    assert [line["entropy_coef"] for line in trainer.train()] == [0.0, 0.0]  # above the target nothing is added
    assert trainer.controller is not None
    assert trainer.controller.coef == pytest.approx(0.0)


def test_the_kl_in_the_reward_is_summed_over_the_whole_trajectory() -> None:
    pairs: list[tuple[Any, Any]] = list(itertools.product(("exact", "k1"), ("reverse", "forward")))
    for estimator, direction in pairs:
        config = GRPOConfig(
            **SMALL, beta=0.5, kl_in="reward", kl_estimator=estimator, kl_direction=direction, timestep_fraction=0.5,
            per_device_batch_size=5, timestep_chunk=3, scale_rewards="none",
        )  # fmt: skip
        trainer = GRPOTrainer(tiny_policy().double(), share_of_class_two, config)
        moved(reference(trainer), 0.1)
        batches = trainer_parts.batches(trainer)
        rollout = batches[0].rollout
        with torch.no_grad():
            own, other = trainer.policy.sites(rollout), reference(trainer).sites(rollout)
            s, ref_logp = score_sites(own, other), score_sites(other).logp
        d = ref_logp - s.logp
        wanted = {
            ("exact", "reverse"): s.kl,
            ("exact", "forward"): s.kl_forward,
            ("k1", "reverse"): -d,
            ("k1", "forward"): d.exp() * d,
        }[estimator, direction]
        assert wanted is not None
        kl = trajectory_kl(trainer.policy, reference(trainer), rollout, batches[0].refined, config)
        torch.testing.assert_close(kl, wanted.sum((1, 2)), rtol=0, atol=1e-12)
        found = train_rows(batches, config)[0].advantage
        reward = batches[0].rewards[:, 0] - 0.5 * kl
        mean = reward.view(3, 4).mean(1).repeat_interleave(4)
        torch.testing.assert_close(found, reward - mean, rtol=0, atol=1e-12)


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("bonus", [True, False])
@pytest.mark.parametrize(
    ("direction", "estimator"), [("reverse", "k2"), ("reverse", "k3"), ("forward", "k3"), ("forward", "exact")]
)
def test_the_penalty_in_the_loss(direction: Any, estimator: Any, corrected: bool, bonus: bool) -> None:
    config = GRPOConfig(**FEW, beta=0.5, kl_estimator=estimator, kl_direction=direction, use_bias_correction_kl=corrected)
    trainer = GRPOTrainer(tiny_policy(num_steps=3).double(), share_of_class_two, config)
    chunk = windows(train_rows(trainer_parts.batches(trainer), config), config, trainer_parts.generator(trainer))[0][0]
    old = policy_scores(trainer.policy, chunk).logp.detach()
    moved(trainer.module)
    found = loss_terms(trainer.policy, chunk, reference(trainer), config, old_logp=old, bonus=bonus)
    s, ref_logp = found.scores, policy_scores(reference(trainer), chunk).logp
    d, r = ref_logp - s.logp, (s.logp - old).exp()
    wanted = {
        ("reverse", "k2"): d.square() / 2,
        ("reverse", "k3"): d.exp() - d - 1,
        ("forward", "k3"): d.exp() * d - d.exp() + 1,
        ("forward", "exact"): s.kl_forward,
    }[direction, estimator]
    assert wanted is not None
    wanted = wanted * r if corrected and estimator != "exact" else wanted
    torch.testing.assert_close(found.kl, torch.where(s.mask, wanted, 0.0), rtol=0, atol=1e-12)
    assert (found.entropy is not None) == bonus


@pytest.mark.parametrize("where", ["loss", "reward", "both"])
def test_where_the_kl_stands(where: Any) -> None:
    config = GRPOConfig(**SMALL, max_steps=1, beta=0.5, kl_in=where)
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, config)
    moved(reference(trainer), 0.1)
    plain = GRPOTrainer(tiny_policy(), share_of_class_two, replace(config, beta=0.0)).train()[0]
    line = trainer.train()[0]
    assert (line["loss"] == line["policy_loss"]) == (where == "reward")
    assert (line["advantages/abs_mean"] == plain["advantages/abs_mean"]) == (where == "loss")
    assert line["reward"] == plain["reward"]  # what is logged has no penalty in it
    assert line["kl"] > 0


@pytest.mark.parametrize("alpha", [0.25, 1.0])
def test_the_reference_follows_every_so_many_updates(alpha: float) -> None:
    config = GRPOConfig(**SMALL, max_steps=3, beta=0.1, sync_ref_model=True, ref_model_mixup_alpha=alpha, ref_model_sync_steps=2)
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, config)

    def weights() -> tuple[Tensor, Tensor]:
        name = "network.node_out.3.weight"
        return trainer.module.state_dict()[name].clone(), reference(trainer).state_dict()[name].clone()

    seen = [weights()]
    for _ in range(3):
        trainer.generation()
        seen.append(weights())
    first = seen[0][1]
    assert torch.equal(seen[1][1], first)
    torch.testing.assert_close(seen[2][1], alpha * seen[2][0] + (1 - alpha) * first)
    assert torch.equal(seen[3][1], seen[2][1])
    assert not torch.equal(seen[2][1], first)


# -- groups without a signal


def two_values(samples: Sequence[Any], **columns: Any) -> list[float]:
    """Few groups have a signal: most samples score 0."""
    return [float(s.count(2) == len(s)) for s in samples]


def test_masked_groups_are_as_good_as_absent() -> None:
    found = {}
    for how in ("keep", "mask"):
        config = GRPOConfig(**SMALL | {"generation_batch_size": 40}, zero_std_groups=how, beta=0.2, entropy_coef=0.1)
        trainer = GRPOTrainer(tiny_policy().double(), two_values, config)
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
    trainer = GRPOTrainer(tiny_policy(), two_values, config)
    batches = trainer_parts.batches(trainer)
    assert len(batches) > 1
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


# -- the run as a whole


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
        ({"use_adaptive_entropy": True}, "entropy_coef: 0.0, expected 0"),
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
        ({"delta": 0.0}, "delta: 0.0, expected more than 0"),
        ({"off_policy_mask_threshold": -0.1}, "off_policy_mask_threshold: -0.1, expected at least 0"),
        ({"entropy_coef_min": 0.5, "entropy_coef_max": 0.1}, "entropy_coef_max: 0.1, expected at least 0.5"),
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
