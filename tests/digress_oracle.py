"""The published equations of DiGress, DeFoG and Graph-GRPO: batched as the peers run them, and by loops for the features.

Written from the equations, not copied. A network is the function of its state dict alone, so nothing here knows the code
under test; :class:`LiteralNetwork` holds the same tensors as parameters, for timing forwards and updates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx
import torch
from torch import Tensor, nn

__all__ = ["LiteralNetwork", "Variant", "literal_forward", "literal_inputs", "random_state"]

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Variant:
    """What the state dict does not say."""

    features: str
    walk_length: int = 0
    max_nodes: int = 9
    heads: int = 8
    pooling: str = "padded"
    clock: str = "noise"
    time_width: int = 0
    diagonal: str = "class 0"
    five: str = "published"
    weights: tuple[float, ...] = ()
    max_weight: float = 1.0
    count_padding: bool = False

    @property
    def padded(self) -> bool:
        """Whether a molecule's weight and eigenvalues see the padding, as in every peer's code."""
        return self.count_padding or self.pooling == "padded"


# ---------------------------------------------------------------- the network


def affine(state: State, name: str, x: Tensor) -> Tensor:
    return x @ state[name + ".weight"].T + state[name + ".bias"]


def two_layers(state: State, name: str, x: Tensor) -> Tensor:
    return affine(state, name + ".2", torch.relu(affine(state, name + ".0", x)))


def normed(state: State, name: str, x: Tensor) -> Tensor:
    return nn.functional.layer_norm(x, x.shape[-1:], state[name + ".weight"], state[name + ".bias"])


def pooled(state: State, name: str, x: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """x [B, M, d], mask [B, M]; mean, min, max, spread -> linear. Equal extremes share the gradient."""
    if pooling == "padded":
        parts = [x.mean(1), x.amin(1), x.amax(1), x.std(1)]
        return affine(state, name + ".lin", torch.hstack(parts))
    m = mask.unsqueeze(-1).to(x.dtype)
    count = m.sum(1)
    mean = (x * m).sum(1) / count
    low = torch.where(m > 0, x, torch.inf).amin(1)
    high = torch.where(m > 0, x, -torch.inf).amax(1)
    squares = ((x - mean.unsqueeze(1)) ** 2 * m).sum(1)
    if pooling == "variance":
        spread = squares / count
    elif pooling == "biased_std":
        spread = torch.sqrt(squares / count + 1e-6)
    else:
        spread = torch.stack([one[there].std(0) for one, there in zip(x, mask, strict=True)])
    return affine(state, name + ".lin", torch.hstack([mean, low, high, spread]))


def block(state: State, name: str, x: Tensor, e: Tensor, y: Tensor, mask: Tensor, variant: Variant) -> tuple[Tensor, ...]:
    """One attention block: every product of the equations written out over [B, N, N, d]."""
    b, n, d = x.shape
    nodes = mask.unsqueeze(-1).to(x.dtype)
    pairs = nodes.unsqueeze(2) * nodes.unsqueeze(1)
    q, k, v = (affine(state, f"{name}.{m}", x) * nodes for m in "qkv")
    scores = q.unsqueeze(2) * k.unsqueeze(1) / math.sqrt(d // variant.heads)
    mul, add = affine(state, f"{name}.e_mul", e) * pairs, affine(state, f"{name}.e_add", e) * pairs
    scores = scores * (mul + 1) + add
    ye_add, ye_mul = (affine(state, f"{name}.y_e_{m}", y)[:, None, None] for m in ("add", "mul"))
    new_e = affine(state, f"{name}.e_out", ye_add + (ye_mul + 1) * scores) * pairs
    attention = torch.softmax(scores.masked_fill(nodes.unsqueeze(1) == 0, -torch.inf), 2)
    mean = (attention * v.unsqueeze(1)).sum(2)
    yx_add, yx_mul = (affine(state, f"{name}.y_x_{m}", y)[:, None] for m in ("add", "mul"))
    new_x = affine(state, f"{name}.x_out", yx_add + (yx_mul + 1) * mean) * nodes
    by_nodes = pooled(state, f"{name}.x_y", x, mask, variant.pooling)
    by_edges = pooled(state, f"{name}.e_y", e.reshape(b, n * n, -1), pairs.reshape(b, n * n) > 0, variant.pooling)
    return new_x, new_e, two_layers(state, f"{name}.y_out", affine(state, f"{name}.y_y", y) + by_nodes + by_edges)


def layer(state: State, name: str, x: Tensor, e: Tensor, y: Tensor, mask: Tensor, variant: Variant) -> tuple[Tensor, ...]:
    states = (x, e, y)
    changes = block(state, f"{name}.self_attn", x, e, y, mask, variant)
    names = (("normX", "linX"), ("normE", "linE"), ("norm_y", "lin_y"))
    done = []
    for old, change, (norm, lin) in zip(states, changes, names, strict=True):
        h = normed(state, f"{name}.{norm}1", old + change)
        inner = affine(state, f"{name}.{lin}2", torch.relu(affine(state, f"{name}.{lin}1", h)))
        done.append(normed(state, f"{name}.{norm}2", h + inner))
    return tuple(done)


def literal_forward(state: State, x: Tensor, e: Tensor, y: Tensor, mask: Tensor, variant: Variant) -> tuple[Tensor, Tensor]:
    """Logits of float inputs X [B,N,·], E [B,N,N,·], y [B,·] (time last), zero at padding."""
    n = x.shape[1]
    nodes = mask.unsqueeze(-1).to(x.dtype)
    pairs = nodes.unsqueeze(2) * nodes.unsqueeze(1)
    out_x, out_e = (state[f"mlp_out_{m}.2.bias"].shape[0] for m in "XE")
    x_start, e_start = x[..., :out_x], e[..., :out_e]
    if variant.time_width:
        half = variant.time_width // 2
        angle = torch.stack([y[:, -1] * 10000.0 ** (-k / half) for k in range(half)], -1)
        y = torch.hstack([y, torch.cos(angle), torch.sin(angle)])
    e = torch.relu(two_layers(state, "mlp_in_E", e))
    e = (e + e.transpose(1, 2)) / 2 * pairs
    x, y = torch.relu(two_layers(state, "mlp_in_X", x)) * nodes, torch.relu(two_layers(state, "mlp_in_y", y))
    for k in range(1 + max(int(name.split(".")[1]) for name in state if name.startswith("tf_layers"))):
        x, e, y = layer(state, f"tf_layers.{k}", x, e, y, mask, variant)
    x = (two_layers(state, "mlp_out_X", x) + x_start) * nodes
    e = (two_layers(state, "mlp_out_E", e) + e_start) * (1 - torch.eye(n, dtype=e.dtype, device=e.device))[None, :, :, None]
    return x, (e + e.transpose(1, 2)) / 2 * pairs


class LiteralNetwork(nn.Module):
    """The equations above over parameters, dots in their names written as underscores."""

    def __init__(self, state: State, variant: Variant) -> None:
        super().__init__()
        self.variant = variant
        self.names = {name: name.replace(".", "__") for name in state}
        for name, flat in self.names.items():
            self.register_parameter(flat, nn.Parameter(state[name].clone()))

    def forward(self, x: Tensor, e: Tensor, y: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        state = {name: getattr(self, flat) for name, flat in self.names.items()}
        return literal_forward(state, x, e, y, mask, self.variant)


# ---------------------------------------------------------------- what goes in: one graph at a time, by loops


def literal_inputs(
    nodes: Tensor, edges: Tensor, time: Tensor, mask: Tensor, states: tuple[int, int], clean: tuple[int, int], variant: Variant
) -> tuple[Tensor, Tensor, Tensor]:
    """X, E and y of noisy graphs, zero at padding, float64."""
    one = nn.functional.one_hot
    n = nodes.shape[1]
    xs, es, ys = [], [], []
    for b in range(len(nodes)):
        size = int(mask[b].sum())
        x, e = one(nodes[b], states[0]).double(), one(edges[b], states[1]).double()
        e[torch.arange(n), torch.arange(n)] = 0.0
        if variant.diagonal == "class 0":
            e[torch.arange(n), torch.arange(n), 0] = 1.0
        adjacency = [[1.0 if i != j and edges[b, i, j] > 0 and max(i, j) < size else 0.0 for j in range(n)] for i in range(n)]
        f_x, f_e, f_y = features(adjacency, size, variant)
        if variant.weights:
            atoms, weight = molecular(nodes[b], edges[b], size, clean, variant)
            f_x, f_y = torch.cat([f_x, atoms], -1), torch.cat([f_y, weight])
        clock = time[b : b + 1].double() if variant.clock == "noise" else 1.0 - time[b : b + 1].double()
        x, e = torch.cat([x, f_x], -1), torch.cat([e, f_e], -1)
        x[size:], e[size:], e[:, size:] = 0.0, 0.0, 0.0
        xs.append(x)
        es.append(e)
        ys.append(torch.cat([f_y, clock]))
    return torch.stack(xs), torch.stack(es), torch.stack(ys)


def features(adjacency: list[list[float]], size: int, variant: Variant) -> tuple[Tensor, Tensor, Tensor]:
    n = len(adjacency)
    share, kind = torch.tensor([size / variant.max_nodes], dtype=torch.float64), variant.features
    nothing_e = torch.zeros(n, n, 0, dtype=torch.float64)
    if kind == "none":
        return torch.zeros(n, 0, dtype=torch.float64), nothing_e, torch.zeros(0, dtype=torch.float64)
    by_node, by_graph = cycle_features(adjacency, variant.five)
    if kind.startswith("rrwp"):
        walks = walk_features(adjacency, variant.walk_length)
        back = torch.stack([walks[i, i] for i in range(n)])
        return back, walks, share if kind == "rrwp_only" else torch.cat([share, by_graph])
    if kind == "cycles":
        return by_node, nothing_e, torch.cat([share, by_graph])
    spectrum, vectors = spectral_features(adjacency, size, variant.padded)
    x = torch.cat([by_node, vectors], -1) if kind == "all" else by_node
    return x, nothing_e, torch.cat([share, by_graph, spectrum])


def molecular(nodes: Tensor, edges: Tensor, size: int, clean: tuple[int, int], variant: Variant) -> tuple[Tensor, Tensor]:
    """argmax of (one-hot times bond order), of (one-hot times valency), on vectors without the mask class."""
    n = len(nodes)
    orders = [0, 1, 2, 3, 1.5, 1, 1][: clean[1]]
    rows, weight = [], 0.0
    for i in range(n):
        valency = sum(_argmax([orders[c] if int(edges[i, j]) == c else 0.0 for c in range(clean[1])]) for j in range(n))
        atom = _argmax([2.0 if int(nodes[i]) == c else 0.0 for c in range(clean[0])])
        rows.append([atom - valency, valency])
        if i < size or variant.padded:
            weight += variant.weights[atom]
    return torch.tensor(rows, dtype=torch.float64), torch.tensor([weight / variant.max_weight], dtype=torch.float64)


def _argmax(values: list[float]) -> int:
    return values.index(max(values))


def walk_features(adjacency: list[list[float]], length: int) -> Tensor:
    n = len(adjacency)
    step = [[a / sum(row) if sum(row) else 0.0 for a in row] for row in adjacency]
    power = [[float(i == j) for j in range(n)] for i in range(n)]
    found = []
    for _ in range(length):
        found.append(torch.tensor(power, dtype=torch.float64))
        power = [[sum(power[i][k] * step[k][j] for k in range(n)) for j in range(n)] for i in range(n)]
    return torch.stack(found, -1)


def cycle_features(adjacency: list[list[float]], five: str) -> tuple[Tensor, Tensor]:
    """By listing simple cycles, except for the published 5-cycles, which are their formula."""
    n = len(adjacency)
    graph: Any = nx.from_numpy_array(torch.tensor(adjacency).numpy()) if n else nx.Graph()
    by_node, by_graph = torch.zeros(n, 3, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for cycle in nx.simple_cycles(graph, length_bound=6):
        by_graph[len(cycle) - 3] += 1
        if len(cycle) < 6:
            for i in cycle:
                by_node[i, len(cycle) - 3] += 1
    if five == "published":
        a = torch.tensor(adjacency, dtype=torch.float64)
        t3, t5 = torch.diag(a @ a @ a), torch.diag(a @ a @ a @ a @ a)
        c5 = t5 - 2 * t3 * a.sum(-1) - a @ t3 + t3
        by_node[:, 2], by_graph[2] = c5 / 2, c5.sum() / 10
    return torch.clamp(by_node / 10, max=1.0), torch.clamp(by_graph / 10, max=1.0)


def spectral_features(adjacency: list[list[float]], size: int, padded: bool) -> tuple[Tensor, Tensor]:
    n = len(adjacency)
    a = torch.tensor(adjacency, dtype=torch.float64)[:size, :size]
    values, basis = torch.linalg.eigh(torch.diag(a.sum(-1)) - a)
    scaled = [float(v) / size for v in values]
    components = sum(v < 1e-5 for v in scaled)
    tail = [2.0 * n / size] * (n - size) if padded else []
    run = (scaled + tail + [2.0] * 5)[components : components + 5]
    vectors = torch.zeros(n, 3, dtype=torch.float64)
    first = [round(float(v), 3) + 0.0 for v in basis[:, 0]]
    most = max(first.count(v) for v in first)
    common = min(v for v in first if first.count(v) == most)
    for i in range(size):
        vectors[i, 0] = float(first[i] != common)
        for m in range(2):
            vectors[i, 1 + m] = basis[i, components + m] if components + m < size else 0.0
    return torch.tensor([float(components), *run], dtype=torch.float64), vectors


# ---------------------------------------------------------------- checkpoints of a given size


def random_state(
    inputs: tuple[int, int, int],
    outputs: tuple[int, int],
    *,
    layers: int,
    widths: tuple[int, int, int],
    hidden: tuple[int, int, int] = (256, 128, 2048),
    mlp: tuple[int, int, int] = (256, 128, 128),
    seed: int = 0,
) -> dict[str, Tensor]:
    """A published state dict with random numbers, as ``nn.Linear`` and ``nn.LayerNorm`` start (norms a little off)."""
    (dx, de, dy), g = widths, torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, int]] = {}
    for k, name in enumerate("XEy"):
        shapes |= {f"mlp_in_{name}.0": (mlp[k], inputs[k]), f"mlp_in_{name}.2": (widths[k], mlp[k])}
        shapes |= {f"mlp_out_{name}.0": (mlp[k], widths[k]), f"mlp_out_{name}.2": ((*outputs, 0)[k], mlp[k])}
    norms: dict[str, int] = {}
    for n in range(layers):
        at = f"tf_layers.{n}."
        shapes |= {f"{at}self_attn.{m}": (dx, dx) for m in ("q", "k", "v", "x_out")}
        shapes |= {f"{at}self_attn.{m}": (dx, de) for m in ("e_add", "e_mul")}
        shapes |= {f"{at}self_attn.{m}": (dx, dy) for m in ("y_e_mul", "y_e_add", "y_x_mul", "y_x_add")}
        shapes |= {f"{at}self_attn.x_y.lin": (dy, 4 * dx), f"{at}self_attn.e_y.lin": (dy, 4 * de)}
        shapes |= {f"{at}self_attn.{m}": (dy, dy) for m in ("y_y", "y_out.0", "y_out.2")} | {f"{at}self_attn.e_out": (de, dx)}
        for k, (lin, norm) in enumerate((("linX", "normX"), ("linE", "normE"), ("lin_y", "norm_y"))):
            shapes |= {f"{at}{lin}1": (hidden[k], widths[k]), f"{at}{lin}2": (widths[k], hidden[k])}
            norms |= {f"{at}{norm}{m}": widths[k] for m in (1, 2)}
    state = {}
    for name, shape in shapes.items():
        bound = shape[1] ** -0.5
        state[name + ".weight"] = (2 * torch.rand(shape, generator=g) - 1) * bound
        state[name + ".bias"] = (2 * torch.rand(shape[0], generator=g) - 1) * bound
    for name, width in norms.items():
        state[name + ".weight"] = 1 + 0.1 * torch.randn(width, generator=g)
        state[name + ".bias"] = 0.1 * torch.randn(width, generator=g)
    return state
