"""Advantages: TRL's numbers, exact zeros, unknown rewards, and what the expected gradient becomes."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo.core.advantages import (
    advantages,
    constant_groups,
    group_advantages,
    groups_without_signal,
    normalize_then_sum,
    sum_rewards,
)
from discrete_grpo.core.categorical import Sites, score_sites
from discrete_grpo.core.loss import grpo_loss
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.generation_advantages import advantages_of
from tests import oracles

NAN = math.nan


def interleaved(seed: int, groups: int = 3, size: int = 4) -> tuple[Tensor, Tensor]:
    """Rewards and group ids: neither contiguous, nor sorted, nor small."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.tensor([40, -7, 1000003])[:groups].repeat(size)
    order = torch.randperm(len(ids), generator=g)
    return torch.rand(len(ids), generator=g, dtype=torch.float64) * 3, ids[order]


@pytest.mark.parametrize("value", [0.1, 0.35, 0.7, 0.9, 1e6 / 3])
@pytest.mark.parametrize("size", [2, 8, 16, 60])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_constant_rewards_give_exactly_zero(value: float, size: int, scale: str, baseline: str) -> None:
    reward = torch.full((size + 2,), value, dtype=torch.float32)
    reward[-2:] = torch.tensor([0.0, 1.0])  # another group, that has a signal
    group = torch.tensor([3] * size + [4, 4])
    found = group_advantages(reward, group, scale_rewards=scale, baseline=baseline)  # type: ignore[arg-type]
    assert found[:size].tolist() == [0.0] * size
    assert found[-1] > 0
    assert constant_groups(reward, group).tolist() == [True] * size + [False] * 2
    several = advantages(torch.stack([reward, reward], 1), group, weights=[0.3, 0.7])
    assert several[:size].tolist() == [0.0] * size


def ulps(value: float, count: int) -> float:
    """The float64 that many places above."""
    for _ in range(count):
        value = math.nextafter(value, math.inf)
    return value


@pytest.mark.parametrize("value", [0.3, -7.0, 1e6 / 3, 1e12, 1e-200])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_rewards_that_differ_by_rounding_are_equal(value: float, scale: str, baseline: str) -> None:
    near = [value, ulps(value, 1), ulps(value, 5), value]
    reward = torch.tensor([*near, 0.0, 1.0], dtype=torch.float64)
    group = torch.tensor([3, 3, 3, 3, 4, 4])
    found = group_advantages(reward, group, scale_rewards=scale, baseline=baseline)  # type: ignore[arg-type]
    assert found[:4].tolist() == [0.0] * 4
    assert found[-1] > 0
    assert constant_groups(reward, group).tolist() == [True] * 4 + [False] * 2
    for aggregation in ("sum_then_normalize", "normalize_then_sum"):
        columns = torch.stack([reward, reward], 1)
        silent = groups_without_signal(columns, group, multi_objective_aggregation=aggregation)
        assert silent.tolist() == [True] * 4 + [False] * 2


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
def test_a_difference_is_a_signal_from_a_trillionth_on(size: float) -> None:
    """The tolerance is relative: 1e-12 of the largest magnitude in the group."""
    for gap, equal in ((0.9e-12, True), (1.2e-12, False), (1e-6, False)):
        reward = torch.tensor([-size, -size * (1 - gap), -size], dtype=torch.float64)
        assert constant_groups(reward, torch.zeros(3, dtype=torch.long)).tolist() == [equal] * 3
    tiny = torch.tensor([0.0, 1e-300], dtype=torch.float64)
    assert constant_groups(tiny, torch.zeros(2, dtype=torch.long)).tolist() == [False, False]


def test_a_sum_that_cancels_is_judged_by_the_size_of_its_terms() -> None:
    """100000.1 - 100000 is 0.1 up to 1e-11: the last bit of a term is much in comparison with the sum."""
    group = torch.zeros(2, dtype=torch.long)
    for large in (1e3, 1e5, 1e8):
        rewards = torch.tensor([[large + 0.1, -large], [large + 0.1, math.nextafter(-large, 0.0)]], dtype=torch.float64)
        assert sum_rewards(rewards, torch.ones(2)).unique().numel() == 2
        assert groups_without_signal(rewards, group).tolist() == [True, True]
        assert advantages(rewards, group).tolist() == [0.0, 0.0]
    apart = torch.tensor([[1e3, -1e3], [1e3, -1e3 + 1e-6]], dtype=torch.float64)
    assert groups_without_signal(apart, group).tolist() == [False, False]
    assert float(advantages(apart, group)[1]) > 0


