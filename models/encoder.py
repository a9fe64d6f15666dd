"""A bidirectional transformer over tokens: logits at every position, or one number per text.

Blocks have their norms before attention and feed-forward parts, positions are learned, and padding is never attended to.
Source: Devlin et al. (2019), arXiv 1810.04805; order of the norms: Xiong et al. (2020), arXiv 2002.04745.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from discrete_grpo.core.checks import check_range
from discrete_grpo.models.attention import attention
from discrete_grpo.models.recompute import run_layer

__all__ = ["Encoder", "EncoderConfig", "EncoderSizes", "PooledEncoder"]


@dataclass(frozen=True, kw_only=True)
class EncoderSizes:
    """Sizes of an :class:`Encoder` or a :class:`PooledEncoder`, independent of its alphabet.

    Attributes:
        layers: depth.
        heads: attention heads.
        width: width of the hidden states, a multiple of ``heads``.
        expansion: hidden over outer width in the feed-forward parts.
        context: neighbours on each side that a convolution mixes in before the first layer; 0 means no convolution. It
            provides local spelling from the start, which a network learns only slowly from one pooled number per text.
        dropout: dropout probability after embeddings, attention and feed-forward parts, in [0, 1).

    Raises:
        ValueError: for a value out of its range.
    """

    layers: int = 4
    heads: int = 4
    width: int = 96
    expansion: int = 2
    context: int = 0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "width", "expansion"):
            check_range(name, getattr(self, name), least=1)
        check_range("context", self.context, least=0)
        if self.width % self.heads:
            raise ValueError(f"width: {self.width}, expected a multiple of heads ({self.heads})")
        check_range("dropout", self.dropout, least=0, below=1)


@dataclass(frozen=True)
class EncoderConfig(EncoderSizes):
    """Alphabet and sizes of an :class:`Encoder` or a :class:`PooledEncoder`.

    Attributes:
        num_tokens: V, size of the alphabet with special tokens; at least 2.
        block_size: the longest text in tokens.

    Raises:
        ValueError: for a value out of its range.
    """

    num_tokens: int
    block_size: int

    def __post_init__(self) -> None:
        check_range("num_tokens", self.num_tokens, least=2)
        check_range("block_size", self.block_size, least=1)
        super().__post_init__()


class _Block(nn.Module):
    """x + Attention(norm(x)), then x + Feed(norm(x))."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        d = config.width
        self.heads = config.heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.feed = nn.Sequential(nn.Linear(d, config.expansion * d), nn.GELU(), nn.Linear(config.expansion * d, d))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, attend: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = attention(q, k, v, attend)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.feed(self.norm2(x)))


class _Trunk(nn.Module):
    """Hidden states [B, L, d] of tokens [B, L]; those of padding are meaningless and reach no other position.

    Attributes:
        checkpoint_layers: whether the backward pass computes layers again, to save memory; not part of a saved checkpoint.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        d = config.width
        self.block_size, self.checkpoint_layers = config.block_size, False
        self.token = nn.Embedding(config.num_tokens, d)
        self.position = nn.Embedding(config.block_size, d)
        self.neighbours = nn.Conv1d(d, d, 2 * config.context + 1, padding=config.context) if config.context else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(d)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        length = tokens.shape[1]
        if length > self.block_size:
            raise ValueError(f"tokens: {length} columns, expected at most block_size ({self.block_size})")
        attend = (mask | ~mask.any(1, keepdim=True))[:, None, None, :]  # an empty text attends to padding
        x = self.token(tokens)
        if self.neighbours is not None:  # padding counts as zeros, like positions beyond the ends
            x = x + self.neighbours(torch.where(mask.unsqueeze(-1), x, 0.0).transpose(1, 2)).transpose(1, 2)
        x = self.dropout(x + self.position.weight[:length])
        for block in self.blocks:
            x = run_layer(block, x, attend, again=self.checkpoint_layers, random=self.training)
        return self.norm(x)


def _initialise(network: nn.Module, layers: int) -> None:
    """Draw weights from a normal distribution of deviation 0.02, or 0.02/sqrt(2 L) at the end of a residual branch (GPT-2)."""
    for name, parameter in network.named_parameters():
        if parameter.ndim > 1:
            end = name.endswith(("out.weight", "feed.2.weight"))
            nn.init.normal_(parameter, std=0.02 / ((2 * layers) ** 0.5 if end else 1.0))
        elif "norm" not in name:
            nn.init.zeros_(parameter)


class Encoder(nn.Module):
    """Tokens [B, L] and a mask of existing ones [B, L] -> logits [B, L, V].

    Args:
        config: alphabet and sizes.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.trunk = _Trunk(config)
        self.head = nn.Linear(config.width, config.num_tokens)
        _initialise(self, config.layers)

    def init_args(self) -> dict[str, EncoderConfig]:
        """Arguments that build this network again, kept in a checkpoint."""
        return {"config": self.config}

    def compiled_parts(self) -> list[nn.Module]:
        """The modules that ``torch.compile`` compiles: the layers, which are functions of tensors alone."""
        return list(self.trunk.blocks)

    def forward(self, tokens: Int[Tensor, "batch ..."], mask: Bool[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Logits at every position.

        Raises:
            ValueError: if there are more columns than ``block_size``.
        """
        return self.head(self.trunk(tokens, mask))


class PooledEncoder(nn.Module):
    """Tokens [B, L] and a mask of existing ones [B, L] -> one number per text [B], from the mean and the largest hidden states.

    One wrong character in forty hardly changes the mean, but it shows in the largest values.

    Args:
        config: alphabet and sizes.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.trunk = _Trunk(config)
        self.head = nn.Sequential(nn.Linear(2 * config.width, config.width), nn.GELU(), nn.Linear(config.width, 1))
        _initialise(self, config.layers)

    def init_args(self) -> dict[str, EncoderConfig]:
        """Arguments that build this network again, kept in a checkpoint."""
        return {"config": self.config}

    def compiled_parts(self) -> list[nn.Module]:
        """The modules that ``torch.compile`` compiles: the layers, which are functions of tensors alone."""
        return list(self.trunk.blocks)

    def forward(self, tokens: Int[Tensor, "batch ..."], mask: Bool[Tensor, "batch ..."]) -> Float[Tensor, " batch"]:
        """One number per text; the hidden states of a text without tokens count as zeros.

        Raises:
            ValueError: if there are more columns than ``block_size``.
        """
        hidden, there = self.trunk(tokens, mask), mask.unsqueeze(-1)
        mean = torch.where(there, hidden, 0.0).sum(1) / there.sum(1).clamp_min(1)
        largest = torch.where(there, hidden, -torch.inf).amax(1)
        largest = torch.where(there.any(1), largest, 0.0)
        return self.head(torch.cat([mean, largest], -1)).squeeze(-1)
