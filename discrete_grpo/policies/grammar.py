"""Grammars: which tokens may follow a prefix of a text, so that a policy draws only texts that follow the rules.

With legal tokens G(x_<t), a step draws from the network's probabilities restricted to them and renormalised,

    π(x_t | x_<t) = p(x_t | x_<t) 1[x_t ∈ G(x_<t)] / Σ_{G(x_<t)} p,

and log π is exact, since G depends on the text alone. The state of a grammar is a dict of tensors with one row per text; its
methods read no value on the host, so that sampling never waits for an accelerator. Those of whole texts, in training, may.

A grammar may also describe each state by a few integers, which a network reads beside the tokens: they hold what the network would
otherwise have to count over the whole text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

__all__ = ["State", "TokenGrammar", "along", "check_grammar", "legal_along"]

State = dict[str, Tensor]
"""Tensors [B, ...], one row per text."""
STATES = {"cpu": 2048, "cuda": 16_384}
"""Number of states from which tables are read at a time, by device: what a processor's cache holds, and few launches."""


@runtime_checkable
class TokenGrammar(Protocol):
    """The legal continuations of a text. Every state reached by legal tokens has at least one legal token.

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


@runtime_checkable
class WholeTextGrammar(TokenGrammar, Protocol):
    """A grammar that computes the states of a whole text faster than a token at a time."""

    def states_along(self, tokens: Int[Tensor, "row step"]) -> State:
        """The states before each token of given texts, text after text [B T, ...], as :meth:`advance` would give them.

        The states behind an illegal token may be others.
        """
        ...


@torch.no_grad()
def along(grammar: TokenGrammar, tokens: Int[Tensor, "row step"], *read: Callable[[State], Tensor]) -> tuple[Tensor, ...]:
    """Tables [B, T, ...] that functions read from the states of given texts, at each place before the token that stands there."""
    if isinstance(grammar, WholeTextGrammar):
        most = STATES.get(tokens.device.type, STATES["cpu"])
        parts = tokens.long().split(max(1, most // max(1, tokens.shape[1])))
        tables = [[function(states) for function in read] for states in map(grammar.states_along, parts)]
        return tuple(torch.cat(rows).unflatten(0, tokens.shape) for rows in zip(*tables, strict=True))
    state = grammar.start(len(tokens), tokens.device)
    found: list[list[Tensor]] = [[] for _ in read]
    for column in tokens.long().unbind(1):
        for rows, function in zip(found, read, strict=True):
            rows.append(function(state))
        state = grammar.advance(state, column)
    return tuple(torch.stack(rows, 1) for rows in found)


def legal_along(grammar: TokenGrammar, tokens: Int[Tensor, "row step"]) -> Bool[Tensor, "row step token"]:
    """The legal tokens at each place of given texts."""
    return along(grammar, tokens, grammar.legal)[0]


def check_grammar(grammar: TokenGrammar | None, network: Any, num_tokens: int) -> tuple[int, ...]:
    """Check that the features that a network reads have the sizes that the grammar gives.

    Raises:
        ValueError: if they differ, or the grammar has another alphabet.
    """
    wanted, given = (tuple(getattr(one, "feature_sizes", ())) for one in (network, grammar))
    if wanted and wanted != given:
        raise ValueError(f"network: reads features of sizes {wanted}, expected those of the grammar, {given or 'none'}")
    if grammar is not None and grammar.num_tokens != num_tokens:
        raise ValueError(f"grammar: of {grammar.num_tokens} tokens, expected those of the tokenizer, {num_tokens}")
    return wanted
