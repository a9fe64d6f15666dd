"""Small policies, data and rewards that several tests share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import uniform
from discrete_grpo.diffusion.schedules import CosineSchedule
from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from discrete_grpo.policies.graph import GraphPolicy
from tests.denoiser import PlainDenoiser

SIZES = (0.0, 0.0, 0.3, 0.3, 0.4)
"""Probabilities of 0 to 4 nodes."""


def tiny_network(node_states: int = 3, edge_states: int = 2, seed: int = 0, **sizes: Any) -> GraphTransformer:
    """A graph transformer of a few thousand weights, built without touching the global random state."""
    shape = {"layers": 2, "heads": 2, "width": 16, "edge_width": 8, "global_width": 8} | sizes
    config = GraphTransformerConfig(node_states, edge_states, node_states, edge_states, **shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GraphTransformer(config)


def node_classes(batch: GraphBatch) -> list[tuple[int, ...]]:
    """A sample as the tuple of its node classes: something a reward can read."""
    return [tuple(row[:n].tolist()) for row, n in zip(batch.nodes, batch.sizes.tolist(), strict=True)]


def tiny_policy(num_steps: int = 4, seed: int = 0, sizes: Sequence[float] = SIZES, **options: Any) -> GraphPolicy:
    """A graph policy with three node and two edge classes over graphs of 2 to 4 nodes, whose network takes a dozen operations."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = PlainDenoiser(3, 2, 3, 2)
    return _policy(network, num_steps, sizes, **options)


def transformer_policy(
    num_steps: int = 4, seed: int = 0, sizes: Sequence[float] = SIZES, layers: int = 2, **options: Any
) -> GraphPolicy:
    """The same with a graph transformer: for what depends on layers, and for checkpoints, which are read without user code."""
    return _policy(tiny_network(seed=seed, layers=layers), num_steps, sizes, **options)


def _policy(network: nn.Module, num_steps: int, sizes: Sequence[float], **options: Any) -> GraphPolicy:
    kernels = D3PM(uniform(3, CosineSchedule())), D3PM(uniform(2, CosineSchedule()))
    return GraphPolicy(network, *kernels, sizes, num_steps=num_steps, decode=node_classes, **options)


def share_of_class_two(samples: Sequence[tuple[int, ...]], **columns: Any) -> list[float]:
    """A reward in [0, 1]: the share of nodes of class 2."""
    return [s.count(2) / len(s) for s in samples]
