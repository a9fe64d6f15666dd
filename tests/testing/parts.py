"""Small policies of words and graphs, and the conformance kit on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from discrete_grpo.core.rollout import Context, group_contexts
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import uniform
from discrete_grpo.diffusion.schedules import CosineSchedule
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.testing import Report, Row, check_policy
from tests import broken_graph_policies as graph_twins
from tests import broken_policies as twins
from tests.toys import tiny_network

WORDS = group_contexts(3, 3)
SIZES = [Context(k // 2, {"num_nodes": 2 + k // 2 % 2}) for k in range(6)]


def small_graphs(kind: type[GraphPolicy] = GraphPolicy, seed: int = 0) -> GraphPolicy:
    """Graphs of 2 or 3 nodes of two classes in two steps, from a network whose logits are spread apart."""
    network = tiny_network(2, 2, seed=seed)
    with torch.no_grad():
        for head in (network.node_out[-1], network.edge_out[-1]):
            assert isinstance(head, nn.Linear)
            head.weight.add_(0.3 * torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(seed)))
    kernels = D3PM(uniform(2, CosineSchedule())), D3PM(uniform(2, CosineSchedule()))
    return kind(network, *kernels, [0.0, 0.0, 0.5, 0.5], num_steps=2)


def check_words(policy: twins.Words, contexts: Sequence[Context] = WORDS, **options: Any) -> Report:
    settings: dict[str, Any] = {"space": policy.space, "trusted": ["tests"], "samples": 800, "skip": ["learning"]} | options
    return check_policy(policy, contexts, **settings)


def check_graphs(policy: GraphPolicy, **options: Any) -> Report:
    given: dict[str, Any] = {
        "space": graph_twins.graph_space(policy),
        "permute": graph_twins.relabelled,
        "pad": graph_twins.more_padding,
        "trusted": ["discrete_grpo", "tests"],
    }
    return check_policy(policy, SIZES, **given | options)


def row(report: Report, law: str) -> Row:
    return next(r for r in report.rows if r.law == law)
