"""Steps of a graph sampler: one draw from the transition, and a walk of many, recorded as a CUDA graph where that is asked for.

A step is a function of tensors alone: the state, the number of the step, uniform random numbers. It copies nothing to the device
and reads nothing from it, so that a GPU can repeat it without the host.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from discrete_grpo.core.categorical import gather, invert, safe_log
from discrete_grpo.diffusion.kernels import Kernel
from discrete_grpo.domains.graphs import GraphBatch, num_pairs, pack, pair_mask, symmetrise, upper
from discrete_grpo.policies.noising import pinned

__all__ = ["Drawn", "StepGraph", "Stepper"]

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
        generator: of the draws.
        fixed: clean classes of fixed sites, -1 where free; None if no site is fixed.
        properties: what the graphs are conditioned on; None for nothing.
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
        graph: StepGraph | None = None
        for k in steps:
            if graph is not None:
                yield graph.replay(self.generator)
                continue
            drawn = self.step(state, at, self._uniform(state))
            if self.fixed is not None:
                drawn = self._pinned(drawn, k + 1)
            yield drawn
            state, at = drawn.state, at + 1
            if self.record and self.fixed is None and k == steps.start and len(steps) > 1:  # the first step has warmed up
                graph = _recorded(self.step, state, at, self._uniform_like(state))

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
        b, n = state.nodes.shape
        device = state.nodes.device
        return torch.rand(b * (n + num_pairs(n)), generator=self.generator, device=device, dtype=self.dtype)

    def _uniform_like(self, state: GraphBatch) -> Float[Tensor, " site"]:
        b, n = state.nodes.shape
        return torch.zeros(b * (n + num_pairs(n)), device=state.nodes.device, dtype=self.dtype)


class StepGraph:
    """A step recorded as a CUDA graph, whose kernels are then launched at once.

    State, number of the step and random numbers lie in memory that every replay reads, and the graph writes the next state and
    number there. Weights are read where they lie, so that a graph must not outlive them. Random numbers are drawn before each
    replay, by the same call as without a graph.

    Args:
        step: draws a step; it has run once on inputs of these shapes.
        state: state of the next step.
        at: number of the next step.
        uniform: memory for the random numbers.
    """

    def __init__(self, step: Callable[[GraphBatch, Tensor, Tensor], Drawn], state: GraphBatch, at: Tensor, uniform: Tensor) -> None:
        self.state = GraphBatch(state.nodes.clone(), state.edges.clone(), state.mask)
        self.at, self.uniform = at.clone(), uniform
        self.graph = torch.cuda.CUDAGraph()
        with _casts_inside(), torch.cuda.graph(self.graph):
            self.drawn = step(self.state, self.at, self.uniform)
            self.state.nodes.copy_(self.drawn.state.nodes)
            self.state.edges.copy_(self.drawn.state.edges)
            self.at.add_(1)

    def replay(self, generator: torch.Generator | None) -> Drawn:
        """Draw the next step."""
        self.uniform.uniform_(generator=generator)
        self.graph.replay()
        nodes, pairs, logp = self.drawn.nodes.clone(), self.drawn.pairs.clone(), self.drawn.logp.clone()
        return Drawn(self.state, nodes, pairs, logp)


@contextmanager
def _casts_inside() -> Iterator[None]:
    """Let autocast convert weights inside the recorded graph, as conversions kept from before would be of old weights later."""
    kept = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(kept)


def _recorded(
    step: Callable[[GraphBatch, Tensor, Tensor], Drawn], state: GraphBatch, at: Tensor, uniform: Tensor
) -> StepGraph | None:
    """The recorded step; None, with a warning, for a network that cannot be recorded."""
    try:
        return StepGraph(step, state, at, uniform)
    except RuntimeError as error:
        warnings.warn(f"sampling step: not recorded as a CUDA graph ({' '.join(str(error).split())})", stacklevel=2)
        return None
