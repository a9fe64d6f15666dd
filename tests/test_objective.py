"""The objective: TRL's own numbers, loops, degenerate cases, and that parts add up to the whole."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo.categorical import Scores
from discrete_grpo.objective import clipped_surrogate, grpo_loss, kl_units, log_ratio, row_weights
from tests import oracles


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


LOGP = f64([[-0.5, -1, -0.2], [-2, -0.7, -0.3], [-0.1, -0.9, -1.5], [-1.2, -0.4, -0.6]])
OLD = f64([[-0.7, -1.1, -0.6], [-1.5, -0.9, -0.3], [-0.4, -0.8, -1.5], [-1, -0.9, -0.2]])
REF = f64([[-0.6, -1.3, -0.4], [-1.8, -0.6, -0.5], [-0.2, -1, -1.2], [-1.1, -0.8, -0.4]])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0]], dtype=torch.bool)
ADVANTAGE = f64([1, -0.5, 0.25, -0.75])
LAYOUTS = {"steps": lambda x: x.unsqueeze(-1), "sites": lambda x: x.unsqueeze(1)}  # T as S (U = 1), or as U (S = 1)
layouts = pytest.mark.parametrize("layout", LAYOUTS)

GOLDEN: dict[str, tuple[dict[str, Any], float, float]] = {
    "grpo": ({"loss_type": "grpo"}, -0.0769320008, 0.3616313780),
    "dapo": ({"loss_type": "dapo"}, -0.2951812032, 0.3117921907),
    "dr_grpo": ({"loss_type": "dr_grpo"}, -0.1660394268, 0.1753831073),
    "clip higher": ({"loss_type": "dapo", "epsilon_high": 0.28}, -0.3086703985, 0.4475036083),
    "sequence": ({"loss_type": "grpo", "level": "sequence"}, -0.1057081809, 0.3279092074),
}
"""Loss and Σ|∂L/∂logp| of TRL's own ``_compute_loss`` on the tensors above, ε = 0.2."""


def scores_of(logp: Tensor, mask: Tensor, kl: Tensor | None = None) -> Scores:
    """Scores as the core makes them: 0 where the mask is False."""
    logp = torch.where(mask, logp, 0.0)
    kl = None if kl is None else torch.where(mask, kl, 0.0)
    return Scores(logp, torch.zeros_like(logp), mask, kl, None if kl is None else torch.zeros_like(kl))


def k3(logp: Tensor, ref: Tensor) -> Tensor:
    d = ref - logp
    return d.exp() - d - 1


@layouts
@pytest.mark.parametrize("case", GOLDEN)
def test_trl_values(case: str, layout: str) -> None:
    options, loss, gradient_sum = GOLDEN[case]
    options = dict(options)
    place = LAYOUTS[layout]
    logp, mask = LOGP.clone().requires_grad_(), place(MASK)
    weight = row_weights(mask.sum(-1), options.pop("loss_type"), 4)
    part = grpo_loss(scores_of(place(logp), mask), place(OLD), ADVANTAGE, weight, epsilon=0.2, **options)
    assert float(part.loss.detach()) == pytest.approx(loss, abs=1e-9)
    (gradient,) = torch.autograd.grad(part.loss, logp)
    assert float(gradient.abs().sum()) == pytest.approx(gradient_sum, abs=1e-9)
    assert (gradient[~MASK] == 0).all()


@layouts
@pytest.mark.parametrize(
    ("ratio", "loss", "kl", "gradient_sum"),
    [(False, -0.2934515962, 0.017296, 0.3159940772), (True, -0.2933672137, 0.018140, 0.3156894003)],
    ids=["k3", "r k3"],
)
def test_trl_values_with_a_penalty(ratio: bool, loss: float, kl: float, gradient_sum: float, layout: str) -> None:
    place = LAYOUTS[layout]
    logp, mask = LOGP.clone().requires_grad_(), place(MASK)
    values = k3(logp, REF) * ((logp - OLD).exp() if ratio else 1.0)
    weight = row_weights(mask.sum(-1), "dapo", 4)
    part = grpo_loss(scores_of(place(logp), mask, place(values)), place(OLD), ADVANTAGE, weight, beta=0.1)
    assert float(part.loss.detach()) == pytest.approx(loss, abs=1e-9)
    assert float(part.sums["kl"] / part.sums["sites"]) == pytest.approx(kl, abs=1e-6)
    (gradient,) = torch.autograd.grad(part.loss, logp)
    assert float(gradient.abs().sum()) == pytest.approx(gradient_sum, abs=1e-9)


@layouts
def test_trl_clip_metrics(layout: str) -> None:
    place = LAYOUTS[layout]
    mask = place(MASK)
    sums = grpo_loss(scores_of(place(LOGP), mask), place(OLD), ADVANTAGE, row_weights(mask.sum(-1), "dapo", 4)).sums
    assert float(sums["clip_low"] / sums["sites"]) == pytest.approx(1 / 9)
    assert float(sums["clip_high"] / sums["sites"]) == pytest.approx(3 / 9)
    assert float(sums["policy_loss"]) == pytest.approx(-0.2951812032, abs=1e-9)
    assert "kl" not in sums


