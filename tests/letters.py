"""Texts of a few letters as a space that can be enumerated: a token policy over it, and a reward with a known best text."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from discrete_grpo.domains.tokenizer import Tokenizer
from discrete_grpo.models.recurrent import Recurrent, RecurrentConfig
from discrete_grpo.policies.tokens import TokenPolicy

ALPHABET = "abc"
LETTERS = Tokenizer(tuple(ALPHABET))


def letters_policy(max_length: int = 3, *, seed: int = 0, spread: float = 0.4, width: int = 16, **options: Any) -> TokenPolicy:
    """A small recurrent policy in float64 over the texts of at most ``max_length`` letters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = Recurrent(RecurrentConfig(len(LETTERS), "gru", layers=1, width=width, embedding=8)).double()
        for parameter in net.parameters():
            nn.init.normal_(parameter, std=spread)
    return TokenPolicy(net, LETTERS, max_length=max_length, **options).eval()


def texts(max_length: int = 3) -> list[str]:
    """All texts, the empty one first."""
    return ["".join(t) for n in range(max_length + 1) for t in itertools.product(ALPHABET, repeat=n)]


def worth(text: str) -> float:
    """A number in [0, 1): the share of positions at which the text is ``cabca...``, plus a little that tells texts apart."""
    target = "cab" * 3
    hits = sum(a == b for a, b in zip(text, target, strict=False))
    return hits / 6 + (zlib.crc32(text.encode()) % 1000) / 1e5


class Worth:
    """The reward :func:`worth` that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, samples: Sequence[str], **columns: Any) -> list[float]:
        self.asked += samples
        return [worth(text) for text in samples]


def not_empty(text: str) -> str | None:
    """Canonical form: the empty text is invalid."""
    return text or None
