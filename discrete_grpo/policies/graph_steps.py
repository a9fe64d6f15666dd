"""Steps of a graph sampler: one draw from the transition, and a walk over many, optionally recorded as a CUDA graph.

A step is a function of tensors alone: the state, the number of the step, uniform random numbers. It copies nothing to the device
and reads nothing from it, so that a GPU can repeat it without the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from discrete_grpo.core.categorical import gather, invert, safe_log
from discrete_grpo.diffusion.kernels import Kernel
from discrete_grpo.domains.graphs import GraphBatch, num_pairs, pack, pair_mask, symmetrise, upper
from discrete_grpo.policies.noising import pinned
from discrete_grpo.policies.recorded import RecordedStep, recorded

__all__ = ["Drawn", "Stepper"]

Transition = Callable[[GraphBatch, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""Node tables [B, N, K_x] and pair tables [B, P, K_e] of the next state, from a state, numbers of steps [B] and properties."""


@dataclass(frozen=True)
class Drawn:
    """Result of one sampling step.

    Attributes:
        state: the state after it; with a recorded step it is valid until the next one.
        nodes: node classes as bytes.
        pairs: pair classes as bytes.
        logp: log-prob of what was drawn.
    """

    state: GraphBatch
    nodes: UInt8[Tensor, "batch node"]
    pairs: UInt8[Tensor, "batch pair"]
    logp: Float[Tensor, " batch"]


@dataclass(frozen=True)
class Stepper:
    """Draws the steps of a batch of graphs of one padded size.

    Attributes:
        transition: tables of the next state.
        kernels: reverse steps of nodes and of pairs, by whose noise fixed sites are drawn.
        grid: falling times of the sampler.
        dtype: type of the tables.
        generator: random generator of the draws.
        fixed: clean classes of fixed sites, -1 where free; None if no site is fixed.
        properties: properties that the graphs are conditioned on; None without.
        record: whether steps are recorded as a CUDA graph.
    """

    transition: Transition
    kernels: tuple[Kernel, Kernel]
    grid: Float[Tensor, " point"]
    dtype: torch.dtype
    generator: torch.Generator | None
    fixed: GraphBatch | None = None
    properties: Float[Tensor, "batch property"] | None = None
    record: bool = False

    def index(self, rows: Int[Tensor, " row"]) -> Stepper:
        """The same for some rows of the batch."""
        fixed, properties = self.fixed, self.properties
        return replace(
            self,
            fixed=None if fixed is None else fixed.index(rows),
            properties=None if properties is None else properties[rows],
        )

    def walk(self, state: GraphBatch, steps: range) -> Iterator[Drawn]:
        """Draw ``steps`` one after the other, from ``state`` on, and yield the result of each."""
        at = torch.full((len(state),), steps.start, device=state.nodes.device)
        graph: RecordedStep | None = None
        for k in steps:
            if graph is not None:
                graph.noise[0].uniform_(generator=self.generator)
                (nodes, edges), (packed, pairs, logp) = graph.replay()
                yield Drawn(GraphBatch(nodes, edges, state.mask), packed, pairs, logp)
                continue
            drawn = self.step(state, at, self._uniform(state))
            if self.fixed is not None:
                drawn = self._pinned(drawn, k + 1)
            yield drawn
            state, at = drawn.state, at + 1
            if self.record and self.fixed is None and k == steps.start and len(steps) > 1:  # the first step has warmed up
                noise = torch.empty(self._num_sites(state), device=state.nodes.device, dtype=self.dtype)
                graph = recorded(partial(self._of_tensors, state.mask), (state.nodes, state.edges), at, (noise,))

    def _of_tensors(self, mask: Tensor, state: tuple[Tensor, ...], at: Tensor, noise: tuple[Tensor, ...]) -> Any:
        """:meth:`step` as a function of tensors."""
        nodes, edges = state
        drawn = self.step(GraphBatch(nodes, edges, mask), at, *noise)
        return (drawn.state.nodes, drawn.state.edges), (drawn.nodes, drawn.pairs, drawn.logp)

    def step(self, state: GraphBatch, at: Int[Tensor, " batch"], uniform: Float[Tensor, " site"]) -> Drawn:
        """Draw step ``at[b]`` of every graph with one uniform number per site, those of the nodes first."""
        b, n = state.nodes.shape
        q_nodes, q_pairs = self.transition(state, at, self.properties)
        exists, both = state.mask, pair_mask(state.mask)
        of_nodes, of_pairs = uniform.split([b * n, b * num_pairs(n)])
        nodes = torch.where(exists, invert(q_nodes, of_nodes.view(b, n)), 0)
        pairs = torch.where(both, invert(q_pairs, of_pairs.view(b, -1)), 0)
        free_nodes, free_pairs = exists, both
        if self.fixed is not None:
            free_nodes, free_pairs = exists & (self.fixed.nodes < 0), both & (upper(self.fixed.edges) < 0)
        logp = torch.where(free_nodes, gather(safe_log(q_nodes), nodes), 0.0).sum(-1)
        logp = logp + torch.where(free_pairs, gather(safe_log(q_pairs), pairs), 0.0).sum(-1)
        after = GraphBatch(nodes, symmetrise(pairs, n), exists)
        return Drawn(after, nodes.to(torch.uint8), pairs.to(torch.uint8), logp)

    def _pinned(self, drawn: Drawn, point: int) -> Drawn:
        """The same with the fixed sites at their noisy classes of a grid point."""
        state = pinned(self.kernels, drawn.state, self.fixed, self.grid, point, self.generator)
        return Drawn(state, *pack(state), drawn.logp)

    def _uniform(self, state: GraphBatch) -> Float[Tensor, " site"]:
        """Draw one uniform number per site, nodes first."""
        device = state.nodes.device
        return torch.rand(self._num_sites(state), generator=self.generator, device=device, dtype=self.dtype)

    @staticmethod
    def _num_sites(state: GraphBatch) -> int:
        b, n = state.nodes.shape
        return b * (n + num_pairs(n))
