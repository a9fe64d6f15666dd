"""Gaussian diffusion of positions where a schedule has no signal left."""

from __future__ import annotations

import torch

from discrete_grpo.diffusion.gaussian import GaussianDiffusion
from discrete_grpo.diffusion.schedules import DigressSchedule, SquaredSchedule


def test_a_step_between_two_times_without_signal_keeps_the_state() -> None:
    diffusion = GaussianDiffusion(SquaredSchedule(DigressSchedule(4)), min_std=0.01)
    state = torch.tensor([[[1.0, -2.0, 0.5], [-1.0, 2.0, -0.5]]])
    mean, std = diffusion.step(torch.zeros_like(state), state, torch.ones(1), torch.tensor([0.9]))  # both are rounded to t = 1
    assert torch.equal(mean, state)
    torch.testing.assert_close(std, torch.tensor([0.01]))
