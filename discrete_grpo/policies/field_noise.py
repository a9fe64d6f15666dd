"""Fields of a graph with their noise and losses, independent of any network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from discrete_grpo.core.batch_share import WHOLE, BatchShare, Mean, cross_entropy, mean_of
from discrete_grpo.core.categorical import sample
from discrete_grpo.core.checks import check_range
from discrete_grpo.core.gaussian import normal
from discrete_grpo.core.precision import full_precision
from discrete_grpo.diffusion.gaussian import GaussianDiffusion
from discrete_grpo.diffusion.kernels import Kernel
from discrete_grpo.domains.fields import FieldBatch, FieldLogits, matrix_of, pairs_mask, pairs_of

__all__ = ["Field", "Positions", "between_knots", "check_graphs", "field_losses", "initial_graphs", "known_step", "noised", "wide"]


@dataclass(frozen=True)
class Field:
    """A categorical field of nodes or of pairs.

    Attributes:
        name: name of the field in the network.
        kernel: reverse step, which holds the noise.
        weight: weight of its cross-entropy in likelihood training, at least 0.
        directed: for a field of pairs, whether (i, j) and (j, i) are two sites; a field of nodes has no direction.

    Raises:
        ValueError: for a negative weight, or more than 256 states.
    """

    name: str
    kernel: Kernel
    weight: float = 1.0
    directed: bool = False

    def __post_init__(self) -> None:
        check_range(f"weight of field {self.name}", self.weight, least=0)
        check_range(f"states of field {self.name}", self.kernel.noise.num_states, most=256, note=" (trajectories are bytes)")


@dataclass(frozen=True)
class Positions:
    """The positions of nodes.

    Attributes:
        diffusion: noise and reverse step.
        weight: weight of the mean squared error in likelihood training, at least 0.
        learned_variance: whether the v of each time is learned with the policy; otherwise it is 0.

    Raises:
        ValueError: for a negative weight.
    """

    diffusion: GaussianDiffusion
    weight: float = 1.0
    learned_variance: bool = False

    def __post_init__(self) -> None:
        check_range("weight of positions", self.weight, least=0)


Fields = Sequence[Field]


def wide(values: Tensor) -> Tensor:
    """Convert values to at least float32."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def between_knots(values: Float[Tensor, " knot"], t: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """The values at times ``t`` in [0, 1] of the line through equally spaced knots from 0 to 1.

    >>> between_knots(torch.tensor([0.0, 1.0, 0.0]), torch.tensor([0.0, 0.25, 1.0])).tolist()
    [0.0, 0.5, 0.0]
    """
    place = t.to(values) * (len(values) - 1)
    below = place.floor().long().clamp(0, len(values) - 2)
    return torch.lerp(values[below], values[below + 1], place - below)


def initial_graphs(
    node_fields: Fields,
    edge_fields: Fields,
    positions: Positions | None,
    mask: Tensor,
    dtype: torch.dtype,
    generator: torch.Generator | None = None,
) -> FieldBatch:
    """Draw x_1 for the nodes that exist."""

    def drawn(field: Field, there: Tensor) -> Tensor:
        prior = field.kernel.noise.initial().float().to(mask.device)
        return torch.where(there, sample(prior.expand(*there.shape, -1), generator), 0)

    nodes = {f.name: drawn(f, mask) for f in node_fields}
    edges = {
        f.name: matrix_of(drawn(f, pairs_mask(mask, directed=f.directed)), mask.shape[1], directed=f.directed) for f in edge_fields
    }
    space = None
    if positions is not None:
        space = positions.diffusion.initial(mask, generator, torch.promote_types(dtype, torch.float32))
    return FieldBatch(nodes, edges, space, mask)


def noised(
    node_fields: Fields,
    edge_fields: Fields,
    positions: Positions | None,
    clean: FieldBatch,
    time: Float[Tensor, " batch"],
    generator: torch.Generator | None = None,
) -> FieldBatch:
    """Draw x_t from q(x_t | x_0) at one time in [0, 1] per graph."""
    mask, n = clean.mask, clean.num_nodes
    with full_precision(mask.device):
        nodes = {f.name: torch.where(mask, f.kernel.noise.sample(clean.nodes[f.name], time, generator), 0) for f in node_fields}
        edges = {}
        for f in edge_fields:
            pairs = f.kernel.noise.sample(pairs_of(clean.edges[f.name], directed=f.directed), time, generator)
            edges[f.name] = matrix_of(torch.where(pairs_mask(mask, directed=f.directed), pairs, 0), n, directed=f.directed)
        space = None
        if positions is not None and clean.positions is not None:
            space = positions.diffusion.sample(clean.positions, time, mask, generator)
    return FieldBatch(nodes, edges, space, mask)


def known_step(
    node_fields: Fields,
    edge_fields: Fields,
    positions: Positions | None,
    clean: FieldBatch,
    state: FieldBatch,
    t: Float[Tensor, " batch"],
    s: Float[Tensor, " batch"],
    generator: torch.Generator | None = None,
) -> FieldBatch:
    """Draw x_s from the reverse step for a known x_0, the bridge q(x_s | x_t, x_0) where the kernel is exact."""
    mask, n = clean.mask, clean.num_nodes

    def drawn(field: Field, end: Tensor, now: Tensor, there: Tensor) -> Tensor:
        known = nn.functional.one_hot(end, field.kernel.noise.num_clean).float()
        return torch.where(there, sample(field.kernel.transition(known, now, t, s), generator), 0)

    nodes = {f.name: drawn(f, clean.nodes[f.name], state.nodes[f.name], mask) for f in node_fields}
    edges = {}
    for f in edge_fields:
        end, now = (pairs_of(x.edges[f.name], directed=f.directed) for x in (clean, state))
        edges[f.name] = matrix_of(drawn(f, end, now, pairs_mask(mask, directed=f.directed)), n, directed=f.directed)
    if positions is None or clean.positions is None or state.positions is None:
        return FieldBatch(nodes, edges, None, mask)
    mean, std = positions.diffusion.step(clean.positions.to(state.positions), state.positions, t, s)
    return FieldBatch(nodes, edges, normal(mean, std[:, None].expand(mask.shape), mask, generator, zero_mean=True), mask)


def field_losses(
    node_fields: Fields,
    edge_fields: Fields,
    positions: Positions | None,
    found: FieldLogits,
    clean: FieldBatch,
    share: BatchShare = WHOLE,
) -> dict[str, Tensor]:
    """The weighted loss of a prediction of clean graphs, and that of each field without its weight and without gradient.

    The graphs are the rows of this process, and the losses are those of the whole batch, of which it has the ``share``.
    """
    own, weights = dict[str, Mean](), list[float]()
    for field in (*node_fields, *edge_fields):
        if field in node_fields:
            logits, wanted, there = found.nodes[field.name], clean.nodes[field.name], clean.mask
        else:
            logits, wanted = (pairs_of(x.edges[field.name], directed=field.directed) for x in (found, clean))
            there = pairs_mask(clean.mask, directed=field.directed)
        own[f"loss_{field.name}"] = cross_entropy(wide(logits), wanted, there)
        weights.append(field.weight)
    if positions is not None and found.positions is not None and clean.positions is not None:
        gap = torch.where(clean.mask[..., None], wide(found.positions) - clean.positions, 0.0)
        own["loss_positions"] = mean_of(gap.square().sum(-1), clean.mask)
        weights.append(positions.weight)
    means = share.means(*own.values())
    total = sum((weight * loss for weight, loss in zip(weights, means, strict=True)), means[0].new_zeros(()))
    return {"loss": total, **{name: loss.detach() for name, loss in zip(own, means, strict=True)}}


def check_graphs(
    graphs: FieldBatch, node_fields: Fields, edge_fields: Fields, positions: Positions | None, node_counts: Sequence[float]
) -> None:
    """Raise ValueError for a graph of a size, a field or a class that a policy does not draw, or with wrong positions."""
    for f, known, classes in (*((f, graphs.nodes, "node") for f in node_fields), *((f, graphs.edges, "edge") for f in edge_fields)):
        if f.name not in known:
            raise ValueError(f"graphs: no {classes} field {f.name!r}, expected one")
        low, high = (int(x) for x in known[f.name].aminmax()) if known[f.name].numel() else (0, 0)
        check_range(f"class of field {f.name}", low if low < 0 else high, least=0, most=f.kernel.noise.num_clean - 1)
        if classes == "edge" and not f.directed and not bool((known[f.name] == known[f.name].transpose(1, 2)).all()):
            raise ValueError(f"graphs: field {f.name!r} is not symmetric, expected the same class in both directions")
    for size in graphs.sizes.unique().tolist():
        if size >= len(node_counts) or not node_counts[size] > 0:
            drawn = ", ".join(str(n) for n, p in enumerate(node_counts) if p > 0)
            raise ValueError(f"graphs: one of {size} nodes, expected a size that the policy draws ({drawn})")
    if positions is None:
        return
    if graphs.positions is None:
        raise ValueError("positions: none given, expected one per node")
    if not bool(graphs.positions[graphs.mask].isfinite().all()):
        raise ValueError("positions: not finite, expected numbers")
