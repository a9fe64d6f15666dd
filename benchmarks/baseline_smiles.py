"""A MolGPT-shaped generator, written from the published description, the baseline of ``smiles_speed``.

Eight pre-norm layers of width 256, separate projections for queries, keys and values, a masked softmax over the whole
square, learned positions, a type embedding, an untied head over every position, and conditions as a prefix padded to a
fixed length. Sampling reads the whole sequence anew for every token and always takes ``block`` steps; an update reads
``block`` positions of every row, whatever its length. Source: Bagal et al. (2022), doi 10.1021/acs.jcim.1c00600.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["PeerGPT", "peer_log_probs", "peer_sample"]


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.key, self.query, self.value, self.proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.heads, d // self.heads).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.shape[-1])
        weights = scores.masked_fill(~allowed[:t, :t], -torch.inf).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, t, d))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = _Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        x = x + self.attention(self.ln1(x), allowed)
        return x + self.mlp(self.ln2(x))


class PeerGPT(nn.Module):
    """Tokens [B, T], scaffold tokens [B, F] -> logits [B, T, V]; the prefix is one property token and F scaffold tokens."""

    def __init__(self, vocabulary: int, block: int, scaffold: int = 0, layers: int = 8, heads: int = 8, width: int = 256) -> None:
        super().__init__()
        self.block, self.scaffold = block, scaffold
        self.tok_emb, self.type_emb = nn.Embedding(vocabulary, width), nn.Embedding(2, width)
        self.pos_emb = nn.Parameter(torch.zeros(1, block, width))
        self.prop_nn = nn.Linear(1, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        size = block + scaffold + 1
        self.register_buffer("allowed", torch.ones(size, size, dtype=torch.bool).tril())

    def forward(self, tokens: Tensor, scaffold: Tensor | None = None, properties: Tensor | None = None) -> Tensor:
        """Logits of the token after each; the prefix positions' are computed and dropped."""
        t = tokens.shape[1]
        x = self.tok_emb(tokens) + self.pos_emb[:, :t] + self.type_emb.weight[1]
        if properties is not None:
            x = torch.cat([self.prop_nn(properties.unsqueeze(1)) + self.type_emb.weight[0], x], 1)
        if scaffold is not None:
            x = torch.cat([self.tok_emb(scaffold) + self.type_emb.weight[0], x], 1)
        for block in self.blocks:
            x = block(x, self.allowed)
        return self.head(self.ln_f(x))[:, -t:]


@torch.no_grad()
def peer_sample(
    net: PeerGPT, start: Tensor, scaffold: Tensor | None, properties: Tensor | None, generator: torch.Generator | None = None
) -> Tensor:
    """Draw ``block`` tokens per row; every step reads the whole sequence so far again."""
    tokens = start
    for _ in range(net.block):
        logits = net(tokens[:, -net.block :], scaffold, properties)[:, -1]
        drawn = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        tokens = torch.cat([tokens, drawn], 1)
    return tokens[:, 1:]


def peer_log_probs(net: PeerGPT, tokens: Tensor, scaffold: Tensor | None, properties: Tensor | None, bos: int) -> Tensor:
    """log p of every one of ``block`` tokens [B, block], padding included in the work."""
    inputs = torch.cat([torch.full_like(tokens[:, :1], bos), tokens[:, :-1]], 1)
    return net(inputs, scaffold, properties).log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