SCALINGS = [
    {"multi_objective_aggregation": "normalize_then_sum"},
    *({"scale_rewards": scale} for scale in ("group", "batch", "none")),
]


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_a_kl_in_the_reward_is_subtracted_with_weight_beta(scaling: dict[str, Any], baseline: Any) -> None:
    """In nats, from advantages that are scaled already: by a loop over groups, whatever scales the rewards."""
    _, group = interleaved(3)
    g = torch.Generator().manual_seed(9)
    rewards = torch.rand(len(group), 2, generator=g, dtype=torch.float64)
    kl = torch.rand(len(group), generator=g, dtype=torch.float64) * 40
    rewards[2] = NAN
    rewards[6, 1] = NAN
    for beta in (0.05, 2.0):
        config = GRPOConfig(beta=beta, kl_in="reward", baseline=baseline, **scaling)
        plain, found = advantages_of(rewards, group, config), advantages_of(rewards, group, config, kl)
        for i, own in enumerate(group.tolist()):
            peers = [float(kl[k]) for k, x in enumerate(group.tolist()) if x == own and k != 2]
            centre = sum(peers) / len(peers)
            if baseline == "leave_one_out":
                centre = (sum(peers) - float(kl[i])) / (len(peers) - 1)
            wanted = float(plain[i]) - beta * (float(kl[i]) - centre)
            assert float(found[i]) == pytest.approx(0.0 if i == 2 else wanted, abs=1e-12)
        clipped = advantages_of(rewards, group, replace(config, advantage_clip=0.5), kl)
        assert torch.equal(clipped, found.clamp(-0.5, 0.5))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_in_groups_of_equal_rewards_a_kl_is_no_noise_of_full_size(scaling: dict[str, Any]) -> None:
    rewards, group = torch.full((8, 2), 0.3, dtype=torch.float64), torch.tensor([0] * 4 + [1] * 4)
    kl = torch.tensor([1.0, 1.1, 0.9, 1.2, 2.0, 2.0, 2.0, 2.0], dtype=torch.float64)
    found = advantages_of(rewards, group, GRPOConfig(beta=0.01, kl_in="reward", **scaling), kl)
    assert found.tolist() == pytest.approx([0.0005, -0.0005, 0.0015, -0.0015, 0, 0, 0, 0], abs=1e-15)
    assert found[4:].tolist() == [0.0] * 4


@pytest.mark.parametrize("reward", [[0.0, 1.0], [-3.0, 900.0], [0.2, 0.25]])
def test_two_samples_get_one_over_root_two(reward: list[float]) -> None:
    found = group_advantages(torch.tensor(reward, dtype=torch.float64), torch.tensor([0, 0]))
    gap = reward[1] - reward[0]
    wanted = (gap / 2) / (gap / math.sqrt(2) + 1e-4)
    assert found.tolist() == pytest.approx([-wanted, wanted], abs=1e-12)
    if reward == [0.0, 1.0]:
        assert found.tolist() == pytest.approx([-0.7070, 0.7070], abs=5e-5)


@pytest.mark.parametrize("seed", range(5))
def test_z_scores_are_the_loop_and_sum_to_zero_in_each_group(seed: int) -> None:
    reward, group = interleaved(seed)
    found = group_advantages(reward, group)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(oracles.z_scores(reward.tolist(), group.tolist()), abs=1e-12)
    for g in group.unique():
        assert float(found[group == g].sum()) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_leave_one_out_compares_with_the_others(seed: int, scale: str) -> None:
    reward, group = interleaved(seed)
    found = group_advantages(reward, group, baseline="leave_one_out", scale_rewards=scale)  # type: ignore[arg-type]
    for i, g in enumerate(group.tolist()):
        others = [float(r) for k, r in enumerate(reward) if group[k] == g and k != i]
        peers = {"group": [*others, float(reward[i])], "batch": reward.tolist(), "none": []}[scale]
        divisor = oracles.bessel_std(peers) + 1e-4 if peers else 1.0
        assert float(found[i]) == pytest.approx((float(reward[i]) - sum(others) / len(others)) / divisor, abs=1e-12)


