"""A graph transformer whose attention is biased by pair states: noisy classes in, logits of clean classes out.

Passes over [B, N, N, d] make graph networks memory-bound. Two decisions keep their number small: attention has one logit per
head and pair, [B, H, N, N], biased by the pair's state (DiGress and DeFoG have one per *channel*); and pair states live on the
N(N-1)/2 **unordered** pairs, [B, P, d_e], since every input and output is symmetric. Edge logits are therefore exactly
symmetric by construction.

Shapes: B graphs, N nodes, P = N(N-1)/2 pairs, H heads, d node width, d_e edge width, d_g global width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from discrete_grpo.core.checks import check_range
from discrete_grpo.core.option_names import known_options
from discrete_grpo.domains.graphs import pair_index, pair_mask, symmetrise, upper
from discrete_grpo.models.connectivity import GLOBAL_FEATURES, NODE_FEATURES, PAIR_FEATURES, connectivity_features
from discrete_grpo.models.pairs import FilmNorm, PairLayout, incident_sum, pair_update, square
from discrete_grpo.models.random_walks import random_walks
from discrete_grpo.models.recompute import run_layer

__all__ = ["BASE", "SMALL", "GraphTransformer", "GraphTransformerConfig", "NetworkSizes", "cycle_counts"]


@known_options()
@dataclass(frozen=True, kw_only=True)
class NetworkSizes:
    """Sizes of a :class:`GraphTransformer`, independent of the classes of its graphs.

    Attributes:
        layers: depth.
        heads: attention heads.
        width: d, width of node states, a multiple of ``heads``.
        edge_width: d_e, width of pair states.
        global_width: d_g, width of the state of the graph.
        expansion: hidden over outer width in the feed-forward parts.
        walk_length: random-walk powers given as features (RRWP), at least 2.
        dropout: dropout probability in the feed-forward parts of the nodes.
        connectivity: whether components, effective resistances and bridges are features too, see
            :func:`~discrete_grpo.models.connectivity.connectivity_features`; for graphs with far-reaching structure.
        log_time: whether log t is a feature too; preconditioned logits depend on it near the data.

    Raises:
        ValueError: for a value out of its range.
    """

    layers: int = 6
    heads: int = 8
    width: int = 128
    edge_width: int = 48
    global_width: int = 64
    expansion: int = 2
    walk_length: int = 8
    dropout: float = 0.0
    connectivity: bool = False
    log_time: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "width", "edge_width", "global_width", "expansion"):
            check_range(name, getattr(self, name), least=1)
        if self.width % self.heads:
            raise ValueError(f"width: {self.width}, expected a multiple of heads ({self.heads})")
        check_range("walk_length", self.walk_length, least=2)
        check_range("dropout", self.dropout, least=0, below=1)


@dataclass(frozen=True)
class GraphTransformerConfig(NetworkSizes):
    """Classes and sizes of a :class:`GraphTransformer`.

    Attributes:
        node_states: node classes of the (noisy) input, a mask class included.
        edge_states: edge classes of the (noisy) input, a mask class included.
        node_classes: node classes of the output.
        edge_classes: edge classes of the output; class 0 means "no edge".
        num_properties: length of the property vector the graph is conditioned on; 0 for none.

    Raises:
        ValueError: for a value out of its range.
    """

    node_states: int
    edge_states: int
    node_classes: int
    edge_classes: int
    num_properties: int = 0

    def __post_init__(self) -> None:
        for name in ("node_states", "edge_states", "node_classes", "edge_classes"):
            check_range(name, getattr(self, name), least=1)
        super().__post_init__()
        check_range("num_properties", self.num_properties, least=0)


SMALL = {"layers": 6, "heads": 8, "width": 128, "edge_width": 48, "global_width": 64}
"""About 1 M parameters: laptops, QM9-sized graphs."""
BASE = {"layers": 10, "heads": 8, "width": 256, "edge_width": 64, "global_width": 128, "expansion": 4, "walk_length": 12}
"""About 10 M parameters: one GPU, drug-sized graphs."""


def cycle_counts(adjacency: Float[Tensor, "batch node node"]) -> Float[Tensor, "batch node 3"]:
    """Numbers of simple cycles of length 3, 4 and 5 through each node, from diagonals of powers of A.

    Source: Vignac et al. (2022), appendix B.2, arXiv 2209.14734.
    """
    a2 = adjacency @ adjacency
    a3 = a2 @ adjacency
    degree = adjacency.sum(-1)
    d3, d4, d5 = (m.diagonal(dim1=1, dim2=2) for m in (a3, a2 @ a2, a2 @ a3))
    c3 = d3 / 2
    c4 = (d4 - degree * (degree - 1) - (adjacency @ degree.unsqueeze(-1)).squeeze(-1)) / 2
    around = (adjacency @ d3.unsqueeze(-1)).squeeze(-1) + 2 * ((adjacency * a2) @ degree.unsqueeze(-1)).squeeze(-1)
    c5 = (d5 - 2 * d3 * degree - around + 5 * d3) / 2
    return torch.stack([c3, c4, c5], -1)


def _time_features(time: Float[Tensor, " batch"], dtype: torch.dtype, size: int = 32) -> Float[Tensor, "batch size"]:
    frequency = torch.exp(torch.linspace(0.0, math.log(200.0), size // 2, device=time.device, dtype=dtype))
    angle = time[:, None].to(dtype) * frequency
    return torch.cat([torch.sin(angle), torch.cos(angle)], -1)


def _masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp_min(1)


class _Block(nn.Module):
    """One layer: pair-biased attention, an edge update and a feed-forward on nodes."""

    def __init__(self, config: GraphTransformerConfig) -> None:
        super().__init__()
        d, de, dg, hidden = config.width, config.edge_width, config.global_width, config.expansion * config.edge_width
        self.heads = config.heads
        self.node_norm, self.edge_norm, self.mlp_norm = FilmNorm(d, dg), FilmNorm(de, dg), FilmNorm(d, dg)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.attended = nn.Linear(d, d)
        self.incident = nn.Linear(de, d, bias=False)
        self.bias = nn.Linear(de, config.heads, bias=False)
        self.edge_in = nn.Linear(de, hidden)
        self.edge_logits = nn.Linear(config.heads, hidden, bias=False)
        self.edge_nodes = nn.Linear(d, hidden, bias=False)
        self.edge_out = nn.Linear(hidden, de)
        self.mlp = nn.Sequential(
            nn.Linear(d, config.expansion * d), nn.GELU(), nn.Dropout(config.dropout), nn.Linear(config.expansion * d, d)
        )
        self.pool = nn.Linear(2 * d + de, dg)

    def forward(self, x: Tensor, e: Tensor, y: Tensor, geometry: _Geometry) -> tuple[Tensor, Tensor, Tensor]:
        n, pairs = x.shape[1], geometry.pairs
        x_n, e_n = self.node_norm(x, y), self.edge_norm(e, y)
        q, k, v = rearrange(self.qkv(x_n), "b n (three h d) -> three b h n d", three=3, h=self.heads)
        bias = rearrange(square(self.bias(e_n), pairs, n), "b i j h -> b h i j")
        logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2) + bias
        x = x + self.attended(rearrange(_softmax(geometry.with_keys(logits)) @ v, "b h n d -> b n (h d)"))
        x = x + self.incident(incident_sum(e_n, pairs, n) * geometry.pair_weight)
        both = rearrange(logits + logits.transpose(-1, -2), "b h i j -> b (i j) h").index_select(1, pairs.flat)
        # One product over [B, P, ·] that adds the bias too, since passes over pairs take most of the time.
        weight = torch.cat([self.edge_in.weight, self.edge_logits.weight, self.edge_in.bias[:, None]], 1)
        e = pair_update(e, e_n, both, self.edge_nodes(x_n), weight, self.edge_out.weight, self.edge_out.bias, pairs)
        x = x + self.mlp(self.mlp_norm(x, y))
        return x, e, y + self.pool(geometry.pooled(x, e))


SHORT = 24
"""Softmax of rows shorter than this is computed by its definition, as torch's kernel for a CPU is slow on short rows."""


