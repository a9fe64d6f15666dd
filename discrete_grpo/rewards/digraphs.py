"""Rewards on directed graphs: callables from digraph6 samples to one number per sample.

None, a line of no directed graph and a graph without nodes score 0 in every reward here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from discrete_grpo.core.checks import check_range
from discrete_grpo.domains import digraph_validity

__all__ = ["Depth", "acyclic", "acyclic_share", "dag_valid"]

Samples = Sequence[str | None]


def acyclic(samples: Samples, **columns: Sequence[Any]) -> list[float]:
    """Test whether a directed graph has no cycle.

    A graph without arcs has no cycle, which a policy can exploit; ``dag_valid`` also requires weak connectivity.

    Returns:
        1 for a graph without a cycle, 0 for any other sample.

    >>> acyclic(["&BP?", "&BP_", None])  # a path and a cycle of three nodes
    [1.0, 0.0, 0.0]
    """
    return [float(digraph_validity.is_acyclic(s)) for s in samples]


def dag_valid(samples: Samples, **columns: Sequence[Any]) -> list[float]:
    """Test whether a directed graph has no cycle and is weakly connected.

    Returns:
        1 for such a graph, 0 for any other sample.

    >>> dag_valid(["&BP?", "&B??", None])  # a path, and three nodes without arcs
    [1.0, 0.0, 0.0]
    """
    return [float(digraph_validity.has_digraph_shape(s, "dag")) for s in samples]


def acyclic_share(samples: Samples, **columns: Sequence[Any]) -> list[float]:
    """Compute the share of arcs on no cycle, for policies that rarely make a graph without one.

    These are the arcs between two strongly connected components; the others lie within one. A graph without arcs scores 1.

    Returns:
        A number in [0, 1], 1 for a graph without a cycle and only for such a graph.

    >>> acyclic_share(["&BP?", "&BT?", None])  # 0 -> 1 -> 2 and 0 <-> 1 -> 2
    [1.0, 0.3333333333333333, 0.0]
    """
    return [digraph_validity.acyclic_share(s) for s in samples]


@dataclass(frozen=True)
class Depth:
    """Number of arcs of the longest path, divided by a scale.

    Args:
        scale: length of a path that scores 1, above 0.

    Raises:
        ValueError: if ``scale`` is not above 0.

    >>> Depth(scale=4)(["&BP?", "&BP_", None])
    [0.5, 0.0, 0.0]
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        check_range("scale", self.scale, above=0)

    def __call__(self, samples: Samples, **columns: Sequence[Any]) -> list[float]:
        """Score samples.

        Returns:
            A number of at least 0, 0 for a graph with a cycle or without arcs.
        """
        return [(digraph_validity.longest_path(s) or 0) / self.scale for s in samples]
