"""MolGPT as published, in float64 and with loops: one position, one head, one block after another.

Only the names and shapes of its tensors and the order of its operations are taken over: token, position and type
embeddings added; a property token of type 0 in front; pre-norm blocks of causal attention, over the property token too,
and a feed-forward part with the exact GELU; a last norm and a head without bias.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


def random_state(
    num_tokens: int, block: int, *, width: int = 16, layers: int = 2, num_properties: int = 0, seed: int = 0
) -> dict[str, Tensor]:
    """Random weights by MolGPT's names, with the causal masks it stores."""
    generator = torch.Generator().manual_seed(seed)
    d = width
    shapes: dict[str, tuple[int, ...]] = {"pos_emb": (1, block, d), "tok_emb.weight": (num_tokens, d), "type_emb.weight": (2, d)}
    if num_properties:
        shapes |= {"prop_nn.weight": (d, num_properties), "prop_nn.bias": (d,)}
    for k in range(layers):
        here = f"blocks.{k}."
        for name in ("ln1", "ln2"):
            shapes |= {f"{here}{name}.weight": (d,), f"{here}{name}.bias": (d,)}
        for name in ("key", "query", "value", "proj"):
            shapes |= {f"{here}attn.{name}.weight": (d, d), f"{here}attn.{name}.bias": (d,)}
        shapes |= {f"{here}mlp.0.weight": (4 * d, d), f"{here}mlp.0.bias": (4 * d,)}
        shapes |= {f"{here}mlp.2.weight": (d, 4 * d), f"{here}mlp.2.bias": (d,)}
    shapes |= {"ln_f.weight": (d,), "ln_f.bias": (d,), "head.weight": (num_tokens, d)}
    state = {name: 0.4 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    columns = block + bool(num_properties) + 48
    for k in range(layers):
        state[f"blocks.{k}.attn.mask"] = torch.ones(1, 1, columns, columns).tril()
    return state


def logits(state: Mapping[str, Tensor], ids: list[int], heads: int, properties: list[float] | None = None) -> Tensor:
    """Logits after each of ``ids`` [T, V]."""
    w = {name: t.double() for name, t in state.items()}
    columns = []
    if properties is not None:
        value = torch.tensor(properties, dtype=torch.float64)
        columns.append(w["prop_nn.weight"] @ value + w["prop_nn.bias"] + w["type_emb.weight"][0])
    for position, k in enumerate(ids):
        columns.append(w["tok_emb.weight"][k] + w["pos_emb"][0, position] + w["type_emb.weight"][1])
    layers = sum(name.endswith("attn.proj.weight") for name in w)
    for k in range(layers):
        block = {name.removeprefix(f"blocks.{k}."): t for name, t in w.items() if name.startswith(f"blocks.{k}.")}
        mixed = _attention([_norm(x, block, "ln1") for x in columns], block, heads)
        columns = [x + y for x, y in zip(columns, mixed, strict=True)]
        columns = [x + _feed(_norm(x, block, "ln2"), block) for x in columns]
    last = columns[len(columns) - len(ids) :]
    return torch.stack([w["head.weight"] @ _norm(x, w, "ln_f") for x in last])


def _norm(x: Tensor, w: Mapping[str, Tensor], name: str) -> Tensor:
    centred = x - x.mean()
    return centred / torch.sqrt((centred**2).mean() + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def _linear(x: Tensor, w: Mapping[str, Tensor], name: str) -> Tensor:
    return w[f"{name}.weight"] @ x + w[f"{name}.bias"]


def _feed(x: Tensor, w: Mapping[str, Tensor]) -> Tensor:
    hidden = _linear(x, w, "mlp.0")
    return _linear(hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2))), w, "mlp.2")


def _attention(columns: list[Tensor], w: Mapping[str, Tensor], heads: int) -> list[Tensor]:
    size = len(columns[0]) // heads
    query, key, value = ([_linear(x, w, f"attn.{name}") for x in columns] for name in ("query", "key", "value"))
    out = []
    for t in range(len(columns)):
        parts = []
        for h in range(heads):
            own = slice(h * size, (h + 1) * size)
            scores = torch.stack([query[t][own] @ key[s][own] / math.sqrt(size) for s in range(t + 1)])
            share = torch.exp(scores - scores.max())
            share = share / share.sum()
            parts.append(torch.stack([share[s] * value[s][own] for s in range(t + 1)]).sum(0))
        out.append(_linear(torch.cat(parts), w, "attn.proj"))
    return out
