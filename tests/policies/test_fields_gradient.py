"""GRPO's gradient on a joint categorical and Gaussian step against finite differences of E[R], by quadrature in float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.loss import grpo_loss
from discrete_grpo.core.rollout import Context, Rollout
from discrete_grpo.policies.fields import FieldPolicy
from tests.policies.test_fields import policy

POINTS = 8
"""Nodes of the Gauss-Hermite rule per axis."""


def space(made: FieldPolicy) -> tuple[Rollout, Tensor]:
    """Every end of a one-step chain of two atoms from one x_1: all classes, and a quadrature of the positions; with its weights.

    The two atoms of zero mean have one coordinate per axis, x of the first and -x of the second.
    """
    start = made.sample([Context(0)], generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        positions = made.sites(start)[-1]
    mean, std = positions.mean[0, 0, 0], float(positions.std[0, 0, 0])  # type: ignore[attr-defined]
    nodes, weights = np.polynomial.hermite_e.hermegauss(POINTS)
    ends, mass = [], []
    for at in product(range(POINTS), repeat=3):
        offset = torch.tensor([nodes[k] for k in at]) * std / 2**0.5
        ends.append(torch.stack([mean + offset, -mean - offset]))
        mass.append(np.prod([weights[k] for k in at]) / (2 * np.pi) ** 1.5)
    tables = list(product(range(3), range(3), range(2), range(2), range(2)))  # two atoms, two charges, one bond
    rows = torch.zeros(len(ends) * len(tables), dtype=torch.long)
    whole = start.index(rows)
    states = {name: value.clone() for name, value in whole.states.items()}
    states["positions"][:, 1] = torch.stack(ends).repeat_interleave(len(tables), 0)
    classes = torch.tensor(tables, dtype=torch.uint8).repeat(len(ends), 1)
    states["node atom"][:, 1], states["node charge"][:, 1], states["edge bond"][:, 1] = (
        classes[:, :2],
        classes[:, 2:4],
        classes[:, 4:],
    )
    return replace(whole, states=states), torch.tensor(mass).repeat_interleave(len(tables))


def reward(rollout: Rollout) -> Tensor:
    """A function of classes and positions alike."""
    states = rollout.states
    first = states["positions"][:, 1, 0]
    charged = states["node charge"][:, 1].double().sum(1)
    return torch.tanh(first.sum(1)) * (1 + states["node atom"][:, 1, 0].double()) + charged * states["edge bond"][:, 1, 0] * 0.5


def log_probs(made: FieldPolicy, rollout: Rollout) -> Tensor:
    return score_sites(made.sites(rollout)).logp.sum((1, 2))


@pytest.mark.slow
def test_the_gradient_of_the_loss_is_that_of_the_expected_reward() -> None:
    made = policy(steps=1, counts=(0.0, 0.0, 1.0)).double()
    rollout, quadrature = space(made)
    scored = reward(rollout)
    with torch.no_grad():
        first = log_probs(made, rollout)
        tables = first - score_sites(made.sites(rollout)[-1:]).logp.sum((1, 2))
    weight = quadrature * tables.exp()  # of every end, under the weights that it starts from
    assert float(weight.sum()) == pytest.approx(1.0, abs=1e-9)

    def expected() -> float:
        with torch.no_grad():
            return float((weight * (log_probs(made, rollout) - first).exp() * scored).sum())

    scores = score_sites(made.sites(rollout))
    loss = grpo_loss(scores, None, scored, weight, level="step").loss
    parameters = [(name, p) for name, p in made.named_parameters()]
    gradients = torch.autograd.grad(loss, [p for _, p in parameters])
    random = torch.Generator().manual_seed(1)
    for (name, parameter), gradient in zip(parameters, gradients, strict=True):
        direction = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
        ends = []
        for step in (1e-4, -1e-4):
            with torch.no_grad():
                parameter.add_(direction, alpha=step)
            ends.append(expected())
            with torch.no_grad():
                parameter.sub_(direction, alpha=step)
        slope = (ends[0] - ends[1]) / 2e-4
        assert float((gradient * direction).sum()) == pytest.approx(-slope, rel=1e-6, abs=1e-9), name
