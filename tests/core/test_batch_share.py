"""Means over the sites that exist: those of plain selection in value and gradient, whatever stands in padding."""

from __future__ import annotations

import math

import torch
from torch import nn

from discrete_grpo.core.batch_share import cross_entropy, mean_of


def test_the_cross_entropy_is_that_of_the_selected_sites_whatever_stands_in_padding() -> None:
    generator = torch.Generator().manual_seed(0)
    exists = torch.rand(3, 4, generator=generator) < 0.6
    classes = torch.randint(5, (3, 4), generator=generator)
    plain = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    strange = plain.clone()
    strange[~exists] = -math.inf
    strange[~exists, 0] = math.nan
    found = []
    for logits in (plain.requires_grad_(), strange.requires_grad_()):
        mean, count = cross_entropy(logits, torch.where(exists, classes, 99), exists)
        mean.backward()
        found.append((mean.detach(), count, logits.grad))
    wanted = plain.detach().requires_grad_()
    nn.functional.cross_entropy(wanted[exists], classes[exists]).backward()
    for mean, count, gradient in found:
        assert int(count) == int(exists.sum())
        torch.testing.assert_close(mean, nn.functional.cross_entropy(wanted[exists], classes[exists]).detach(), rtol=1e-12, atol=0)
        torch.testing.assert_close(gradient, wanted.grad, rtol=1e-12, atol=1e-15)


def test_without_any_site_mean_and_gradient_are_zero() -> None:
    logits, values = torch.full((2, 3), math.nan, requires_grad=True), torch.tensor([math.nan, 1.0], requires_grad=True)
    nowhere = torch.zeros(2, dtype=torch.bool)
    for mean, count in (cross_entropy(logits, torch.zeros(2, dtype=torch.long), nowhere), mean_of(values, nowhere)):
        mean.backward()
        assert (float(mean.detach()), int(count)) == (0.0, 0)
    assert logits.grad is not None
    assert not logits.grad.any()
    assert values.grad is not None
    assert not values.grad.any()


def test_a_mean_is_of_what_exists() -> None:
    values = torch.tensor([[1.0, 5.0], [3.0, math.nan]], dtype=torch.float64)
    mean, count = mean_of(values, torch.tensor([[True, False], [True, False]]))
    assert (float(mean), int(count)) == (2.0, 2)
    mean, count = mean_of(values[0])
    assert (float(mean), int(count)) == (3.0, 2)
    mean, count = mean_of(torch.zeros(0))
    assert (float(mean), int(count)) == (0.0, 0)
