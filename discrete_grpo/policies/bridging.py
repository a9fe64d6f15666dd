"""Trajectories of given graphs that no policy drew: the noising process conditioned on its end point.

x_1 ~ q(x_1), then x_s ~ q(x_s | x_t, x_0) from one grid point to the next, which is the step of the kernel for a known x_0.
For D3PM and for an interpolation x_t then has the law q(x_t | x_0); for an Euler step, whose rows are clamped or guided, it
has that of :func:`~discrete_grpo.diffusion.kernels.chain_law`. The step to the end of the grid gives x_0 itself, whatever
noise a schedule leaves at t = 0.

A policy gives such a trajectory a probability above 0: p_θ(x_s | x_t) = Σ_c p̂_θ(c | x_t) q(x_s | x_t, c), whose term c
= x_0 is positive for every x_s drawn this way, since p̂_θ is positive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from discrete_grpo.core.categorical import sample
from discrete_grpo.core.checks import check_range
from discrete_grpo.core.precision import full_precision
from discrete_grpo.core.rollout import Context, Rollout
from discrete_grpo.diffusion.kernels import Kernel
from discrete_grpo.diffusion.schedules import grid_on
from discrete_grpo.domains.graphs import GraphBatch, num_pairs, pack, pair_mask, symmetrise, upper
from discrete_grpo.policies.noising import initial_graphs
from discrete_grpo.policies.trajectory import graph_rollout, size_buckets

__all__ = ["accepts", "bridged_rollout", "bridges", "check_known", "known_graphs", "known_step"]

Kernels = tuple[Kernel, Kernel]
"""The kernel of nodes and the kernel of pairs."""


def known_step(
    kernel: Kernel,
    clean: Int[Tensor, "batch site"],
    noisy: Int[Tensor, "batch site"],
    grid: Float[Tensor, " point"],
    point: Int[Tensor, " batch"],
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "batch site state"]:
    """q(x_s | x_t, x_0) of every site from t = ``grid[point]`` to the next point; the step to the last point gives x_0 itself.

    Args:
        kernel: the reverse step.
        clean: x_0 of every site.
        noisy: x_t of every site.
        grid: falling times from 1 to 0.
        point: number of the grid point of each row, not the last.
        dtype: type of the probabilities.
    """
    certain = torch.nn.functional.one_hot(clean, kernel.noise.num_states).to(dtype)
    grid = grid_on(grid, noisy.device)
    with full_precision(noisy.device):
        step = kernel.transition(certain[..., : kernel.noise.num_clean], noisy, grid[point], grid[point + 1])
    return torch.where((point == len(grid) - 2)[:, None, None], certain, step)


@torch.no_grad()
def bridges(
    kernels: Kernels, clean: GraphBatch, grid: Float[Tensor, " point"], generator: torch.Generator | None = None
) -> tuple[UInt8[Tensor, "batch point node"], UInt8[Tensor, "batch point pair"]]:
    """Draw x_1 -> ... -> x_0 for every graph x_0 of ``clean``: packed node states and pair states at every grid point.

    Graphs of similar size are drawn together, so the draws depend on which graphs are in the batch and on their order. Each
    graph's trajectory is independent of the others'. Padding is 0 in every state.

    Args:
        kernels: reverse steps of nodes and of pairs.
        clean: finished graphs, of classes that the kernels know.
        grid: falling times from 1 to 0.
        generator: random generator of the draws.
    """
    device, points = clean.nodes.device, len(grid)
    nodes = torch.zeros(len(clean), points, clean.num_nodes, dtype=torch.uint8, device=device)
    pairs = torch.zeros(len(clean), points, num_pairs(clean.num_nodes), dtype=torch.uint8, device=device)
    sizes = clean.sizes.cpu()
    for rows in size_buckets(sizes):
        at, n = rows.to(device), int(sizes[rows].max())
        end = clean.index(at).crop(n)
        state = initial_graphs(kernels, end.mask, generator)
        for k in range(points):
            if k > 0:
                state = _stepped(kernels, state, end, grid, k - 1, generator)
            nodes[at, k, :n], pairs[at, k, : num_pairs(n)] = pack(state)
    return nodes, pairs


def _stepped(
    kernels: Kernels, state: GraphBatch, end: GraphBatch, grid: Tensor, point: int, generator: torch.Generator | None
) -> GraphBatch:
    """Draw the state at the grid point after ``point``."""
    at = torch.full((len(end),), point, device=end.nodes.device)
    q_nodes = known_step(kernels[0], end.nodes, state.nodes, grid, at)
    q_pairs = known_step(kernels[1], upper(end.edges), upper(state.edges), grid, at)
    nodes = torch.where(end.mask, sample(q_nodes, generator), 0)
    pairs = torch.where(pair_mask(end.mask), sample(q_pairs, generator), 0)
    return GraphBatch(nodes, symmetrise(pairs, end.num_nodes), end.mask)


def bridged_rollout(
    samples: Sequence[Any],
    graphs: GraphBatch,
    kernels: Kernels,
    grid: Float[Tensor, " point"],
    max_nodes: int,
    dtype: torch.dtype,
    generator: torch.Generator | None = None,
) -> Rollout:
    """The rollout of :func:`bridges` to the graphs of ``samples``, in groups of one; its log-probs are NaN.

    Args:
        samples: what rewards see of the graphs.
        graphs: the finished graphs, on the device of the rollout.
        kernels: reverse steps of nodes and of pairs.
        grid: falling times from 1 to 0.
        max_nodes: size of the largest graph that the policy draws.
        dtype: type of the policy's weights.
        generator: random generator of the draws.
    """
    nodes, pairs = bridges(kernels, graphs, grid, generator)
    logp = torch.full((len(graphs), len(grid) - 1), torch.nan, device=nodes.device).to(torch.promote_types(dtype, torch.float32))
    group, states = torch.arange(len(graphs), device=nodes.device), {"nodes": nodes, "pairs": pairs}
    contexts = [Context(k) for k in range(len(graphs))]
    return graph_rollout(contexts, states, logp, group, graphs.sizes, max_nodes=max_nodes, decode=lambda _: samples)


# -- samples as graphs


def known_graphs(
    samples: Sequence[Any],
    encode: Callable[[Sequence[Any]], GraphBatch] | None,
    kernels: Kernels,
    node_counts: Sequence[float],
) -> GraphBatch:
    """Convert samples to graphs, and check that the policy can draw all of them.

    Args:
        samples: graph batches of one graph each, or what ``encode`` reads.
        encode: maps samples to graphs; None reads none.
        kernels: kernels of nodes and pairs, whose noise gives the numbers of classes.
        node_counts: probability of 0, 1, 2, ... nodes.

    Raises:
        ValueError: for a sample that is not a graph, or has a class or a size that the policy does not draw.
    """
    if not samples:
        raise ValueError("samples: none given, expected at least one")
    graphs = _joined(samples) if encode is None or isinstance(samples[0], GraphBatch) else encode(samples)
    sizes = {n for n, p in enumerate(node_counts) if p > 0}
    if unknown := [size for size in graphs.sizes.tolist() if size not in sizes]:
        drawn = ", ".join(map(str, sorted(sizes)))
        raise ValueError(f"samples: a graph of {unknown[0]} nodes, expected a size that the policy draws ({drawn})")
    graphs = graphs.crop(int(graphs.sizes.max()))
    real = graphs.mask[:, :, None] & graphs.mask[:, None, :]
    clean = GraphBatch(torch.where(graphs.mask, graphs.nodes, 0), torch.where(real, graphs.edges, 0), graphs.mask)
    check_known(clean, kernels, len(node_counts) - 1)
    return clean


def _joined(samples: Sequence[Any]) -> GraphBatch:
    """Batches of one graph each as one batch."""
    wrong = [one for one in samples if not isinstance(one, GraphBatch) or len(one) != 1]
    if wrong:
        given = f"a batch of {len(wrong[0])} graphs" if isinstance(wrong[0], GraphBatch) else repr(wrong[0])
        raise ValueError(f"samples: {given}, expected graph batches of one graph each, as the policy reads no other form")
    most = max(one.num_nodes for one in samples)
    parts = [one.pad(most) for one in samples]
    nodes, edges, mask = (torch.cat([getattr(part, name) for part in parts]) for name in ("nodes", "edges", "mask"))
    return GraphBatch(nodes, edges, mask)


def check_known(graphs: GraphBatch, kernels: Kernels, max_nodes: int) -> None:
    """Raise ValueError for a graph larger than ``max_nodes``, or with a class outside the kernels' data."""
    check_range("nodes of graphs", graphs.num_nodes, most=max_nodes, note=" (max_nodes of the policy)")
    there = graphs.nodes.numel() > 0
    ends = torch.stack([*graphs.nodes.aminmax(), *graphs.edges.aminmax()]).tolist() if there else [0] * 4  # read at once
    for kind, low, high, kernel in zip(("node", "edge"), ends[::2], ends[1::2], kernels, strict=True):
        check_range(f"{kind} class in graphs", low if low < 0 else high, least=0, most=kernel.noise.num_clean - 1)


def accepts(read: Callable[[Sequence[Any]], Any], sample: Any) -> bool:
    """Whether ``read`` accepts a sample without raising ValueError."""
    try:
        read([sample])
    except ValueError:
        return False
    return True
