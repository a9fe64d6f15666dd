"""Grammars: which tokens may follow the beginning of a text, so that a policy draws no text that breaks the rules.

With legal tokens G(x_<t), a step draws from the network's probabilities restricted to them and renormalised,

    π(x_t | x_<t) = p(x_t | x_<t) 1[x_t ∈ G(x_<t)] / Σ_{G(x_<t)} p,

and log π is exact, since G depends on the text alone. The state of a grammar is a dict of tensors with one row per text; its
methods look at no value on the host, so that drawing waits for nothing on an accelerator.
"""

from __future__ import annotations

from typing import Protocol

import torch
from jaxtyping import Bool, Int
from torch import Tensor

__all__ = ["State", "TokenGrammar", "legal_along"]

State = dict[str, Tensor]
"""Tensors [B, ...], one row per text."""


class TokenGrammar(Protocol):
    """The legal continuations of a text. In each state that is reached by legal tokens at least one token is legal.

    Attributes:
        num_tokens: size of the alphabet with its four special tokens, that of the tokenizer.
    """

    num_tokens: int

    def start(self, rows: int, device: torch.device) -> State:
        """The state before the first token."""
        ...

    def legal(self, state: State) -> Bool[Tensor, "row token"]:
        """Which tokens may come next; EOS where the text may end."""
        ...

    def advance(self, state: State, tokens: Int[Tensor, " row"]) -> State:
        """The state after one more token of each text; special tokens change nothing."""
        ...


@torch.no_grad()
def legal_along(grammar: TokenGrammar, tokens: Int[Tensor, "row step"]) -> Bool[Tensor, "row step token"]:
    """The legal tokens at each place of given texts, before the token that stands there."""
    state, found = grammar.start(len(tokens), tokens.device), []
    for column in tokens.long().unbind(1):
        found.append(grammar.legal(state))
        state = grammar.advance(state, column)
    return torch.stack(found, 1)
