"""Estimates of the KL: their expected value and gradient by summation over every class and every trajectory."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo.core.advantages import kl_advantages
from discrete_grpo.core.categorical import Scores, Sites, score_sites
from discrete_grpo.core.kl import forward_estimate, importance_corrected, kl_term, reverse_estimate, trajectory_sum
from discrete_grpo.core.loss import grpo_loss
from tests import oracles

THETA = torch.tensor([0.3, -0.8, 0.5, 0.1], dtype=torch.float64)
OLD = torch.tensor([-0.4, 0.2, 0.9, -0.3], dtype=torch.float64)
REF = torch.tensor([0.9, -0.1, -0.6, 0.2], dtype=torch.float64)
EVERY = torch.arange(4)[:, None, None]
ON = torch.ones(4, 1, 1, dtype=torch.bool)


def leaf() -> tuple[Tensor, Tensor]:
    logits = THETA.clone().requires_grad_()
    return logits, logits.log_softmax(-1)


def drawn(log_p: Tensor) -> Tensor:
    """log p of every class, as a batch of four trajectories of one site."""
    return log_p[EVERY]


def kl_gradient(direction: str) -> Tensor:
    logits, log_p = leaf()
    log_q = REF.log_softmax(-1)
    terms = log_p.exp() * (log_p - log_q) if direction == "reverse" else log_q.exp() * (log_q - log_p)
    return torch.autograd.grad(terms.sum(), logits)[0]


def expected_gradient(direction: str, estimator: Any, sampler: str, corrected: bool) -> Tensor:
    """Σ_a π_old(a) ∇ estimate(a): what the penalty does to the policy on average."""
    logits, log_p = leaf()
    log_old = log_p.detach() if sampler == "on" else OLD.log_softmax(-1)
    estimate = {"reverse": reverse_estimate, "forward": forward_estimate}[direction]
    values = estimate(drawn(log_p), drawn(REF.log_softmax(-1)), ON, estimator)
    if corrected:
        values = importance_corrected(values, drawn(log_p), None if sampler == "on" else drawn(log_old), ON, estimator)
    return torch.autograd.grad((log_old.exp() * values[:, 0, 0]).sum(), logits)[0]


@pytest.mark.parametrize(
    ("direction", "estimator", "sampler", "corrected", "of"),
    [
        ("reverse", "k1", "on", False, "nothing"),
        ("reverse", "k2", "on", False, "reverse"),
        ("reverse", "k3", "on", False, "forward"),
        *(("reverse", k, sampler, True, "reverse") for k in ("k1", "k2", "k3") for sampler in ("on", "off")),
        *(("forward", k, sampler, True, "forward") for k in ("k1", "k3") for sampler in ("on", "off")),
    ],
)
def test_expected_gradients(direction: str, estimator: str, sampler: str, corrected: bool, of: str) -> None:
    found = expected_gradient(direction, estimator, sampler, corrected)
    wanted = torch.zeros(4, dtype=torch.float64) if of == "nothing" else kl_gradient(of)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_without_the_correction_samples_of_another_policy_mislead(estimator: str) -> None:
    found = expected_gradient("reverse", estimator, "off", False)
    assert (found - kl_gradient("reverse")).norm() > 0.05


def test_expected_values() -> None:
    log_p, log_q = THETA.log_softmax(-1), REF.log_softmax(-1)
    p = log_p.exp()
    reverse = oracles.kl(p.tolist(), log_q.exp().tolist())
    forward = oracles.kl(log_q.exp().tolist(), p.tolist())
    cases: list[tuple[Any, float, Any]] = [
        ("k1", reverse, reverse_estimate),
        ("k3", reverse, reverse_estimate),
        ("k1", forward, forward_estimate),
        ("k3", forward, forward_estimate),
    ]
    for estimator, wanted, estimate in cases:
        values = estimate(drawn(log_p), drawn(log_q), ON, estimator)[:, 0, 0]
        assert float((p * values).sum()) == pytest.approx(wanted, abs=1e-14)
        assert estimator == "k1" or (values >= 0).all()
    d = log_q - log_p
    found = reverse_estimate(drawn(log_p), drawn(log_q), ON, "k2")[:, 0, 0]
    assert found.tolist() == pytest.approx([x * x / 2 for x in d.tolist()], abs=1e-15)


def chain() -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """Parameters, and every trajectory of two steps over three states: its classes, log-tables of π_θ [9, 2, 3], of π_ref."""
    g = torch.Generator().manual_seed(4)
    theta = [torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_() for shape in ((3,), (3, 3))]
    ref = [torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((3,), (3, 3))]
    paths = torch.tensor(list(itertools.product(range(3), repeat=2)))
    tables = [torch.stack([x[0].log_softmax(-1).expand(9, 3), x[1].log_softmax(-1)[paths[:, 0]]], 1) for x in (theta, ref)]
    return theta, paths, tables[0], tables[1]


@pytest.mark.parametrize(
    ("reward_estimator", "also_in_loss", "whole"),
    [("k1", False, True), ("exact", True, True), ("exact", False, False), ("k3", False, False), (None, True, False)],
)
def test_the_gradient_of_the_trajectory_kl(reward_estimator: Any, also_in_loss: bool, whole: bool) -> None:
    """k1 in the reward, or the exact KL in both, give ∇(E[R] - β KL of trajectories); the other forms leave something out."""
    theta, paths, log_p, log_q = chain()
    beta, reward = 0.7, torch.tensor([0.2, 1, -0.5, 0.3, 0, 0.8, -1, 0.4, 0.6], dtype=torch.float64)
    logp = log_p.gather(-1, paths[..., None])[..., 0].sum(-1)
    kl = (logp.exp() * (logp - log_q.gather(-1, paths[..., None])[..., 0].sum(-1))).sum()
    wanted = torch.autograd.grad(beta * kl - (logp.exp() * reward).sum(), theta, retain_graph=True)

    on = torch.ones(9, 2, 1, dtype=torch.bool)
    sites, other = (Sites(x.unsqueeze(2), paths.unsqueeze(2), on) for x in (log_p, log_q))
    scores = score_sites([sites], [other])
    ref_logp = score_sites([other]).logp
    assert scores.kl is not None
    column = torch.zeros(9, dtype=torch.float64)
    if reward_estimator is not None:
        values = scores.kl if reward_estimator == "exact" else reverse_estimate(scores.logp, ref_logp, on, reward_estimator)
        column = trajectory_sum(values, on)
    # The group is every trajectory, and a baseline that is the same for all changes nothing in expectation.
    known, group = torch.ones(9, dtype=torch.bool), torch.zeros(9, dtype=torch.long)
    advantage = reward - beta * kl_advantages(column, known, group)
    probability = logp.detach().exp()  # the weights make the batch of every trajectory the expectation
    loss = grpo_loss(scores, None, advantage, probability, beta=beta if also_in_loss else 0.0).loss
    off = max(float((a - b).abs().max()) for a, b in zip(torch.autograd.grad(loss, theta), wanted, strict=True))
    assert off < 1e-13 if whole else off > 1e-2


def random_sites(seed: int) -> list[Sites]:
    g = torch.Generator().manual_seed(seed)
    made = []
    for u, c in ((3, 4), (2, 5)):
        table = torch.randn(2, 3, u, c, generator=g, dtype=torch.float64).log_softmax(-1)
        mask = torch.rand(2, 3, u, generator=torch.Generator().manual_seed(u)) < 0.7
        made.append(Sites(table, torch.zeros_like(mask, dtype=torch.long), mask))
    return made


def forward_kl(own: list[Sites], other: list[Sites]) -> Tensor:
    return kl_term("exact", "forward", score_sites(own, other, forward_gradient=True))


def test_the_exact_forward_kl_is_the_sum_over_classes() -> None:
    own, other = random_sites(0), random_sites(1)
    found, wanted = forward_kl(own, other), score_sites(own, other).kl_forward
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-14)
    p, q = own[1].log_probs[1, 2, 0].exp(), other[1].log_probs[1, 2, 0].exp()
    assert own[1].mask[1, 2, 0]
    assert float(found[1, 2, 3]) == pytest.approx(oracles.kl(q.tolist(), p.tolist()), abs=1e-14)
    logits, log_p = leaf()
    at = [Sites(x.view(1, 1, 1, 4), EVERY[:1], ON[:1]) for x in (log_p, REF.log_softmax(-1))]
    (gradient,) = torch.autograd.grad(forward_kl(at[:1], at[1:]).sum(), logits)
    torch.testing.assert_close(gradient, kl_gradient("forward"), rtol=0, atol=1e-14)


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 800.0])
def test_masked_sites_reach_neither_value_nor_gradient(garbage: float) -> None:
    mask = torch.tensor([[[True, False]]])
    logp = torch.tensor([[[-0.5, garbage]]], dtype=torch.float64, requires_grad=True)
    ref, old = (torch.tensor([[[x, -garbage]]], dtype=torch.float64) for x in (-0.9, -0.7))
    cases: list[tuple[Any, Any]] = [(reverse_estimate, k) for k in ("k1", "k2", "k3")]
    for estimate, k in [*cases, (forward_estimate, "k1"), (forward_estimate, "k3")]:
        values = importance_corrected(estimate(logp, ref, mask, k), logp, old, mask, k)
        (gradient,) = torch.autograd.grad(values.sum(), logp)
        assert float(values.detach()[0, 0, 1]) == float(gradient[0, 0, 1]) == 0.0
        assert values.isfinite().all()
        assert gradient.isfinite().all()
    assert trajectory_sum(logp, mask).tolist() == [-0.5]
    table = torch.zeros(1, 1, 2, 3, dtype=torch.float64)
    table[0, 0, 1] = garbage
    table.requires_grad_()
    own, other = (Sites(x, torch.zeros(1, 1, 2, dtype=torch.long), mask) for x in (table, table.detach() - 1))
    kl = forward_kl([own], [other])
    assert float(kl.detach()[0, 0, 1]) == 0.0
    (gradient,) = torch.autograd.grad(kl.sum(), table)
    assert gradient[0, 0, 1].tolist() == [0.0] * 3


@pytest.mark.parametrize("gap", [800.0, -800.0, math.inf, -math.inf])
def test_a_class_that_the_reference_never_draws_gives_a_finite_penalty(gap: float) -> None:
    mask = torch.ones(1, 1, 1, dtype=torch.bool)
    logp = torch.full((1, 1, 1), -1.0, dtype=torch.float64, requires_grad=True)
    cases: list[tuple[Any, Any]] = [(reverse_estimate, "k1"), (reverse_estimate, "k3"), (forward_estimate, "k3")]
    for estimate, k in cases:
        values = importance_corrected(estimate(logp, logp.detach() + gap, mask, k), logp, logp.detach() - gap, mask, k)
        assert values.isfinite().all()
        assert torch.autograd.grad(values.sum(), logp)[0].isfinite().all()


@pytest.mark.parametrize("direction", ["reverse", "forward"])
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_the_term_of_an_estimator_is_its_corrected_estimate(estimator: Any, direction: Any) -> None:
    scores = score_sites(random_sites(0))
    ref, old = score_sites(random_sites(1)).logp, score_sites(random_sites(2)).logp
    estimate = {"reverse": reverse_estimate, "forward": forward_estimate}[direction](scores.logp, ref, scores.mask, estimator)
    found = kl_term(estimator, direction, scores, ref_logp=ref)
    assert torch.equal(found, estimate)
    found = kl_term(estimator, direction, scores, ref_logp=ref, old_logp=old, corrected=True)
    assert torch.equal(found, importance_corrected(estimate, scores.logp, old, scores.mask, estimator))
    assert not torch.equal(found, estimate)


def test_the_term_names_what_is_missing() -> None:
    scores = score_sites(random_sites(0))
    with pytest.raises(ValueError, match=r"^kl_direction: 'forward', expected a policy whose scores have this KL"):
        kl_term("exact", "forward", scores)
    with pytest.raises(ValueError, match=r"^ref_logp: None, expected log-probs of the reference with kl_estimator 'k1'"):
        kl_term("k1", "reverse", scores)


def test_an_infinite_kl_in_the_reward_is_refused_and_not_taken_for_a_constant_group() -> None:
    kl, group = torch.tensor([1.0, torch.inf, 2.0, 1.0]), torch.tensor([0, 0, 1, 1])
    said = r"^kl: inf for 1 of 4 samples, expected finite numbers: the policy gives probability to what the reference gives none$"
    with pytest.raises(FloatingPointError, match=said):
        kl_advantages(kl, torch.ones(4, dtype=torch.bool), group)
    found = kl_advantages(kl, torch.tensor([True, False, True, True]), group)  # an unknown sample counts for nothing
    assert found.tolist() == [0.0, 0.0, 0.5, -0.5]


@pytest.mark.parametrize(("direction", "estimator"), [("reverse", "k1"), ("reverse", "k2"), ("reverse", "k3"), ("forward", "k3")])
def test_no_gradient_reaches_the_reference(direction: Any, estimator: Any) -> None:
    logits, log_p = leaf()
    ref = REF.clone().requires_grad_()
    logp = drawn(log_p)
    zero = torch.zeros_like(logp)
    term = kl_term(estimator, direction, Scores(logp, zero, ON), ref_logp=drawn(ref.log_softmax(-1)))
    own, other = torch.autograd.grad((term * torch.arange(4)[:, None, None]).sum(), (logits, ref), allow_unused=True)
    assert own.abs().max() > 0.1
    assert other is None


def test_the_kl_of_a_trajectory_is_summed_in_float64() -> None:
    values = torch.tensor([[[2.0**24, 1.0], [1.0, 1.0]]])  # in float32, 2^24 + 1 is 2^24
    assert trajectory_sum(values, torch.ones(1, 2, 2, dtype=torch.bool)).tolist() == [2.0**24 + 3]
