"""Noise schedules: values against the formula, exact end points, order."""

import math

import pytest
import torch

from discrete_grpo.diffusion.schedules import (
    CosDistortion,
    CosineSchedule,
    DigressSchedule,
    LinearSchedule,
    PolydecDistortion,
    PolyincDistortion,
    RevcosDistortion,
    Schedule,
    time_grid,
)
from tests.oracles import cosine_alpha_bar, linear_alpha_bar

SCHEDULES: list[Schedule] = [CosineSchedule(), CosineSchedule(0.0), CosineSchedule(0.05), LinearSchedule()]
SCHEDULES += [CosDistortion(), RevcosDistortion(), PolyincDistortion(), PolydecDistortion()]


def value(schedule: Schedule, t: float) -> float:
    return float(schedule.alpha_bar(torch.tensor(t, dtype=torch.float64)))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_the_end_points_are_exact_in_either_precision_and_beyond(schedule: Schedule) -> None:
    for dtype in (torch.float32, torch.float64):
        ends = schedule.alpha_bar(torch.tensor([0.0, 1.0, -0.5, 1.5], dtype=dtype))
        assert ends.dtype == torch.float64
        assert ends.tolist() == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_the_signal_falls_strictly_and_stays_in_range(schedule: Schedule) -> None:
    inside = schedule.alpha_bar(torch.linspace(0, 1, 1001, dtype=torch.float64))
    assert (inside.diff() < 0).all()
    tiny = schedule.alpha_bar(torch.logspace(-30, 0, 3001, dtype=torch.float64))
    assert (tiny.diff() <= 0).all()
    assert ((tiny >= 0) & (tiny <= 1)).all()


@pytest.mark.parametrize("offset", [0.0, 0.008, 0.05])
@pytest.mark.parametrize("t", [1e-6, 0.1, 0.25, 0.5, 0.75, 0.999])
def test_cosine_is_the_formula(offset: float, t: float) -> None:
    assert value(CosineSchedule(offset), t) == pytest.approx(cosine_alpha_bar(t, offset), rel=1e-12)
    assert value(LinearSchedule(), t) == pytest.approx(linear_alpha_bar(t), rel=1e-12)


@pytest.mark.parametrize("u", [0.01, 0.3, 0.5, 0.9])
def test_distortions_are_the_published_formulas_of_data_time(u: float) -> None:
    cos = (1 - math.cos(math.pi * u)) / 2
    published: dict[Schedule, float] = {CosDistortion(): cos, RevcosDistortion(): 2 * u - cos}
    published |= {PolyincDistortion(): u**2, PolydecDistortion(): 2 * u - u**2}
    for schedule, expected in published.items():
        assert value(schedule, 1 - u) == pytest.approx(expected, rel=1e-12)


def test_known_cosine_values() -> None:
    assert value(CosineSchedule(0.0), 0.5) == pytest.approx(0.5, abs=1e-15)
    assert value(CosineSchedule(0.0), 1 / 3) == pytest.approx(0.75, abs=1e-15)
    assert value(CosineSchedule(), 0.5) == pytest.approx(0.4938435904, abs=1e-10)


def test_shapes_and_scalars_are_kept() -> None:
    for schedule in SCHEDULES:
        assert schedule.alpha_bar(torch.tensor(0.3)).shape == ()
        assert schedule.alpha_bar(torch.rand(2, 3)).shape == (2, 3)


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 50, 500])
def test_the_time_grid_goes_from_one_to_zero_in_equal_steps(steps: int) -> None:
    grid = time_grid(steps)
    assert grid.dtype == torch.float64
    assert grid.tolist() == [(steps - k) / steps for k in range(steps + 1)]


def test_bad_values_are_named() -> None:
    for offset in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"^offset: .*, expected at least 0 and less than 1"):
            CosineSchedule(offset)
        with pytest.raises(ValueError, match=r"^offset: .*, expected at least 0 and less than 1"):
            DigressSchedule(4, offset)
    with pytest.raises(ValueError, match=r"^num_steps: 0, expected 1 to 10000"):
        time_grid(0)
