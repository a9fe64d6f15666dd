"""The objective: loops, degenerate cases, and that parts add up to the whole. TRL's own numbers: ``test_trl_parity.py``."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo.core.categorical import Scores
from discrete_grpo.core.loss import (
    cispo_surrogate,
    clipped_surrogate,
    grpo_loss,
    kl_units,
    log_ratio,
    off_policy_rows,
    row_weights,
    sapo_surrogate,
)
from tests import oracles
from tests.training.test_trl_parity import ADVANTAGE, LAYOUTS, LOGP, MASK, f64, layouts

LOSS_TYPES = ["grpo", "dapo", "dr_grpo", "cispo", "sapo"]
LEVELS = ["token", "step", "step_mean", "sequence"]
loss_types = pytest.mark.parametrize("loss_type", LOSS_TYPES)
levels = pytest.mark.parametrize("level", LEVELS)


def scores_of(logp: Tensor, mask: Tensor, kl: Tensor | None = None) -> Scores:
    """Scores as the core makes them: 0 where the mask is False."""
    logp = torch.where(mask, logp, 0.0)
    kl = None if kl is None else torch.where(mask, kl, 0.0)
    return Scores(logp, torch.zeros_like(logp), mask, kl, None if kl is None else torch.zeros_like(kl))


@layouts
@levels
def test_without_an_old_policy_the_gradient_is_reinforce(layout: str, level: Any) -> None:
    """Every level has the score of every site once, divided by the number of units: 4 steps of the layout sites, else 9 sites."""
    place = LAYOUTS[layout]
    logp, mask = LOGP.clone().requires_grad_(), place(MASK)
    weight = row_weights(mask.sum(-1), "dapo", 4, level=level)
    loss = grpo_loss(scores_of(place(logp), mask), None, ADVANTAGE, weight, level=level).loss
    units = mask.any(-1).sum(-1) if level == "step" else mask.sum((-2, -1))
    wanted = -float((ADVANTAGE * units).sum() / units.sum())
    assert wanted == pytest.approx(0.0 if level == "step" and layout == "sites" else -0.2222222222, abs=1e-9)
    assert float(loss.detach()) == pytest.approx(wanted, abs=1e-15)
    (gradient,) = torch.autograd.grad(loss, logp)
    torch.testing.assert_close(gradient, -MASK.double() * ADVANTAGE[:, None] / units.sum(), rtol=0, atol=1e-15)


def random_case(seed: int, b: int = 4, s: int = 3, u: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """logp, old, mask, advantage, kl with unequal sizes; every trajectory has a site, some steps have none."""
    g = torch.Generator().manual_seed(seed)
    logp = -torch.rand(b, s, u, generator=g, dtype=torch.float64) * 2
    old = logp + 0.4 * torch.randn(b, s, u, generator=g, dtype=torch.float64)
    mask = torch.rand(b, s, u, generator=g) < 0.6
    mask[:, 0, 0] = True
    mask[0, 1] = False
    return logp, old, mask, torch.randn(b, generator=g, dtype=torch.float64), torch.rand(b, s, u, generator=g, dtype=torch.float64)


def loop_surrogate(loss_type: str, ratio: float, log_prob: float, a: float, high: float, delta: float | None) -> float:
    """Each surrogate by cases, in floats."""
    if loss_type == "cispo":
        return min(ratio, high) * a * log_prob
    if loss_type == "sapo":
        tau = 1.3 if a > 0 else 0.9
        return 4 / tau * a / (1 + math.exp(-tau * (ratio - 1)))
    if delta is not None and a < 0:
        return a * max(min(ratio, delta), 0.9)
    return oracles.surrogate(ratio, a, 0.1, high)


@pytest.mark.parametrize("seed", range(2))
@loss_types
@levels
@pytest.mark.parametrize(("beta", "delta", "dropped"), [(0.0, None, False), (0.3, None, False), (0.3, 1.4, True)])
def test_every_level_and_loss_is_the_loop(
    seed: int, loss_type: Any, level: Any, beta: float, delta: float | None, dropped: bool
) -> None:
    logp, old, mask, advantage, kl = random_case(seed)
    keep = torch.rand(mask.shape, generator=torch.Generator().manual_seed(seed)) < 0.5 if dropped else None
    options = {"epsilon": 0.1, "epsilon_high": 0.25, "sapo_temperature_pos": 1.3, "sapo_temperature_neg": 0.9, "delta": delta}
    weight = row_weights(mask.sum(-1), loss_type, 15, level=level)
    found = grpo_loss(
        scores_of(logp, mask, kl),
        torch.where(mask, old, 0.0),
        advantage,
        weight,
        level=level,
        loss_type=loss_type,
        beta=beta,
        keep=keep,
        **options,  # type: ignore[arg-type]
    )
    normaliser = {"cispo": "dapo", "sapo": "grpo"}.get(loss_type, loss_type)
    w = oracles.unit_weights(mask.tolist(), normaliser, level, 15)
    ratios = oracles.unit_ratios(logp.tolist(), old.tolist(), mask.tolist(), level)
    kept = mask if keep is None else mask & keep  # what cispo's log π is made of; ratios have the value of all sites
    probs = oracles.unit_ratios(torch.where(kept, logp, 0.0).tolist(), torch.zeros_like(logp).tolist(), mask.tolist(), level)
    wanted = 0.0
    for b, s, u in oracles.units_of(mask.tolist(), level):
        r, row = ratios[b, s, u], kl[b, s][mask[b, s]]
        wanted += beta * w[b] * float(row.sum() if level == "step" else kl[b, s, u])
        covered = {"token": kept[b, s, u], "sequence": kept[b].any()}.get(level, kept[b, s].any())
        if covered:
            wanted -= w[b] * loop_surrogate(loss_type, r, math.log(probs[b, s, u]), float(advantage[b]), 0.25, delta)
    assert float(found.loss) == pytest.approx(wanted, abs=1e-12)
    count = {
        "clip_low": sum(r < 0.9 and advantage[b] < 0 for (b, _, _), r in ratios.items()),
        "clip_high": sum(r > 1.25 and advantage[b] > 0 for (b, _, _), r in ratios.items()),
        "cispo_clip": sum(r > 0.25 and advantage[b] > 0 for (b, _, _), r in ratios.items()),
    }
    names = {"cispo": ["cispo_clip"], "sapo": []}.get(loss_type, ["clip_low", "clip_high"])
    assert {n: float(v) for n, v in found.sums.items() if "clip" in n} == {n: count[n] for n in names}
    assert float(found.sums["sites"]) == len(ratios)
    assert float(found.sums["kl"]) == pytest.approx(float(kl[mask].sum()), abs=1e-12)


@levels
def test_the_first_update_is_one_and_the_same_for_every_surrogate(level: Any) -> None:
    """At π_old = π_θ every surrogate has the slope of REINFORCE; only the weights differ."""
    logp, _, mask, advantage, _ = random_case(1)
    weight = torch.rand(4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradients = []
    names: list[Any] = LOSS_TYPES
    for loss_type in names:
        leaf = logp.clone().requires_grad_()
        loss = grpo_loss(
            scores_of(leaf, mask),
            None,
            advantage,
            weight,
            level=level,
            loss_type=loss_type,
            epsilon_high=5.0,
        ).loss
        gradients.append(torch.autograd.grad(loss, leaf)[0])
    for found in gradients[1:]:
        torch.testing.assert_close(found, gradients[0], rtol=0, atol=1e-14)


@pytest.mark.parametrize("seed", range(2))
@levels
def test_log_ratios_of_every_unit(seed: int, level: Any) -> None:
    logp, old, mask, _, kl = random_case(seed)
    found = log_ratio(logp, old, mask, level).expand_as(mask)
    for (b, s, u), ratio in oracles.unit_ratios(logp.tolist(), old.tolist(), mask.tolist(), level).items():
        assert float(found[b, s, u].exp()) == pytest.approx(ratio, rel=1e-12)
    units = kl_units(torch.where(mask, kl, 0.0), level)
    assert units.shape == ((4, 3, 1) if level == "step" else (4, 3, 5))
    assert float(units.sum()) == pytest.approx(float(kl[mask].sum()), abs=1e-12)


@loss_types
@levels
@pytest.mark.parametrize("seed", range(2))
def test_dropped_sites_have_no_gradient_and_kept_ones_that_of_the_whole_ratio(seed: int, loss_type: Any, level: Any) -> None:
    """Off-policy, far from every clip: a kept site has the gradient that it has where nothing is dropped, a dropped one 0."""
    logp, old, mask, advantage, _ = random_case(seed)
    keep = torch.rand(mask.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    keep[1] = False  # a trajectory without any kept site
    assert (mask & ~keep).any(-1)[mask.any(-1) & (mask & keep).any(-1)].any(), "expected steps of kept and dropped sites"
    weight = row_weights(mask.sum(-1), loss_type, 15, level=level)
    found, values = [], []
    for kept in (None, torch.ones_like(keep), keep):
        leaf = logp.clone().requires_grad_()
        options: dict[str, Any] = {"level": level, "loss_type": loss_type, "epsilon": 100.0, "epsilon_high": 100.0, "keep": kept}
        part = grpo_loss(scores_of(leaf, mask), torch.where(mask, old, 0.0), advantage, weight, **options)
        found.append(torch.autograd.grad(part.loss, leaf)[0])
        values.append((float(part.loss.detach()), {name: float(v) for name, v in part.sums.items() if "clip" in name}))
    assert torch.equal(found[0], found[1])
    assert values[0] == values[1]
    assert found[2][~(mask & keep)].eq(0.0).all()
    assert found[2][mask & keep].abs().min() > 1e-6
    torch.testing.assert_close(found[2][mask & keep], found[0][mask & keep], rtol=0, atol=1e-15)
    assert values[2][1] == values[0][1]  # what is clipped is decided by the true ratio


@loss_types
@levels
def test_chunks_of_rows_and_steps_add_up_to_the_whole(loss_type: Any, level: Any) -> None:
    logp, old, mask, advantage, kl = random_case(0)
    logp.requires_grad_()
    weight = row_weights(mask.sum(-1), loss_type, 15, level=level)
    keep = torch.rand(mask.shape, generator=torch.Generator().manual_seed(2)) < 0.7

    def loss(rows: slice, steps: slice) -> Tensor:
        at = (rows, steps)
        return grpo_loss(
            scores_of(logp[at], mask[at]),
            torch.where(mask, old, 0.0)[at],
            advantage[rows],
            weight[rows],
            level=level,
            loss_type=loss_type,
            epsilon_high=0.9,
            delta=1.5,
            beta=0.2,
            penalty=torch.where(mask, kl * logp**2, 0.0)[at],
            keep=keep[at],
        ).loss

    whole = loss(slice(None), slice(None))
    (wanted,) = torch.autograd.grad(whole, logp, retain_graph=True)
    for rows, steps in itertools.product((1, 2, 4), (3,) if level == "sequence" else (1, 2, 3)):
        parts = [loss(slice(i, i + rows), slice(j, j + steps)) for i in range(0, 4, rows) for j in range(0, 3, steps)]
        total = torch.stack(parts).sum()
        assert float(total.detach()) == pytest.approx(float(whole.detach()), abs=1e-12)
        torch.testing.assert_close(torch.autograd.grad(total, logp)[0], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_a_step_is_one_unit_however_many_sites_it_has(loss_type: Any) -> None:
    sites = torch.tensor([[2, 1], [4, 40], [0, 0], [5, 0]])
    found = row_weights(sites, loss_type, 2, level="step")
    torch.testing.assert_close(found, row_weights((sites > 0).long(), loss_type, 2), rtol=0, atol=0)
    for level in ("step_mean", "sequence"):
        assert torch.equal(row_weights(sites, loss_type, 44, level=level), row_weights(sites, loss_type, 44))


def test_row_weights_by_hand() -> None:
    units = torch.tensor([[2, 1], [4, 4], [0, 0], [5, 0]])
    assert row_weights(units, "grpo", 10)[[0, 1, 3]].tolist() == pytest.approx([1 / 12, 1 / 32, 1 / 20])
    assert row_weights(units, "dapo", 10).tolist() == pytest.approx([1 / 16] * 4)
    assert row_weights(units, "dr_grpo", 10).tolist() == pytest.approx([1 / 40] * 4)
    counted = torch.tensor([True, False, True, True])
    assert row_weights(units, "grpo", 10, counted)[[0, 1, 3]].tolist() == pytest.approx([1 / 9, 0, 1 / 15])
    assert row_weights(units, "dapo", 10, counted).tolist() == pytest.approx([1 / 8, 0, 1 / 8, 1 / 8])
    assert row_weights(units, "dr_grpo", 10, counted).tolist() == pytest.approx([1 / 30, 0, 1 / 30, 1 / 30])
    assert torch.equal(row_weights(units, "sapo", 10, counted), row_weights(units, "grpo", 10, counted))
    assert torch.equal(row_weights(units, "cispo", 10, counted), row_weights(units, "dapo", 10, counted))
    for loss_type in LOSS_TYPES:
        nothing = row_weights(units, loss_type, 10, torch.zeros(4, dtype=torch.bool))  # type: ignore[arg-type]
        assert nothing.tolist() == [0.0] * 4
        empty = row_weights(torch.zeros(2, 2, dtype=torch.long), loss_type, 10)  # type: ignore[arg-type]
        assert torch.isfinite(empty).all()
        assert empty.dtype == torch.float64


@loss_types
def test_rows_that_do_not_count_are_as_good_as_absent(loss_type: Any) -> None:
    logp, old, mask, advantage, kl = random_case(1)
    keep = torch.tensor([True, False, True, True])
    for rows, counted in ((slice(None), keep), (keep, None)):
        weight = row_weights(mask[rows].sum(-1), loss_type, 15, counted)
        scores = scores_of(logp[rows], mask[rows], kl[rows])
        part = grpo_loss(
            scores, torch.where(mask, old, 0.0)[rows], advantage[rows], weight, beta=0.5, loss_type=loss_type, epsilon_high=2.0
        )
        loss = part.loss
        if counted is not None:
            first = loss
    assert float(loss) == pytest.approx(float(first), abs=1e-14)


@levels
@pytest.mark.parametrize("gap", [800.0, -800.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss_type", ["dapo", "cispo", "sapo"])
def test_extreme_ratios_stay_finite_and_masked_ones_do_not_matter(
    level: Any, gap: float, dtype: torch.dtype, loss_type: Any
) -> None:
    options = {"level": level, "loss_type": loss_type, "epsilon_high": 5.0}
    logp, old, mask, advantage, _ = (x.to(dtype) if x.is_floating_point() else x for x in random_case(2))
    weight = row_weights(mask.sum(-1), "dapo", 15)
    results = []
    for other in (old, torch.where(mask, old, logp - gap), torch.where(mask, old, torch.nan), torch.where(mask, old, torch.inf)):
        leaf = logp.clone().requires_grad_()
        scores = replace(
            scores_of(logp, mask), logp=torch.where(mask, leaf, leaf * gap)
        )  # garbage in log-probs too: not zeroed at masked sites
        loss = grpo_loss(scores, other, advantage, weight, **options).loss
        results.append((loss.detach(), torch.autograd.grad(loss, leaf)[0]))
    for loss, gradient in results[1:]:
        assert torch.equal(loss, results[0][0])
        assert torch.equal(gradient, results[0][1])
    leaf = logp.clone().requires_grad_()
    loss = grpo_loss(scores_of(leaf, mask), torch.where(mask, logp - gap, 0.0), advantage, weight, **options).loss
    (gradient,) = torch.autograd.grad(loss, leaf)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()


def test_the_surrogate_is_the_pessimistic_bound() -> None:
    ratio = torch.linspace(0, 3, 61, dtype=torch.float64)
    for a in (-2.0, 0.0, 0.7):
        found = clipped_surrogate(ratio, f64(a), 0.2, 0.4)
        assert found.tolist() == pytest.approx([oracles.surrogate(r, a, 0.2, 0.4) for r in ratio.tolist()], abs=1e-15)


def test_delta_bounds_what_a_bad_sample_can_cost() -> None:
    ratio = torch.tensor([0.5, 3.0, 4.5, 100.0], dtype=torch.float64, requires_grad=True)
    found = clipped_surrogate(ratio, f64(-2.0), 0.2, 0.2, delta=4.0)
    assert found.tolist() == pytest.approx([-1.6, -6.0, -8.0, -8.0])
    assert torch.autograd.grad(found.sum(), ratio)[0].tolist() == [0.0, -2.0, 0.0, 0.0]


def test_cispo_caps_the_weight_and_never_the_gradient() -> None:
    log_prob, ratio = f64([-1.0, -2.0, -3.0]).requires_grad_(), f64([0.01, 1.0, 50.0]).requires_grad_()
    found = cispo_surrogate(log_prob, ratio, f64(2.0), 5.0)
    by_log_prob, by_ratio = torch.autograd.grad(found.sum(), (log_prob, ratio), allow_unused=True)
    assert by_log_prob.tolist() == pytest.approx([0.02, 2.0, 10.0])
    assert by_ratio is None


def test_sapo_is_a_gate_with_slope_one_where_the_ratio_is_one() -> None:
    ratio = f64([1.0, 0.2, 4.0]).requires_grad_()
    for a, tau in ((1.5, 0.7), (-1.5, 2.0), (0.0, 2.0)):
        found = sapo_surrogate(ratio, f64(a), 0.7, 2.0)
        wanted = [a * 4 / tau / (1 + math.exp(-tau * (r - 1))) for r in (1.0, 0.2, 4.0)]
        assert found.tolist() == pytest.approx(wanted, abs=1e-14)
        assert torch.autograd.grad(found.sum(), ratio)[0].tolist()[0] == pytest.approx(a, abs=1e-14)


def test_only_bad_samples_that_the_policy_left_are_dropped() -> None:
    drift, advantage = f64([0.5, 0.5, 0.5, 0.1, -3.0]), f64([1.0, 0.0, -1.0, -1.0, -1.0])
    assert off_policy_rows(drift, advantage, 0.2).tolist() == [True, True, False, True, True]
    assert off_policy_rows(drift[2:3], advantage[2:3], 0.5).tolist() == [True]


@pytest.mark.skipif(hasattr(grpo_loss, "__wrapped__"), reason="under jaxtyping's hook its own error comes first")
def test_wrong_shapes_and_a_missing_reference_are_named() -> None:
    logp, old, mask, advantage, _ = random_case(0)
    weight = row_weights(mask.sum(-1), "dapo", 15)
    with pytest.raises(ValueError, match=r"^advantage, weight: shapes \(3,\), \(4,\), expected \(4,\)"):
        grpo_loss(scores_of(logp, mask), old, advantage[:3], weight)
    with pytest.raises(ValueError, match=r"^advantage, weight: shapes \(4, 1\), \(4,\), expected"):
        grpo_loss(scores_of(logp, mask), old, advantage[:, None], weight)
    with pytest.raises(ValueError, match=r"^old_logp: shape \(1, 3, 5\), expected that of the scores, \(4, 3, 5\)"):
        grpo_loss(scores_of(logp, mask), old[:1], advantage, weight)
    with pytest.raises(ValueError, match=r"^penalty: shape \(4, 3, 1\), expected"):
        grpo_loss(scores_of(logp, mask), old, advantage, weight, beta=0.1, penalty=old[..., :1])
    with pytest.raises(ValueError, match=r"^beta: more than 0, expected scores with a KL"):
        grpo_loss(scores_of(logp, mask), old, advantage, weight, beta=0.1)
    with pytest.raises(ValueError, match=r"^epsilon_high: None, expected the cap of the ratio"):
        grpo_loss(scores_of(logp, mask), old, advantage, weight, loss_type="cispo")


def test_a_scorer_that_gives_one_kl_has_that_one_measured() -> None:
    logp, old, mask, advantage, _ = random_case(0)
    scores = replace(scores_of(logp, mask, torch.ones_like(logp)), kl_forward=None)
    sums = grpo_loss(scores, old, advantage, row_weights(mask.sum(-1), "dapo", 15), beta=0.1).sums
    assert float(sums["kl"]) == float(mask.sum())
    assert "kl_forward" not in sums


def test_garbage_at_masked_sites_of_the_old_policy_is_in_no_metric_of_a_kind() -> None:
    logp, old, mask, advantage, _ = random_case(3)
    scores = replace(scores_of(logp, mask), kinds=(("nodes", 2), ("edges", 3)))
    sums = grpo_loss(scores, torch.where(mask, old, torch.nan), advantage, row_weights(mask.sum(-1), "dapo", 15)).sums
    gap = torch.where(mask, logp - old, 0.0).abs()
    assert float(sums["nodes/log_ratio"]) == pytest.approx(float(gap[..., :2].sum()), abs=1e-12)
    assert float(sums["edges/log_ratio"]) == pytest.approx(float(gap[..., 2:].sum()), abs=1e-12)
