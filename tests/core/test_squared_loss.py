"""Squared losses against numbers worked out by hand, float64 loops, and their optima on a space of six items."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from discrete_grpo.core.squared_loss import augmented_likelihood_loss, group_balance_loss, trajectory_balance_loss

REWARD = torch.tensor([0.0, 0.3, 1.0, 0.55, 0.9, -0.2], dtype=torch.float64)
PRIOR = torch.log_softmax(torch.tensor([0.4, -1.0, 0.1, 0.9, -0.3, 0.0], dtype=torch.float64), 0)
BETA, ALPHA, SIGMA = 3.0, 0.7, 2.5
LOGP = torch.tensor([-1.0, -2.5, -0.25], dtype=torch.float64)
REF = torch.tensor([-2.0, -0.5, -1.5], dtype=torch.float64)
SCORE = torch.tensor([0.5, 1.0, 0.25], dtype=torch.float64)


def fitted(loss: Callable[[Tensor], Tensor], *others: Tensor) -> Tensor:
    """log π of a table over the six items after gradient descent on the loss of all items."""
    logits = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([logits, *others], lr=0.6)
    for _ in range(3000):
        optimizer.zero_grad()
        loss(torch.log_softmax(logits, 0)).backward()
        optimizer.step()
    return torch.log_softmax(logits, 0).detach()


def test_trajectory_balance_by_hand() -> None:
    # log Z + log π - β R = 2 - 1 - 2 = -1, 2 - 2.5 - 4 = -4.5, 2 - 0.25 - 1 = 0.75
    logp, log_z = LOGP.clone().requires_grad_(), torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    loss = trajectory_balance_loss(logp, SCORE, log_z, 4.0)
    assert float(loss.detach()) == pytest.approx((1 + 20.25 + 0.5625) / 3, abs=1e-14)
    by_logp, by_log_z = torch.autograd.grad(loss, (logp, log_z))
    assert by_logp.tolist() == pytest.approx([2 / 3 * x for x in (-1, -4.5, 0.75)], abs=1e-14)
    assert float(by_log_z) == pytest.approx(2 / 3 * -4.75, abs=1e-14)


def test_augmented_likelihood_by_hand() -> None:
    # log π_ref + σ R - log π = -2 + 1 + 1 = 0, -0.5 + 2 + 2.5 = 4, -1.5 + 0.5 + 0.25 = -0.75
    logp = LOGP.clone().requires_grad_()
    loss = augmented_likelihood_loss(logp, SCORE, REF, 2.0)
    assert float(loss.detach()) == pytest.approx((16 + 0.5625) / 3, abs=1e-14)
    (gradient,) = torch.autograd.grad(loss, logp)
    assert gradient.tolist() == pytest.approx([0, -8 / 3, 0.5], abs=1e-14)


def test_group_balance_by_hand() -> None:
    # δ = log π - α log π_ref - β R = -1 + 1 - 2 = -2, -2.5 + 0.25 - 4 = -6.25, -0.25 + 0.75 - 1 = -0.5; its mean is -35/12
    loss = group_balance_loss(LOGP, SCORE, REF, 4.0, 0.5)
    centred = [x + 35 / 12 for x in (-2, -6.25, -0.5)]
    assert float(loss) == pytest.approx(sum(x * x for x in centred) / 3, abs=1e-14)


def test_the_gradient_of_group_balance_is_that_of_grpo_with_the_advantages_of_its_docstring() -> None:
    logits = torch.linspace(-1, 1, 6, dtype=torch.float64, requires_grad=True)
    rows = torch.tensor([4, 0, 2, 2])
    logp = torch.log_softmax(logits, 0)[rows]
    (gradient,) = torch.autograd.grad(group_balance_loss(logp, REWARD[rows], PRIOR[rows], BETA, ALPHA), logits, retain_graph=True)
    ratio = [float(a) - ALPHA * float(b) for a, b in zip(logp.detach(), PRIOR[rows], strict=True)]
    reward = REWARD[rows].tolist()
    advantage = [BETA * (r - sum(reward) / 4) - (x - sum(ratio) / 4) for r, x in zip(reward, ratio, strict=True)]
    wanted = torch.zeros(6, dtype=torch.float64)
    for k, a in enumerate(advantage):
        (score,) = torch.autograd.grad(logp[k], logits, retain_graph=True)
        wanted += -2 / 4 * a * score
    torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-14)


def test_trajectory_balance_ends_at_the_boltzmann_distribution_and_its_log_z() -> None:
    log_z = torch.zeros((), dtype=torch.float64, requires_grad=True)
    found = fitted(lambda logp: trajectory_balance_loss(logp, REWARD, log_z, BETA), log_z)
    weights = [math.exp(BETA * r) for r in REWARD.tolist()]
    assert found.exp().tolist() == pytest.approx([w / sum(weights) for w in weights], abs=1e-9)
    assert float(log_z.detach()) == pytest.approx(math.log(sum(weights)), abs=1e-8)


@pytest.mark.parametrize("alpha", [0.0, ALPHA, 1.0])
def test_group_balance_ends_at_the_tilted_prior_without_a_log_z(alpha: float) -> None:
    found = fitted(lambda logp: group_balance_loss(logp, REWARD, PRIOR, BETA, alpha))
    weights = [math.exp(alpha * p + BETA * r) for p, r in zip(PRIOR.tolist(), REWARD.tolist(), strict=True)]
    assert found.exp().tolist() == pytest.approx([w / sum(weights) for w in weights], abs=1e-9)


def test_augmented_likelihood_ends_where_the_gap_is_a_multiple_of_the_probability() -> None:
    """The targets log π_ref + σ R sum to no distribution: with Σ π = 1 the optimum has 2 (log π - t) = -λ π, one λ for all."""
    found = fitted(lambda logp: augmented_likelihood_loss(logp, REWARD, PRIOR, SIGMA))
    target = PRIOR + SIGMA * REWARD
    multiplier = -2 * (found - target) / found.exp()
    assert float(target.exp().sum()) > 1.5
    assert multiplier.tolist() == pytest.approx([float(multiplier[0])] * 6, abs=1e-7)
    tilted = torch.softmax(target, 0)  # where the optimum would be, were it that of the KL
    assert float((found.exp() - tilted).abs().max()) > 0.01
