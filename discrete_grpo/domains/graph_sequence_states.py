"""The states of whole texts of :class:`~discrete_grpo.domains.graph_sequence_grammar.GraphSequenceGrammar`, a text at a time.

A token changes a handful of the numbers in a state. With tensors of all texts it costs about a hundred operations on whole tables;
here, on the host, it costs those few changes and the copy of a row. The states are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from discrete_grpo.core.precision import place

__all__ = ["Sign", "states_along"]

COUNTERS = ("count", "size", "depth", "due", "base", "floor")
LENGTHS = {"joined": 1, "degrees": 1, "line": 5, "waiting": 3}
"""Lengths of the tables of a state, in numbers of nodes."""
MOST_DUE = 3
"""Classes of an edge and of a node, added up as in the grammar."""


class Sign(NamedTuple):
    """The effect of a token on the state, as in the tables of the grammar.

    Attributes:
        front: place of the open node that it names, counted from the head; -1 for none.
        back: the same counted from the last node; -1 for none.
        cuts: whether it cuts the queue.
        new: number of nodes that it makes behind the head's edges.
        newest: whether a whole head has an edge to the last node.
        after: whether a whole head has an edge to the next node.
        done: whether the head leaves the queue.
        star: whether it makes a node without an edge.
        due: classes that have to be named after it, less those that it names.
    """

    front: int
    back: int
    cuts: bool
    new: int
    newest: bool
    after: bool
    done: bool
    star: bool
    due: int


NOTHING = Sign(-1, -1, False, 0, False, False, False, False, 0)
"""The effect of a special token: none."""


def states_along(tokens: Int[Tensor, "row step"], signs: Sequence[Sign], max_nodes: int) -> dict[str, Tensor]:
    """The states before each token of given texts, text after text [B T, ...].

    Behind a token that cannot be followed, the states of its text, which is illegal, stay as they are.

    Args:
        tokens: [B, T] ids.
        signs: the effect of each id.
        max_nodes: N, as that of the grammar.
    """
    tables = np.zeros((*tokens.shape, sum(LENGTHS.values()) * max_nodes), dtype=np.int16)
    texts = ([signs[k] for k in text] for text in tokens.tolist())
    counters = [row for text, rows in zip(texts, tables, strict=True) for row in _follow(text, rows, max_nodes)]
    numbers = place(torch.tensor(counters, dtype=torch.long).reshape(-1, len(COUNTERS)), tokens.device)
    entries = place(torch.from_numpy(tables).flatten(0, 1), tokens.device)
    parts = entries.split([k * max_nodes for k in LENGTHS.values()], 1)
    state = dict(zip(COUNTERS, numbers.unbind(1), strict=True)) | dict(zip(LENGTHS, parts, strict=True))
    return state | {"joined": state["joined"].bool()}


def _follow(text: Sequence[Sign], tables: np.ndarray[Any, Any], n: int) -> list[list[int]]:
    """The counters before each token of a text; its tables are written into the rows of ``tables``."""
    state, counters, legal = _Text(n), [], True
    for step, sign in enumerate(text):
        counters.append(state.counters)
        tables[step] = state.row
        try:
            if legal and sign != NOTHING:
                state.read(sign)
        except (IndexError, ValueError):
            legal = False
    return counters


class _Text:
    """The state of one text; ``joined``, ``degrees``, ``line`` and ``waiting`` are views of ``row``."""

    def __init__(self, n: int) -> None:
        self.counters = [0] * len(COUNTERS)
        self.row = np.zeros(sum(LENGTHS.values()) * n, dtype=np.int16)
        self.joined, self.degrees, self.line, self.waiting = np.split(self.row, np.cumsum([*LENGTHS.values()])[:-1] * n)

    def read(self, sign: Sign) -> None:
        """Change the state as ``GraphSequenceGrammar.advance`` does."""
        count, size, depth, due, base, floor = self.counters
        if count + sign.new + sign.star > len(self.degrees) or not 0 <= due + sign.due <= MOST_DUE:
            raise ValueError("more nodes than there can be, or a class that is not due")
        edge, grows = sign.front >= 0 or sign.back >= 0, sign.new > 0 and not sign.done
        at = size if grows else sign.front if sign.front >= 0 else size - 1 - sign.back
        self._edges(sign, count, size, base, at if edge else 0)
        for k in range(sign.new + sign.star):
            self.line[base + size + k] = count + k
        if sign.done:
            self.joined[:] = 0
        elif edge or grows:
            self.joined[at] = 1
        if sign.cuts:
            self._cut(floor, base, size, at)
            self.waiting[depth] = size - at
            depth, floor, size = depth + 1, floor + size - at, at + 1
            base = floor
        else:
            base, size = base + sign.done, max(size + sign.new + sign.star - sign.done, 0)
        if sign.done and size == 0 and depth > 0:
            depth, size = depth - 1, int(self.waiting[depth - 1])
            floor -= size
            base = floor
        self.counters = [count + sign.new + sign.star, size, depth, due + sign.due, base, floor]

    def _edges(self, sign: Sign, count: int, size: int, base: int, far: int) -> None:
        """Count the edges of a token; one to an open node is to that at place ``far``, or 0."""
        for k in range(count, count + sign.new):
            self.degrees[k] += 1
        for at, is_end in ((far, far > 0), (size - 1, sign.newest), (1, sign.after)):
            if is_end:
                self.degrees[self.line[base + at]] += 1
        if own := sign.new + (far > 0):  # of the head; with its last edges it is done, and its degree is not read again
            self.degrees[self.line[base]] += own

    def _cut(self, floor: int, base: int, size: int, at: int) -> None:
        """Move the nodes from place ``at`` on to the queues that wait; the first of them also stays in the queue, as its last."""
        before, start = self.line.copy(), floor + size - at
        self.line[floor:start] = before[base + at : base + size]
        self.line[start : start + at + 1] = before[base : base + at + 1]
