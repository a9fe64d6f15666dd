"""Scaled dot-product attention with the fastest kernel for the dtype and device."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["attention"]


def attention(
    query: Float[Tensor, "batch head time width"],
    key: Float[Tensor, "batch head column width"],
    value: Float[Tensor, "batch head column width"],
    mask: Bool[Tensor, "*any"] | None = None,
    *,
    causal: bool = False,
) -> Float[Tensor, "batch head time width"]:
    """softmax(Q Kᵀ / sqrt(d)) V over the columns where ``mask`` [B, 1, T or 1, S] is True.

    It calls the kernel of torch, except in half precision on a CPU, where the backward pass of that kernel is several times
    slower than three plain operations (measured in torch 2.13: 0.28 s against 0.03 s at B = 256, 5 heads, T = 98). The choice
    depends only on dtype and device, so sampling and replay use the same kernel.

    Args:
        query: Q [B, H, T, D].
        key: K [B, H, S, D].
        value: V [B, H, S, D].
        mask: columns that each query may attend to, at least one per query; None means all.
        causal: whether each query attends to the columns up to its own; requires T = S and no ``mask``.
    """
    if query.device.type != "cpu" or query.dtype not in (torch.bfloat16, torch.float16):
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
    b, h, t, d = query.shape
    s = key.shape[2]
    scores = torch.baddbmm(
        _bias(query, s, mask, causal), query.reshape(b * h, t, d) * d**-0.5, key.reshape(b * h, s, d).transpose(1, 2)
    )
    return torch.bmm(scores.softmax(-1), value.reshape(b * h, s, d)).view(b, h, t, d)


def _bias(query: Tensor, columns: int, mask: Tensor | None, causal: bool) -> Tensor:
    """Additive mask [B H, T, S]: 0 where a column may be attended to and -inf elsewhere; expanded where possible."""
    b, h, t, _ = query.shape
    if mask is not None:
        bias = torch.zeros((), dtype=query.dtype).masked_fill(~mask, -torch.inf)
        return bias.expand(b, h, t, columns).reshape(b * h, t, columns)
    if causal:
        return query.new_full((t, columns), -torch.inf).triu(1).expand(b * h, t, columns)
    return query.new_zeros(()).expand(b * h, t, columns)
