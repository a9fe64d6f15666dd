"""The loop in which an autoregressive policy draws its tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from discrete_grpo.core.categorical import gather, sample
from discrete_grpo.domains.tokenizer import BOS, EOS, PAD
from discrete_grpo.policies.truncation import pack_bits

if TYPE_CHECKING:
    from discrete_grpo.policies.tokens import TokenPolicy

__all__ = ["draw_tokens"]

CHECK_EVERY = 8
"""Number of tokens between two counts of the unfinished rows on an accelerator, since the host waits for each count."""
LIVE_SHARE = 0.8
"""Finished rows leave the batch when less than this share of it is unfinished, since copying the cache also takes time."""


def draw_tokens(
    policy: TokenPolicy, count: int, prompt: Tensor | None, properties: Tensor | None, generator: torch.Generator | None
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Tokens and kept sets [B, S, ...], log-probs [B, S] and lengths [B]; finished rows leave the batch on the way."""
    device = policy.device
    small = torch.uint8 if len(policy.tokenizer) <= 256 else torch.int16 if len(policy.tokenizer) < 2**15 else torch.int32
    tokens = torch.full((count, policy.max_length), PAD, dtype=small, device=device)
    logp = torch.zeros(count, policy.max_length, dtype=torch.promote_types(policy.dtype, torch.float32), device=device)
    kept: list[Tensor] = []
    described: list[Tensor] = []
    length = torch.full((count,), policy.max_length, device=device)
    rows = torch.arange(count, device=device)  # which trajectory each row of the cache belongs to
    last, live = torch.full((count,), BOS, device=device), torch.ones(count, dtype=torch.bool, device=device)
    cache = policy.network.cache(count, 0 if prompt is None else prompt.shape[1])  # type: ignore[operator]
    every = 1 if device.type == "cpu" else CHECK_EVERY
    written = {} if policy.grammar is None else policy.grammar.start(count, device)
    for t in range(policy.max_length):
        conditions = (prompt, properties) if t == 0 else (None, None)
        read = {"features": policy.grammar.features(written).unsqueeze(1)} if policy.feature_sizes else {}  # type: ignore[union-attr]
        described += [_on(rows, count, x[:, 0].to(torch.uint8)) for x in read.values()]
        logits = policy.network(last[:, None], *conditions, cache=cache, **read)[:, 0]
        legal = None if policy.grammar is None else policy.grammar.legal(written)
        table, keep = policy.tables(logits, torch.full_like(last, t), None, legal)
        last = torch.where(live, sample(table.exp(), generator), PAD)
        tokens[rows, t] = last.to(small)
        logp[rows, t] = torch.where(live, gather(table, last), 0.0)
        if policy.grammar is not None:
            written = policy.grammar.advance(written, last)
        if policy.restricts:
            kept.append(_on(rows, count, pack_bits(keep)))
        ended = live & (last == EOS)
        length[rows] = torch.where(ended, t + 1, length[rows])
        live = live & ~ended
        if (t + 1) % every:
            continue
        alive = int(live.sum())
        if alive == 0:
            break
        if alive < LIVE_SHARE * len(rows):
            stay = live.nonzero().squeeze(1)
            cache.select(stay)
            rows, last, live = rows[stay], last[stay], live[stay]
            written = {name: state[stay] for name, state in written.items()}
    s = int(length.max())
    states = {"tokens": tokens[:, :s].contiguous()}
    states |= {name: torch.stack(x[:s], 1) for name, x in {"kept": kept, "features": described}.items() if x}
    return states, logp[:, :s].contiguous(), length.clamp_max(s)


def _on(rows: Int[Tensor, " row"], count: int, values: Tensor) -> Tensor:
    """Values of some of ``count`` rows, 0 for the others."""
    found = values.new_zeros(count, *values.shape[1:])
    found[rows] = values
    return found
