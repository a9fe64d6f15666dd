"""The reference that follows."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from discrete_grpo.training.optim import averaged, mix_reference, update_average


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_parameters_are_mixed_and_buffers_copied(alpha: float) -> None:
    policy, reference = (nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).double() for _ in range(2))
    policy[1](torch.randn(4, 3, dtype=torch.float64))  # moves the buffers
    before, moved = copy.deepcopy(reference), copy.deepcopy(policy)
    reference.requires_grad_(False)
    mix_reference(reference, policy, alpha)
    for (name, found), first, theta in zip(reference.named_parameters(), before.parameters(), policy.parameters(), strict=True):
        torch.testing.assert_close(found, alpha * theta + (1 - alpha) * first, rtol=0, atol=1e-15, msg=name)
        assert not found.requires_grad
    for buffer, other in zip(reference.buffers(), policy.buffers(), strict=True):
        assert torch.equal(buffer, other)
    assert all(torch.equal(a, b) for a, b in zip(policy.state_dict().values(), moved.state_dict().values(), strict=True))


def test_the_moving_average_has_the_buffers_of_the_policy() -> None:
    policy = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    average = averaged(policy, 0.9)
    for _ in range(3):  # the first update copies everything
        policy[1](torch.randn(4, 3))
        update_average(average, policy)
        for buffer, other in zip(average.module.buffers(), policy.buffers(), strict=True):
            assert torch.equal(buffer, other)
