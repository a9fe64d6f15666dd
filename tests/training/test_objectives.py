"""Objectives over remembered samples against loops, and against GRPO's own loss where they must agree."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo.core.advantages import group_advantages
from discrete_grpo.core.categorical import Scores
from discrete_grpo.core.loss import grpo_loss, row_weights
from discrete_grpo.training.objectives import (
    AugmentedLikelihood,
    Draws,
    GroupBalance,
    GroupRelative,
    Likelihood,
    MemoryBatch,
    Objective,
    SelfImitation,
    TrajectoryBalance,
)
from tests.pretend_device import pretending

LENGTHS = (3, 1, 4, 2)
REWARD = torch.tensor([0.2, 0.9, 0.4, 0.4], dtype=torch.float64)
REF = torch.tensor([-3.0, -1.5, -2.0, -4.0], dtype=torch.float64)
MASK = (torch.arange(4) < torch.tensor(LENGTHS)[:, None])[:, :, None]
LOGP = torch.where(MASK, -torch.rand(4, 4, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2, 0.0)
OLD = LOGP + torch.where(MASK, torch.tensor([0.3, -0.02, -0.4, 0.01], dtype=torch.float64)[:, None], 0.0)


def batch_of(logp: Tensor = LOGP, old: Tensor | None = None, rows: Tensor | None = None, draws: Draws | None = None) -> MemoryBatch:
    rows = torch.arange(4) if rows is None else rows
    scores = Scores(logp[rows], torch.zeros_like(logp), MASK[rows])
    return MemoryBatch(scores, REWARD[rows], REF[rows], None if old is None else old[rows], 4, draws)


def totals() -> list[float]:
    """log π of whole samples, by a loop."""
    return [sum(LOGP[k, :n, 0].tolist()) for k, n in enumerate(LENGTHS)]


def gradient(objective: Objective, old: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
    logp = LOGP.clone().requires_grad_()
    (found,) = torch.autograd.grad(objective(batch_of(logp, old, rows)), logp)
    return found


def test_log_probs_of_whole_samples_leave_masked_sites_out() -> None:
    noisy = torch.where(MASK, LOGP, 7.0)
    assert batch_of(noisy).logp.tolist() == pytest.approx(totals(), abs=1e-14)


@pytest.mark.parametrize("c", [0.0, 0.3])
def test_trajectory_balance_by_hand_and_log_z_has_a_gradient(c: float) -> None:
    objective = TrajectoryBalance(beta=4.0, log_z=1.5, kl_coef=c)
    loss = objective(batch_of())
    gaps = [1.5 + logp - 4 * r for logp, r in zip(totals(), REWARD.tolist(), strict=True)]
    drift = sum(logp - ref for logp, ref in zip(totals(), REF.tolist(), strict=True)) / 4
    assert float(loss.detach()) == pytest.approx(sum(g * g for g in gaps) / 4 + c * drift, abs=1e-6)
    loss.backward()
    assert objective.log_z.grad is not None
    assert float(objective.log_z.grad) == pytest.approx(2 * sum(gaps) / 4, abs=1e-6)
    assert [name for name, _ in objective.named_parameters()] == ["log_z"]


def test_augmented_likelihood_by_hand() -> None:
    gaps = [ref + 2 * r - logp for logp, r, ref in zip(totals(), REWARD.tolist(), REF.tolist(), strict=True)]
    assert float(AugmentedLikelihood(2.0)(batch_of())) == pytest.approx(sum(g * g for g in gaps) / 4, abs=1e-13)


def test_likelihood_is_per_site_as_in_pretraining() -> None:
    assert float(Likelihood()(batch_of())) == pytest.approx(-sum(totals()) / sum(LENGTHS), abs=1e-13)


def test_group_balance_by_hand() -> None:
    gaps = [logp - 0.5 * ref - 3 * r for logp, r, ref in zip(totals(), REWARD.tolist(), REF.tolist(), strict=True)]
    drift = sum(logp - ref for logp, ref in zip(totals(), REF.tolist(), strict=True)) / 4
    wanted = sum((g - sum(gaps) / 4) ** 2 for g in gaps) / 4 + 0.2 * drift
    assert float(GroupBalance(beta=3.0, alpha=0.5, kl_coef=0.2)(batch_of())) == pytest.approx(wanted, abs=1e-13)


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_group_relative_is_the_trainers_loss(loss_type: Any, level: Any) -> None:
    advantage = group_advantages(REWARD, torch.zeros(4, dtype=torch.long))
    weight = row_weights(MASK.sum(-1), loss_type, 4, level=level)
    options: dict[str, Any] = {"level": level, "loss_type": loss_type, "epsilon": 0.1, "epsilon_high": 0.25}
    for old in (None, OLD):
        wanted = grpo_loss(batch_of().scores, old, advantage, weight, **options).loss
        assert float(GroupRelative(**options)(batch_of(old=old))) == pytest.approx(float(wanted), abs=1e-14)


def test_in_the_first_pass_its_gradient_is_reinforce_with_the_advantages_of_the_group() -> None:
    mean = sum(REWARD.tolist()) / 4
    deviation = math.sqrt(sum((r - mean) ** 2 for r in REWARD.tolist()) / 3)
    advantage = torch.tensor([(r - mean) / (deviation + 1e-4) for r in REWARD.tolist()], dtype=torch.float64)
    wanted = -advantage[:, None, None] * MASK / sum(LENGTHS)
    torch.testing.assert_close(gradient(GroupRelative()), wanted, rtol=0, atol=1e-15)
    torch.testing.assert_close(gradient(GroupRelative(), old=LOGP), wanted, rtol=0, atol=1e-15)


DRAWS = Draws(torch.tensor([0.1, 0.5, 0.5], dtype=torch.float64), torch.tensor([-2.5, -6.0, -6.0], dtype=torch.float64))


@pytest.mark.parametrize("tau", [0.02, 0.1])
def test_self_imitation_takes_what_is_worth_more_than_the_draws_of_the_policy(tau: float) -> None:
    level = (0.1 + 2.5 * tau + 2 * (0.5 + 6 * tau)) / 3
    wanted = [max(0.0, r - tau * logp - level) for r, logp in zip(REWARD.tolist(), totals(), strict=True)]
    assert 0 < sum(a > 0 for a in wanted) < 4
    objective = SelfImitation(tau)
    assert objective.advantages(batch_of(draws=DRAWS)).tolist() == pytest.approx(wanted, abs=1e-13)
    (found,) = torch.autograd.grad(objective(batch_of(logp := LOGP.clone().requires_grad_(), draws=DRAWS)), logp)
    expected = -torch.tensor(wanted, dtype=torch.float64)[:, None, None] * MASK / (4 * 4)  # constant weights, no gradient of A
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-15)


def test_self_imitation_without_a_known_draw_compares_within_the_batch() -> None:
    value = [r - 0.1 * logp for r, logp in zip(REWARD.tolist(), totals(), strict=True)]
    wanted = [max(0.0, v - sum(value) / 4) for v in value]
    nothing = Draws(REWARD[:0], REF[:0])
    for draws in (None, nothing):
        assert SelfImitation(0.1).advantages(batch_of(draws=draws)).tolist() == pytest.approx(wanted, abs=1e-13)


def test_self_imitation_clips_ratios_as_the_trainer_does() -> None:
    objective = SelfImitation(0.02, epsilon=0.1, epsilon_high=0.25, level="token")
    advantage = objective.advantages(batch_of(draws=DRAWS))
    weight = row_weights(MASK.sum(-1), "dr_grpo", 4)
    wanted = grpo_loss(batch_of().scores, OLD, advantage, weight, level="token", epsilon=0.1, epsilon_high=0.25).loss
    assert float(objective(batch_of(old=OLD, draws=DRAWS))) == pytest.approx(float(wanted), abs=1e-15)
    logp = LOGP.clone().requires_grad_()
    (found,) = torch.autograd.grad(objective(batch_of(logp, OLD, draws=DRAWS)), logp)
    risen = MASK & ((LOGP - OLD).exp() > 1.25)
    assert bool(risen.any())
    assert bool((found[risen] == 0).all())


def test_self_imitation_of_a_whole_space_ends_at_the_boltzmann_distribution() -> None:
    """All samples in every batch and in the draws: A vanishes where log π = (R - V) / τ, that is π = exp(R/τ) / Z."""
    reward = torch.tensor([0.0, 0.1, 0.25, 0.3, 0.05], dtype=torch.float64)
    logits, tau = torch.zeros(5, dtype=torch.float64, requires_grad=True), 0.1
    everything = torch.ones(5, 1, 1, dtype=torch.bool)
    optimizer = torch.optim.SGD([logits], lr=5.0)
    for _ in range(2000):
        logp = logits.log_softmax(0)
        scores = Scores(logp[:, None, None], torch.zeros(5, 1, 1), everything)
        batch = MemoryBatch(scores, reward, reward, None, 1, Draws(reward, logp.detach()))
        optimizer.zero_grad()
        SelfImitation(tau)(batch).backward()
        optimizer.step()
    torch.testing.assert_close(logits.detach().softmax(0), (reward / tau).softmax(0), rtol=0, atol=2e-3)


def test_the_temperature_follows_the_share_of_new_samples() -> None:
    objective = SelfImitation(0.01, new_share=0.4, rate=1.5)

    def after(share: float, rounds: int = 1) -> float:
        for _ in range(rounds):
            objective.begin_round(Draws(REWARD, REF, share))
        return objective.temperature

    assert after(0.39) == pytest.approx(0.015)
    assert after(0.4) == pytest.approx(0.01)
    assert after(0.0, 9) == 0.05
    assert after(1.0, 20) == 0.001
    still = SelfImitation(0.01)
    still.begin_round(Draws(REWARD, REF, 0.0))
    assert still.temperature == 0.01


def test_sites_whose_ratio_left_the_range_have_no_gradient() -> None:
    found = gradient(GroupRelative(epsilon=0.2), old=OLD)
    ratio = (LOGP - OLD).exp()
    better = REWARD.gt(REWARD.mean())[:, None, None]
    clipped = MASK & ((better & (ratio > 1.2)) | (~better & (ratio < 0.8)))
    assert bool(clipped.any())
    assert bool((found[clipped] == 0).all())
    assert bool((found[MASK & ~clipped] != 0).all())


def test_the_drift_of_group_relative_is_per_site() -> None:
    drift = sum(logp - ref for logp, ref in zip(totals(), REF.tolist(), strict=True)) / sum(LENGTHS)
    difference = float(GroupRelative(beta=0.3)(batch_of())) - float(GroupRelative()(batch_of()))
    assert difference == pytest.approx(0.3 * drift, abs=1e-13)


@pytest.mark.parametrize(
    "objective",
    [
        TrajectoryBalance(5.0),
        AugmentedLikelihood(2.0),
        Likelihood(),
        GroupBalance(3.0, 0.5, 0.1),
        GroupRelative(beta=0.1),
        SelfImitation(0.1),
    ],
    ids=lambda objective: type(objective).__name__,
)
def test_the_order_of_the_samples_does_not_matter(objective: Objective) -> None:
    order = torch.tensor([2, 0, 3, 1])
    old = OLD if objective.needs_old else None
    there, here = objective(batch_of(old=old, rows=order)), objective(batch_of(old=old))
    assert float(there.detach()) == pytest.approx(float(here.detach()), abs=1e-6)
    torch.testing.assert_close(gradient(objective, old, order), gradient(objective, old), rtol=0, atol=1e-6)


def test_without_a_temperature_self_imitation_compares_rewards_alone() -> None:
    draws = Draws(torch.tensor([0.25, 0.75]), torch.tensor([-1.0, -50.0]))
    advantages = SelfImitation(temperature=0.0).advantages(batch_of(old=OLD, draws=draws))
    assert advantages.tolist() == [max(0.0, reward - 0.5) for reward in REWARD.double().tolist()]


def test_objectives_that_say_so_do_not_read_the_reference() -> None:
    for objective in (Likelihood(), SelfImitation(0.1)):
        assert not objective.needs_ref
        batch = batch_of(old=OLD if objective.needs_old else None)
        unknown = replace(batch, ref_logp=torch.full_like(batch.ref_logp, torch.nan))
        assert torch.equal(objective(unknown), objective(batch))


def test_only_clipped_ratios_need_the_old_policy() -> None:
    assert GroupRelative.needs_old
    assert SelfImitation.needs_old
    assert not any(kind.needs_old for kind in (TrajectoryBalance, AugmentedLikelihood, Likelihood, GroupBalance))


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (TrajectoryBalance, {"beta": 0.0}, "beta: 0"),
        (TrajectoryBalance, {"kl_coef": -0.1}, "kl_coef: -0.1"),
        (AugmentedLikelihood, {"sigma": 0.0}, "sigma: 0"),
        (GroupBalance, {"beta": 0.0}, "beta: 0"),
        (GroupBalance, {"alpha": -1.0}, "alpha: -1"),
        (GroupBalance, {"kl_coef": -1.0}, "kl_coef: -1"),
        (GroupRelative, {"epsilon": 0.0}, "epsilon: 0"),
        (GroupRelative, {"epsilon": 1.0}, "epsilon: 1"),
        (GroupRelative, {"epsilon_high": 0.0}, "epsilon_high: 0"),
        (GroupRelative, {"beta": -0.1}, "beta: -0.1"),
        (GroupRelative, {"loss_type": "cispo"}, "epsilon_high: None"),
        (GroupRelative, {"loss_type": "ppo"}, "loss_type: 'ppo', expected one of"),
        (GroupRelative, {"level": "word"}, "level: 'word', expected one of"),
        (SelfImitation, {"temperature": -0.1}, "temperature: -0.1"),
        (SelfImitation, {"temperature": 0.0, "new_share": 0.4}, "temperature: 0.0, expected more than 0 with new_share"),
        (SelfImitation, {"new_share": 1.1}, "new_share: 1.1"),
        (SelfImitation, {"rate": 0.9}, "rate: 0.9"),
        (SelfImitation, {"epsilon": 1.0}, "epsilon: 1"),
        (SelfImitation, {"epsilon_high": 0.0}, "epsilon_high: 0"),
        (SelfImitation, {"level": "word"}, "level: 'word', expected one of"),
    ],
)
def test_settings_are_refused(kind: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kind(**given)


@pytest.mark.parametrize("objective", [SelfImitation(temperature=0.1), GroupRelative(), GroupBalance(), AugmentedLikelihood()])
def test_a_device_without_float64_gives_the_same_loss(objective: Any) -> None:
    draws = Draws(REWARD.float(), REF.float(), 0.5)
    logp, zero = LOGP.float(), torch.zeros_like(LOGP, dtype=torch.float32)
    here = objective(MemoryBatch(Scores(logp, zero, MASK), REWARD.float(), REF.float(), OLD.float(), 4, draws))
    with pretending():
        moved = Draws(draws.reward.to("mps"), draws.logp.to("mps"), 0.5)
        scores = Scores(logp.to("mps"), zero.to("mps"), MASK.to("mps"))
        there = objective(MemoryBatch(scores, REWARD.float().to("mps"), REF.float().to("mps"), OLD.float().to("mps"), 4, moved))
        assert float(there.cpu()) == pytest.approx(float(here), rel=1e-5)


def test_at_level_step_the_largest_number_of_units_is_one_of_steps() -> None:
    """Two steps of up to four sites: w = 1 / (B n_max) with n_max = 2."""
    mask = torch.rand(4, 2, 4, generator=torch.Generator().manual_seed(1)) < 0.7
    logp = torch.where(mask, -torch.rand(4, 2, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64), 0.0)
    scores = Scores(logp, torch.zeros_like(logp), mask)
    batch = MemoryBatch(scores, REWARD, REF, None, 8, None, 2)
    options: dict[str, Any] = {"level": "step", "loss_type": "dr_grpo", "epsilon": 0.2}
    advantage = group_advantages(REWARD, torch.zeros(4, dtype=torch.long))
    wanted = grpo_loss(scores, None, advantage, row_weights(mask.sum(-1), "dr_grpo", 2, level="step"), **options).loss
    assert float(GroupRelative(**options)(batch)) == pytest.approx(float(wanted), abs=1e-14)
    assert float(wanted) != 0
    assert (batch.most("step"), batch.most("token"), batch_of().most("step")) == (2, 8, 4)


def test_the_group_relative_loss_has_its_upper_bound_and_a_drift_per_site_at_every_level() -> None:
    advantage = group_advantages(REWARD, torch.zeros(4, dtype=torch.long))
    pair = Scores(LOGP.transpose(1, 2), torch.zeros(4, 1, 4), MASK.transpose(1, 2))  # one step of all sites
    old = pair.logp - torch.where(pair.mask, 0.25, 0.0)  # ratios of 1.28, between both bounds
    drift = (sum(totals()) - float(REF.sum())) / sum(LENGTHS)
    for level in ("token", "step"):
        batch = MemoryBatch(pair, REWARD, REF, old, 4, None, 1)
        weight = row_weights(pair.mask.sum(-1), "dapo", 4, level=level)
        wanted = grpo_loss(pair, old, advantage, weight, level=level, epsilon=0.1, epsilon_high=0.4).loss
        found = GroupRelative(epsilon=0.1, epsilon_high=0.4, beta=0.3, level=level)(batch)
        assert float(found) == pytest.approx(float(wanted) + 0.3 * drift, abs=1e-12)


def test_imitation_compares_with_all_draws_of_the_round() -> None:
    draws = Draws(torch.tensor([0.1, 0.2, 0.3, 0.4, 0.9, 0.5], dtype=torch.float64), -torch.arange(6.0).double())
    found = SelfImitation(temperature=0.02).advantages(batch_of(draws=draws))
    value = sum(r + 0.02 * k for k, r in enumerate([0.1, 0.2, 0.3, 0.4, 0.9, 0.5])) / 6
    wanted = [max(0.0, r - 0.02 * logp - value) for r, logp in zip(REWARD.tolist(), totals(), strict=True)]
    assert found.tolist() == pytest.approx(wanted, abs=1e-12)
    assert 0 < sum(a > 0 for a in wanted) < 4
