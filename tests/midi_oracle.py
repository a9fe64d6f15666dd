"""The published equations of MiDi, written out for one molecule at a time, without padding.

Written from the equations, not copied. The network is the function of its state dict and of the number of heads alone, so nothing
here knows the code under test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["literal_alpha_bar", "literal_forward", "random_state"]

State = Mapping[str, Tensor]


def affine(state: State, name: str, x: Tensor) -> Tensor:
    shifted = x @ state[name + ".weight"].T
    return shifted + state[name + ".bias"] if name + ".bias" in state else shifted


def two_layers(state: State, name: str, x: Tensor) -> Tensor:
    return affine(state, name + ".2", torch.relu(affine(state, name + ".0", x)))


def normed(state: State, name: str, x: Tensor) -> Tensor:
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / torch.sqrt(variance + 1e-5) * state[name + ".weight"] + state[name + ".bias"]


def pooled(state: State, name: str, items: Tensor, spread: str) -> Tensor:
    """Mean, minimum, maximum and spread over the first axis -> linear."""
    fourth = items.std(0) if spread == "deviation" else ((items - items.mean(0)) ** 2).mean(0)
    return affine(state, name + ".lin", torch.cat([items.mean(0), items.min(0).values, items.max(0).values, fourth], -1))


def radial(state: State, name: str, r: Tensor) -> Tensor:
    """r_i f(|r_i|) / (|r_i| + 1e-5), less its mean."""
    rows = []
    for row in r:
        size = torch.linalg.vector_norm(row)
        rows.append(row * two_layers(state, name + ".mlp", size.reshape(1)) / (size + 1e-5))
    moved = torch.stack(rows)
    return moved - moved.mean(0)


def geometry(state: State, name: str, r: Tensor) -> Tensor:
    """The embedding of distance, cosine and the two norms of every ordered pair, the pairs (i, i) included."""
    n = len(r)
    size = [torch.linalg.vector_norm(row) for row in r]
    rows = []
    for i in range(n):
        for j in range(n):
            distance = torch.linalg.vector_norm(r[i] - r[j])
            cosine = (r[i] / (size[i] + 1e-7)) @ (r[j] / (size[j] + 1e-7))
            pair = affine(state, f"{name}.lin_dist1", torch.stack([distance, cosine]))
            first, second = (affine(state, f"{name}.lin_norm_pos{k + 1}", size[m].reshape(1)) for k, m in enumerate((i, j)))
            rows.append(torch.relu(pair + first + second))
    return torch.stack(rows).view(n, n, -1)


def block(state: State, name: str, x: Tensor, e: Tensor, y: Tensor, r: Tensor, spread: str) -> tuple[Tensor, ...]:
    """One attention block: x', e', y' and the velocity of the positions."""
    n, d = x.shape
    width, heads = e.shape[-1], len(state[f"{name}.a.weight"])
    near = geometry(state, name, r)
    mixed = affine(state, f"{name}.in_E", e)
    mixed = mixed * affine(state, f"{name}.x_e_mul1", x)[None, :] * affine(state, f"{name}.x_e_mul2", x)[:, None]
    mixed = mixed + affine(state, f"{name}.dist_add_e", near) + mixed * affine(state, f"{name}.dist_mul_e", near)
    film = mixed + affine(state, f"{name}.y_e_add", y) + mixed * affine(state, f"{name}.y_e_mul", y)

    q, k, v = (affine(state, f"{name}.{m}", x) for m in "qkv")
    product = q[:, None] * k[None, :] / math.sqrt(width)
    scores = affine(state, f"{name}.a", product)
    scores = scores + affine(state, f"{name}.e_att_mul", film) * scores
    scores = scores + affine(state, f"{name}.pos_att_mul", near) * scores
    attention = torch.softmax(scores, 1)
    seen = (attention[..., None] * v[None, :, None, :]).sum(1).reshape(n, heads * d)
    seen = affine(state, f"{name}.out", seen)
    for pool, pairs in (("e_x_mul", film), ("pos_x_mul", near)):
        rows = torch.stack([pooled(state, f"{name}.{pool}", pairs[i], spread) for i in range(n)])
        seen = seen + rows * seen
    new_x = seen * (affine(state, f"{name}.y_x_mul", y) + 1) + affine(state, f"{name}.y_x_add", y)

    total = affine(state, f"{name}.y_y", y) + pooled(state, f"{name}.x_y", new_x, spread)
    total = total + pooled(state, f"{name}.e_y", mixed.reshape(n * n, -1), spread)
    total = total + pooled(state, f"{name}.dist_y", near.reshape(n * n, -1), spread)

    pull = affine(state, f"{name}.e_pos2", torch.relu(affine(state, f"{name}.e_pos1", mixed)))
    velocity = torch.stack([sum((pull[i, j] * (r[i] - r[j]) for j in range(n)), torch.zeros_like(r[i])) for i in range(n)])
    out = affine(state, f"{name}.x_out", new_x), affine(state, f"{name}.e_out", film), two_layers(state, f"{name}.y_out", total)
    return *out, velocity - velocity.mean(0)


