"""Causal transformer of tokens with a condition prefix and a key-value cache.

The sequence is ``[prompt tokens][property token][BOS x_1 x_2 ...]``; only the last part is predicted. Positions are
counted from 0 in the prompt and again from BOS on, so the score of a sequence does not depend on the prefixes of the rest of its
batch. A type embedding separates the two parts. Linear layers run on real tokens only, packed end to end; only attention runs on
the padded square. Source: GPT-2 (pre-norm blocks); prefix conditions as in MolGPT (Bagal et al. 2022),
doi 10.1021/acs.jcim.1c00600.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from discrete_grpo.core.checks import check_range
from discrete_grpo.core.precision import exact_device
from discrete_grpo.domains.tokenizer import EOS, PAD
from discrete_grpo.models.attention import attention
from discrete_grpo.models.recompute import run_layer

__all__ = ["GPT", "Cache", "GPTConfig"]


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a :class:`GPT`.

    Attributes:
        num_tokens: V, size of the alphabet with special tokens; at least 2.
        block_size: length of the longest sequence after the prefix, BOS included.
        num_properties: length of the property vector; 0 means that there is no property token.
        layers: number of layers.
        heads: number of attention heads, a divisor of ``width``.
        width: width of the hidden states.
        expansion: ratio of the hidden to the outer width of the feed-forward part.
        dropout: dropout rate after embeddings, attention and feed-forward parts, in [0, 1).
        feature_sizes: number of values of each feature that is read beside a token; none by default.

    Raises:
        ValueError: for a value out of its range.
    """

    num_tokens: int
    block_size: int
    num_properties: int = 0
    layers: int = 6
    heads: int = 4
    width: int = 144
    expansion: int = 4
    dropout: float = 0.0
    feature_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "feature_sizes", tuple(self.feature_sizes))
        for size in self.feature_sizes:
            check_range("feature_sizes", size, least=1)
        least = {"num_tokens": 2, "block_size": 2, "num_properties": 0, "layers": 1, "heads": 1, "width": 1, "expansion": 1}
        for name, low in least.items():
            check_range(name, getattr(self, name), least=low)
        if self.width % self.heads:
            raise ValueError(f"width: {self.width}, expected a multiple of heads ({self.heads})")
        check_range("dropout", self.dropout, least=0, below=1)


