"""Policies of plain graphs, such as planar graphs, trees and block models, and their pretraining; samples are graph6 lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from discrete_grpo.core.checks import check_range
from discrete_grpo.datasets.synthetic_graphs import GraphStatistics, dataset_from_networkx, graph_statistics, load_splits
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.diffusion.choices import Distortion, ScheduleName
from discrete_grpo.domains import graph6 as topology
from discrete_grpo.domains.graph6 import MAX_NODES
from discrete_grpo.domains.graph_validity import Shape
from discrete_grpo.metrics.graphs import GraphReference, evaluate
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.recipes.diffusion import DiffusionOptions, diffusion_policy
from discrete_grpo.recipes.graph_family import shape_of
from discrete_grpo.recipes.sample import sample
from discrete_grpo.training.config import PretrainConfig
from discrete_grpo.training.pretrain import fit

__all__ = [
    "PretrainGraphsRecipe",
    "graph_policy",
    "run_pretrain_graphs",
]


@dataclass(frozen=True)
class PretrainGraphsRecipe(DiffusionOptions):
    """Likelihood training of a diffusion or flow policy on plain graphs.

    Attributes:
        data: a named set (planar-16, tree-16, planar-64, tree-64, sbm, community-20), generated on the spot, or an npz file of
            splits.
        output_dir: run folder to make.
        network: sizes of the graph transformer.
        pretrain: settings of the training loop.
        evaluation_samples: graphs sampled at every checkpoint to log validity; 0 means none.
        data_licence: text kept with the checkpoint.
        shape: the property that makes a graph valid: planar, tree, sbm or connected; None means that of the named set.
        max_nodes: largest number of nodes of a graph of an npz file.
        max_bytes: largest size of the arrays of an npz file.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("evaluation_samples", self.evaluation_samples, least=0)


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
        network: sizes of a graph transformer, or a network of your own, see :class:`~discrete_grpo.recipes.diffusion.Denoiser`.
        options: noise and sampler; None means the defaults.
        seed: random seed of the initial weights; the global random state is not changed.
    """
    shares = ((1.0,), stats.edge_marginal)
    decode, encode = topology.batch_to_graph6, topology.graphs_to_batch
    return diffusion_policy(shares, stats.node_counts, network, options, decode=decode, encode=encode, seed=seed)


def run_pretrain_graphs(recipe: PretrainGraphsRecipe, *, network: nn.Module | None = None, resume: bool = False) -> Path:
    """Pretrain a policy of plain graphs; returns the folder of the exported policy.

    Args:
        recipe: the settings.
        network: a network of your own in place of ``recipe.network``, see :class:`~discrete_grpo.recipes.diffusion.Denoiser`.
        resume: whether to continue a stopped run.
    """
    splits = load_splits(recipe.data, max_nodes=recipe.max_nodes, max_bytes=recipe.max_bytes)
    data = dataset_from_networkx(splits.train, splits.name)
    policy = graph_policy(graph_statistics(data), recipe.network if network is None else network, recipe, seed=recipe.pretrain.seed)
    shape = recipe.shape or shape_of(splits.name)
    metadata = {
        "kind": "graphs",
        "data": {"name": splits.name, "source": recipe.data, "graphs": len(data), "licence": recipe.data_licence},
        "shape": shape,
    }
    reference, count = GraphReference(splits, shape), recipe.evaluation_samples

    def measure(averaged: GraphPolicy) -> Mapping[str, float]:
        return evaluate(sample(averaged, count, batch_size=40), reference)

    return fit(policy, data, recipe, metadata=metadata, evaluate=measure if count else None, resume=resume)
