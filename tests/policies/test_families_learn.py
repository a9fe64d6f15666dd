"""Families learn, by GRPO and by likelihood; their other tests run with annotations checked (``TYPED`` in the Makefile)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from discrete_grpo.core.rollout import Context
from discrete_grpo.domains.graphs import permute, upper
from discrete_grpo.policies.truncation import Truncation
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.trainer import GRPOTrainer
from tests.policies.graph_policy_parts import make, seeded
from tests.policies.test_graph_conditions import COLUMNS, conditional
from tests.policies.test_graph_policy_training import clean_graphs
from tests.policies.test_tokens import CONDITIONS, token_policy
from tests.toys import share_of_class_two


def ends_in_b(samples: Sequence[str], **columns: Any) -> list[float]:
    """1 where the text ends in b."""
    return [float(s.endswith("b")) for s in samples]


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_grpo_raises_a_reward_with_several_iterations_and_a_reference(fraction: float) -> None:
    policy = token_policy(5, dtype=torch.float32, spread=0.2, truncation=Truncation(top_k=3))
    config = GRPOConfig(
        max_steps=30, learning_rate=1e-2, beta=0.01, num_iterations=2, timestep_fraction=fraction, per_device_batch_size=16
    )
    lines = GRPOTrainer(policy, ends_in_b, config, columns=CONDITIONS).train()
    assert lines[0]["reward"] < 0.6
    assert lines[-1]["reward"] > lines[0]["reward"] + 0.25


def test_grpo_trains_a_conditional_policy() -> None:
    config = GRPOConfig(max_steps=25, learning_rate=1e-2, num_generations=8, generation_batch_size=48, beta=0.001)
    lines = GRPOTrainer(conditional(1.5), share_of_class_two, config, columns=COLUMNS).train()
    assert lines[-1]["reward"] > lines[0]["reward"] + 0.2


def test_a_network_trained_on_one_graph_draws_it() -> None:
    policy = make("absorbing")
    graph = clean_graphs("absorbing", [3], 3)
    order = torch.tensor([[0, 1, 2]])
    graphs = permute(graph.index(torch.zeros(32, dtype=torch.long)), order.expand(32, -1))
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
    generator = seeded(0)
    for _ in range(80):
        optimizer.zero_grad()
        policy.likelihood_loss(graphs, generator=generator)["loss"].backward()
        optimizer.step()
    rollout = policy.sample([Context(0, {"num_nodes": 3})] * 200, generator=generator)
    hist = sorted(graph.nodes[0].tolist()), sorted(upper(graph.edges)[0].tolist())
    found = [(sorted(s.nodes[0].tolist()), sorted(upper(s.edges)[0].tolist())) for s in rollout.samples]
    assert found.count(hist) / 200 > 0.3 > 0.1  # one of 3·3·3·2·2·2 up to order when untrained