class Cache:
    """Keys and values of the tokens read so far, one pair of tensors [B, H, capacity, D] per layer, with a mask.

    Attributes:
        length: number of columns that are filled.
        prefix: number of columns of the prefix.
        mask: columns that may be attended to [B, 1, 1, capacity]; None if all of them may.
    """

    def __init__(self, config: GPTConfig, rows: int, prefix: int, like: Tensor) -> None:
        shape = (rows, config.heads, prefix + config.block_size, config.width // config.heads)
        self.past = [(like.new_empty(shape), like.new_empty(shape)) for _ in range(config.layers)]
        self.length, self.prefix = 0, prefix
        self.mask: Tensor | None = None

    def select(self, rows: Int[Tensor, " row"]) -> None:
        """Keep these rows only; the rows of finished sequences are dropped."""
        self.past = [(self._rows(k, rows), self._rows(v, rows)) for k, v in self.past]
        self.mask = None if self.mask is None else self.mask[rows]

    def _rows(self, old: Tensor, rows: Tensor) -> Tensor:
        kept = old.new_empty((len(rows), *old.shape[1:]))
        kept[:, :, : self.length] = old[rows, :, : self.length]
        return kept

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append new columns to a layer and return all of its columns so far."""
        stop = self.length + keys.shape[2]
        k, v = self.past[layer]
        k[:, :, self.length : stop], v[:, :, self.length : stop] = keys, values
        return k[:, :, :stop], v[:, :, :stop]


BLOCK = 128
"""In bfloat16 on a CPU the number of packed tokens is padded to a multiple of this, as torch caches every new shape."""


class _Layout:
    """Positions of the real tokens in the padded square [B, T]; all layers except attention run on these tokens only.

    On an accelerator the layers run on the whole square, since reading the number of real tokens would make the host wait. Padding
    then has the same values, zeros before attention and in the result.

    Args:
        counts: which tokens are real.
        whole: whether all of them are known to be real, which is then not computed.
    """

    def __init__(self, counts: Bool[Tensor, "batch time"], whole: bool = False) -> None:
        self.shape, self.extra = counts.shape, 0
        here = counts.device.type == "cpu"
        self.gaps = None if whole or here else ~counts
        self.at = None if whole or not here or bool(counts.all()) else counts.flatten().nonzero().squeeze(1)
        if self.at is not None and torch.is_autocast_enabled("cpu"):
            self.extra = -len(self.at) % BLOCK

    def pack(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "token width"]:
        """Return the real tokens, end to end, followed by ``extra`` unused rows."""
        flat = x.flatten(0, 1)
        if self.at is None:
            return flat
        return flat.index_select(0, nn.functional.pad(self.at, (0, self.extra)) if self.extra else self.at)

    def spread(self, x: Float[Tensor, "token width"]) -> Float[Tensor, "batch time width"]:
        """Inverse of :meth:`pack`, with zeros elsewhere."""
        if self.at is not None:
            x = x.new_zeros(self.shape.numel(), x.shape[1]).index_copy(0, self.at, x[: len(self.at)] if self.extra else x)
        square = x.unflatten(0, self.shape)
        return square if self.gaps is None else square.masked_fill(self.gaps.unsqueeze(-1), 0.0)


Past: TypeAlias = "Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]"
"""Function from the new keys and values of a layer to all keys and values that its queries may attend to."""


class _Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        d = config.width
        self.heads = config.heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.feed = nn.Sequential(nn.Linear(d, config.expansion * d), nn.GELU(), nn.Linear(config.expansion * d, d))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, layout: _Layout, past: Past, mask: Tensor | None, causal: bool) -> Tensor:
        q, k, v = layout.spread(self.qkv(self.norm1(x))).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = attention(q, *past(k, v), mask, causal=causal)
        x = x + self.dropout(self.out(layout.pack(mixed.transpose(1, 2).flatten(2))))
        return x + self.dropout(self.feed(self.norm2(x)))


class GPT(nn.Module):
    """Causal transformer: tokens [B, T] that start with BOS -> logits [B, T, V] of the token that follows each.

    Args:
        config: sizes.

    Attributes:
        checkpoint_layers: whether the backward pass recomputes the layers to save memory; it is not stored in a checkpoint.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config, self.checkpoint_layers = config, False
        d = config.width
        self.token = nn.Embedding(config.num_tokens, d)
        self.position = nn.Embedding(config.block_size, d)
        self.kind = nn.Embedding(2, d)  # 0: condition, 1: sequence
        self.feature_sizes = config.feature_sizes
        self.feature = nn.ModuleList(nn.Embedding(size, d) for size in config.feature_sizes)
        self.property = nn.Linear(2 * config.num_properties, d) if config.num_properties else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, config.num_tokens, bias=False)
        self._initialise()

    def _initialise(self) -> None:
        """Draw normal weights of deviation 0.02, times 1/sqrt(2 L) at the end of a residual branch. Source: GPT-2."""
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                end = name.endswith(("out.weight", "feed.2.weight"))
                nn.init.normal_(parameter, std=0.02 / ((2 * self.config.layers) ** 0.5 if end else 1.0))
            elif "norm" not in name:
                nn.init.zeros_(parameter)

    def init_args(self) -> dict[str, GPTConfig]:
        """Return the constructor arguments that a checkpoint stores."""
        return {"config": self.config}

    def cache(self, rows: int, prompt_length: int = 0) -> Cache:
        """Return an empty cache for ``rows`` sequences with prompts of ``prompt_length`` columns."""
        return Cache(self.config, rows, prompt_length + (self.property is not None), self.head.weight)

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        prompt: Int[Tensor, "batch prompt"] | None = None,
        properties: Float[Tensor, "batch property"] | None = None,
        cache: Cache | None = None,
        features: Int[Tensor, "batch time feature"] | None = None,
    ) -> Float[Tensor, "batch time class"]:
        """Logits of the token that follows each of ``tokens``.

        Args:
            tokens: BOS and the tokens after it; with a filled cache only the new tokens. EOS and PAD end a sequence: they are
                not read, and the logits there are 0.
            prompt: condition tokens, padded with PAD on the left; None for none. It is ignored with a filled cache.
            properties: property values, NaN where one is not given; None if none is. They are ignored with a filled cache.
            cache: a key-value cache, which this call extends; None for none.
            features: whole numbers beside each token, as many as ``feature_sizes`` has; None if it has none.
        """
        first = cache is None or cache.length == 0
        t = tokens.shape[1]
        if not first and t > 1:
            raise ValueError(f"tokens: {t} columns, expected 1 with a filled cache")
        if cache is None:
            past, exists = self._read_prefix(tokens, prompt, properties)
            join: list[Past] = [partial(_behind, kv) for kv in past] or [_alone] * len(self.blocks)
            mask = None if exists is None else nn.functional.pad(exists, (0, t), value=True)
            seen, start = (past[0][0].shape[2] if past else 0), 0
        else:
            if first:
                self._fill(cache, tokens, prompt, properties)
            join = [partial(cache.extend, layer) for layer in range(len(self.blocks))]
            mask = None if cache.mask is None else cache.mask[..., : cache.length + t]
            seen, start = cache.length, cache.length - cache.prefix
        if t > 1 and seen:  # each column attends to the whole prefix and to the sequence up to itself
            lower = torch.ones(t, seen + t, dtype=torch.bool, device=tokens.device).tril(seen)
            mask = lower if mask is None else lower & mask
        at = torch.arange(start, start + t, device=tokens.device)
        ended = (tokens == PAD) | (tokens == EOS)
        layout = _Layout(~ended, whole=cache is not None)
        x = self.token(tokens) + self.position(at) + self.kind.weight[1]
        if features is not None:
            x = sum((table(column) for table, column in zip(self.feature, features.unbind(-1), strict=True)), x)
        x = self.dropout(layout.pack(x))
        for block, past_of in zip(self.blocks, join, strict=True):
            x = self._run(block, x, layout, past_of, mask, mask is None and t > 1, again=cache is None)
        if cache is not None:
            cache.length += t
        return layout.spread(self.head(self.norm(x)))

    def _run(self, job: Callable[..., Any], *arguments: Any, again: bool = True) -> Any:
        return run_layer(job, *arguments, again=again and self.checkpoint_layers, random=self.training)

    def _fill(self, cache: Cache, tokens: Tensor, prompt: Tensor | None, properties: Tensor | None) -> None:
        """Write the prefix into an empty cache."""
        past, exists = self._read_prefix(tokens, prompt, properties)
        if not past:
            return
        for layer, (keys, values) in enumerate(past):
            cache.extend(layer, keys, values)
        cache.length = past[0][0].shape[2]
        if exists is not None:
            cache.mask = nn.functional.pad(exists, (0, cache.past[0][0].shape[2] - cache.length), value=True)

    def _read_prefix(
        self, tokens: Tensor, prompt: Tensor | None, properties: Tensor | None
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
        """Keys and values of the prefix per layer, and the columns that exist [B, 1, 1, P]; equal prefixes are computed once.

        The list is empty if there is no prefix, and the mask is None if all columns exist.
        """
        columns = 0 if prompt is None else prompt.shape[1]
        if columns == 0 and self.property is None:
            return [], None
        first, row = _distinct(len(tokens), prompt, properties, tokens.device)
        x, exists = self._prefix(len(first), *(None if c is None else c[first] for c in (prompt, properties)))
        whole = columns == 0 or (exists.device.type == "cpu" and bool(exists.all()))
        mask = None if whole else _causal_mask(exists)
        past: list[tuple[Tensor, Tensor]] = []
        layout = _Layout(exists, whole=whole)
        x = self.dropout(layout.pack(x))
        for block in self.blocks:
            x, keys, values = self._run(_with_past, block, x, layout, mask, mask is None and exists.shape[1] > 1)
            past.append((keys[row], values[row]))
        return past, None if mask is None else exists[row][:, None, None, :]

    def _prefix(self, b: int, prompt: Tensor | None, properties: Tensor | None) -> tuple[Tensor, Tensor]:
        """Embeddings of the condition columns [B, P, d], and the columns that exist [B, P]."""
        device = self.head.weight.device
        parts, exists = [self.token.weight.new_zeros(b, 0, self.config.width)], [torch.ones(b, 0, dtype=torch.bool, device=device)]
        if prompt is not None and prompt.shape[1]:
            there = prompt != PAD
            at = (there.cumsum(1) - 1).clamp_min(0)
            parts.append(self.token(prompt) + self.position(at) + self.kind.weight[0])
            exists.append(there)
        if self.property is not None:
            if properties is None:
                properties = torch.full((b, self.config.num_properties), torch.nan, device=device)
            given = ~properties.isnan()
            features = torch.cat([torch.where(given, properties, 0.0), given.to(properties.dtype)], -1)
            parts.append((self.property(features.to(self.head.weight.dtype)) + self.kind.weight[0]).unsqueeze(1))
            exists.append(torch.ones(b, 1, dtype=torch.bool, device=device))
        return torch.cat(parts, 1), torch.cat(exists, 1)


def _behind(past: tuple[Tensor, Tensor], keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenate the keys and values of a prefix with those of the sequence."""
    return torch.cat([past[0], keys], 2), torch.cat([past[1], values], 2)


def _alone(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    return keys, values


def _with_past(block: _Block, x: Tensor, layout: _Layout, mask: Tensor | None, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer on the prefix and return its output, keys and values."""
    made: list[tuple[Tensor, Tensor]] = []

    def keep(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        made.append((keys, values))
        return keys, values

    return block(x, layout, keep, mask, causal), *made[0]


def _distinct(
    rows: int, prompt: Tensor | None, properties: Tensor | None, device: torch.device
) -> tuple[Int[Tensor, " distinct"], Int[Tensor, " batch"]]:
    """First row of every distinct prefix, and the number of the prefix of each row; on an accelerator every row has its own."""
    if device.type != "cpu" and not (prompt is None and properties is None):  # comparing them would make the host wait
        everyone = torch.arange(rows, device=device)
        return everyone, everyone
    parts = [] if prompt is None else [prompt.long()]
    if properties is not None:
        parts.append(properties.nan_to_num(torch.inf).to(exact_device(device)).double().view(torch.long).to(device))
    if not parts:
        return torch.zeros(1, dtype=torch.long, device=device), torch.zeros(rows, dtype=torch.long, device=device)
    _, row = torch.unique(torch.cat(parts, 1), dim=0, return_inverse=True)
    number = torch.arange(rows - 1, -1, -1, device=device)
    first = torch.zeros(int(row.max()) + 1, dtype=torch.long, device=device).scatter(0, row.flip(0), number)
    return first, row


def _causal_mask(exists: Bool[Tensor, "batch time"]) -> Bool[Tensor, "batch 1 time time"]:
    """Causal attention mask: each column attends to earlier columns that exist, and to itself, so that no row is empty."""
    n = exists.shape[1]
    lower = torch.ones(n, n, dtype=torch.bool, device=exists.device).tril()
    own = torch.eye(n, dtype=torch.bool, device=exists.device)
    return ((lower & exists[:, None, :]) | own).unsqueeze(1)
