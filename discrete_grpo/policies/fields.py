"""Diffusion over graphs with several categorical fields per node and per pair, and with positions, as a policy.

A step draws every field of every node, every field of every pair and the positions of all nodes, independently given the state
before. A trajectory is x_1 -> ... -> x_0 on a grid of times that the fields share; each has its own noise. Drawing and scoring
share :meth:`FieldPolicy.transition`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from discrete_grpo.core.batch_share import WHOLE, BatchShare
from discrete_grpo.core.categorical import SiteKind, Sites, safe_log
from discrete_grpo.core.gaussian import GaussianSites
from discrete_grpo.core.precision import full_precision
from discrete_grpo.core.rollout import Context, Rollout, check_decoder
from discrete_grpo.diffusion.schedules import grid_on, time_grid
from discrete_grpo.domains.fields import FieldBatch, centred, pairs_of
from discrete_grpo.domains.graphs import node_mask
from discrete_grpo.policies.bridging import accepts
from discrete_grpo.policies.conditions import columns_of
from discrete_grpo.policies.delegation import network_size, one_line
from discrete_grpo.policies.field_noise import (
    Field,
    Positions,
    between_knots,
    check_graphs,
    field_losses,
    initial_graphs,
    known_step,
    noised,
    wide,
)
from discrete_grpo.policies.field_restart import FieldRestarts, field_restarts, field_restarts_of, sized
from discrete_grpo.policies.field_states import FieldLayout, alone, crop, joined
from discrete_grpo.policies.field_steps import FieldStep, FieldStepper, categorical_sites, gaussian_sites
from discrete_grpo.policies.node_count import checked_counts, draw_sizes
from discrete_grpo.policies.noising import stratified_times
from discrete_grpo.policies.restart import grid_point
from discrete_grpo.policies.trajectory import all_steps, launch_sites, segment_buckets
from discrete_grpo.policies.truncation import check_temperature

__all__ = ["Field", "FieldPolicy", "FieldStep", "Positions"]

MIN_PROB = 1e-30
"""Floor of p̂, as in :mod:`discrete_grpo.policies.graph`."""
KNOTS = 33
"""Times from 0 to 1 at which a learned variance is a parameter, whatever the number of steps."""

OFF_CENTRE = 1e-4
"""Distance of the centre from 0 above which positions are centred; that of drawn positions is only rounding."""


class FieldPolicy(nn.Module):
    """Diffusion over several fields as a policy for GRPO.

    p_θ(x_s | x_t) = Π_fields Π_sites Σ_c p̂_θ(c | x_t) q(x_s | x_t, c) · N(r_s; μ_θ(x_t), σ²) on the subspace of zero mean.

    Args:
        network: ``(nodes, edges, positions, time, mask) -> FieldLogits``, see :mod:`discrete_grpo.domains.fields`.
        node_fields: fields of nodes, at least one.
        edge_fields: fields of pairs.
        node_counts: probability of a graph of 0, 1, 2, ... nodes; drawn once per group.
        positions: the positions of nodes; None for graphs without.
        num_steps: steps of the sampler, 1 to 10,000.
        temperature: above 0; divides the logits of the categorical fields, in drawing and in scoring.
        decode: maps finished graphs to the samples that rewards see; None gives a :class:`FieldBatch` of one graph each.
        encode: maps samples that rewards see to finished graphs; None knows a :class:`FieldBatch` of one graph each only.

    Attributes:
        record_steps: whether a GPU records a step of sampling as a CUDA graph and repeats it; not part of a saved checkpoint.

    Raises:
        ValueError: for an argument out of its range, or two fields of one name.
    """

    def __init__(
        self,
        network: nn.Module,
        node_fields: Sequence[Field],
        edge_fields: Sequence[Field],
        node_counts: Sequence[float],
        *,
        positions: Positions | None = None,
        num_steps: int = 50,
        temperature: float = 1.0,
        decode: Callable[[FieldBatch], Sequence[Any]] | None = None,
        encode: Callable[[Sequence[Any]], FieldBatch] | None = None,
    ) -> None:
        super().__init__()
        names = [field.name for field in (*node_fields, *edge_fields)]
        if not node_fields:
            raise ValueError("node_fields: none, expected at least one")
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"node_fields, edge_fields: two of the name {twice[0]!r}, expected different names")
        if wrong := [field.name for field in node_fields if field.directed]:
            raise ValueError(f"node_fields: {wrong[0]!r} is directed, expected a direction of fields of pairs only")
        check_temperature(temperature)
        check_decoder("decode", decode)
        check_decoder("encode", encode)
        self.network, self.node_fields, self.edge_fields = network, tuple(node_fields), tuple(edge_fields)
        self.node_counts = checked_counts(node_counts)
        self.positions, self.num_steps, self.temperature = positions, num_steps, temperature
        self.decode, self.encode = decode, encode
        self.grid = time_grid(num_steps)
        learned = positions is not None and positions.learned_variance
        self.record_steps = False
        self.variance = nn.Parameter(torch.full((KNOTS,), -4.0)) if learned else None  # v = sigmoid, 0.018 at the start

    @property
    def device(self) -> torch.device:
        """Device of the network's parameters."""
        return next(self.network.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the network's parameters."""
        return next(self.network.parameters()).dtype

    @property
    def max_nodes(self) -> int:
        """The largest graph this policy has a size probability for."""
        return len(self.node_counts) - 1

    def init_args(self) -> dict[str, Any]:
        """Arguments from which a checkpoint builds this policy again (without ``decode`` and ``encode``, which are set again)."""
        names = ("network", "node_fields", "edge_fields", "node_counts", "positions", "num_steps", "temperature")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        fields = ", ".join(field.name for field in (*self.node_fields, *self.edge_fields))
        space = [] if self.positions is None else ["positions"]
        return one_line(self, network_size(self.network), f"{self.num_steps} steps", fields, *space)

    # -- the one function that drawing and scoring share

    def transition(self, state: FieldBatch, step: Int[Tensor, " batch"]) -> FieldStep:
        """p_θ(x_s | x_t) of step ``step[b]`` from ``state``, at least float32."""
        grid = grid_on(self.grid, step.device)
        t, s = grid[step], grid[step + 1]
        found = self.network(state.nodes, state.edges, state.positions, t.to(self.dtype), state.mask)
        with full_precision(step.device):
            nodes = {f.name: self._table(f, found.nodes[f.name], state.nodes[f.name], t, s) for f in self.node_fields}
            pairs = {}
            for f in self.edge_fields:
                logits, now = (pairs_of(x[f.name], directed=f.directed) for x in (found.edges, state.edges))
                pairs[f.name] = self._table(f, logits, now, t, s)
            if self.positions is None:
                return FieldStep(nodes, pairs, None)
            clean = wide(found.positions)
            v = 0.0 if self.variance is None else torch.sigmoid(between_knots(self.variance, t))
            return FieldStep(nodes, pairs, self.positions.diffusion.step(clean, state.positions.to(clean), t, s, v))  # type: ignore[union-attr]

    def _table(self, field: Field, logits: Tensor, state: Tensor, t: Tensor, s: Tensor) -> Tensor:
        p = (wide(logits) / self.temperature).softmax(-1).clamp_min(MIN_PROB)
        return field.kernel.transition(p, state, t, s)

    # -- Policy protocol

    @torch.no_grad()
    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        """Draw one trajectory per context.

        Columns read, both optional: ``num_nodes`` (drawn once per group otherwise) and ``restart``
        (:class:`~discrete_grpo.policies.field_restart.FieldRestart`, one per group).

        Raises:
            ValueError: if there is no context, or one that requests an unknown size or class, or fixes sites.
        """
        if not contexts:
            raise ValueError("contexts: none given, expected at least one")
        sizes, again = self._starts(contexts, generator)
        start = torch.zeros_like(sizes) if again is None else again.step
        layout = self.layout
        states = layout.storage(len(contexts), self.num_steps + 1, int(sizes.max()), self.device, self.dtype)
        logp = torch.zeros(len(contexts), self.num_steps, device=self.device, dtype=self._wide_dtype)
        record = self.record_steps and self.device.type == "cuda"
        stepper = FieldStepper(self.transition, (*self.node_fields, *self.edge_fields), self._wide_dtype, generator, record)
        for rows in segment_buckets(sizes, start, launch_sites(self.device)):
            at, first, n = rows.to(self.device), int(start[rows[0]]), int(sizes[rows].max())
            if again is not None and first > 0:
                state = self._renoised(crop(again.graphs.index(rows), n).to(self.device), first, generator)
            else:  # q(x_1 | x_0) is the law of x_1 too
                mask = node_mask(sizes[rows].to(self.device), n)
                state = initial_graphs(self.node_fields, self.edge_fields, self.positions, mask, self.dtype, generator)
            for k in range(first + 1):
                layout.store(states, at, k, state)
            for k, (after, found) in enumerate(stepper.walk(state, range(first, self.num_steps)), first):
                logp[at, k] = found
                layout.store(states, at, k + 1, after)
        if again is not None:
            states["start"] = start.to(self.device)
        return self._rollout(states, logp, sizes.to(self.device), contexts, None)

    def draw_sizes(self, count: int, *, generator: torch.Generator | None = None) -> list[int]:
        """Draw the node counts of ``count`` groups without a condition; see :class:`~discrete_grpo.core.rollout.SizeDrawer`."""
        sizes: list[int] = self._starts([Context(group, {}) for group in range(count)], generator)[0].tolist()
        return sizes

    def _starts(self, contexts: Sequence[Context], generator: torch.Generator | None) -> tuple[Tensor, FieldRestarts | None]:
        """Node counts [B], and the graphs that contexts restart from."""
        if any(context.columns.get("fixed") is not None for context in contexts):
            raise ValueError("fixed: given, expected none: a policy over fields fixes no sites")
        device = self.device if generator is None else generator.device
        sizes = draw_sizes(sized(contexts), torch.tensor(self.node_counts, device=device), generator)
        again = field_restarts(contexts, self.layout, int(sizes.max()), self.num_steps)
        if again is not None:
            graphs = again.graphs.index(again.graphs.sizes.nonzero()[:, 0])
            any_size = [1.0] * len(self.node_counts)  # a context may ask for a size that the data does not have
            check_graphs(graphs, self.node_fields, self.edge_fields, self.positions, any_size)
        return sizes, again

    def _renoised(self, clean: FieldBatch, point: int, generator: torch.Generator | None) -> FieldBatch:
        """Draw x_t from q(x_t | x_0) at a point of the grid."""
        t = grid_on(self.grid, self.device)[point].expand(len(clean))
        return noised(self.node_fields, self.edge_fields, self.positions, clean, t, generator)

    def check_condition(self, columns: Mapping[str, Any]) -> None:
        """Raise the error that :meth:`sample` would raise for a context with these columns."""
        self._starts([Context(0, columns)], torch.Generator().manual_seed(0))

    def restarts(self, rollout: Rollout, rows: Int[Tensor, " row"], time: float) -> list[dict[str, Any]]:
        """The column ``restart`` of each of these samples: :meth:`sample` re-noises it to the grid point nearest to ``time``."""
        return field_restarts_of(rollout, rows, self.layout, grid_point(self.grid, time))

    def sites(self, rollout: Rollout, steps: Int[Tensor, "batch step"] | None = None) -> Sequence[SiteKind]:
        """Categoricals of every field and Gaussians of the positions of stored steps; all steps if None."""
        steps = all_steps(rollout) if steps is None else steps
        now, then = (self.layout.read(rollout.states, rollout.size, points, rollout.max_size) for points in (steps, steps + 1))
        law = self.transition(now, steps.flatten())
        start = rollout.states.get("start", torch.zeros_like(rollout.size))
        own = (steps >= start[:, None]).unsqueeze(-1)  # steps before a restart were not drawn
        found: list[SiteKind] = []
        for f in (*self.node_fields, *self.edge_fields):
            table, action, mask = (x.unflatten(0, steps.shape) for x in categorical_sites(f, law, then))
            found.append(Sites(safe_log(table), action, mask & own, f.name))
        if law.positions is not None:
            mean, std, point, mask, dimension = (x.unflatten(0, steps.shape) for x in gaussian_sites(law, then))
            found.append(GaussianSites(mean, std, point, mask & own, dimension, "positions"))
        return found

    # -- graphs that it did not draw

    def graphs_of(self, samples: Sequence[Any]) -> FieldBatch:
        """The finished graphs of samples; raises ValueError for one that this policy cannot draw."""
        if not samples:
            raise ValueError("samples: none given, expected at least one")
        graphs = joined(samples) if self.encode is None or isinstance(samples[0], FieldBatch) else self.encode(samples)
        check_graphs(graphs, self.node_fields, self.edge_fields, self.positions, self.node_counts)
        if graphs.positions is not None:
            there = centred(graphs.positions, graphs.mask)  # where a graph stands makes no difference
            off = float((there - graphs.positions)[graphs.mask].abs().max())
            graphs = replace(graphs, positions=there) if off > OFF_CENTRE else graphs
        return graphs.to(self.device)

    def can_draw(self, sample: Any) -> bool:
        """Whether a sample is a graph of the policy's fields and classes whose node count has mass in ``node_counts``."""
        return accepts(self.graphs_of, sample)

    def rollout_of(self, samples: Sequence[Any], *, generator: torch.Generator | None = None) -> Rollout:
        """A trajectory of each graph from the noising process given its end: x_1 from its law, then x_s from q(x_s | x_t, x_0).

        Nodes are numbered as the samples list them. Raises ValueError as :meth:`graphs_of` does.
        """
        graphs = self.graphs_of(samples)
        states = self.layout.storage(len(graphs), self.num_steps + 1, graphs.num_nodes, self.device, self.dtype)
        everyone = torch.arange(len(graphs), device=self.device)
        state = initial_graphs(self.node_fields, self.edge_fields, self.positions, graphs.mask, self.dtype, generator)
        self.layout.store(states, everyone, 0, state)
        for k in range(self.num_steps):
            t, s = (grid_on(self.grid, self.device)[point].expand(len(graphs)) for point in (k, k + 1))
            state = known_step(self.node_fields, self.edge_fields, self.positions, graphs, state, t, s, generator)
            self.layout.store(states, everyone, k + 1, graphs if k + 1 == self.num_steps else state)
        logp = torch.full((len(graphs), self.num_steps), torch.nan, device=self.device, dtype=self._wide_dtype)
        contexts = [Context(k) for k in range(len(graphs))]
        return self._rollout(states, logp, graphs.sizes, contexts, samples)

    # -- likelihood training

    def check_batch(self, graphs: FieldBatch) -> None:
        """Check a training batch, before it is moved to a GPU, where that would make the host wait.

        Raises:
            ValueError: for a graph that this policy cannot draw.
        """
        check_graphs(graphs, self.node_fields, self.edge_fields, self.positions, self.node_counts)

    def likelihood_loss(
        self, graphs: FieldBatch, *, generator: torch.Generator | None = None, share: BatchShare = WHOLE
    ) -> dict[str, Tensor]:
        """Σ_fields w CE of the clean class + w_r mean |r̂_0 - r_0|², at one stratified time per graph.

        Means run over the existing nodes, or over the pairs of existing nodes, of the batch. Source: Vignac et al. (2023), MiDi,
        Eq. 5, arXiv 2302.09048.

        Raises:
            ValueError: as :meth:`check_batch`, for a batch on the CPU.
        """
        if graphs.mask.device.type == "cpu":
            self.check_batch(graphs)
        t = stratified_times(len(graphs), graphs.mask.device, None, generator)
        noisy = noised(self.node_fields, self.edge_fields, self.positions, graphs, t, generator)
        graphs, noisy, t = graphs.index(share.own), noisy.index(share.own), t[share.own]
        found = self.network(noisy.nodes, noisy.edges, noisy.positions, t.to(self.dtype), noisy.mask)
        with full_precision(graphs.mask.device):
            return field_losses(self.node_fields, self.edge_fields, self.positions, found, graphs, share)

    # -- trajectories

    @property
    def layout(self) -> FieldLayout:
        """Names and directions of the states of a trajectory."""
        edges = tuple((f.name, f.directed) for f in self.edge_fields)
        return FieldLayout(tuple(f.name for f in self.node_fields), edges, self.positions is not None)

    @property
    def _wide_dtype(self) -> torch.dtype:
        return torch.promote_types(self.dtype, torch.float32)

    def _rollout(
        self, states: dict[str, Tensor], logp: Tensor, size: Tensor, contexts: Sequence[Context], samples: Sequence[Any] | None
    ) -> Rollout:
        """The rollout of finished trajectories; without ``samples`` their last states are decoded."""
        final = self.layout.read(states, size, torch.full((len(size), 1), self.num_steps, device=size.device))
        if samples is None:
            samples = alone(final) if self.decode is None else self.decode(final.to("cpu"))
        per_step, start = self.layout.units(size), states.get("start", torch.zeros_like(size))
        return Rollout(
            states=states,
            group=torch.tensor([context.group for context in contexts], device=size.device),
            logp=logp,
            units=torch.where(torch.arange(self.num_steps, device=size.device) >= start[:, None], per_step[:, None], 0),
            size=size,
            max_units=self.num_steps * int(self.layout.units(torch.tensor([self.max_nodes]))),
            max_steps=self.num_steps,
            samples=tuple(samples),
            columns=columns_of(contexts),
        )
