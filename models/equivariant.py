"""An E(3)-equivariant graph transformer over several fields per node and per pair, with or without positions.

Noisy classes and noisy positions in; logits of the clean classes and predicted clean positions out. Node states x_i, pair states
e_ij and the state y of the graph are invariant: they read positions p_i, whose mean is zero, only through

    g_ij  = (|p_i - p_j|, p_i · p_j / ((1 + |p_i|) (1 + |p_j|))),  the distance expanded in Gaussian functions

With LayerNorms modulated by y, which depends on the time, a layer is

    e'_ij = e_ij + W g_ij
    l_ij  = q_i · k_j / sqrt(d / H) + b · e'_ij,  a_ij = softmax_j l_ij, for each of H heads
    x_i  += Σ_j a_ij v_j + Σ_j U e'_ij / sqrt(n - 1);  x_i += MLP(z_i)
    e_ij += MLP(e'_ij, l_ij, l_ji, x°_i ⊙ x°_j),  w_ij another output of the same MLP
    p_i  += (1 + α(z_i)) Σ_j w_ij (p_i - p_j) / (|p_i - p_j| + 1) / sqrt(n - 1) + β(z_i) p_i / (|p_i| + 1)

where x°_i is the normed x_i before the layer and z_i the normed x_i between its two steps, and p is centred again. Positions thus
move by sums of bounded relative vectors with invariant weights, so that they turn, and are reflected, with the input.

Passes over pairs make graph networks memory-bound. Pair states live on the P = N(N-1)/2 unordered pairs; only if a field is
directed, they live on the N(N-1) ordered ones, and a layer reads [e'_ij, e'_ji] wherever it would read e'_ij. A layer passes 14
times over [B, P, d_e] or [B, P, hidden]: norm, modulation, W g and its sum; b; mask, U; concatenation with l, MLP in, the states of
both ends and their product, GELU, MLP out, residual. Directed fields add one, without positions there are two less. Coordinates
need only [B, P, 3] and [B, N, N]: no tensor is [B, N, N, d].

Shapes: B graphs, N nodes, n of them existing, P pairs, H heads, d node width, d_e edge width, d_g global width.

Source: Satorras et al. (2021), arXiv 2102.09844 (moves by relative vectors); Vignac et al. (2023), arXiv 2302.09048 (positions
beside several discrete fields, bounded moves).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from discrete_grpo.core.checks import check_range, check_whole
from discrete_grpo.domains.fields import FieldLogits, centred
from discrete_grpo.models.pair_geometry import Pairs, lengths, moved, pair_invariants, radial_features
from discrete_grpo.models.pairs import FilmNorm
from discrete_grpo.models.recompute import run_layer

__all__ = ["BASE", "SMALL", "EquivariantConfig", "EquivariantSizes", "EquivariantTransformer"]

SMALL: dict[str, Any] = {"layers": 6, "heads": 8, "width": 128, "edge_width": 48, "global_width": 64}
"""About 1 M parameters: laptops, QM9-sized molecules."""
BASE: dict[str, Any] = {"layers": 10, "heads": 8, "width": 256, "edge_width": 64, "global_width": 128, "expansion": 4}
"""About 10 M parameters: one GPU, drug-sized molecules."""

TIMES = 16
"""Number of cosines of the time."""


@dataclass(frozen=True, kw_only=True)
class EquivariantSizes:
    """Sizes of an :class:`EquivariantTransformer`, independent of the fields of its graphs.

    Attributes:
        layers: depth.
        heads: attention heads.
        width: d, width of node states, a multiple of ``heads``.
        edge_width: d_e, width of pair states.
        global_width: d_g, width of the state of the graph.
        expansion: hidden over outer width in the feed-forward parts.
        radial: Gaussian functions in which a distance is expanded, at least 2; the unit of positions should be near the length
            of an edge, as the Ångström is.
        dropout: dropout probability in the feed-forward parts of nodes.

    Raises:
        ValueError: for a value out of its range.
    """

    layers: int = 6
    heads: int = 8
    width: int = 128
    edge_width: int = 48
    global_width: int = 64
    expansion: int = 2
    radial: int = 16
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "width", "edge_width", "global_width", "expansion"):
            check_whole(name, getattr(self, name), least=1)
        if self.width % self.heads:
            raise ValueError(f"width: {self.width}, expected a multiple of heads ({self.heads})")
        check_whole("radial", self.radial, least=2)
        check_range("dropout", self.dropout, least=0, below=1)


@dataclass(frozen=True, kw_only=True)
class EquivariantConfig(EquivariantSizes):
    """Fields and sizes of an :class:`EquivariantTransformer`. The order of the fields does not matter.

    Attributes:
        node_fields: classes of the (noisy) input of each node field, a mask class included.
        edge_fields: classes of the (noisy) input of each pair field, a mask class included.
        node_classes: classes of the output, for the same node fields.
        edge_classes: classes of the output, for the same pair fields.
        directed: the pair fields in which the edge from i to j differs from that from j to i.
        positions: whether nodes have positions.

    Raises:
        ValueError: for a value out of its range, or fields that do not agree.
    """

    node_fields: Mapping[str, int]
    edge_fields: Mapping[str, int]
    node_classes: Mapping[str, int]
    edge_classes: Mapping[str, int]
    directed: Collection[str] = ()
    positions: bool = False

    def __post_init__(self) -> None:
        for kind in ("node", "edge"):
            fields, classes = getattr(self, f"{kind}_fields"), getattr(self, f"{kind}_classes")
            if not fields:
                raise ValueError(f"{kind}_fields: {{}}, expected at least one field")
            _check_names(f"{kind}_classes", classes, fields)
            for name in fields:
                check_whole(f"{kind}_fields[{name!r}]", fields[name], least=1)
                check_whole(f"{kind}_classes[{name!r}]", classes[name], least=1)
        if unknown := sorted(set(self.directed) - set(self.edge_fields)):
            raise ValueError(f"directed: {', '.join(unknown)}, expected some of {', '.join(sorted(self.edge_fields))}")
        object.__setattr__(self, "directed", tuple(sorted(set(self.directed))))
        super().__post_init__()


def _check_names(name: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    if set(given) != set(known):
        raise ValueError(f"{name}: fields {', '.join(sorted(given)) or 'none'}, expected {', '.join(sorted(known))}")


def _check_shape(name: str, given: Tensor, wanted: tuple[int, ...]) -> None:
    if given.shape != wanted:
        raise ValueError(f"{name}: shape {tuple(given.shape)}, expected {wanted}")


class _Block(nn.Module):
    """One layer, as the equations at the top of this file state it."""

    def __init__(self, config: EquivariantConfig) -> None:
        super().__init__()
        d, de, dg, hidden = config.width, config.edge_width, config.global_width, config.expansion * config.edge_width
        ways, moves = 1 + bool(config.directed), int(config.positions)
        self.heads, self.radial, self.edge_width = config.heads, config.radial, de
        self.node_norm, self.edge_norm, self.mlp_norm = FilmNorm(d, dg), FilmNorm(de, dg), FilmNorm(d, dg)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.attended = nn.Linear(d, d)
        self.bias = nn.Linear(ways * de, config.heads, bias=False)
        self.incident = nn.Linear(ways * de, d, bias=False)
        self.edge_in = nn.Linear(ways * (de + config.heads), hidden)
        self.edge_nodes = nn.Linear(d, ways * hidden, bias=False)
        self.edge_out = nn.Linear(hidden, de + moves)  # the last output is w_ij
        self.mlp = nn.Sequential(
            nn.Linear(d, config.expansion * d), nn.GELU(), nn.Dropout(config.dropout), nn.Linear(config.expansion * d, d)
        )
        self.pool = nn.Linear(2 * d, dg)
        self.geometry = nn.Linear(config.radial + 2, de, bias=False) if config.positions else None
        self.steps = nn.Linear(d, 2) if config.positions else None  # α and β
        if self.steps is not None:  # a new network does not move positions
            for end in (self.steps.weight, self.steps.bias, self.edge_out.weight[de:], self.edge_out.bias[de:]):
                end.data.zero_()

    def forward(self, pairs: Pairs, x: Tensor, e: Tensor, y: Tensor, positions: Tensor | None = None) -> tuple[Tensor, ...]:
        x_n, e_n = self.node_norm(x, y), self.edge_norm(e, y)
        distance = None
        if self.geometry is not None and positions is not None:
            distance, features = pair_invariants(positions, pairs, self.radial)
            e_n = e_n + self.geometry(features)
        e_n = pairs.around(e_n)
        q, k, v = rearrange(self.qkv(x_n), "b n (three h d) -> three b h n d", three=3, h=self.heads)
        logits = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + rearrange(pairs.square(self.bias(e_n)), "b i j h -> b h i j")
        attention = logits.masked_fill(pairs.no_key, torch.finfo(logits.dtype).min).softmax(-1)
        x = x + self.attended(rearrange(attention @ v, "b h n d -> b n (h d)"))
        x = x + self.incident(pairs.incidence @ (e_n * pairs.weight))
        update = self._pair_update(x_n, e_n, logits, pairs)
        e = e + update[..., : self.edge_width]
        x_m = self.mlp_norm(x, y)
        x = x + self.mlp(x_m)
        mean = (x * pairs.nodes).sum(1) / pairs.nodes.sum(1).clamp_min(1)
        largest = x.masked_fill(~pairs.nodes, torch.finfo(x.dtype).min).amax(1)
        y = y + self.pool(torch.cat([mean, largest], -1))
        if self.steps is None or positions is None or distance is None:
            return x, e, y
        weight = update[..., self.edge_width :] * pairs.weight / (distance + 1)
        return x, e, y, moved(positions, weight, self.steps(x_m), pairs)

    def _pair_update(self, x_n: Tensor, e_n: Tensor, logits: Tensor, pairs: Pairs) -> Tensor:
        own = self.edge_in(torch.cat([e_n, pairs.entries(logits)], -1))
        return self.edge_out(nn.functional.gelu(torch.addcmul(own, *pairs.ends(self.edge_nodes(x_n)))))


class EquivariantTransformer(nn.Module):
    """Clean classes and positions of noisy graphs: ``(nodes, edges, positions, time, mask) -> FieldLogits``.

    Permuting nodes permutes the result. Rotating and reflecting positions rotates and reflects the predicted positions, which
    have zero mean; translating them changes nothing, and no logit depends on any of the three. Logits of undirected fields are
    exactly symmetric. Padding changes nothing at existing places.

    Predicted positions are p_L + c(y) p_0 of those before the first and after the last layer; c is 0 in a new network.

    Args:
        config: fields and sizes.

    Attributes:
        checkpoint_layers: whether the backward pass computes layers again, to save memory; not part of a saved checkpoint.
    """

    def __init__(self, config: EquivariantConfig) -> None:
        super().__init__()
        self.config, self.checkpoint_layers = config, False
        self.node_names, self.edge_names = sorted(config.node_fields), sorted(config.edge_fields)
        d, de, dg = config.width, config.edge_width, config.global_width
        self.node_embeddings = nn.ModuleList(nn.Embedding(config.node_fields[name], d) for name in self.node_names)
        self.edge_embeddings = nn.ModuleList(nn.Embedding(config.edge_fields[name], de) for name in self.edge_names)
        self.node_radius = nn.Linear(config.radial + 1, d, bias=False) if config.positions else None
        self.node_in = nn.Sequential(nn.GELU(), nn.Linear(d, d))
        self.edge_in = nn.Sequential(nn.GELU(), nn.Linear(de, de))
        self.global_in = nn.Sequential(nn.Linear(TIMES + 2, dg), nn.GELU(), nn.Linear(dg, dg))
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.node_norm, self.edge_norm = FilmNorm(d, dg), FilmNorm(de, dg)
        self.node_out = _head(d, sum(config.node_classes.values()))
        self.edge_out = _head(de, sum(config.edge_classes.values()))
        self.rescale = nn.Linear(dg, 1) if config.positions else None
        if self.rescale is not None:
            nn.init.zeros_(self.rescale.weight)
            nn.init.zeros_(self.rescale.bias)

    def init_args(self) -> dict[str, EquivariantConfig]:
        """Arguments that build this network again, kept in a checkpoint."""
        return {"config": self.config}

    def compiled_parts(self) -> list[nn.Module]:
        """The modules that ``torch.compile`` compiles: the layers, which are functions of tensors alone."""
        return list(self.blocks)

    def forward(
        self,
        nodes: Mapping[str, Int[Tensor, "batch node"]],
        edges: Mapping[str, Int[Tensor, "batch node node"]],
        positions: Float[Tensor, "batch node 3"] | None,
        time: Float[Tensor, " batch"],
        mask: Bool[Tensor, "batch node"],
    ) -> FieldLogits:
        """Logits over clean classes, and clean positions.

        Args:
            nodes: noisy classes of each node field.
            edges: noisy classes of each pair field; the diagonal is not read, nor the lower triangle of an undirected field.
            positions: noisy positions; None for a network without positions.
            time: in [0, 1], 0 data and 1 noise.
            mask: which nodes exist.

        Raises:
            ValueError: for fields other than those of the network, a wrong shape, or missing or unexpected positions.
        """
        self._check(nodes, edges, positions, time, mask)
        dtype = next(self.parameters()).dtype
        pairs = Pairs.of(mask, dtype, bool(self.config.directed))
        start = None if positions is None else centred(positions.to(dtype), mask)
        states: tuple[Tensor, ...] = self._embed(nodes, edges, start, time, pairs)
        for block in self.blocks:
            states = run_layer(block, pairs, *states, again=self.checkpoint_layers, random=self.training)
        x, e, y, *predicted = states
        found = FieldLogits(
            _by_field(self.node_out(self.node_norm(x, y)), self.config.node_classes),
            _by_field(pairs.square(self.edge_out(self.edge_norm(e, y))), self.config.edge_classes),
        )
        if pairs.ordered:
            for name in set(self.edge_names) - set(self.config.directed):
                found.edges[name] = (found.edges[name] + found.edges[name].transpose(1, 2)) / 2
        if self.rescale is None or start is None:
            return found
        return found._replace(positions=predicted[0] + self.rescale(y).unsqueeze(1).to(dtype) * start)

    def _check(self, nodes: Mapping[str, Tensor], edges: Mapping[str, Tensor], positions: Any, time: Tensor, mask: Tensor) -> None:
        _check_names("nodes", nodes, self.config.node_fields)
        _check_names("edges", edges, self.config.edge_fields)
        if (positions is None) == self.config.positions:
            found, wanted = ("None", "a tensor [B, N, 3]") if positions is None else ("a tensor", "None (positions=False)")
            raise ValueError(f"positions: {found}, expected {wanted}")
        if mask.ndim != 2:
            raise ValueError(f"mask: shape {tuple(mask.shape)}, expected (B, N)")
        b, n = mask.shape
        for name, value in nodes.items():
            _check_shape(f"nodes[{name!r}]", value, (b, n))
        for name, value in edges.items():
            _check_shape(f"edges[{name!r}]", value, (b, n, n))
        if positions is not None:
            _check_shape("positions", positions, (b, n, 3))
        _check_shape("time", time, (b,))

    def _embed(
        self,
        nodes: Mapping[str, Tensor],
        edges: Mapping[str, Tensor],
        positions: Tensor | None,
        time: Tensor,
        pairs: Pairs,
    ) -> tuple[Tensor, ...]:
        """States x, e and y before the first layer, and positions if there are any."""
        n = pairs.mask.shape[1]
        upper = torch.minimum(pairs.left, pairs.right) * n + torch.maximum(pairs.left, pairs.right)
        of_nodes = [embedding(nodes[name]) for name, embedding in zip(self.node_names, self.node_embeddings, strict=True)]
        of_pairs = [
            embedding(edges[name].flatten(1).index_select(1, pairs.flat if name in self.config.directed else upper))
            for name, embedding in zip(self.edge_names, self.edge_embeddings, strict=True)
        ]
        if self.node_radius is not None and positions is not None:
            of_nodes.append(self.node_radius(radial_features(lengths(positions), self.config.radial)))
        t = time.to(pairs.weight.dtype).unsqueeze(-1)
        size = pairs.mask.sum(1, keepdim=True).clamp_min(1).to(t.dtype)
        waves = torch.cos(math.pi * t * torch.arange(TIMES, device=t.device, dtype=t.dtype))
        of_graph = torch.cat([waves, (t + 1e-4).log() / 4, size.log()], -1)
        x, e = torch.stack(of_nodes).sum(0), torch.stack(of_pairs).sum(0)
        states = self.node_in(x), self.edge_in(e), self.global_in(of_graph)
        return states if positions is None else (*states, positions)


def _head(width: int, classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, classes))


def _by_field(logits: Float[Tensor, "*batch total"], classes: Mapping[str, int]) -> dict[str, Tensor]:
    names = sorted(classes)
    return dict(zip(names, logits.split([classes[name] for name in names], -1), strict=True))
