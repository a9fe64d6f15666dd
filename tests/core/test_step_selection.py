"""The steps an update learns from: how many, which, and that empty steps never take a place."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from discrete_grpo.core.step_selection import chosen_steps, num_selected, select_steps, step_runs


@pytest.mark.parametrize("selection", ["first", "last", "window"])
@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.5, 0.99, 1.0])
def test_a_run_of_the_steps_that_have_units(selection: Any, fraction: float) -> None:
    generator = torch.Generator().manual_seed(0)
    units = torch.tensor(list(itertools.product((0, 3), repeat=6)))
    steps = step_runs(units, fraction, selection, generator)
    assert (steps.diff(dim=1) > 0).all()
    for row, chosen in zip(units, steps, strict=True):
        full = row.nonzero()[:, 0].tolist()
        used = [s for s in chosen.tolist() if row[s] > 0]
        count = num_selected(len(full), fraction)
        assert len(used) == count
        places = [i for i in range(len(full) - count + 1) if full[i : i + count] == used]
        assert places, (full, used)
        if count and selection != "window":
            assert used == (full[:count] if selection == "first" else full[-count:])


def test_the_place_of_a_window_is_uniform() -> None:
    steps = step_runs(torch.ones(3000, 10, dtype=torch.long), 0.4, "window", torch.Generator().manual_seed(1))
    assert (steps.diff(dim=1) == 1).all()
    counts = torch.bincount(steps[:, 0], minlength=7)
    assert len(counts) == 7
    assert ((counts - 3000 / 7).abs() < 5 * math.sqrt(3000 / 7)).all()


@pytest.mark.parametrize("selection", ["first", "last", "window"])
def test_all_steps_are_all_steps(selection: Any) -> None:
    assert step_runs(torch.ones(3, 5, dtype=torch.long), 1.0, selection).tolist() == [[0, 1, 2, 3, 4]] * 3


def test_random_is_select_steps_to_the_bit() -> None:
    units = torch.ones(20, 10, dtype=torch.long)
    a, b = (torch.Generator().manual_seed(3) for _ in range(2))
    assert torch.equal(chosen_steps(units, 0.3, "random", a), select_steps(units, 0.3, b))
    assert torch.equal(a.get_state(), b.get_state())
    assert torch.equal(chosen_steps(units, 0.3, "first"), step_runs(units, 0.3, "first"))