def layer(state: State, name: str, x: Tensor, e: Tensor, y: Tensor, r: Tensor, spread: str) -> tuple[Tensor, ...]:
    *changes, velocity = block(state, f"{name}.self_attn", x, e, y, r, spread)
    mean_length = torch.linalg.vector_norm(velocity, dim=-1).mean()
    r = r + state[f"{name}.norm_pos1.weight"] * velocity / (mean_length + 1e-5)
    done = []
    names = (("normX", "linX"), ("normE", "linE"), ("norm_y", "lin_y"))
    for old, change, (norm, lin) in zip((x, e, y), changes, names, strict=True):
        h = normed(state, f"{name}.{norm}1", old + change)
        inner = affine(state, f"{name}.{lin}2", torch.relu(affine(state, f"{name}.{lin}1", h)))
        done.append(normed(state, f"{name}.{norm}2", h + inner))
    x, e, y = done
    return x, without_diagonal((e + e.transpose(0, 1)) / 2), y, r - r.mean(0)


def without_diagonal(e: Tensor) -> Tensor:
    e = e.clone()
    for i in range(len(e)):
        e[i, i] = 0.0
    return e


def literal_forward(
    state: State, x: Tensor, e: Tensor, time: Tensor, r: Tensor, spread: str = "variance"
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of atoms and charges [N, ·], logits of bonds [N, N, ·] and positions [N, 3] of one molecule.

    Args:
        state: the published state dict.
        x: one-hot atoms and charges, side by side.
        e: one-hot bonds, 0 on the diagonal.
        time: t / T.
        r: positions of zero mean.
        spread: fourth pooled statistic, ``variance`` or ``deviation`` (the first version of the code).
    """
    x_start, e_start = x, e
    edges = torch.relu(two_layers(state, "mlp_in_E", e))
    edges = without_diagonal((edges + edges.transpose(0, 1)) / 2)
    x, y = torch.relu(two_layers(state, "mlp_in_X", x)), torch.relu(two_layers(state, "mlp_in_y", time.reshape(1)))
    r = radial(state, "mlp_in_pos", r)
    for k in range(1 + max(int(name.split(".")[1]) for name in state if name.startswith("tf_layers"))):
        x, edges, y, r = layer(state, f"tf_layers.{k}", x, edges, y, r, spread)
    x = two_layers(state, "mlp_out_X", x) + x_start
    edges = without_diagonal(two_layers(state, "mlp_out_E", edges) + e_start)
    return x, (edges + edges.transpose(0, 1)) / 2, radial(state, "mlp_out_pos", r)


def literal_alpha_bar(steps: int, exponent: float) -> Tensor:
    """ᾱ of the steps 0, ..., T as the product of the α of each step, of which none is less than 1e-4, float64."""
    grid = torch.linspace(0, 1, steps + 2, dtype=torch.float64) ** exponent
    kept = torch.cos(0.5 * math.pi * (grid + 0.008) / 1.008) ** 2
    return torch.cumprod(torch.clamp(kept[1:] / kept[:-1], min=1e-4), 0)


def random_state(
    classes: tuple[int, int, int],
    *,
    layers: int,
    widths: tuple[int, int, int],
    heads: int,
    hidden: tuple[int, int, int] = (256, 128, 2048),
    mlp: tuple[int, int, int, int] = (256, 128, 128, 64),
    seed: int = 0,
) -> dict[str, Tensor]:
    """A published state dict with random numbers, as ``nn.Linear`` and ``nn.LayerNorm`` start (norms a little off).

    ``classes`` are those of atoms, charges and bonds; ``mlp`` the hidden widths of the MLPs of X, E, y and the positions.
    """
    (dx, de, dy), nodes, g = widths, classes[0] + classes[1], torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, int]] = {}
    for k, (name, first, last) in enumerate((("X", nodes, nodes), ("E", classes[2], classes[2]), ("y", 1, None))):
        shapes |= {f"mlp_in_{name}.0": (mlp[k], first), f"mlp_in_{name}.2": (widths[k], mlp[k])}
        if last is not None:
            shapes |= {f"mlp_out_{name}.0": (mlp[k], widths[k]), f"mlp_out_{name}.2": (last, mlp[k])}
    for name in ("mlp_in_pos", "mlp_out_pos"):
        shapes |= {f"{name}.mlp.0": (mlp[3], 1), f"{name}.mlp.2": (1, mlp[3])}
    without_bias: set[str] = set()
    norms: dict[str, int] = {}
    for n in range(layers):
        at = f"tf_layers.{n}.self_attn."
        shapes |= {at + m: (dx, dx) for m in ("q", "k", "v", "x_out")} | {at + "out": (dx, heads * dx), at + "a": (heads, dx)}
        shapes |= {at + m: (de, de) for m in ("in_E", "dist_add_e", "dist_mul_e", "e_out", "e_pos1")} | {at + "e_pos2": (1, de)}
        shapes |= {at + m: (de, dx) for m in ("x_e_mul1", "x_e_mul2")} | {at + "lin_dist1": (de, 2)}
        shapes |= {at + m: (de, 1) for m in ("lin_norm_pos1", "lin_norm_pos2")}
        shapes |= {at + m: (heads, de) for m in ("e_att_mul", "pos_att_mul")}
        shapes |= {at + m: (dx, 4 * de) for m in ("e_x_mul.lin", "pos_x_mul.lin")} | {at + "pre_softmax": (dx, de)}
        shapes |= {at + m: (de, dy) for m in ("y_e_mul", "y_e_add")} | {at + m: (dx, dy) for m in ("y_x_mul", "y_x_add")}
        shapes |= {at + m: (dy, dy) for m in ("y_y", "y_out.0", "y_out.2")} | {at + "x_y.lin": (dy, 4 * dx)}
        shapes |= {at + m: (dy, 4 * de) for m in ("e_y.lin", "dist_y.lin")}
        without_bias |= {at + m for m in ("a", "e_pos1", "e_pos2")}
        for k, (lin, norm) in enumerate((("linX", "normX"), ("linE", "normE"), ("lin_y", "norm_y"))):
            shapes |= {f"tf_layers.{n}.{lin}1": (hidden[k], widths[k]), f"tf_layers.{n}.{lin}2": (widths[k], hidden[k])}
            norms |= {f"tf_layers.{n}.{norm}{m}": widths[k] for m in (1, 2)}
    state = {}
    for name, shape in shapes.items():
        bound = shape[1] ** -0.5
        state[name + ".weight"] = (2 * torch.rand(shape, generator=g) - 1) * bound
        if name not in without_bias:
            state[name + ".bias"] = (2 * torch.rand(shape[0], generator=g) - 1) * bound
    for name, width in norms.items():
        state[name + ".weight"] = 1 + 0.1 * torch.randn(width, generator=g)
        state[name + ".bias"] = 0.1 * torch.randn(width, generator=g)
    for n in range(layers):
        state[f"tf_layers.{n}.norm_pos1.weight"] = 1 + 0.1 * torch.randn(1, generator=g)
    return state
