"""Which steps of a trajectory an update learns from."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from discrete_grpo.core.precision import place, widest
from discrete_grpo.core.rollout import num_selected, select_steps

__all__ = ["Selection", "chosen_steps", "step_runs"]

Selection = Literal["random", "first", "last", "window"]


def step_runs(
    units: Int[Tensor, "batch step"],
    fraction: float,
    selection: Literal["first", "last", "window"],
    generator: torch.Generator | None = None,
) -> Int[Tensor, "batch chosen"]:
    """For each trajectory a run of :func:`num_selected` of the steps that have units: the first, the last, or from anywhere.

    ``first`` are the first drawn, which for diffusion are the noisiest. The place of a ``window`` is uniform over those where
    it fits, drawn for each trajectory. Rows with fewer steps than others are filled up with steps without units, which count
    for nothing.

    Source: first: Liu et al. (2025), Flow-GRPO, arXiv 2505.05470 (``timestep_fraction``); last: Graph-GRPO; window: Li et al.
    (2025), MixGRPO, arXiv 2507.21802.
    """
    total = units.shape[1]
    full = (units > 0).sum(-1)
    wanted = torch.tensor([num_selected(n, fraction) for n in range(total + 1)], device=units.device)[full]
    count = max(1, int(wanted.max()))
    if selection == "first":
        start = torch.zeros_like(full)
    elif selection == "last":
        start = full - wanted
    else:
        device = units.device if generator is None else generator.device
        draw = place(torch.rand(len(units), generator=generator, device=device, dtype=widest(device)), units.device)
        start = (draw * (full - wanted + 1)).long()
    # Steps with units stand first, in order; rank r of the run is kept, the spare ones go behind the empty steps.
    order = (units == 0).long().argsort(dim=-1, stable=True)
    rank = torch.arange(total, device=units.device)
    inside = (rank >= start[:, None]) & (rank < (start + wanted)[:, None])
    spare = ~inside & (rank < full[:, None])
    part = torch.where(inside, 0, torch.where(spare, 2, 1))
    return order.gather(-1, part.argsort(dim=-1, stable=True))[:, :count].sort(-1).values


def chosen_steps(
    units: Int[Tensor, "batch step"], fraction: float, selection: Selection, generator: torch.Generator | None = None
) -> Int[Tensor, "batch chosen"]:
    """Step numbers in ascending order: drawn one by one (``random``, see :func:`select_steps`), or a run of neighbours."""
    if selection == "random":
        return select_steps(units, fraction, generator)
    return step_runs(units, fraction, selection, generator)
