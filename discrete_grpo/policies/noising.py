"""Draws of noisy graphs that do not depend on a policy: the start of a trajectory, and the noisy classes of fixed sites."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from discrete_grpo.core.categorical import sample
from discrete_grpo.core.precision import full_precision, place
from discrete_grpo.diffusion.kernels import Kernel
from discrete_grpo.domains.graphs import GraphBatch, num_pairs, pair_mask, symmetrise, upper

__all__ = ["initial_graphs", "pinned", "renoised"]

Kernels = tuple[Kernel, Kernel]
"""The kernel of nodes and the kernel of pairs."""


def initial_graphs(kernels: Kernels, mask: Bool[Tensor, "batch node"], generator: torch.Generator | None = None) -> GraphBatch:
    """Draw x_1 for the nodes that exist."""
    b, n = mask.shape
    m_x, m_e = (kernel.noise.initial().float().to(mask.device) for kernel in kernels)
    nodes = sample(m_x.expand(b, n, -1), generator)
    return _masked(nodes, sample(m_e.expand(b, num_pairs(n), -1), generator), mask)


def renoised(
    kernels: Kernels, clean: GraphBatch, grid: Float[Tensor, " point"], point: int, generator: torch.Generator | None = None
) -> GraphBatch:
    """Draw x_t from q(x_t | x_0) at t = ``grid[point]``."""
    t = place(grid[point], clean.nodes.device).expand(len(clean))
    nodes, pairs = _noisy(kernels, clean.nodes, upper(clean.edges), t, generator)
    return _masked(nodes, pairs, clean.mask)


def pinned(
    kernels: Kernels,
    state: GraphBatch,
    fixed: GraphBatch | None,
    grid: Float[Tensor, " point"],
    point: int,
    generator: torch.Generator | None = None,
) -> GraphBatch:
    """Replace the fixed sites of ``state`` by draws from q(x_t | x_0) at t = ``grid[point]``; at the last point they are clean."""
    if fixed is None:
        return state
    t = place(grid[point], state.nodes.device).expand(len(state))
    goal_pairs = upper(fixed.edges)
    nodes, pairs = _noisy(kernels, fixed.nodes.clamp_min(0), goal_pairs.clamp_min(0), t, generator)
    if point == len(grid) - 1:  # also where a schedule leaves some noise at t = 0, as DiGress's does
        nodes, pairs = fixed.nodes, goal_pairs
    nodes = torch.where(fixed.nodes >= 0, nodes, state.nodes)
    pairs = torch.where(goal_pairs >= 0, pairs, upper(state.edges))
    return GraphBatch(nodes, symmetrise(pairs, state.num_nodes), state.mask)


def _noisy(kernels: Kernels, nodes: Tensor, pairs: Tensor, t: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Draw x_t from q(x_t | x_0) for nodes and for pairs."""
    with full_precision(nodes.device):
        noisy = kernels[0].noise.sample(nodes, t, generator)
        return noisy, kernels[1].noise.sample(pairs, t, generator)


def _masked(nodes: Tensor, pairs: Tensor, mask: Tensor) -> GraphBatch:
    nodes, pairs = torch.where(mask, nodes, 0), torch.where(pair_mask(mask), pairs, 0)
    return GraphBatch(nodes, symmetrise(pairs, mask.shape[1]), mask)
