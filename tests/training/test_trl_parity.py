"""Every option against numbers that TRL's own loss gave on the same tensors, to 1e-9."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo.core.advantages import group_advantages
from discrete_grpo.core.categorical import Scores, Sites, score_sites
from discrete_grpo.core.kl import importance_corrected, reverse_estimate
from discrete_grpo.core.loss import grpo_loss, row_weights


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


LOGP = f64([[-0.5, -1, -0.2], [-2, -0.7, -0.3], [-0.1, -0.9, -1.5], [-1.2, -0.4, -0.6]])
OLD = f64([[-0.7, -1.1, -0.6], [-1.5, -0.9, -0.3], [-0.4, -0.8, -1.5], [-1, -0.9, -0.2]])
REF = f64([[-0.6, -1.3, -0.4], [-1.8, -0.6, -0.5], [-0.2, -1, -1.2], [-1.1, -0.8, -0.4]])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0]], dtype=torch.bool)
ADVANTAGE = f64([1, -0.5, 0.25, -0.75])
MOST = 4
"""TRL's ``max_completion_length``: n_max."""
EVERY_SITE_ONE = torch.full((4,), 1 / 4, dtype=torch.float64)
"""LUSPO's weights (loss_i n_i, mean over i): any fixed weights are a normaliser here."""

TABLE: dict[str, tuple[dict[str, Any], float, float]] = {
    "grpo": ({"loss_type": "grpo"}, -0.0769320008, 0.3616313780),
    "dapo": ({"loss_type": "dapo"}, -0.2951812032, 0.3117921907),
    "dr_grpo": ({"loss_type": "dr_grpo"}, -0.1660394268, 0.1753831073),
    "cispo": ({"loss_type": "cispo", "epsilon_high": 5.0}, 0.0950769803, 0.6844541338),
    "sapo": ({"loss_type": "sapo"}, -0.1466642292, 0.6401848754),
    "epsilon_high": ({"epsilon_high": 0.28}, -0.3086703985, 0.4475036083),
    "delta": ({"delta": 1.1}, -0.2707956989, 0.1211397133),
    "sequence": ({"loss_type": "grpo", "level": "sequence"}, -0.1057081809, 0.3279092074),
    "sequence, LUSPO's weights": ({"weight": EVERY_SITE_ONE, "level": "sequence"}, -0.7317370720, 0.5691150926),
    "k3": ({"beta": 0.1}, -0.2934515962, 0.3159940772),
    "k3, use_bias_correction_kl": ({"beta": 0.1, "corrected": True}, -0.2933672137, 0.3156894003),
}
"""Options, loss, Σ|∂L/∂logp|; ε = 0.2, dapo unless said otherwise."""

LAYOUTS = {"steps": lambda x: x.unsqueeze(-1), "sites": lambda x: x.unsqueeze(1)}  # T as S (U = 1), or as U (S = 1)
layouts = pytest.mark.parametrize("layout", LAYOUTS)


def scores_of(logp: Tensor, mask: Tensor) -> Scores:
    logp = torch.where(mask, logp, 0.0)
    return Scores(logp, torch.zeros_like(logp), mask)


def penalty_of(logp: Tensor, layout: str, corrected: bool) -> Tensor:
    place = LAYOUTS[layout]
    values = reverse_estimate(place(logp), place(REF), place(MASK), "k3")
    return importance_corrected(values, place(logp), place(OLD), place(MASK), "k3") if corrected else values


@layouts
@pytest.mark.parametrize("case", TABLE)
def test_loss_and_gradient(case: str, layout: str) -> None:
    options, loss, gradient_sum = TABLE[case]
    options = {"loss_type": "dapo"} | options
    place = LAYOUTS[layout]
    logp, mask = LOGP.clone().requires_grad_(), place(MASK)
    corrected = options.pop("corrected", False)
    if "beta" in options:
        options["penalty"] = penalty_of(logp, layout, corrected)
    weight = options.pop("weight", None)
    weight = row_weights(mask.sum(-1), options["loss_type"], MOST) if weight is None else weight
    part = grpo_loss(scores_of(place(logp), mask), place(OLD), ADVANTAGE, weight, **options)
    assert float(part.loss.detach()) == pytest.approx(loss, abs=1e-9)
    (gradient,) = torch.autograd.grad(part.loss, logp)
    assert float(gradient.abs().sum()) == pytest.approx(gradient_sum, abs=1e-9)
    assert (gradient[~MASK] == 0).all()


@layouts
@pytest.mark.parametrize(("corrected", "kl"), [(False, 0.017296), (True, 0.018140)])
def test_mean_kl(layout: str, corrected: bool, kl: float) -> None:
    values = penalty_of(LOGP, layout, corrected)
    assert float(values.sum() / MASK.sum()) == pytest.approx(kl, abs=1e-6)


@layouts
def test_clip_metrics(layout: str) -> None:
    place = LAYOUTS[layout]
    mask = place(MASK)
    weight = row_weights(mask.sum(-1), "dapo", MOST)
    sums = grpo_loss(scores_of(place(LOGP), mask), place(OLD), ADVANTAGE, weight).sums
    low, high = (float(sums[name] / sums["sites"]) for name in ("clip_low", "clip_high"))
    assert [low, high, low + high] == pytest.approx([0.111111, 0.333333, 0.444444], abs=1e-6)


@layouts
@pytest.mark.parametrize("loss_type", ["dapo", "cispo"])
def test_without_an_old_policy_it_is_reinforce(layout: str, loss_type: Any) -> None:
    place = LAYOUTS[layout]
    logp, mask = LOGP.clone().requires_grad_(), place(MASK)
    weight = row_weights(mask.sum(-1), loss_type, MOST)
    loss = grpo_loss(scores_of(place(logp), mask), None, ADVANTAGE, weight, loss_type=loss_type, epsilon_high=5.0).loss
    if loss_type == "dapo":
        assert float(loss.detach()) == pytest.approx(-0.2222222222, abs=1e-9)
    (gradient,) = torch.autograd.grad(loss, logp)
    torch.testing.assert_close(gradient, MASK * -ADVANTAGE[:, None] / 9, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("own", "ref", "wanted"),
    [
        ([1, 2, 0.5], [0.8, 1.5, 0.9], 0.0556359750),
        ([0, 0.3, -1], [0.2, 0, -0.5], 0.0474798035),
        ([0.1, -0.4], [0, 0], 0.0302998620),
    ],
)
def test_exact_kl(own: list[float], ref: list[float], wanted: float) -> None:
    on = torch.ones(1, 1, 1, dtype=torch.bool)
    tables = [Sites(f64(x).log_softmax(-1).view(1, 1, 1, -1), on.long(), on) for x in (own, ref)]
    kl = score_sites(tables[:1], tables[1:]).kl
    assert kl is not None
    assert float(kl) == pytest.approx(wanted, abs=1e-9)


def test_advantages() -> None:
    """The numbers are given to four digits."""
    two = group_advantages(f64([0.0, 1.0]), torch.tensor([0, 0]))
    assert two.tolist() == pytest.approx([-0.7070, 0.7070], abs=5e-5)
    batch = group_advantages(f64([0.9, 1, 0, 0.1]), torch.tensor([0, 0, 1, 1]), scale_rewards="batch")
    assert batch.tolist() == pytest.approx([-0.096, 0.096, -0.096, 0.096], abs=5e-4)
