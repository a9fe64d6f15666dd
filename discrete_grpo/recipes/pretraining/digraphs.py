"""Policies of directed graphs, such as acyclic ones, and their pretraining, which shares the command of undirected graphs.

Samples are lines that begin with ``&``, with the names of the classes of nodes and arcs where the data has classes.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from discrete_grpo.core.description import attach_metadata
from discrete_grpo.datasets.own_digraphs import OwnDigraphs
from discrete_grpo.datasets.own_graphs import labelled_splits
from discrete_grpo.diffusion import choices
from discrete_grpo.diffusion.schedules import DistortedSchedule, Schedule
from discrete_grpo.domains.digraph_validity import DigraphShape
from discrete_grpo.domains.named_digraphs import EDGE, NODE, batch_to_lines, lines_to_batch
from discrete_grpo.metrics.digraphs import DigraphReference, digraph_shape, evaluate
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.policies.fields import Field, FieldPolicy
from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions
from discrete_grpo.recipes.pretraining.field_options import check_plain, equivariant_network, equivariant_sizes
from discrete_grpo.recipes.pretraining.fitting import fit
from discrete_grpo.recipes.pretraining.graph_recipes import check_has_pairs, fresh_graph_metrics, graph_metadata, reading_options
from discrete_grpo.recipes.pretraining.held_out import NOISY_DRAWS, of_drawn_sizes, with_held_out

if TYPE_CHECKING:
    from discrete_grpo.recipes.pretraining.graphs import PretrainGraphsRecipe

__all__ = ["digraph_policy", "run_pretrain_digraphs"]

POLICY_WORDS = "directed graphs"
"""Name of such policies in error messages."""
WEIGHT = 5.0
"""Weight of the pairs in the loss, as in that of undirected graphs."""


def digraph_policy(
    data: OwnDigraphs, network: NetworkSizes | None = None, options: DiffusionOptions | None = None, *, seed: int = 42
) -> FieldPolicy:
    """An untrained policy of directed graphs with the classes of ``data``; every ordered pair of nodes is a site.

    Args:
        data: training graphs, see :func:`~discrete_grpo.datasets.own_digraphs.own_digraphs`.
        network: sizes of an :class:`~discrete_grpo.models.equivariant.EquivariantTransformer` without positions; None means
            default sizes.
        options: noise and sampler; None means the defaults.
        seed: random seed of the initial weights; the global random state is not changed.

    Raises:
        ValueError: for an option that directed graphs do not have, or if noise ``marginal`` has no frequencies of arcs, since no
            graph has two nodes.
    """
    options, sizes = options or DiffusionOptions(), equivariant_sizes(network or NetworkSizes(), POLICY_WORDS)
    _check_options(options)
    check_has_pairs(options.noise, data.arcs)
    labels, schedule = data.labels, _schedule(options)
    found = ((data.nodes, len(labels.nodes)), (data.arcs, 2 if labels.plain else len(labels.edges)))
    counts = [torch.bincount(classes.long(), minlength=c).double() for classes, c in found]
    kernels = [options.make_kernel((c / c.sum().clamp_min(1)).tolist(), schedule) for c in counts]
    node, edge = Field(NODE, kernels[0]), Field(EDGE, kernels[1], WEIGHT, directed=True)
    policy = FieldPolicy(
        equivariant_network([node], [edge], sizes, seed=seed),
        [node],
        [edge],
        (torch.bincount(data.sizes).double() / len(data)).tolist(),
        num_steps=options.num_steps,
        decode=partial(batch_to_lines, labels=labels),
        encode=partial(lines_to_batch, labels=labels),
    )
    return attach_metadata(policy, {"kind": "digraphs", "labels": labels.to_json()})


def _schedule(options: DiffusionOptions) -> Schedule:
    """The schedule with the distortion of times in it."""
    plain, distortion = choices.make_schedule(options.schedule), choices.make_distortion(options.train_distortion)
    return plain if distortion is None else DistortedSchedule(plain, distortion)


def _check_options(options: DiffusionOptions) -> None:
    """Raise ValueError for an option that a policy over fields does not have."""
    check_plain(options, ("precondition",), POLICY_WORDS)
    if options.train_distortion != options.sample_distortion:
        told = f"{options.sample_distortion!r} with train_distortion {options.train_distortion!r}"
        raise ValueError(f"sample_distortion: {told}, expected the same with directed graphs")


# -- pretraining


def run_pretrain_digraphs(
    own: OwnDigraphs,
    recipe: PretrainGraphsRecipe,
    *,
    network: nn.Module | None = None,
    resume: bool = False,
) -> Path:
    """Pretrain a policy of directed graphs; returns the folder of the exported policy.

    Graphs are valid if they are acyclic and weakly connected; where the data has a cycle, or ``recipe.shape`` is connected, if they
    are weakly connected.

    Args:
        own: the graphs of ``recipe.data``.
        recipe: the settings.
        network: None, since custom networks are supported for undirected graphs only.
        resume: whether to continue a stopped run.

    Raises:
        ValueError: for a setting that directed graphs do not have.
    """
    if network is not None:
        raise ValueError(f"network: {type(network).__name__}, expected none with directed graphs, only sizes")
    if recipe.shape not in (None, "connected"):
        raise ValueError(f"shape: {recipe.shape!r}, expected connected or none with directed graphs")
    data, held_out = map(own.index, own.split(recipe.test_share))
    policy = digraph_policy(data, recipe.network, recipe, seed=recipe.pretrain.seed)
    splits, labels = labelled_splits(own, recipe.test_share), None if own.labels.plain else own.labels
    shape: DigraphShape = "connected" if recipe.shape == "connected" else digraph_shape(splits.train)
    metadata = graph_metadata("digraphs", recipe, own.name, len(data), shape, own.labels, reading_options(recipe))
    reference = DigraphReference(splits, shape, labels)
    fresh = fresh_graph_metrics(recipe.evaluation_samples, partial(evaluate, reference=reference))
    shown = of_drawn_sizes(held_out, policy.node_counts)
    both = with_held_out(fresh, shown, recipe.pretrain.batch_size, draws=NOISY_DRAWS)
    return fit(policy, data, recipe, metadata=metadata, evaluate=both, resume=resume)