def test_scaling_by_the_batch() -> None:
    reward = torch.tensor([0.9, 1.0, 0.0, 0.1], dtype=torch.float64)
    group = torch.tensor([0, 0, 1, 1])
    found = group_advantages(reward, group, scale_rewards="batch")
    wanted = 0.05 / (oracles.bessel_std(reward.tolist()) + 1e-4)
    assert found.tolist() == pytest.approx([-wanted, wanted] * 2, abs=1e-12)
    assert wanted == pytest.approx(0.096, abs=5e-4)


def test_a_sample_alone_gets_zero() -> None:
    for baseline, scale in itertools.product(("mean", "leave_one_out"), ("group", "batch", "none")):
        found = group_advantages(
            torch.tensor([0.3, 5.0, 1.0, 2.0]),
            torch.tensor([1, 2, 3, 3]),
            baseline=baseline,  # type: ignore[arg-type]
            scale_rewards=scale,  # type: ignore[arg-type]
        )
        assert found[:2].tolist() == [0.0, 0.0]
        assert found[2] < 0 < found[3]


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_unknown_rewards_are_absent_from_baseline_and_deviation(baseline: str, scale: str) -> None:
    reward, group = interleaved(1)
    more = torch.cat([reward, torch.tensor([NAN, NAN, NAN])])
    ids = torch.cat([group, torch.tensor([40, 40, 77])])
    order = torch.randperm(len(more), generator=torch.Generator().manual_seed(0))
    options = {"baseline": baseline, "scale_rewards": scale}
    found = torch.empty(len(more), dtype=torch.float64)
    found[order] = group_advantages(more[order], ids[order], **options)  # type: ignore[arg-type]
    torch.testing.assert_close(found[:-3], group_advantages(reward, group, **options), rtol=0, atol=1e-12)  # type: ignore[arg-type]
    assert found[-3:].tolist() == [0.0, 0.0, 0.0]
    one = group_advantages(torch.tensor([NAN, 2.0]), torch.tensor([0, 0]), **options)  # type: ignore[arg-type]
    assert one.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_order_does_not_matter(aggregation: str) -> None:
    _, group = interleaved(2)
    rewards = torch.rand(len(group), 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    rewards[3] = NAN
    rewards[5, 1] = NAN
    for seed in range(5):
        order = torch.randperm(len(group), generator=torch.Generator().manual_seed(seed))
        whole = advantages(rewards, group, multi_objective_aggregation=aggregation)  # type: ignore[arg-type]
        moved = advantages(rewards[order], group[order], multi_objective_aggregation=aggregation)  # type: ignore[arg-type]
        torch.testing.assert_close(moved, whole[order], rtol=0, atol=1e-12)
    assert whole[3] == 0


def test_rewards_are_weighed_and_summed_and_unknown_parts_count_as_zero() -> None:
    rewards = torch.tensor([[1.0, 2.0], [NAN, 2.0], [1.0, NAN], [NAN, NAN]])
    found = sum_rewards(rewards, torch.tensor([0.5, 10.0]))
    assert found[:3].tolist() == [20.5, 20.0, 0.5]
    assert found[3].isnan()


def test_normalising_first_keeps_a_small_reward_visible() -> None:
    """Two rewards on scales 1 and 10: the sum hides the first, the decoupled form does not (TRL's example)."""
    rewards = torch.tensor([[0.0, 10.0], [1.0, 10.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    group = torch.zeros(4, dtype=torch.long)
    summed = advantages(rewards, group)
    apart = advantages(rewards, group, multi_objective_aggregation="normalize_then_sum")
    assert [round(x, 1) for x in summed.tolist()] == [0.8, 0.9, -0.8, -0.9]
    assert apart.tolist() == pytest.approx([0.0, 1.2245, 0.0, -1.2245], abs=1e-3)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_normalise_then_sum_is_the_loop(seed: int, baseline: Any) -> None:
    _, group = interleaved(seed)
    rewards = torch.rand(len(group), 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rewards[:, 1] *= 100
    rewards[0, 0] = rewards[4, 2] = NAN
    rewards[7] = NAN
    weights = [1.0, 0.5, 2.0]
    wanted = oracles.normalize_then_sum(rewards.tolist(), group.tolist(), weights, baseline == "leave_one_out")
    found = normalize_then_sum(rewards, group, torch.tensor(weights), baseline=baseline)
    assert found.tolist() == pytest.approx(wanted, abs=1e-12)
    first: Any = {"multi_objective_aggregation": "normalize_then_sum"}
    assert torch.equal(advantages(rewards, group, weights=weights, baseline=baseline, **first), found)
    assert torch.equal(advantages(rewards, group, weights=weights, baseline=baseline, scale_rewards="none", **first), found)


def test_advantages_are_clipped_on_both_sides() -> None:
    rewards = torch.tensor([[0.0]] * 9 + [[1.0]] + [[0.0]] + [[1.0]] * 9)
    group = torch.tensor([0] * 10 + [1] * 10)
    free, clipped = advantages(rewards, group), advantages(rewards, group, clip=1.5)
    assert free.max() > 2.8
    assert free.min() < -2.8
    assert torch.equal(clipped, free.clamp(-1.5, 1.5))


def test_a_wrong_number_of_weights_is_named() -> None:
    with pytest.raises(ValueError, match=r"^reward_weights: 1 weights, expected one per reward \(2\)"):
        advantages(torch.zeros(2, 2), torch.zeros(2, dtype=torch.long), weights=[1.0])


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_the_expected_gradient_over_all_groups(size: int, baseline: str) -> None:
    """Centring with the sample's own reward in the mean shrinks ∇J by (G-1)/G; leaving it out does not."""
    logits = torch.tensor([0.3, -0.8, 0.5], dtype=torch.float64, requires_grad=True)
    reward = torch.tensor([1.0, 0.2, -0.5], dtype=torch.float64)
    log_p = logits.log_softmax(-1)
    (wanted,) = torch.autograd.grad(-(log_p.exp() * reward).sum(), logits, retain_graph=True)
    expected = torch.zeros_like(wanted)
    for drawn in itertools.product(range(3), repeat=size):
        action = torch.tensor(drawn)[:, None, None]
        a = group_advantages(
            reward[action[:, 0, 0]],
            torch.zeros(size, dtype=torch.long),
            scale_rewards="none",
            baseline=baseline,  # type: ignore[arg-type]
        )
        scores = score_sites([Sites(log_p.expand(size, 1, 1, 3), action, torch.ones_like(action, dtype=torch.bool))])
        loss = grpo_loss(scores, None, a, torch.full((size,), 1 / size, dtype=torch.float64)).loss
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
        expected += gradient * log_p.detach()[list(drawn)].sum().exp()
    factor = (size - 1) / size if baseline == "mean" else 1.0
    torch.testing.assert_close(expected, factor * wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_groups_without_a_signal_are_those_whose_advantages_are_zero(aggregation: str) -> None:
    rewards = torch.tensor(
        [[1, 0], [0, 1], [0.1, 0.7], [0.1, 0.7], [1, 5], [1, 7], [NAN, NAN], [NAN, NAN], [0, 2], [NAN, NAN]], dtype=torch.float64
    )
    group = torch.tensor([4, 4, 9, 9, 1, 1, 7, 7, 0, 0])
    for weights in (None, [1.0, 1.0], [2.0, 1.0], [1.0, 0.0]):
        found = groups_without_signal(rewards, group, weights=weights, multi_objective_aggregation=aggregation)  # type: ignore[arg-type]
        for g in group.unique():
            rows = group == g
            a = advantages(rewards[rows], group[rows], weights=weights, multi_objective_aggregation=aggregation)  # type: ignore[arg-type]
            parts = [group_advantages(r, group[rows]) * w for r, w in zip(rewards[rows].unbind(-1), weights or (1, 1), strict=True)]
            silent = not a.any() if aggregation == "sum_then_normalize" else not torch.stack(parts).any()
            assert found[rows].tolist() == [silent] * 2, (weights, int(g))


def test_equal_rewards_have_advantages_of_exactly_zero_however_they_are_summed() -> None:
    for seed in range(20):
        rewards = torch.rand(9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        rewards[6:] = 0.5
        found = advantages(rewards, torch.arange(9) // 3, multi_objective_aggregation="normalize_then_sum")
        assert (found[6:] == 0).all()
        assert (found[:6] != 0).all()


def test_rewards_whose_squares_are_infinite_are_refused_and_not_taken_for_equal() -> None:
    group = torch.tensor([0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"^reward: -1e\+200, expected at most 1e\+150 in size$"):
        group_advantages(torch.tensor([-1e200, 0.0, 0.0, 1.0], dtype=torch.float64), group)
    found = group_advantages(torch.tensor([1e150, 0.0, 0.0, 1.0], dtype=torch.float64), group)
    assert found.abs().tolist() == pytest.approx([0.5**0.5] * 4, rel=2e-4)
