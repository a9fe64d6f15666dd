"""The entropy bonus, its controller, and the selection of undecided sites."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from discrete_grpo.core.categorical import Sites, safe_log, score_sites
from discrete_grpo.core.entropy import EntropyController, entropy_bonus, high_entropy, site_entropy, top_entropy_threshold
from discrete_grpo.core.loss import row_weights
from tests import oracles


def case(seed: int = 0) -> tuple[list[Tensor], list[Sites]]:
    g = torch.Generator().manual_seed(seed)
    logits = [torch.randn(2, 3, u, c, generator=g, dtype=torch.float64).requires_grad_() for u, c in ((3, 4), (2, 5))]
    masks = [torch.rand(x.shape[:-1], generator=g) < 0.7 for x in logits]
    tables = [x.log_softmax(-1) for x in logits]
    return logits, [Sites(t, torch.zeros_like(m, dtype=torch.long), m) for t, m in zip(tables, masks, strict=True)]


def test_the_bonus_is_the_mean_entropy_of_the_sites() -> None:
    logits, sites = case()
    found = site_entropy(sites)
    scores = score_sites(sites)
    torch.testing.assert_close(found.detach(), scores.entropy, rtol=0, atol=1e-14)
    weight = row_weights(scores.mask.sum(-1), "dapo", 5)
    bonus = entropy_bonus(found, weight, 0.3)
    every = [
        oracles.entropy(sites[k].log_probs[b, s, u].exp().tolist()) for k in (0, 1) for b, s, u in sites[k].mask.nonzero().tolist()
    ]
    assert float(bonus.detach()) == pytest.approx(-0.3 * sum(every) / len(every), abs=1e-14)
    # ∂H/∂logit_c = -p_c (log p_c + H)
    (gradient,) = torch.autograd.grad(bonus, logits[:1])
    log_p = sites[0].log_probs.detach()
    wanted = log_p.exp() * (log_p + scores.entropy[..., :3, None]) * 0.3 / len(every) * sites[0].mask[..., None]
    torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
def test_classes_without_mass_and_masked_tables_are_harmless(garbage: float) -> None:
    probs = torch.tensor([[[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]]], dtype=torch.float64, requires_grad=True)
    table = torch.where(torch.tensor([[[[True], [False]]]]), safe_log(probs), garbage)
    found = site_entropy([Sites(table, torch.zeros(1, 1, 2, dtype=torch.long), torch.tensor([[[True, False]]]))])
    assert found.tolist() == [[[pytest.approx(math.log(2)), 0.0]]]
    (gradient,) = torch.autograd.grad(found.sum(), probs)
    assert gradient.isfinite().all()
    assert gradient[0, 0, 1].tolist() == [0.0] * 3


def test_the_controller_moves_towards_the_target_within_its_range() -> None:
    c = EntropyController(0.01, target=0.2, delta=0.005, low=0.002, high=0.02)
    found = []
    for h in (0.1, 0.2, 0.1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.1):
        found.append((round(c.coef, 6), c.coef_at(h) > 0))
        c.observe(h)
    coefs = [0.01, 0.015, 0.02, 0.02, 0.015, 0.01, 0.005, 0.002, 0.002]
    applied = [True, True, True, False, False, False, False, False, True]  # only where the entropy is at most the target
    assert found == list(zip(coefs, applied, strict=True))
    other = EntropyController(0.5, target=0.2, delta=0.005, low=0.0, high=1.0)
    other.load_state_dict(c.state_dict())
    assert other.coef == c.coef == pytest.approx(0.007)


@pytest.mark.parametrize("n", [1, 2, 7, 100])
@pytest.mark.parametrize("top", [0.01, 0.2, 0.5, 1.0])
def test_the_threshold_is_the_quantile(n: int, top: float) -> None:
    entropies = torch.randperm(n, generator=torch.Generator().manual_seed(n)).double() / 7
    found = top_entropy_threshold(entropies, top)
    assert float(found) == pytest.approx(float(torch.quantile(entropies, 1 - top)), abs=1e-14)
    kept = high_entropy(entropies.view(1, 1, n), torch.ones(1, 1, n, dtype=torch.bool), found)
    assert int(kept.sum()) == n - math.ceil((1 - top) * (n - 1) - 1e-9)
    assert kept[0, 0, int(entropies.argmax())]


def test_sites_that_do_not_exist_are_never_kept() -> None:
    nothing = top_entropy_threshold(torch.tensor([]), 0.2)
    assert float(nothing) == -math.inf
    mask = torch.tensor([[[True, False]]])
    assert high_entropy(torch.zeros(1, 1, 2), mask, nothing).tolist() == [[[True, False]]]


def test_equal_sites_are_kept_or_dropped_together() -> None:
    """The last bit of a sum must not choose between sites that are alike."""
    entropies = torch.tensor([0.0] * 5 + [1.0 - 1e-12] * 3 + [1.0] * 3, dtype=torch.float64)
    kept = high_entropy(entropies.view(1, 1, -1), torch.ones(1, 1, 11, dtype=torch.bool), top_entropy_threshold(entropies, 0.2))
    assert kept[0, 0].tolist() == [False] * 5 + [True] * 6


def test_the_first_coefficient_is_within_its_range() -> None:
    for coef, found in ((5.0, 1.0), (0.0, 0.5), (0.7, 0.7)):
        assert EntropyController(coef, target=0.2, delta=0.01, low=0.5, high=1.0).coef == found