def _softmax(logits: Tensor) -> Tensor:
    if logits.shape[-1] >= SHORT or logits.device.type != "cpu" or torch.compiler.is_compiling():
        return logits.softmax(-1)
    odds = (logits - logits.detach().amax(-1, keepdim=True)).exp()
    return odds / odds.sum(-1, keepdim=True)


@dataclass(frozen=True)
class _Geometry:
    """Masks and index tensors of a batch of graphs, which all layers share.

    Attributes:
        pairs: index tensors of the pairs.
        nodes: which nodes exist.
        pair_weight: 1/sqrt of the number of other nodes of each graph.
        node_mean: weights of the mean over the nodes that exist.
        pair_mean: weights of the mean over the pairs that exist.
        full: whether every node is known to exist; False on a GPU, where checking would make the host wait, and in compiled
            layers, where full and padded batches would need two programs.
    """

    pairs: PairLayout
    nodes: Bool[Tensor, "batch node"]
    pair_weight: Float[Tensor, "batch 1 1"]
    node_mean: Float[Tensor, "batch 1 node"]
    pair_mean: Float[Tensor, "batch 1 pair"]
    full: bool

    @staticmethod
    def of(mask: Bool[Tensor, "batch node"], dtype: torch.dtype, compiled: bool) -> _Geometry:
        full = mask.device.type == "cpu" and not compiled and bool(mask.all())
        exists = pair_mask(mask)
        neighbours = (mask.sum(1) - 1).clamp_min(1)[:, None, None].to(dtype)
        means = [(m.to(dtype) / m.sum(1, keepdim=True).clamp_min(1)).unsqueeze(1) for m in (mask, exists)]
        nodes = mask.clone()  # a view would tie compiled code to the tensor it is a view of
        return _Geometry(PairLayout.of(mask, full, dtype), nodes, neighbours.rsqrt(), means[0], means[1], full)

    def with_keys(self, logits: Float[Tensor, "batch head node node"]) -> Float[Tensor, "batch head node node"]:
        """Mask logits so that nodes that do not exist get no weight."""
        if self.full:
            return logits
        return logits.masked_fill(~self.nodes[:, None, None, :], torch.finfo(logits.dtype).min)

    def pooled(self, x: Float[Tensor, "batch node d"], e: Float[Tensor, "batch pair d_e"]) -> Float[Tensor, "batch pool"]:
        """Mean and largest node state, and mean pair state, of each graph."""
        largest = x if self.full else x.masked_fill(~self.nodes.unsqueeze(-1), torch.finfo(x.dtype).min)
        return torch.cat([(self.node_mean @ x).squeeze(1), largest.amax(1), (self.pair_mean @ e).squeeze(1)], -1)


