"""Rewards that receive graphs as objects of a library: networkx graphs, or PyG data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from discrete_grpo.core.reward_arguments import check_forgets, reward_name
from discrete_grpo.domains.named_graphs import Labels, graph_of, to_networkx, to_pyg

__all__ = ["GraphView", "View"]

View = Literal["networkx", "pyg"]
_VIEWS: Mapping[str, Callable[[str, Labels | None], Any]] = {"networkx": to_networkx, "pyg": to_pyg}


@dataclass(frozen=True)
class GraphView:
    """Passes graphs to another reward as objects instead of text lines.

    Args:
        reward: a reward on such objects; it receives None for an invalid sample, such as a line that is no graph.
        view: ``networkx``, graphs whose nodes and edges have the name of their class as the attribute that ``labels`` names; or
            ``pyg``, ``Data`` with node classes ``x`` [n, 1] and edge classes ``edge_attr`` [E], numbers in the order of ``labels``.
        labels: names of the classes; None for plain graphs.

    Raises:
        ValueError: if ``reward`` is not callable or remembers earlier samples, or for an unknown view.

    >>> GraphView(lambda graphs: [g.number_of_edges() for g in graphs], "networkx")(["Bg"])
    [2]
    """

    reward: Callable[..., Sequence[float | None]]
    view: View
    labels: Labels | None = None

    def __post_init__(self) -> None:
        if not callable(self.reward):
            raise ValueError(f"reward: {self.reward!r}, expected a reward, a callable from samples to numbers")
        check_forgets(self.reward)
        if self.view not in _VIEWS:
            raise ValueError(f"view: {self.view!r}, expected one of {', '.join(get_args(View))}")

    @property
    def name(self) -> str:
        """The name in logs, that of the inner reward."""
        return reward_name(self.reward)

    @property
    def inner(self) -> tuple[Callable[..., Sequence[float | None]], ...]:
        """The reward on objects, alone."""
        return (self.reward,)

    def __call__(self, lines: Sequence[str | None], **columns: Sequence[Any]) -> Sequence[float | None]:
        """Compute the numbers of the inner reward."""
        view = _VIEWS[self.view]
        return self.reward([None if graph is None else view(graph, self.labels) for graph in map(graph_of, lines)], **columns)
