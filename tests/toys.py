"""Small policies, data and rewards that several tests share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import uniform
from discrete_grpo.diffusion.schedules import CosineSchedule
from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from discrete_grpo.policies.graph import GraphPolicy


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


def tiny_policy(
    num_steps: int = 4, seed: int = 0, sizes: Sequence[float] = (0.0, 0.0, 0.3, 0.3, 0.4), layers: int = 2, **options: Any
) -> GraphPolicy:
    """A graph policy with three node and two edge classes over graphs of 2 to 4 nodes."""
    kernels = D3PM(uniform(3, CosineSchedule())), D3PM(uniform(2, CosineSchedule()))
    return GraphPolicy(tiny_network(seed=seed, layers=layers), *kernels, sizes, num_steps=num_steps, decode=node_classes, **options)


def share_of_class_two(samples: Sequence[tuple[int, ...]], **columns: Any) -> list[float]:
    """A reward in [0, 1]: the share of nodes of class 2."""
    return [s.count(2) / len(s) for s in samples]
