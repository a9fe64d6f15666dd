"""Text as token ids and back: SMILES by a regular expression, any text by characters, any alphabet by its own expression.

Ids 0 to 3 are PAD, BOS, EOS and MASK; ordinary tokens follow. No ordinary token shares an id with a special one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from discrete_grpo.core.checks import check_distinct, check_range
from discrete_grpo.core.precision import place

__all__ = [
    "BOS",
    "CHARACTERS",
    "EOS",
    "MASK",
    "NUM_SPECIAL",
    "PAD",
    "SMILES",
    "Property",
    "TokenBatch",
    "Tokenizer",
    "matches",
    "pad_left",
    "tokens_of",
]

PAD, BOS, EOS, MASK = range(4)
NUM_SPECIAL = 4

SMILES = r"\[[^\]]+\]|Br|Cl|%[0-9]{2}|[A-Za-z0-9()=#\-+\\/:~@?>*$.]"
"""A bracket atom, a two-letter halogen, a two-digit ring number or one character.

Source: the SMILES expression of Schwaller et al. (2019), doi 10.1021/acscentsci.9b00576, with the single characters as one set.
"""

CHARACTERS = r"(?s:.)"
"""Every character is a token."""


@dataclass(frozen=True)
class Tokenizer:
    """An alphabet of tokens and the regular expression that splits text into them.

    Attributes:
        tokens: ordinary tokens; ``tokens[k]`` has id ``k + NUM_SPECIAL``.
        pattern: regular expression of one token.

    Raises:
        ValueError: if there are no tokens, one is empty or repeated, or the pattern is no expression.

    >>> tokenizer = Tokenizer.of(["CCl", "c1ccccc1"], SMILES)
    >>> tokenizer.tokens, tokenizer.encode("CCl"), tokenizer.decode([4, 5])
    (('C', 'Cl', '1', 'c'), [4, 5], 'CCl')
    """

    tokens: tuple[str, ...]
    pattern: str = CHARACTERS

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", tuple(self.tokens))
        if not self.tokens or "" in self.tokens:
            raise ValueError(f"tokens: {self.tokens[:5]}, expected at least one, none of them empty")
        check_distinct("tokens", self.tokens)
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"pattern: {self.pattern!r} is no regular expression ({error})") from error

    @classmethod
    def of(cls, texts: Iterable[str], pattern: str = CHARACTERS) -> Tokenizer:
        """The alphabet of ``texts``, sorted by the place where its tokens' first characters stand in Unicode, capitals first.

        Raises:
            ValueError: if no token matches a part of a text, or there is no text.
        """
        found: set[str] = set()
        for text in texts:
            found.update(_split(text, pattern))
        return cls(tuple(sorted(found, key=lambda t: (not t[0].isupper(), t))), pattern)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: k + NUM_SPECIAL for k, token in enumerate(self.tokens)}

    def __len__(self) -> int:
        """Number of ids, special ones included."""
        return len(self.tokens) + NUM_SPECIAL

    def split(self, text: str) -> list[str]:
        """The tokens of ``text``.

        Raises:
            ValueError: naming the first part of the text that is not a token of this alphabet.
        """
        parts = _split(text, self.pattern)
        for part in parts:
            if part not in self._ids:
                raise ValueError(f"text: {_short(text)} has the token {part!r}, expected one of the alphabet's {len(self.tokens)}")
        return parts

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, without BOS and EOS.

        Raises:
            ValueError: if a token is outside the alphabet.
        """
        return [self._ids[part] for part in self.split(text)]

    def knows(self, text: str) -> bool:
        """Whether every token of ``text`` is in the alphabet."""
        try:
            self.split(text)
        except ValueError:
            return False
        return True

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``; special ids are left out."""
        return "".join(self.tokens[k - NUM_SPECIAL] for k in ids if k >= NUM_SPECIAL)


def matches(text: str, pattern: str) -> bool:
    """Whether the tokens of an expression, one after the other, make up the whole text.

    >>> matches("CCl", SMILES), matches("[NH3]->[Pt]<-[NH3]", SMILES)
    (True, False)
    """
    return sum(map(len, tokens_of(text, pattern))) == len(text)


def tokens_of(text: str, pattern: str) -> list[str]:
    """The tokens that an expression finds in a text, in order; groups in the expression make no difference.

    >>> tokens_of("aab", "(a)+|b")
    ['aa', 'b']
    """
    return [match[0] for match in re.finditer(pattern, text)]


def _split(text: str, pattern: str) -> list[str]:
    parts = tokens_of(text, pattern)
    if sum(map(len, parts)) == len(text):
        return parts
    at = 0
    for match in re.finditer(pattern, text):
        if match.start() != at:
            break
        at = match.end()
    raise ValueError(f"text: {_short(text)} has {text[at : at + 1]!r} at position {at}, where no token fits")


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


@dataclass(frozen=True)
class TokenBatch:
    """Sequences with their conditions, as likelihood training takes them.

    Attributes:
        tokens: ids with EOS after the last, PAD beyond [B, T]; BOS is left to the policy.
        prompt: condition ids, PAD on the left [B, P]; None without prompts.
        properties: standardised values, NaN where unknown [B, K]; None without properties.
    """

    tokens: Int[Tensor, "batch time"]
    prompt: Int[Tensor, "batch prompt"] | None = None
    properties: Float[Tensor, "batch property"] | None = None

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def to(self, device: torch.device | str) -> TokenBatch:
        """A copy on ``device``."""
        where = torch.device(device)
        moved = (None if t is None else place(t, where) for t in (self.prompt, self.properties))
        return TokenBatch(place(self.tokens, where), *moved)


@dataclass(frozen=True)
class Property:
    """A condition that is a number, and the mean and deviation by which it is standardised: (value - mean) / std.

    Raises:
        ValueError: if ``std`` is not positive.
    """

    name: str
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        check_range("std", self.std, above=0, note=f" (property {self.name!r})")


def pad_left(rows: Sequence[Sequence[int]]) -> Int[Tensor, "batch width"]:
    """Rows of ids as one tensor, PAD in front of the shorter ones.

    >>> pad_left([[5], [6, 7]])
    tensor([[0, 5],
            [6, 7]])
    """
    width = max(map(len, rows), default=0)
    return torch.tensor([[PAD] * (width - len(row)) + list(row) for row in rows], dtype=torch.long).reshape(len(rows), width)
