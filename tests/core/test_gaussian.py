"""Gaussian sites against integrals, samples and closed forms written out here."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from discrete_grpo.core.categorical import Sites, score_sites
from discrete_grpo.core.entropy import site_entropy
from discrete_grpo.core.gaussian import GaussianSites, gaussian_entropy, gaussian_kl, log_density, normal

GRID = torch.linspace(-12, 12, 4801, dtype=torch.float64)


def made(seed: int, dimension: float | None = None, width: int = 3) -> GaussianSites:
    random = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    mask = torch.rand(2, 3, 4, generator=random) < 0.7
    d = None if dimension is None else torch.full((2, 3, 4), dimension, dtype=torch.float64)
    return GaussianSites(numbers(2, 3, 4, width), 0.3 + numbers(2, 3, 4).abs(), numbers(2, 3, 4, width), mask, d)


def test_the_density_of_a_coordinate_integrates_to_one_and_its_entropy_is_the_integral() -> None:
    mean, std = torch.tensor([0.4], dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)
    logp = log_density(GRID[:, None], mean, std.expand(len(GRID)), 1.0)
    assert float(torch.trapezoid(logp.exp(), GRID)) == pytest.approx(1.0, abs=1e-12)
    assert float(torch.trapezoid(-logp.exp() * logp, GRID)) == pytest.approx(float(gaussian_entropy(std, 1.0)), abs=1e-10)


def test_the_kl_of_a_coordinate_is_the_integral() -> None:
    (m, s), (n, r) = (torch.tensor([0.4, 0.7], dtype=torch.float64), torch.tensor([-0.3, 1.1], dtype=torch.float64))
    p, q = (log_density(GRID[:, None], a[None], b.expand(len(GRID)), 1.0) for a, b in ((m, s), (n, r)))
    wanted = float(torch.trapezoid(p.exp() * (p - q), GRID))
    assert float(gaussian_kl(m[None], s, n[None], r, 1.0)) == pytest.approx(wanted, abs=1e-10)


def test_scores_of_sites_are_sums_over_coordinates() -> None:
    own, ref = made(0), made(1)
    ref = replace(ref, mask=own.mask)
    scores = score_sites([own], [ref], forward_gradient=True)
    for b, s, u in torch.cartesian_prod(*(torch.arange(n) for n in (2, 3, 4))).tolist():
        p = torch.distributions.Normal(own.mean[b, s, u], own.std[b, s, u])
        q = torch.distributions.Normal(ref.mean[b, s, u], ref.std[b, s, u])
        wanted = (
            p.log_prob(own.action[b, s, u]).sum(),
            p.entropy().sum(),
            torch.distributions.kl_divergence(p, q).sum(),
            torch.distributions.kl_divergence(q, p).sum(),
        )
        assert scores.kl is not None
        assert scores.kl_forward is not None
        found = (scores.logp[b, s, u], scores.entropy[b, s, u], scores.kl[b, s, u], scores.kl_forward[b, s, u])
        for one, other in zip(found, wanted, strict=True):
            assert float(one) == pytest.approx(float(other) if own.mask[b, s, u] else 0.0, abs=1e-12)


def test_on_the_subspace_of_zero_mean_the_sum_is_the_density_in_an_orthonormal_basis() -> None:
    n, random = 5, torch.Generator().manual_seed(3)
    x, mean, other = (torch.randn(n, 3, generator=random, dtype=torch.float64) for _ in range(3))
    x, mean, other = (value - value.mean(0) for value in (x, mean, other))
    basis = torch.linalg.qr(torch.cat([torch.ones(n, 1), torch.eye(n)[:, 1:]], 1).double()).Q[:, 1:]
    std, wide = torch.full((1, 1, n), 0.8, dtype=torch.float64), torch.full((1, 1, n), 1.3, dtype=torch.float64)
    d, on = torch.full((1, 1, n), 3 * (n - 1) / n, dtype=torch.float64), torch.ones(1, 1, n, dtype=torch.bool)
    own = GaussianSites(mean[None, None], std, x[None, None], on, d)
    scores = score_sites([own], [GaussianSites(other[None, None], wide, x[None, None], on, d)])
    p = torch.distributions.Normal(basis.T @ mean, 0.8)
    q = torch.distributions.Normal(basis.T @ other, 1.3)
    assert float(scores.logp.sum()) == pytest.approx(float(p.log_prob(basis.T @ x).sum()), abs=1e-12)
    assert float(scores.entropy.sum()) == pytest.approx(float(p.entropy().sum()), abs=1e-12)
    assert scores.kl is not None
    assert float(scores.kl.sum()) == pytest.approx(float(torch.distributions.kl_divergence(p, q).sum()), abs=1e-12)


def test_draws_have_the_mean_and_covariance_of_the_subspace() -> None:
    n, count = 3, 20000
    mean = torch.tensor([[1.0, 0, 0], [0, -1, 0], [-1, 1, 0], [9, 9, 9]], dtype=torch.float64).expand(count, 4, 3)
    mask = torch.tensor([True, True, True, False]).expand(count, 4)
    x = normal(mean, torch.full((count, 4), 0.5, dtype=torch.float64), mask, torch.Generator().manual_seed(0), zero_mean=True)
    assert bool((x[:, 3] == 0).all())
    torch.testing.assert_close(x.sum(1), torch.zeros(count, 3, dtype=torch.float64), rtol=0, atol=1e-12)
    off = (x - mean)[:, :n, 0]
    projection = 0.25 * (torch.eye(n, dtype=torch.float64) - 1 / n)
    torch.testing.assert_close(off.T @ off / count, projection, rtol=0, atol=0.01)
    torch.testing.assert_close(x[:, :n].mean(0), mean[0, :n], rtol=0, atol=0.02)


def test_masked_sites_reach_neither_value_nor_gradient() -> None:
    own, ref = made(0, 2.0), made(1, 2.0)
    ref = replace(ref, mask=own.mask)
    results = []
    for junk in (0.7, math.nan):
        on = own.mask
        mean = torch.where(on[..., None], own.mean, junk).requires_grad_()
        std = torch.where(on, own.std, junk).requires_grad_()
        sites = replace(own, mean=mean, std=std, action=torch.where(on[..., None], own.action, junk))
        scores = score_sites([sites], [ref], forward_gradient=True)
        assert scores.kl is not None
        assert scores.kl_forward is not None
        total = (scores.logp + scores.kl + scores.kl_forward + site_entropy([sites])).sum()
        results.append((total.detach(), *torch.autograd.grad(total, [mean, std])))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_kinds_of_sites_stand_side_by_side() -> None:
    space, random = made(0), torch.Generator().manual_seed(9)
    table = torch.randn(2, 3, 2, 5, generator=random, dtype=torch.float64).log_softmax(-1)
    classes = Sites(table, torch.randint(5, (2, 3, 2), generator=random), torch.ones(2, 3, 2, dtype=torch.bool))
    both = score_sites([classes, space])
    torch.testing.assert_close(both.logp, torch.cat([score_sites([classes]).logp, score_sites([space]).logp], -1))
    with pytest.raises(ValueError, match="reference: tables of shapes"):
        score_sites([classes, space], [space, classes])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mean": torch.zeros(2, 3, 4)}, r"mean: shape \(2, 3, 4\), expected"),
        ({"std": torch.ones(2, 3)}, r"std: shape \(2, 3\), expected \(2, 3, 4\)"),
        ({"action": torch.zeros(2, 3, 4, 2)}, r"action: shape \(2, 3, 4, 2\), expected \(2, 3, 4, 3\)"),
        ({"action": torch.zeros(2, 3, 4, 3, dtype=torch.long)}, "action: dtype torch.int64, expected a floating-point"),
        ({"mask": torch.ones(2, 3, 4)}, "mask: dtype torch.float32, expected torch.bool"),
        ({"dimension": torch.ones(2)}, r"dimension: shape \(2,\), expected"),
    ],
)
def test_wrong_shapes_and_types_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(made(0), **change)


def test_scores_have_the_gradients_that_they_say_and_masked_sites_of_the_reference_do_not_count() -> None:
    own, ref = made(0), made(1)
    leaves = [part.requires_grad_() for one in (own, ref) for part in (one.mean, one.std)]
    strange = torch.where(own.mask.unsqueeze(-1), ref.mean, torch.nan)
    scores = score_sites([own], [replace(ref, mean=strange, mask=torch.ones_like(own.mask))], forward_gradient=True)
    assert not scores.entropy.requires_grad
    assert scores.kl is not None
    assert scores.kl_forward is not None
    for value in (scores.kl, scores.kl_forward):
        found = torch.autograd.grad(value.sum(), leaves, retain_graph=True, allow_unused=True)
        assert all(part is not None and part.isfinite().all() for part in found[:2])
        assert all(part is None for part in found[2:])