class GraphTransformer(nn.Module):
    """Clean-class logits of noisy graphs: ``(nodes, edges, time, mask, properties) -> (node logits, edge logits)``.

    The network is equivariant to permutations of nodes, edge logits are exactly symmetric, and padding changes no logit of an
    existing site.

    Attributes:
        checkpoint_layers: whether the backward pass computes layers again, to save memory; not part of a saved checkpoint.
    """

    def __init__(self, config: GraphTransformerConfig) -> None:
        super().__init__()
        self.config, self.checkpoint_layers = config, False
        d, de, dg = config.width, config.edge_width, config.global_width
        more_x, more_e, more_y = (NODE_FEATURES, PAIR_FEATURES, GLOBAL_FEATURES) if config.connectivity else (0, 0, 0)
        self.node_in = nn.Sequential(nn.Linear(config.node_states + config.walk_length + 3 + more_x, d), nn.GELU(), nn.Linear(d, d))
        self.edge_in = nn.Sequential(nn.Linear(config.edge_states + config.walk_length + more_e, de), nn.GELU(), nn.Linear(de, de))
        self.global_in = nn.Sequential(nn.Linear(32 + 1 + 3 + more_y + config.log_time, dg), nn.GELU(), nn.Linear(dg, dg))
        self.property_in = nn.Linear(2 * config.num_properties, dg, bias=False) if config.num_properties else None
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.node_out = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.GELU(), nn.Linear(d, config.node_classes))
        self.edge_out = nn.Sequential(nn.LayerNorm(de), nn.Linear(de, de), nn.GELU(), nn.Linear(de, config.edge_classes))

    def init_args(self) -> dict[str, GraphTransformerConfig]:
        """Arguments that build this network again, kept in a checkpoint."""
        return {"config": self.config}

    def compiled_parts(self) -> list[nn.Module]:
        """The modules that ``torch.compile`` compiles: the layers, which are functions of tensors alone."""
        return list(self.blocks)

    def forward(
        self,
        nodes: Int[Tensor, "batch node"],
        edges: Int[Tensor, "batch node node"],
        time: Float[Tensor, " batch"],
        mask: Bool[Tensor, "batch node"],
        properties: Float[Tensor, "batch property"] | None = None,
    ) -> tuple[Float[Tensor, "batch node node_class"], Float[Tensor, "batch node node edge_class"]]:
        """Logits over clean classes.

        Args:
            nodes: noisy node classes.
            edges: noisy edge classes; only the upper triangle is read.
            time: in [0, 1], 0 data and 1 noise.
            mask: which nodes exist.
            properties: NaN where a property is not given, None if none is; read only if ``num_properties`` is not 0.
        """
        x, e, y = self._embed(nodes, edges, time, mask)
        if self.property_in is not None and properties is not None:
            given = ~properties.isnan()
            features = torch.cat([torch.where(given, properties, 0.0), given.to(properties.dtype)], -1)
            y = y + self.property_in(features.to(y.dtype))
        compiled = any(block._compiled_call_impl is not None for block in self.blocks)
        geometry = _Geometry.of(mask, e.dtype, compiled)
        for block in self.blocks:
            x, e, y = run_layer(block, x, e, y, geometry, again=self.checkpoint_layers, random=self.training)
        return self.node_out(x), symmetrise(self.edge_out(e), nodes.shape[1])

    def _embed(self, nodes: Tensor, edges: Tensor, time: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        config, n = self.config, nodes.shape[1]
        one_hot, dtype = nn.functional.one_hot, next(self.parameters()).dtype
        pairs = upper(edges)
        exists = pair_mask(mask)
        bonded = (pairs > 0) & (pairs < config.edge_classes) & exists
        adjacency = symmetrise(bonded.to(dtype), n)
        with torch.autocast(nodes.device.type, enabled=False):  # counts are integers, which bfloat16 products would round
            walks = random_walks(adjacency, config.walk_length)
            cycles = torch.log1p(cycle_counts(adjacency))
        left, right = pair_index(n, nodes.device)
        flat = left * n + right
        back = walks.diagonal(dim1=2, dim2=3).movedim(0, -1)
        between = walks.flatten(2).index_select(2, flat).movedim(0, -1)
        size = mask.sum(1, keepdim=True).to(dtype).log()
        of_nodes = [one_hot(nodes, config.node_states).to(dtype), back, cycles]
        of_pairs = [one_hot(pairs, config.edge_states).to(dtype), between]
        of_graph = [_time_features(time, dtype), size, _masked_mean(cycles, mask)]
        if config.log_time:
            of_graph.append((time.to(dtype) + 1e-4).log().unsqueeze(-1) / 4)
        if config.connectivity:
            node, pair, graph = connectivity_features(adjacency, mask)
            of_nodes.append(node)
            of_pairs.append(upper(pair))
            of_graph.append(graph)
        x, e, y = (torch.cat(features, -1) for features in (of_nodes, of_pairs, of_graph))
        return self.node_in(x), self.edge_in(e), self.global_in(y)
