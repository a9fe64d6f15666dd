"""Selection of the steps of each trajectory that an update is trained on."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from discrete_grpo.core.precision import place, widest

__all__ = ["Selection", "chosen_steps", "num_selected", "select_steps", "step_runs"]

Selection = Literal["random", "first", "last", "window"]


def num_selected(num_steps: int, fraction: float) -> int:
    """Number of steps that a fraction in (0, 1] selects: max(1, round(fraction · num_steps)); 0 of 0 steps.

    >>> [num_selected(n, 0.4) for n in (0, 1, 10)]
    [0, 1, 4]
    """
    return min(num_steps, max(1, round(fraction * num_steps)))


def select_steps(
    units: Int[Tensor, "batch step"], fraction: float, generator: torch.Generator | None = None
) -> Int[Tensor, "batch chosen"]:
    """Select :func:`num_selected` of the steps with units of each trajectory, uniformly at random, in ascending order.

    Rows with fewer such steps are padded with steps without units, which do not count. A fraction of 1 selects all S steps.
    """
    total = units.shape[1]
    device = units.device if generator is None else generator.device
    full = (units > 0).sum(-1, keepdim=True)
    wanted = torch.tensor([num_selected(n, fraction) for n in range(total + 1)], device=units.device)[full]
    count = max(1, int(wanted.max()))
    if count == total:
        return torch.arange(total, device=units.device).expand(len(units), -1)
    scores = torch.rand(units.shape, generator=generator, device=device).to(units.device)
    order = torch.where(units > 0, scores, 1 + scores).argsort(-1)
    rank = torch.arange(total, device=units.device)
    spare = (rank >= wanted) & (rank < full)  # steps with units that were not selected come last
    return order.gather(-1, torch.where(spare, rank + total, rank).argsort(-1))[:, :count].sort(-1).values


def step_runs(
    units: Int[Tensor, "batch step"],
    fraction: float,
    selection: Literal["first", "last", "window"],
    generator: torch.Generator | None = None,
) -> Int[Tensor, "batch chosen"]:
    """Select a run of :func:`num_selected` of the steps with units of each trajectory: the first, the last, or a random window.

    ``first`` selects the steps drawn first, which are the noisiest of a diffusion. The place of a ``window`` is drawn uniformly for
    each trajectory. Rows with fewer steps than others are padded with steps without units, which do not count.

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
    # Steps with units come first, in order; the run keeps its ranks, and the steps outside it follow the empty ones.
    order = (units == 0).long().argsort(dim=-1, stable=True)
    rank = torch.arange(total, device=units.device)
    inside = (rank >= start[:, None]) & (rank < (start + wanted)[:, None])
    spare = ~inside & (rank < full[:, None])
    part = torch.where(inside, 0, torch.where(spare, 2, 1))
    return order.gather(-1, part.argsort(dim=-1, stable=True))[:, :count].sort(-1).values


def chosen_steps(
    units: Int[Tensor, "batch step"], fraction: float, selection: Selection, generator: torch.Generator | None = None
) -> Int[Tensor, "batch chosen"]:
    """Select steps in ascending order: independently (``random``, see :func:`select_steps`), or as a run of neighbours."""
    if selection == "random":
        return select_steps(units, fraction, generator)
    return step_runs(units, fraction, selection, generator)
