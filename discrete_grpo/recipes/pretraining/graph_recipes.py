"""Parts that the pretraining recipes of graphs, directed graphs and graph sequences share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from discrete_grpo.domains.named_graphs import Labels
from discrete_grpo.metrics.graph_classes import class_shares
from discrete_grpo.recipes.kinds.graph_sources import source_facts
from discrete_grpo.recipes.pretraining.fitting import Measure, fresh_metrics

__all__ = ["attributes_of", "check_has_pairs", "check_no_attributes", "fresh_graph_metrics", "graph_metadata", "reading_options"]


class GraphRecipe(Protocol):
    """Settings that the recipes of graphs have in common."""

    @property
    def data(self) -> str:
        """Name of a set, or of a file or folder of graphs."""
        ...

    @property
    def node_attribute(self) -> str | None:
        """Attribute of nodes that holds their class; None takes the only one."""
        ...

    @property
    def edge_attribute(self) -> str | None:
        """Attribute of edges that holds their class; None takes the only one."""
        ...

    @property
    def test_share(self) -> float:
        """Share of the graphs of a file that is held out."""
        ...

    @property
    def data_licence(self) -> str | None:
        """Licence of the data, for the metadata of the checkpoint."""
        ...


def attributes_of(recipe: GraphRecipe) -> dict[str, Any]:
    """The attributes of nodes and edges that hold their classes, by the name of the option."""
    return {"node_attribute": recipe.node_attribute, "edge_attribute": recipe.edge_attribute}


def reading_options(recipe: GraphRecipe) -> dict[str, Any]:
    """The options that a file of graphs is read with, which the metadata keep to read it again."""
    return {**attributes_of(recipe), "test_share": recipe.test_share}


def check_no_attributes(recipe: GraphRecipe) -> None:
    """Raise ``ValueError`` if attributes are named although the data is a named set, whose graphs have none."""
    for name, value in attributes_of(recipe).items():
        if value is not None:
            raise ValueError(f"{name}: {value!r}, expected none with {recipe.data}")


def check_has_pairs(noise: str, pairs: Tensor) -> None:
    """Raise ``ValueError`` if noise ``marginal`` has no frequencies of edges, since no training graph has two nodes.

    Args:
        noise: name of the noise.
        pairs: classes of the pairs of nodes of all training graphs.
    """
    if noise == "marginal" and not pairs.numel():
        raise ValueError("data: no graph to train on has two nodes, expected at least one that has, or noise uniform or absorbing")


def graph_metadata(
    kind: str, recipe: GraphRecipe, name: str, count: int, shape: str, labels: Labels | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Metadata of a checkpoint of a policy of graphs.

    Args:
        kind: kind of its samples.
        recipe: the recipe.
        name: name of the data.
        count: number of training graphs.
        shape: what makes a graph valid.
        labels: names of the classes of nodes and edges; None leaves them out.
        options: the :func:`reading_options` of a file; empty for a named set.
    """
    data = {"name": name, **source_facts(recipe.data), "graphs": count, "licence": recipe.data_licence, **options}
    metadata = {"kind": kind, "data": data, "shape": shape}
    return metadata if labels is None else metadata | {"labels": labels.to_json()}


def fresh_graph_metrics(count: int, evaluate: Callable[[Sequence[Any]], Mapping[str, float]]) -> Measure | None:
    """Return a function that draws ``count`` graphs and returns their metrics with the shares of their classes; None for 0."""
    return fresh_metrics(count, lambda samples: {**evaluate(samples), **class_shares(samples)}, batch_size=40)
