"""Draws of noisy graphs that do not depend on a policy: the start of a trajectory, and the noisy classes of fixed sites."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from discrete_grpo.core.categorical import sample
from discrete_grpo.core.precision import full_precision, widest
from discrete_grpo.diffusion.kernels import Kernel
from discrete_grpo.diffusion.noise import Noise, NoiseProcess
from discrete_grpo.diffusion.schedules import Schedule, grid_on
from discrete_grpo.domains.graphs import GraphBatch, num_pairs, pair_mask, symmetrise, upper

__all__ = ["initial_graphs", "noise_name", "noised", "pinned", "renoised", "stratified_times", "wide_logits"]

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
    return noised(kernels, clean, grid_on(grid, clean.nodes.device)[point].expand(len(clean)), generator)


def noised(
    kernels: Kernels, clean: GraphBatch, time: Float[Tensor, " batch"], generator: torch.Generator | None = None
) -> GraphBatch:
    """Draw x_t from q(x_t | x_0) at one time in [0, 1] per graph."""
    nodes, pairs = _noisy(kernels, clean.nodes, upper(clean.edges), time, generator)
    return _masked(nodes, pairs, clean.mask)


def stratified_times(
    count: int, device: torch.device, distortion: Schedule | None = None, generator: torch.Generator | None = None
) -> Float[Tensor, " batch"]:
    """Times of ``count`` training graphs in random order: t_i = (i + u) / count with one u uniform in [0, 1), float64 if possible.

    With a ``distortion`` f they are 1 - f(1 - t_i). Source of the stratification: Kingma et al. (2021), arXiv 2107.00630.
    """
    u = torch.rand((), generator=generator, device=device, dtype=widest(device))
    t = ((torch.arange(count, device=device) + u) / count)[torch.randperm(count, generator=generator, device=device)]
    return t if distortion is None else 1 - distortion.alpha_bar(t)


def wide_logits(logits: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Logits of nodes and edges in at least float32."""
    nodes, edges = (z.to(torch.promote_types(z.dtype, torch.float32)) for z in logits)
    return nodes, edges


def noise_name(noise: NoiseProcess) -> str:
    """Name of a noise in words: uniform, marginal or absorbing noise, or the class of another process.

    >>> from discrete_grpo.diffusion.noise import absorbing
    >>> from discrete_grpo.diffusion.schedules import LinearSchedule
    >>> noise_name(absorbing(3, LinearSchedule()))
    'absorbing noise'
    """
    if not isinstance(noise, Noise):
        return type(noise).__name__
    kind = "absorbing" if noise.num_states > noise.num_clean else "uniform" if len(set(noise.prior)) == 1 else "marginal"
    return f"{kind} noise"


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
    t = grid_on(grid, state.nodes.device)[point].expand(len(state))
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
