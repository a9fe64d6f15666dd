"""Graph transformer of DiGress, DeFoG and Graph-GRPO, with the published parameter names and shapes.

Its attention has one weight per *channel*, [B, N, N, d]: the published code writes about twenty tensors of that size per layer, so
its speed is bound by memory. Here that part of a layer is one function of a few rows of pairs at a time
(:mod:`discrete_grpo.models.digress_attention`), whose backward pass stores two such tensors, or none with ``checkpoint_layers``.
The results agree with the published equations up to rounding.

Shapes: B graphs, N places for nodes, d node width, d_e edge width, d_y global width.
Sources: Vignac et al. (2022), section 4 and appendix B, arXiv 2209.14734; Qin et al. (2024), arXiv 2410.04263; Graph-GRPO
(2026), arXiv 2603.10395; Vignac et al. (2023), MiDi, arXiv 2302.09048.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from discrete_grpo.core.checks import check_range, check_whole
from discrete_grpo.models.digress_attention import EdgeParts, edge_update
from discrete_grpo.models.digress_features import Features, FiveCycles, MoleculeFeatures, extra, feature_widths
from discrete_grpo.models.digress_pooling import Pool, Pooling, run_checkpointed, run_once

__all__ = ["DigressConfig", "DigressTransformer", "time_embedding"]


@dataclass(frozen=True)
class DigressConfig:
    """Sizes and variants of a :class:`DigressTransformer`.

    Attributes:
        node_states, edge_states: classes of the (noisy) input, a mask class included.
        node_outputs, edge_outputs: widths of the last layers, at most the states.
        node_classes, edge_classes: number of leading outputs that are classes of the data; the others are dropped.
        layers, heads: number of layers and of attention heads.
        width, edge_width, global_width: d, d_e, d_y; ``width`` is a multiple of ``heads``.
        node_hidden, edge_hidden, global_hidden: hidden widths of the feed-forward parts; the last is 2048 in all published models.
        node_mlp, edge_mlp, global_mlp: hidden widths of the input and output MLPs.
        max_nodes: number that the number of nodes is divided by.
        node_limit: largest number of nodes of a graph; 0 for ``max_nodes``.
        features: structural features of the input.
        walk_length: K of the random-walk features.
        molecule: molecular features; None for other graphs.
        clock: time that is given to the network: ``noise`` is t (DiGress), ``data`` is 1 - t (DeFoG, Graph-GRPO).
        time_width: number of sines and cosines of that time, an even number; 64 in DeFoG.
        pooling: statistics of the nodes and pairs of a graph, see :data:`~discrete_grpo.models.digress_pooling.Pooling`.
        diagonal: one-hot input on the diagonal of the edge classes: class 0, as in training, or zeros (``nothing``).
        five_cycles: formula of the number of 5-cycles.
        pad_to: number of places that graphs are padded to at least; 0 for no further padding.
        padding_counts: whether padding counts as in the published code: as atoms of class 0 in the molecular weight, and as
            further eigenvalues; with pooling ``padded`` it always does.

    Raises:
        ValueError: for a value out of its range.
    """

    node_states: int
    edge_states: int
    node_outputs: int
    edge_outputs: int
    node_classes: int
    edge_classes: int
    max_nodes: int
    layers: int = 9
    heads: int = 8
    width: int = 256
    edge_width: int = 64
    global_width: int = 64
    node_hidden: int = 256
    edge_hidden: int = 128
    global_hidden: int = 2048
    node_mlp: int = 256
    edge_mlp: int = 128
    global_mlp: int = 128
    features: Features = "rrwp"
    walk_length: int = 12
    molecule: MoleculeFeatures | None = None
    clock: Literal["noise", "data"] = "data"
    time_width: int = 64
    pooling: Pooling = "masked"
    diagonal: Literal["class 0", "nothing"] = "class 0"
    five_cycles: FiveCycles = "published"
    pad_to: int = 0
    node_limit: int = 0
    padding_counts: bool = False

    def __post_init__(self) -> None:
        parts = [f"{part}_{of}" for of in ("hidden", "mlp", "classes") for part in ("node", "edge")]
        sizes = ("layers", "heads", "width", "edge_width", "global_width", "global_hidden", "global_mlp", "max_nodes")
        for name in (*sizes, *parts):
            check_whole(name, getattr(self, name), least=1)
        for name in ("time_width", "pad_to", "node_limit"):
            check_whole(name, getattr(self, name), least=0)
        for kind in ("node", "edge"):
            states, outputs, classes = (getattr(self, f"{kind}_{part}") for part in ("states", "outputs", "classes"))
            check_whole(f"{kind}_states", states, least=1)
            check_whole(f"{kind}_outputs", outputs, least=classes, most=states, note=" (classes to states)")
        if self.width % self.heads:
            raise ValueError(f"width: {self.width}, expected a multiple of heads ({self.heads})")
        if self.time_width % 2:
            raise ValueError(f"time_width: {self.time_width}, expected an even number")
        choices: dict[str, tuple[str, ...]] = {
            "clock": ("noise", "data"),
            "pooling": ("padded", "variance", "biased_std", "masked"),
            "diagonal": ("class 0", "nothing"),
            "five_cycles": ("published", "corrected"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name}: {getattr(self, name)!r}, expected one of {', '.join(known)}")
        if self.features.startswith("rrwp"):
            check_whole("walk_length", self.walk_length, least=1)
        feature_widths(self.features, self.walk_length)

    @property
    def input_widths(self) -> tuple[int, int, int]:
        """Widths of the node, edge and global input."""
        x, e, y = feature_widths(self.features, self.walk_length)
        atoms = 2 if self.molecule else 0
        return self.node_states + x + atoms, self.edge_states + e, y + bool(self.molecule) + 1 + self.time_width


def time_embedding(time: Float[Tensor, " batch"], width: int) -> Float[Tensor, "batch width"]:
    """Embedding [cos(t f), sin(t f)] of t in [0, 1] with f = 10000^(-k/(w/2)), the frequencies of whole steps (DeFoG)."""
    half = width // 2
    frequency = torch.exp(-math.log(10000.0) * torch.arange(half, dtype=time.dtype, device=time.device) / max(half, 1))
    angle = time[:, None] * frequency
    return torch.cat([angle.cos(), angle.sin()], -1)


def _mlp(first: int, hidden: int, last: int) -> list[nn.Module]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the published global output has no columns
        return [nn.Linear(first, hidden), nn.ReLU(), nn.Linear(hidden, last)]


class _Attention(nn.Module):
    """Linear maps of the attention of one layer under their published names; :meth:`_Layer.forward` applies them."""

    def __init__(self, config: DigressConfig) -> None:
        super().__init__()
        d, de, dy = config.width, config.edge_width, config.global_width
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.e_add, self.e_mul = nn.Linear(de, d), nn.Linear(de, d)
        self.y_e_mul, self.y_e_add = nn.Linear(dy, d), nn.Linear(dy, d)
        self.y_x_mul, self.y_x_add = nn.Linear(dy, d), nn.Linear(dy, d)
        self.y_y = nn.Linear(dy, dy)
        self.x_y, self.e_y = Pool(d, dy, config.pooling), Pool(de, dy, config.pooling)
        self.x_out, self.e_out = nn.Linear(d, d), nn.Linear(d, de)
        self.y_out = nn.Sequential(*_mlp(dy, dy, dy))


class _Layer(nn.Module):
    """Attention and feed-forward parts of nodes, edges and the global state, each followed by a norm."""

    def __init__(self, config: DigressConfig) -> None:
        super().__init__()
        d, de, dy = config.width, config.edge_width, config.global_width
        self.scale = (d // config.heads) ** -0.5
        self.self_attn = _Attention(config)
        self.linX1, self.linX2 = nn.Linear(d, config.node_hidden), nn.Linear(config.node_hidden, d)
        self.normX1, self.normX2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.linE1, self.linE2 = nn.Linear(de, config.edge_hidden), nn.Linear(config.edge_hidden, de)
        self.normE1, self.normE2 = nn.LayerNorm(de), nn.LayerNorm(de)
        self.lin_y1, self.lin_y2 = nn.Linear(dy, config.global_hidden), nn.Linear(config.global_hidden, dy)
        self.norm_y1, self.norm_y2 = nn.LayerNorm(dy), nn.LayerNorm(dy)

    def forward(
        self, x: Tensor, e: Tensor, y: Tensor, mask: Tensor | None, pooled: Tensor | None, last: bool, keep: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the next states.

        ``mask`` is None if all nodes exist, and ``pooled`` is None if pooling counts every place. With ``keep``, the backward pass
        uses stored intermediate results, else it computes them again.

        Y = (q_i k_j / √(d/h)) (1 + W_m e_ij) + W_a e_ij;  e' = W_o((1 + a(y)) Y + b(y));
        x' = W_x((1 + c(y)) Σ_j softmax_j(Y) v_j + d(y)).
        The global state of the last layer is not used, so it is not computed.
        """
        att, linear = self.self_attn, nn.functional.linear
        new_y = None if last else att.y_y(y) + att.x_y(x, pooled, keep) + att.e_y(e.flatten(1, 2), _pairs(pooled), keep)
        parts = EdgeParts(
            att.q(x) * self.scale,
            att.k(x),
            att.v(x),
            torch.cat([att.e_mul.weight, att.e_add.weight]),
            torch.cat([att.e_mul.bias + 1.0, att.e_add.bias]),
            att.e_out.weight * (1.0 + att.y_e_mul(y)).unsqueeze(1),  # FiLM of Y, moved into the map behind it
            linear(att.y_e_add(y), att.e_out.weight, att.e_out.bias),
            *((m.weight, m.bias) for m in (self.normE1, self.linE1, self.linE2, self.normE2)),
        )
        mean, e = edge_update(e, parts, mask, keep=keep)
        new_x = att.x_out(torch.addcmul(att.y_x_add(y).unsqueeze(1), 1.0 + att.y_x_mul(y).unsqueeze(1), mean))
        x = self.normX1(x + (new_x if mask is None else new_x * mask.unsqueeze(-1)))
        x = self.normX2(x + self.linX2(self.linX1(x).relu()))
        if new_y is not None:
            y = self.norm_y1(y + att.y_out(new_y))
            y = self.norm_y2(y + self.lin_y2(self.lin_y1(y).relu()))
        return x, e, y


