"""Data set of graphs as token sequences, with each graph in many random node orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from discrete_grpo.core.checks import check_range
from discrete_grpo.domains.graph_sequences import ListedGraph, listed, most_tokens, text_of
from discrete_grpo.domains.named_graphs import Labels
from discrete_grpo.domains.tokenizer import EOS, PAD, TokenBatch, Tokenizer

__all__ = ["GraphTokens", "graph_tokens"]


@dataclass(frozen=True)
class GraphTokens:
    """M graphs in K random orders each; row r is order r // M of graph r % M, written when it is asked for.

    The order of a row follows from ``seed`` and the row alone, so that a resumed run sees the same texts. An epoch visits every
    order of every graph.

    Attributes:
        graphs: the graphs, ready to be written.
        lengths: the most tokens of each graph in any order, EOS not counted.
        tokenizer: the alphabet.
        orders: K, number of orders per graph.
        candidates: number of orders drawn for each of them, see :func:`~discrete_grpo.domains.graph_sequences.text_of`.
        seed: random seed of the orders.
    """

    graphs: tuple[ListedGraph, ...]
    lengths: tuple[int, ...]
    tokenizer: Tokenizer
    orders: int = 64
    candidates: int = 8
    seed: int = 42

    def __post_init__(self) -> None:
        if not self.graphs:
            raise ValueError("graphs: none given, expected at least one")
        check_range("orders", self.orders, least=1)
        check_range("candidates", self.candidates, least=1)

    def __len__(self) -> int:
        return len(self.graphs) * self.orders

    @property
    def sizes(self) -> Int[Tensor, " row"]:
        """Bound on the number of tokens of each row [M K], EOS included."""
        return torch.tensor(self.lengths).add(1).repeat(self.orders)

    def text(self, row: int) -> str:
        """The text of a row."""
        generator = np.random.default_rng([self.seed, row])
        return text_of(self.graphs[row % len(self.graphs)], generator, self.candidates)

    def batch(self, rows: Int[Tensor, " row"]) -> TokenBatch:
        """Return the texts of ``rows``, padded to the longest of them."""
        ids = [[*self.tokenizer.encode(self.text(row)), EOS] for row in rows.tolist()]
        width = max(map(len, ids))
        return TokenBatch(torch.tensor([row + [PAD] * (width - len(row)) for row in ids]))


def graph_tokens(
    graphs: Sequence[nx.Graph],
    tokenizer: Tokenizer,
    labels: Labels | None = None,
    *,
    orders: int = 64,
    candidates: int = 8,
    seed: int = 42,
) -> GraphTokens:
    """Make a data set of graphs.

    Args:
        graphs: simple graphs, with the names of their classes as the attribute ``label`` if ``labels`` is given.
        tokenizer: the alphabet, see :func:`~discrete_grpo.domains.graph_sequences.vocabulary`.
        labels: names of the classes; None for plain graphs.
        orders: number of orders per graph.
        candidates: number of orders drawn for each of them.
        seed: random seed of the orders.

    Raises:
        ValueError: naming the graph, for one that is not simple, has no node or has a class that ``labels`` does not have.
    """
    ready = []
    for k, graph in enumerate(graphs):
        try:
            ready.append(listed(graph, labels))
        except ValueError as error:
            raise ValueError(f"graphs[{k}]: {str(error).removeprefix('graph: ')}") from error
    lengths = tuple(most_tokens(graph, labels) for graph in graphs)
    return GraphTokens(tuple(ready), lengths, tokenizer, orders, candidates, seed)
