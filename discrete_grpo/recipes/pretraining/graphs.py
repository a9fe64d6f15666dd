"""Policies of graphs, such as planar graphs, trees, block models and your own labelled graphs, and their pretraining.

Samples are graph6 lines, with the names of the classes of nodes and edges where the data has classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from discrete_grpo.core.checks import check_choices, check_fields, check_sizes, check_text
from discrete_grpo.core.description import attach_metadata
from discrete_grpo.core.option_names import known_options
from discrete_grpo.datasets.graph_splits import load_splits
from discrete_grpo.datasets.listed_graphs import check_nodes
from discrete_grpo.datasets.own_digraphs import OwnDigraphs, read_own
from discrete_grpo.datasets.own_graphs import OwnGraphs, is_own, labelled_splits
from discrete_grpo.datasets.synthetic_graphs import (
    GraphDataset,
    GraphSplits,
    GraphStatistics,
    dataset_from_networkx,
    graph_statistics,
)
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.diffusion.choices import Distortion, ScheduleName
from discrete_grpo.domains import graph6
from discrete_grpo.domains.graph6 import MAX_NODES
from discrete_grpo.domains.graph_validity import Shape
from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.domains.named_graphs import Labels, batch_to_lines, lines_to_batch
from discrete_grpo.metrics.graphs import GraphReference, evaluate
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.recipes.kinds.graph_sources import shape_of
from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions, diffusion_policy
from discrete_grpo.recipes.pretraining.digraphs import run_pretrain_digraphs
from discrete_grpo.recipes.pretraining.fitting import fit
from discrete_grpo.recipes.pretraining.graph_recipes import (
    attributes_of,
    check_has_pairs,
    check_no_attributes,
    fresh_graph_metrics,
    graph_metadata,
    reading_options,
)
from discrete_grpo.recipes.pretraining.held_out import NOISY_DRAWS, no_larger, with_held_out
from discrete_grpo.training.config import PretrainConfig

__all__ = [
    "PretrainGraphsRecipe",
    "graph_policy",
    "own_graph_policy",
    "run_pretrain_graphs",
]


@known_options()
@dataclass(frozen=True)
class PretrainGraphsRecipe(DiffusionOptions):
    """Likelihood training of a diffusion or flow policy on plain graphs, or on your own with classes of nodes and edges.

    Directed graphs of your own give a policy of directed graphs.

    Attributes:
        data: a named set (planar-16, tree-16, planar-64, tree-64, sbm, community-20), generated on the spot, an npz file of
            splits, or a file or folder of your own graphs (.graphml, .gml, .json, .jsonl, .edgelist, .arcs, .g6, .d6, .pt).
        output_dir: run folder to make.
        network: sizes of the graph transformer.
        pretrain: settings of the training loop.
        evaluation_samples: graphs sampled at every checkpoint to log validity; 0 means none. The loss of held-out graphs,
            ``eval/test_loss``, is logged there too, with the same times and noise each time.
        data_licence: text kept with the checkpoint.
        shape: the property that makes a graph valid: planar, tree, sbm or connected; None means that of a named set, that of
            the published ``planar.npz``, ``tree.npz`` and ``sbm.npz``, and else connected. Directed
            graphs are valid if they are acyclic and weakly connected, or weakly connected alone where the data has cycles.
        max_nodes: largest number of nodes of a graph of a file.
        max_bytes: largest size of a file, unpacked.
        node_attribute: of own graphs: attribute of nodes that holds their class; None takes the only one, and ``x`` of PyG data.
        edge_attribute: of own graphs: attribute of edges that holds their class; None takes the only one, and ``edge_attr`` of
            PyG data.
        test_share: share of own graphs without splits that is not trained on and that samples are compared with.
    """

    data: str = "planar-16"
    output_dir: str = "runs/pretrain-graphs"
    schedule: ScheduleName = field(default="linear", kw_only=True)
    train_distortion: Distortion = field(default="polydec", kw_only=True)
    sample_distortion: Distortion = field(default="polydec", kw_only=True)
    network: NetworkSizes = field(default_factory=NetworkSizes)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    evaluation_samples: int = 80
    data_licence: str = "made by discrete-grpo"
    shape: Shape | None = None
    max_nodes: int = MAX_NODES
    max_bytes: int = MAX_BYTES
    node_attribute: str | None = None
    edge_attribute: str | None = None
    test_share: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text("data", self.data, "the name of a set, or of a file or folder of graphs; own_graphs reads a list")
        check_sizes("network", self.network, NetworkSizes)
        check_fields(self, "test_share", above=0, below=1)
        check_fields(self, "evaluation_samples", least=0)
        check_fields(self, "max_nodes max_bytes", least=1)
        check_choices(self)


def graph_policy(
    stats: GraphStatistics,
    network: NetworkSizes | nn.Module | None = None,
    options: DiffusionOptions | None = None,
    *,
    seed: int = 42,
) -> GraphPolicy:
    """An untrained policy of plain graphs like those that ``stats`` describes; its samples are graph6 lines.

    Args:
        stats: sizes and edge frequency of the training data, see :func:`~discrete_grpo.datasets.synthetic_graphs.graph_statistics`.
        network: sizes of a graph transformer, or a network of your own, see
            :class:`~discrete_grpo.recipes.pretraining.diffusion.Denoiser`.
        options: noise and sampler; None means the defaults.
        seed: random seed of the initial weights; the global random state is not changed.
    """
    shares = ((1.0,), stats.edge_marginal)
    decode, encode = graph6.batch_to_graph6, graph6.graphs_to_batch
    made = diffusion_policy(shares, stats.node_counts, network, options, decode=decode, encode=encode, seed=seed)
    return attach_metadata(made, {"kind": "graphs"})


def own_graph_policy(
    data: OwnGraphs, network: NetworkSizes | nn.Module | None = None, options: DiffusionOptions | None = None, *, seed: int = 42
) -> GraphPolicy:
    """An untrained policy of graphs with the classes of ``data``; its samples are graph6 lines with the names of the classes.

    Args:
        data: training graphs, see :func:`~discrete_grpo.datasets.own_graphs.own_graphs`.
        network: as for :func:`graph_policy`.
        options: as for :func:`graph_policy`.
        seed: as for :func:`graph_policy`.

    Raises:
        ValueError: if noise ``marginal`` has no frequencies of edges, since no graph has two nodes.
    """
    check_has_pairs((options or DiffusionOptions()).noise, data.graphs.pairs)
    labels, counts = data.labels, (torch.bincount(data.sizes).double() / len(data)).tolist()
    found = ((data.graphs.nodes, len(labels.nodes)), (data.graphs.pairs, 2 if labels.plain else len(labels.edges)))
    nodes, edges = (torch.bincount(classes.long(), minlength=c).double() for classes, c in found)
    shares = (nodes / nodes.sum()).tolist(), (edges / edges.sum().clamp_min(1)).tolist()
    if labels.plain:
        decode: Callable[[GraphBatch], Sequence[str]] = graph6.batch_to_graph6
        encode: Callable[[Sequence[Any]], GraphBatch] = graph6.graphs_to_batch
    else:
        decode, encode = partial(batch_to_lines, labels=labels), partial(lines_to_batch, labels=labels)
    made = diffusion_policy(shares, counts, network, options, decode=decode, encode=encode, seed=seed)
    return attach_metadata(made, {"kind": "graphs"} | ({} if labels.plain else {"labels": labels.to_json()}))


# -- pretraining


@dataclass(frozen=True)
class _Graphs:
    """The graphs of a recipe, and what they determine.

    Attributes:
        splits: all graphs as networkx graphs, which samples are compared with.
        data: graphs to train on.
        held_out: graphs whose loss is measured; None if there are none.
        labels: names of the classes of nodes and edges; None for plain graphs.
        options: options that a file is read with; empty for a named set.
    """

    splits: GraphSplits
    data: OwnGraphs | GraphDataset
    held_out: OwnGraphs | GraphDataset | None
    labels: Labels | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def _of_file(own: OwnGraphs, recipe: PretrainGraphsRecipe) -> _Graphs:
    """Split the graphs of a file or folder."""
    train, held_out = map(own.index, own.split(recipe.test_share))
    labels = None if own.labels.plain else own.labels
    options = reading_options(recipe) if is_own(recipe.data) or labels is not None else {}
    return _Graphs(labelled_splits(own, recipe.test_share), train, held_out, labels, options)


def _of_named_set(recipe: PretrainGraphsRecipe) -> _Graphs:
    """The graphs of a named set, packed."""
    check_no_attributes(recipe)
    splits = load_splits(recipe.data, max_nodes=recipe.max_nodes, max_bytes=recipe.max_bytes)
    data = dataset_from_networkx(splits.train, splits.name)
    return _Graphs(splits, data, dataset_from_networkx(splits.test, splits.name) if splits.test else None)


def run_pretrain_graphs(recipe: PretrainGraphsRecipe, *, network: nn.Module | None = None, resume: bool = False) -> Path:
    """Pretrain a policy of graphs; returns the folder of the exported policy.

    Args:
        recipe: the settings.
        network: a network of your own in place of ``recipe.network``, see
            :class:`~discrete_grpo.recipes.pretraining.diffusion.Denoiser`.
        resume: whether to continue a stopped run.
    """
    chosen, seed = recipe.network if network is None else network, recipe.pretrain.seed
    if recipe.data.endswith(".npz") or is_own(recipe.data):
        own = read_own(recipe.data, **attributes_of(recipe), max_nodes=recipe.max_nodes, max_bytes=recipe.max_bytes)
        check_nodes(own.sizes)
        if isinstance(own, OwnDigraphs):
            return run_pretrain_digraphs(own, recipe, network=network, resume=resume)
        graphs = _of_file(own, recipe)
    else:
        graphs = _of_named_set(recipe)
    data, splits, labels = graphs.data, graphs.splits, graphs.labels
    if isinstance(data, OwnGraphs):
        policy = own_graph_policy(data, chosen, recipe, seed=seed)
    else:
        policy = graph_policy(graph_statistics(data), chosen, recipe, seed=seed)
    shape = recipe.shape or shape_of(recipe.data)
    metadata = graph_metadata("graphs", recipe, splits.name, len(data), shape, labels, graphs.options)
    reference = GraphReference(splits, shape, labels=labels)
    fresh = fresh_graph_metrics(recipe.evaluation_samples, partial(evaluate, reference=reference))
    shown = None if graphs.held_out is None else no_larger(graphs.held_out, int(data.sizes.max()))
    both = with_held_out(fresh, shown, recipe.pretrain.batch_size, draws=NOISY_DRAWS)
    return fit(policy, data, recipe, metadata=metadata, evaluate=both, resume=resume)
