"""Conditions of a sample: fixed nodes and edges, and standardised properties."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from discrete_grpo.core.checks import check_whole, plain_number
from discrete_grpo.core.rollout import Context
from discrete_grpo.domains.graphs import ConditionedGraphs, GraphBatch, node_mask
from discrete_grpo.domains.tokenizer import Property, Tokenizer

__all__ = ["FixedSites", "columns_of", "fixed_states", "hide_properties", "property_table", "shown_properties"]


@dataclass(frozen=True)
class FixedSites:
    """Nodes and edges a sample must have (scaffold-constrained generation); the value of a context's ``fixed`` column.

    Attributes:
        nodes: node number -> clean class.
        edges: (i, j) with i < j -> clean class; class 0 forbids an edge.
        closed: nodes that have no edge but those in ``edges``, whatever the size of the graph.
    """

    nodes: Mapping[int, int]
    edges: Mapping[tuple[int, int], int] = field(default_factory=dict)
    closed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("nodes", "edges"):
            if not isinstance(found := getattr(self, name), Mapping):
                raise ValueError(f"{name} of fixed: a {type(found).__name__}, expected a mapping to classes")
        if not isinstance(self.closed, tuple):
            raise ValueError(f"closed of fixed: a {type(self.closed).__name__}, expected a tuple of nodes")
        if not self.nodes and not self.edges and not self.closed:
            raise ValueError("fixed: no node and no edge, expected at least one")
        for i in self.nodes:
            check_whole("node in fixed", i, least=0)
        for i in self.closed:
            check_whole("closed node in fixed", i, least=0)
        for pair in self.edges:
            whole = isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(i, Integral) for i in pair)
            if not (whole and 0 <= pair[0] < pair[1]):
                raise ValueError(f"fixed: edge {pair!r}, expected 0 <= i < j")

    @property
    def min_nodes(self) -> int:
        """The smallest graph that has room for every fixed site."""
        return 1 + max([*self.nodes, *(j for _, j in self.edges), *self.closed])


def fixed_states(
    contexts: Sequence[Context], sizes: Tensor, num_nodes: int, node_classes: int, edge_classes: int
) -> GraphBatch | None:
    """The fixed clean classes of every context, -1 where free; None if no context fixes anything."""
    if not any(c.columns.get("fixed") for c in contexts):
        return None
    nodes = torch.full((len(contexts), num_nodes), -1)
    edges = torch.full((len(contexts), num_nodes, num_nodes), -1)
    for b, context in enumerate(contexts):
        fixed: FixedSites | None = context.columns.get("fixed")
        if fixed is None:
            continue
        _check_classes("node", fixed.nodes.values(), node_classes)
        _check_classes("edge", fixed.edges.values(), edge_classes)
        for i, c in fixed.nodes.items():
            nodes[b, i] = c
        size = int(sizes[b])  # pairs with padding are no sites
        for i in fixed.closed:
            edges[b, i, :size] = edges[b, :size, i] = 0
        for (i, j), c in fixed.edges.items():
            edges[b, i, j] = edges[b, j, i] = c
    return GraphBatch(nodes, edges, node_mask(sizes, num_nodes))


def _check_classes(kind: str, classes: Any, count: int) -> None:
    for c in classes:
        check_whole(f"{kind} class in fixed", c, least=0, most=count - 1)


def columns_of(contexts: Sequence[Context]) -> dict[str, tuple[Any, ...]]:
    """The columns of ``contexts`` as a rollout holds them: one value per context, None where a context lacks the column."""
    names = dict.fromkeys(name for context in contexts for name in context.columns)
    return {name: tuple(context.columns.get(name) for context in contexts) for name in names}


def check_network(network: nn.Module, tokenizer: Tokenizer, length: int, properties: int | None = None) -> None:
    """Check that the sizes in the ``config`` of a network match a text policy.

    Args:
        network: network of this package; any other one is not checked.
        tokenizer: alphabet of the policy.
        length: the most tokens of a text.
        properties: number of properties that the policy conditions on; None where it has none.

    Raises:
        ValueError: if they do not match.
    """
    config = getattr(network, "config", None)
    tokens, block, own = (getattr(config, name, None) for name in ("num_tokens", "block_size", "num_properties"))
    if tokens is not None and tokens != len(tokenizer):
        raise ValueError(f"network: of {tokens} tokens, expected {len(tokenizer)} as the tokenizer has")
    if block is not None and block < length:
        raise ValueError(f"network: of block_size {block}, expected at least {length}, the longest text in tokens")
    if own is not None and properties is not None and own != properties:
        raise ValueError(f"network: of {own} properties, expected {properties} as the policy has")


FARTHEST = 1e6
"""Largest accepted size of a standardised condition; networks overflow not far beyond."""


def property_table(
    contexts: Sequence[Context], properties: Sequence[Property], dtype: torch.dtype
) -> Float[Tensor, "batch property"] | None:
    """(value - mean) / std of the columns named in ``properties``, NaN where one is not given; None where none is.

    Raises:
        ValueError: if a value is no finite number.
    """
    table = torch.full((len(contexts), len(properties)), torch.nan, dtype=dtype)
    for b, context in enumerate(contexts):
        for k, p in enumerate(properties):
            value = plain_number(context.columns.get(p.name))
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{p.name}: {value!r}, expected a finite number")
            far = (value - p.mean) / p.std
            if abs(far) > FARTHEST:
                told = f"{p.name}: {value}, expected a number at most {FARTHEST:g} standard deviations ({p.std:g})"
                raise ValueError(f"{told} from the mean of the training data ({p.mean:g})")
            table[b, k] = far
    return None if bool(table.isnan().all()) else table


def hide_properties(
    properties: Float[Tensor, "batch property"], share: float, generator: torch.Generator | None = None
) -> Float[Tensor, "batch property"]:
    """Hide properties of a training batch: all of them in a ``share`` of the rows, and each with that probability in the others."""
    draws = torch.rand(len(properties), properties.shape[1] + 1, generator=generator, device=properties.device)
    return properties.masked_fill((draws[:, 1:] < share) | (draws[:, :1] < share), torch.nan)


def shown_properties(
    graphs: GraphBatch | ConditionedGraphs, share: float, generator: torch.Generator | None = None
) -> tuple[GraphBatch, tuple[Tensor, ...]]:
    """The graphs of a training batch, and their properties after :func:`hide_properties` if they have any."""
    if isinstance(graphs, GraphBatch):
        return graphs, ()
    return graphs.graphs, (hide_properties(graphs.properties, share, generator),)