@layouts
@pytest.mark.parametrize("level", ["token", "step", "step_mean", "sequence"])
def test_without_an_old_policy_the_gradient_is_reinforce(layout: str, level: Any) -> None:
    """A step's ratio has the score of the whole step, so level ``step`` counts a step's score once a site of it."""
    place = LAYOUTS[layout]
    logp, mask = LOGP.clone().requires_grad_(), place(MASK)
    loss = grpo_loss(scores_of(place(logp), mask), None, ADVANTAGE, row_weights(mask.sum(-1), "dapo", 4), level=level).loss
    assert float(loss.detach()) == pytest.approx(-0.2222222222, abs=1e-9)
    (gradient,) = torch.autograd.grad(loss, logp)
    times = MASK.sum(-1, keepdim=True) if level == "step" and layout == "sites" else 1.0
    torch.testing.assert_close(gradient, -MASK.double() * ADVANTAGE[:, None] / 9 * times, rtol=0, atol=1e-15)


def random_case(seed: int, b: int = 4, s: int = 3, u: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """logp, old, mask, advantage, kl with unequal sizes; every trajectory has a site, some steps have none."""
    g = torch.Generator().manual_seed(seed)
    logp = -torch.rand(b, s, u, generator=g, dtype=torch.float64) * 2
    old = logp + 0.4 * torch.randn(b, s, u, generator=g, dtype=torch.float64)
    mask = torch.rand(b, s, u, generator=g) < 0.6
    mask[:, 0, 0] = True
    mask[0, 1] = False
    return logp, old, mask, torch.randn(b, generator=g, dtype=torch.float64), torch.rand(b, s, u, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
@pytest.mark.parametrize("level", ["token", "step", "step_mean", "sequence"])
@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_every_level_and_weighting_is_the_loop(seed: int, loss_type: Any, level: Any, beta: float) -> None:
    logp, old, mask, advantage, kl = random_case(seed)
    weight = row_weights(mask.sum(-1), loss_type, 15)
    clip = {"epsilon": 0.1, "epsilon_high": 0.25}
    found = grpo_loss(scores_of(logp, mask, kl), torch.where(mask, old, 0.0), advantage, weight, level=level, beta=beta, **clip)
    wanted = oracles.grpo_loss(
        logp.tolist(),
        old.tolist(),
        mask.tolist(),
        advantage.tolist(),
        loss_type=loss_type,
        level=level,
        max_units=15,
        kl_values=kl.tolist(),
        beta=beta,
        **clip,
    )
    assert float(found.loss) == pytest.approx(wanted, abs=1e-12)
    ratios = oracles.unit_ratios(logp.tolist(), old.tolist(), mask.tolist(), level)
    low = sum(r < 0.9 and advantage[b] < 0 for (b, _, _), r in ratios.items())
    high = sum(r > 1.25 and advantage[b] > 0 for (b, _, _), r in ratios.items())
    assert (float(found.sums["clip_low"]), float(found.sums["clip_high"])) == (low, high)
    assert float(found.sums["sites"]) == len(ratios)
    assert float(found.sums["kl"]) == pytest.approx(float(kl[mask].sum()), abs=1e-12)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("level", ["token", "step", "step_mean", "sequence"])
def test_log_ratios_of_every_unit(seed: int, level: Any) -> None:
    logp, old, mask, _, kl = random_case(seed)
    found = log_ratio(logp, old, mask, level).expand_as(mask)
    for (b, s, u), ratio in oracles.unit_ratios(logp.tolist(), old.tolist(), mask.tolist(), level).items():
        assert float(found[b, s, u].exp()) == pytest.approx(ratio, rel=1e-12)
    units = kl_units(torch.where(mask, kl, 0.0), level)
    assert units.shape == ((4, 3, 1) if level == "step" else (4, 3, 5))
    assert float(units.sum()) == pytest.approx(float(kl[mask].sum()), abs=1e-12)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
@pytest.mark.parametrize("level", ["token", "step", "step_mean"])
def test_chunks_of_rows_and_steps_add_up_to_the_whole(loss_type: Any, level: Any) -> None:
    logp, old, mask, advantage, kl = random_case(0)
    logp.requires_grad_()
    weight = row_weights(mask.sum(-1), loss_type, 15)

    def loss(rows: slice, steps: slice) -> Tensor:
        at = (rows, steps)
        scores = scores_of(logp[at], mask[at], kl[at] * logp[at] ** 2)
        return grpo_loss(scores, torch.where(mask, old, 0.0)[at], advantage[rows], weight[rows], level=level, beta=0.2).loss

    whole = loss(slice(None), slice(None))
    (wanted,) = torch.autograd.grad(whole, logp)
    for rows, steps in itertools.product((1, 2, 4), (1, 2, 3)):
        parts = [loss(slice(i, i + rows), slice(j, j + steps)) for i in range(0, 4, rows) for j in range(0, 3, steps)]
        total = torch.stack(parts).sum()
        assert float(total.detach()) == pytest.approx(float(whole.detach()), abs=1e-12)
        torch.testing.assert_close(torch.autograd.grad(total, logp)[0], wanted, rtol=0, atol=1e-12)


def test_row_weights_by_hand() -> None:
    units = torch.tensor([[2, 1], [4, 4], [0, 0], [5, 0]])
    assert row_weights(units, "grpo", 10)[[0, 1, 3]].tolist() == pytest.approx([1 / 12, 1 / 32, 1 / 20])
    assert row_weights(units, "dapo", 10).tolist() == pytest.approx([1 / 16] * 4)
    assert row_weights(units, "dr_grpo", 10).tolist() == pytest.approx([1 / 40] * 4)
    counted = torch.tensor([True, False, True, True])
    assert row_weights(units, "grpo", 10, counted)[[0, 1, 3]].tolist() == pytest.approx([1 / 9, 0, 1 / 15])
    assert row_weights(units, "dapo", 10, counted).tolist() == pytest.approx([1 / 8, 0, 1 / 8, 1 / 8])
    assert row_weights(units, "dr_grpo", 10, counted).tolist() == pytest.approx([1 / 30, 0, 1 / 30, 1 / 30])
    for loss_type in ("grpo", "dapo", "dr_grpo"):
        nothing = row_weights(units, loss_type, 10, torch.zeros(4, dtype=torch.bool))
        assert nothing.tolist() == [0.0] * 4
        assert torch.isfinite(row_weights(torch.zeros(2, 2, dtype=torch.long), loss_type, 10)).all()
        assert row_weights(units, loss_type, 10).dtype == torch.float64


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_rows_that_do_not_count_are_as_good_as_absent(loss_type: Any) -> None:
    logp, old, mask, advantage, kl = random_case(1)
    keep = torch.tensor([True, False, True, True])
    for rows, counted in ((slice(None), keep), (keep, None)):
        weight = row_weights(mask[rows].sum(-1), loss_type, 15, counted)
        scores = scores_of(logp[rows], mask[rows], kl[rows])
        loss = grpo_loss(scores, torch.where(mask, old, 0.0)[rows], advantage[rows], weight, beta=0.5).loss
        if counted is not None:
            first = loss
    assert float(loss) == pytest.approx(float(first), abs=1e-14)


@pytest.mark.parametrize("level", ["token", "step", "step_mean", "sequence"])
@pytest.mark.parametrize("gap", [800.0, -800.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_ratios_stay_finite_and_masked_ones_do_not_matter(level: Any, gap: float, dtype: torch.dtype) -> None:
    logp, old, mask, advantage, _ = (x.to(dtype) if x.is_floating_point() else x for x in random_case(2))
    weight = row_weights(mask.sum(-1), "dapo", 15)
    results = []
    for other in (old, torch.where(mask, old, logp - gap), torch.where(mask, old, torch.nan), torch.where(mask, old, torch.inf)):
        leaf = logp.clone().requires_grad_()
        scores = replace(scores_of(logp, mask), logp=leaf)  # garbage in log-probs too: not zeroed at masked sites
        loss = grpo_loss(scores, other, advantage, weight, level=level).loss
        results.append((loss.detach(), torch.autograd.grad(loss, leaf)[0]))
    for loss, gradient in results[1:]:
        assert torch.equal(loss, results[0][0])
        assert torch.equal(gradient, results[0][1])
    leaf = logp.clone().requires_grad_()
    loss = grpo_loss(scores_of(leaf, mask), torch.where(mask, logp - gap, 0.0), advantage, weight, level=level).loss
    (gradient,) = torch.autograd.grad(loss, leaf)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()


def test_the_surrogate_is_the_pessimistic_bound() -> None:
    ratio = torch.linspace(0, 3, 61, dtype=torch.float64)
    for a in (-2.0, 0.0, 0.7):
        found = clipped_surrogate(ratio, f64(a), 0.2, 0.4)
        assert found.tolist() == pytest.approx([oracles.surrogate(r, a, 0.2, 0.4) for r in ratio.tolist()], abs=1e-15)


@pytest.mark.skipif(hasattr(grpo_loss, "__wrapped__"), reason="under jaxtyping's hook its own error comes first")
def test_wrong_shapes_and_a_missing_reference_are_named() -> None:
    logp, old, mask, advantage, _ = random_case(0)
    weight = row_weights(mask.sum(-1), "dapo", 15)
    with pytest.raises(ValueError, match=r"^advantage, weight: shapes \(3,\), \(4,\), expected \(4,\)"):
        grpo_loss(scores_of(logp, mask), old, advantage[:3], weight)
    with pytest.raises(ValueError, match=r"^advantage, weight: shapes \(4, 1\), \(4,\), expected"):
        grpo_loss(scores_of(logp, mask), old, advantage[:, None], weight)
    with pytest.raises(ValueError, match=r"^beta: more than 0, expected scores with a KL"):
        grpo_loss(scores_of(logp, mask), old, advantage, weight, beta=0.1)
