"""Samples are drawn in eval mode, whatever mode the caller's network is in, and the network keeps its mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import discrete_grpo as dg
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.training.local_search import local_search
from tests.toys import share_of_class_two, tiny_network, transformer_policy


def with_dropout() -> GraphPolicy:
    """A policy as a user's own training leaves it."""
    whole = transformer_policy()
    policy = GraphPolicy(**{**whole.init_args(), "network": tiny_network(dropout=0.5)})
    policy.decode = whole.decode
    return policy.train()


@pytest.mark.parametrize("options", [None, dg.SamplerOptions(num_steps=2)])
def test_equal_seeds_give_equal_samples_of_a_network_with_dropout(options: Any) -> None:
    policy, found = with_dropout(), []
    for seed in range(3):
        torch.manual_seed(seed)
        found.append(dg.sample(policy, 12, seed=0, options=options))
    assert found[0] == found[1] == found[2]
    assert all(module.training for module in policy.modules())


def test_a_search_draws_by_its_generator_alone() -> None:
    policy, found = with_dropout(), []
    sizes: dict[str, Any] = {"rounds": 2, "population": 4, "children": 8}
    for seed in range(3):
        torch.manual_seed(seed)
        found.append(local_search(policy, share_of_class_two, **sizes, generator=torch.Generator().manual_seed(0)).history)
    assert found[0] == found[1] == found[2]
    assert all(module.training for module in policy.modules())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"on_round": 3}, "on_round: 3, expected a function of the result so far"),
        ({"generator": 0}, "generator: 0, expected a torch.Generator, or None"),
        ({"ledger": 100}, "ledger: 100, expected a ledger of calls"),
        ({"columns": [{"num_nodes": 3}]}, r"columns: \[\{'num_nodes': 3\}\], expected a mapping of conditions"),
        ({"reward_weights": 1.5}, "reward_weights: 1.5, expected a list of one number per reward, or None"),
    ],
)
def test_parts_of_a_search_are_checked_before_anything_is_scored(wrong: dict[str, Any], said: str) -> None:
    asked: list[Any] = []

    def scored(samples: list[Any], **columns: Any) -> list[float]:
        asked.extend(samples)
        return [0.0] * len(samples)

    with pytest.raises(ValueError, match=f"^{said}"):
        local_search(transformer_policy(), scored, rounds=1, population=2, children=2, **wrong)
    assert not asked
