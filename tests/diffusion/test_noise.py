"""Noise: one value that owns the prior, the schedule and the number of clean classes, and that every reverse step holds."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from scipy.stats import chisquare

from discrete_grpo.diffusion import choices
from discrete_grpo.diffusion.flow import FlowEuler, FlowInterpolation
from discrete_grpo.diffusion.kernels import D3PM, Kernel, chain_law
from discrete_grpo.diffusion.noise import Noise, NoiseProcess, absorbing, marginal, nest_noise, uniform
from discrete_grpo.diffusion.schedules import CosineSchedule, LinearSchedule, time_grid
from tests import oracles

NOISES = {
    "uniform": uniform(4, CosineSchedule()),
    "marginal": marginal([6.0, 3.0, 1.0], CosineSchedule()),
    "zero mass": marginal([0.5, 0.0, 0.3, 0.2], CosineSchedule()),
    "absorbing": absorbing(3, CosineSchedule()),
}
every_noise = pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)


@every_noise
def test_the_law_is_the_noise_matrix_of_the_paper(noise: Noise) -> None:
    grid = time_grid(5)
    found = noise.law(grid)
    for point, t in enumerate(grid.tolist()):
        matrix = oracles.noise_matrix(noise.prior, oracles.cosine_alpha_bar(t))
        wanted = torch.tensor(matrix[: noise.num_clean], dtype=torch.float64)
        torch.testing.assert_close(found[point], wanted, rtol=0, atol=1e-14)
    torch.testing.assert_close(found[0], noise.initial().expand(noise.num_clean, -1), rtol=0, atol=0)


@every_noise
def test_draws_have_the_frequencies_of_the_law(noise: Noise) -> None:
    t = torch.tensor(0.4, dtype=torch.float64)
    for c in range(noise.num_clean):
        drawn = noise.sample(torch.full((1, 20_000), c), t, torch.Generator().manual_seed(c))
        counts = drawn.flatten().bincount(minlength=noise.num_states).double()
        wanted = noise.law(t[None])[0, c] * drawn.numel()
        assert counts[wanted == 0].sum() == 0
        assert chisquare(counts[wanted > 0].numpy(), wanted[wanted > 0].numpy()).pvalue > 1e-3


@every_noise
def test_evidence_is_the_ratio_of_two_laws(noise: Noise) -> None:
    """log q(z|x_0=c) - log q(z|x_0≠z), the second with all mass of z from the prior."""
    t = torch.tensor([0.3], dtype=torch.float64)
    law = noise.law(t)[0]
    bar = float(noise.schedule.alpha_bar(t))
    for z, c in itertools.product(range(noise.num_states), range(noise.num_clean)):
        found = float(noise.evidence(torch.tensor([[z]]), t)[0, 0, c])
        missed = (1 - bar) * noise.prior[z]
        if missed > 0:
            assert found == pytest.approx(float((law[c, z] / missed).log()), abs=1e-12)


def test_every_reverse_step_holds_the_same_value() -> None:
    noise = NOISES["marginal"]
    kernels: list[Kernel] = [choices.make_kernel(name, noise) for name in ("d3pm", "flow", "flow_euler")]
    assert [type(kernel) for kernel in kernels] == [D3PM, FlowInterpolation, FlowEuler]
    assert all(kernel.noise is noise for kernel in kernels)
    assert [choices.kernel_name(kernel) for kernel in kernels] == ["d3pm", "flow", "flow_euler"]  # type: ignore[arg-type]
    assert isinstance(noise, NoiseProcess)
    assert all(isinstance(kernel, Kernel) for kernel in kernels)
    for kernel in kernels[:2]:  # a clamped Euler row may have another law
        torch.testing.assert_close(chain_law(kernel, time_grid(4)), noise.law(time_grid(4)), rtol=0, atol=1e-12)


def test_a_noise_is_a_frozen_value() -> None:
    noise = uniform(2, LinearSchedule())
    assert noise == uniform(2, LinearSchedule())
    assert hash(noise) == hash(uniform(2, LinearSchedule()))
    assert noise != uniform(2, CosineSchedule())
    with pytest.raises(dataclasses.FrozenInstanceError):
        noise.num_clean = 1  # type: ignore[misc]


def test_values_over_clean_classes_are_padded_to_all_states() -> None:
    noise = absorbing(2, LinearSchedule())
    assert noise.pad(torch.tensor([[0.25, 0.75]])).tolist() == [[0.25, 0.75, 0.0]]
    assert noise.one_hot(torch.tensor([2, 0]), torch.float64).tolist() == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]


def test_kept_has_one_axis_per_site_of_the_batch() -> None:
    noise = uniform(2, LinearSchedule())
    assert noise.kept(torch.tensor(0.25), 3).shape == ()
    rows = noise.kept(torch.tensor([0.25, 0.5]), 3)
    assert rows.shape == (2, 1, 1)
    assert rows.flatten().tolist() == [0.75, 0.5]


def test_nested_arguments_stay_and_older_ones_become_one_noise() -> None:
    old = {"prior": [1.0], "schedule": {"x": 1}, "num_clean": 1, "eta": 2.0}
    kept = dict(old)
    new = nest_noise(old)
    assert old == kept
    inner = {"prior": [1.0], "schedule": {"x": 1}, "num_clean": 1}
    assert new == {"noise": {"class_path": "discrete_grpo.diffusion.noise.Noise", "init_args": inner}, "eta": 2.0}
    assert nest_noise(new) == new