def _pairs(mask: Tensor | None) -> Tensor | None:
    """Mask of the ordered pairs that exist [B, N²], including the diagonal."""
    return None if mask is None else (mask[:, :, None] & mask[:, None, :]).flatten(1)


class DigressTransformer(nn.Module):
    """Clean-class logits of noisy graphs: ``(nodes, edges, time, mask) -> (node logits, edge logits)``.

    Its state dict is that of the published ``GraphTransformer``. It is equivariant to node permutation if its features are
    (eigenvectors are not), its edge logits are symmetric, and padding changes no logit unless it counts, with
    ``pooling="padded"`` or ``padding_counts``; then ``pad_to`` fixes it.

    Args:
        config: sizes and variants.
        checkpoint_layers: whether the backward pass recomputes segments of layers and, in each layer, rows of pairs. It takes a
            fraction of the memory and about 1.5 times the time.
    """

    def __init__(self, config: DigressConfig, checkpoint_layers: bool = False) -> None:
        super().__init__()
        self.config, self.checkpoint_layers = config, checkpoint_layers
        d, de, dy = config.width, config.edge_width, config.global_width
        x, e, y = config.input_widths
        self.mlp_in_X = nn.Sequential(*_mlp(x, config.node_mlp, d), nn.ReLU())
        self.mlp_in_E = nn.Sequential(*_mlp(e, config.edge_mlp, de), nn.ReLU())
        self.mlp_in_y = nn.Sequential(*_mlp(y, config.global_mlp, dy), nn.ReLU())
        self.tf_layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))
        self.mlp_out_X = nn.Sequential(*_mlp(d, config.node_mlp, config.node_outputs))
        self.mlp_out_E = nn.Sequential(*_mlp(de, config.edge_mlp, config.edge_outputs))
        self.mlp_out_y = nn.Sequential(*_mlp(dy, config.global_mlp, 0)).requires_grad_(False)  # not used, but stored as published

    def init_args(self) -> dict[str, Any]:
        """Return the constructor arguments that a checkpoint stores."""
        return {"config": self.config, "checkpoint_layers": self.checkpoint_layers}

    def forward(
        self,
        nodes: Int[Tensor, "batch node"],
        edges: Int[Tensor, "batch node node"],
        time: Float[Tensor, " batch"],
        mask: Bool[Tensor, "batch node"],
    ) -> tuple[Float[Tensor, "batch node node_class"], Float[Tensor, "batch node node edge_class"]]:
        """Logits over clean classes.

        Args:
            nodes: noisy node classes.
            edges: noisy edge classes, symmetric.
            time: times in [0, 1], 0 data and 1 noise.
            mask: which nodes exist; padding comes last.

        Raises:
            ValueError: for a graph of more nodes than ``node_limit``, or a class outside the states.
        """
        self._check(nodes, edges, mask)
        n, more = nodes.shape[1], max(self.config.pad_to - nodes.shape[1], 0)
        if more:
            grow = nn.functional.pad
            nodes, edges, mask = grow(nodes, (0, more)), grow(edges, (0, more, 0, more)), grow(mask, (0, more))
        there = mask[:, :, None] & mask[:, None, :]
        nodes, edges = torch.where(mask, nodes, 0), torch.where(there, edges, 0)
        x, e, y = self._embed(nodes, edges, time, mask, there)
        some = None if bool(mask.all()) else mask
        pooled = None if self.config.pooling == "padded" else some
        count = len(self.tf_layers)
        length = math.isqrt(count - 1) + 1 if self.checkpoint_layers else count  # √L segments of √L layers store the least
        for start in range(0, count, length):
            run = run_checkpointed if self.checkpoint_layers else run_once
            x, e, y = run(self._segment, x, e, y, some, pooled, start, min(start + length, count))
        return self._logits(x[:, :n], e[:, :n, :n], nodes[:, :n], edges[:, :n, :n])

    def _segment(
        self, x: Tensor, e: Tensor, y: Tensor, mask: Tensor | None, pooled: Tensor | None, start: int, stop: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        for k in range(start, stop):
            x, e, y = self.tf_layers[k](x, e, y, mask, pooled, k == len(self.tf_layers) - 1, not self.checkpoint_layers)
        return x, e, y

    @property
    def most_nodes(self) -> int:
        """Number of nodes of the largest graph that it reads."""
        return self.config.node_limit or self.config.max_nodes

    def _check(self, nodes: Tensor, edges: Tensor, mask: Tensor) -> None:
        check_range("nodes of the largest graph", int(mask.sum(1).max()), most=self.most_nodes)
        for name, classes, states in (("nodes", nodes, self.config.node_states), ("edges", edges, self.config.edge_states)):
            for extreme in (int(classes.min()), int(classes.max())):
                check_range(f"{name}: class", extreme, least=0, most=states - 1)

    def _embed(self, nodes: Tensor, edges: Tensor, time: Tensor, mask: Tensor, there: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Embed the input: the first states, zero at padding and symmetric for edges."""
        config, one_hot = self.config, nn.functional.one_hot
        dtype = next(self.parameters()).dtype
        diagonal = torch.eye(nodes.shape[1], dtype=torch.bool, device=nodes.device)
        with torch.autocast(nodes.device.type, enabled=False):  # bfloat16 would round the counts, which are integers
            found = self._features(nodes, edges, mask, ((edges > 0) & ~diagonal).float())
            clock = (1.0 - time if config.clock == "data" else time).to(dtype)
            graph = torch.cat([found.graph.to(dtype), clock[:, None], time_embedding(clock, config.time_width)], -1)
        e_in = one_hot(edges, config.edge_states).to(dtype)
        if config.diagonal == "nothing":
            e_in = e_in.masked_fill(diagonal[..., None], 0.0)
        e = (run_checkpointed if self.checkpoint_layers else run_once)(self.mlp_in_E, torch.cat([e_in, found.edges.to(dtype)], -1))
        e = (e + e.transpose(1, 2)) / 2 * there.unsqueeze(-1)
        x = self.mlp_in_X(torch.cat([one_hot(nodes, config.node_states).to(dtype), found.nodes.to(dtype)], -1))
        return x * mask.unsqueeze(-1), e, self.mlp_in_y(graph)

    def _features(self, nodes: Tensor, edges: Tensor, mask: Tensor, adjacency: Tensor) -> Any:
        config = self.config
        padded = config.padding_counts or config.pooling == "padded"
        found = extra(
            config.features,
            adjacency,
            mask,
            max_nodes=config.max_nodes,
            walk_length=config.walk_length,
            five_cycles=config.five_cycles,
            padded=padded,
        )
        if config.molecule is None:
            return found
        counted = torch.ones_like(mask) if padded else mask  # as published, padding has the weight of class 0
        atoms, weight = config.molecule.of(nodes, edges, counted, config.edge_classes)
        return type(found)(torch.cat([found.nodes, atoms], -1), found.edges, torch.cat([found.graph, weight], -1))

    def _logits(self, x: Tensor, e: Tensor, nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Output MLPs plus the one-hot input classes; edges are averaged over the two directions."""
        config, one_hot = self.config, nn.functional.one_hot
        node_logits = self.mlp_out_X(x)[..., : config.node_classes]
        edge_logits = (run_checkpointed if self.checkpoint_layers else run_once)(self.mlp_out_E, e)[..., : config.edge_classes]
        node_logits = node_logits + one_hot(nodes, config.node_states)[..., : config.node_classes]
        edge_logits = edge_logits + one_hot(edges, config.edge_states)[..., : config.edge_classes]
        return node_logits, (edge_logits + edge_logits.transpose(1, 2)) / 2
