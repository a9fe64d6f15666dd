"""Sampling steps over fields: the law of a step, a draw from it, and a walk over many, optionally recorded as a CUDA graph.

A step is a function of tensors alone: the state, the number of the step, random numbers. It copies nothing to the device and reads
nothing from it, so that a GPU can repeat it without the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from discrete_grpo.core.categorical import gather, invert, safe_log
from discrete_grpo.core.gaussian import log_density, shifted
from discrete_grpo.domains.fields import FieldBatch, matrix_of, pairs_mask, pairs_of
from discrete_grpo.domains.graphs import num_pairs
from discrete_grpo.policies.recorded import RecordedStep, recorded

if TYPE_CHECKING:
    from discrete_grpo.policies.field_noise import Field

__all__ = ["FieldStep", "FieldStepper", "categorical_sites", "gaussian_sites"]


@dataclass(frozen=True)
class FieldStep:
    """Law of one step: tables [B, N, K] and [B, P, K] per field, and mean [B, N, 3] and deviation [B] of the positions."""

    nodes: dict[str, Tensor]
    pairs: dict[str, Tensor]
    positions: tuple[Tensor, Tensor] | None


Transition: TypeAlias = Callable[[FieldBatch, Tensor], FieldStep]
"""The law of the next state, from a state and numbers of steps [B]."""


def categorical_sites(field: Field, law: FieldStep, then: FieldBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Table, class and mask of the sites of a field."""
    if field.name in law.nodes:
        return law.nodes[field.name], then.nodes[field.name], then.mask
    action = pairs_of(then.edges[field.name], directed=field.directed)
    return law.pairs[field.name], action, pairs_mask(then.mask, directed=field.directed)


def gaussian_sites(law: FieldStep, then: FieldBatch) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Mean, deviation, point, mask and dimension of the positions; a lone node cannot move and is masked out."""
    assert law.positions is not None
    assert then.positions is not None
    mean, std = law.positions
    count = then.sizes[:, None].expand_as(then.mask)
    dimension = 3 * (count - 1).to(mean) / count.clamp_min(1)
    return mean, std[:, None].expand_as(dimension), then.positions.to(mean), then.mask & (count > 1), dimension


@dataclass(frozen=True)
class FieldStepper:
    """Draws the steps of a batch of graphs of one padded size.

    Attributes:
        transition: law of the next state.
        fields: fields of nodes, then those of pairs.
        dtype: type of the tables, and of the mean of the positions.
        generator: random generator of the draws.
        record: whether steps are recorded as a CUDA graph.
    """

    transition: Transition
    fields: tuple[Field, ...]
    dtype: torch.dtype
    generator: torch.Generator | None
    record: bool = False

    def walk(self, state: FieldBatch, steps: range) -> Iterator[tuple[FieldBatch, Float[Tensor, " batch"]]]:
        """Draw ``steps`` one after the other, from ``state`` on, and yield the state after each and the log-prob of what was drawn.

        With a recorded step a state is valid until the next one.
        """
        at = torch.full((len(state),), steps.start, device=state.mask.device)
        graph: RecordedStep | None = None
        for k in steps:
            if graph is not None:
                self._draw(graph.noise, state)
                found, (logp,) = graph.replay()
                yield _batch(found, state), logp
                continue
            noise = self._memory(state)
            self._draw(noise, state)
            state, logp = self.step(state, at, noise)
            yield state, logp
            at = at + 1
            if self.record and k == steps.start and len(steps) > 1:  # the first step has warmed up
                graph = recorded(partial(self._of_tensors, state), _tensors(state), at, self._memory(state))

    def _of_tensors(
        self, like: FieldBatch, state: tuple[Tensor, ...], at: Tensor, noise: tuple[Tensor, ...]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor]]:
        """:meth:`step` as a function of tensors."""
        after, logp = self.step(_batch(state, like), at, noise)
        return _tensors(after), (logp,)

    def step(
        self, state: FieldBatch, at: Int[Tensor, " batch"], noise: tuple[Tensor, ...]
    ) -> tuple[FieldBatch, Float[Tensor, " batch"]]:
        """Draw step ``at[b]`` of every graph with the random numbers of :meth:`_memory`; the state after it, and its log-prob."""
        law = self.transition(state, at)
        after = self._drawn(law, state.mask, noise)
        logp = torch.zeros(len(state), device=state.mask.device, dtype=self.dtype)
        for field in self.fields:
            table, action, there = categorical_sites(field, law, after)
            logp = logp + torch.where(there, gather(safe_log(table), action), 0.0).sum(-1)
        if law.positions is not None:
            mean, std, point, there, dimension = gaussian_sites(law, after)
            logp = logp + torch.where(there, log_density(point, mean, std, dimension), 0.0).sum(-1)
        return after, logp

    def _drawn(self, law: FieldStep, mask: Bool[Tensor, "batch node"], noise: tuple[Tensor, ...]) -> FieldBatch:
        """Draw from the law of a step."""
        nodes, edges = {}, {}
        for field, uniform in zip(self.fields, noise, strict=False):  # the numbers of positions come last
            if field.name in law.nodes:
                nodes[field.name] = torch.where(mask, invert(law.nodes[field.name], uniform), 0)
            else:
                pairs = torch.where(pairs_mask(mask, directed=field.directed), invert(law.pairs[field.name], uniform), 0)
                edges[field.name] = matrix_of(pairs, mask.shape[1], directed=field.directed)
        if law.positions is None:
            return FieldBatch(nodes, edges, None, mask)
        mean, std = law.positions
        return FieldBatch(nodes, edges, shifted(mean, std[:, None].expand(mask.shape), mask, noise[-1], zero_mean=True), mask)

    def _memory(self, state: FieldBatch) -> tuple[Tensor, ...]:
        """Memory for the random numbers of a step: one number per site of every field, and three per node with positions."""
        b, n = state.mask.shape
        widths = [n if field.name in state.nodes else num_pairs(n) * (2 if field.directed else 1) for field in self.fields]
        shapes = [(b, width) for width in widths] + ([] if state.positions is None else [(b, n, 3)])
        return tuple(torch.empty(shape, device=state.mask.device, dtype=self.dtype) for shape in shapes)

    def _draw(self, noise: tuple[Tensor, ...], state: FieldBatch) -> None:
        """Fill that memory: uniform numbers for fields, normal ones for positions."""
        for uniform in noise[: len(self.fields)]:
            uniform.uniform_(generator=self.generator)
        if state.positions is not None:
            noise[-1].normal_(generator=self.generator)


def _tensors(state: FieldBatch) -> tuple[Tensor, ...]:
    """The tensors of a state but its mask, which no step changes."""
    return (*state.nodes.values(), *state.edges.values(), *(() if state.positions is None else (state.positions,)))


def _batch(tensors: tuple[Tensor, ...], like: FieldBatch) -> FieldBatch:
    """Inverse of :func:`_tensors`, with names and mask of another state."""
    found = iter(tensors)
    nodes, edges = ({name: next(found) for name in named} for named in (like.nodes, like.edges))
    return FieldBatch(nodes, edges, next(found, None), like.mask)
