"""Logits with a part that is linear in features, against one-hot products, and in a policy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from discrete_grpo.core.rollout import Context, group_contexts
from discrete_grpo.core.seeding import seeded
from discrete_grpo.models.feature_logits import SCALE, FeatureLogits
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.recipes.pretraining.graph_sequences import graph_sequence_policy
from discrete_grpo.runs.checkpoint import read_policy, save
from discrete_grpo.testing import check_policy

SIZES = (3, 5, 2)


def network() -> FeatureLogits:
    with seeded(0):
        found = FeatureLogits(GPT(GPTConfig(7, 6, layers=1, heads=2, width=8, feature_sizes=SIZES))).double()
        torch.nn.init.normal_(found.weight)
    return found


def test_the_logits_are_those_of_the_network_and_a_product_with_one_hot_features() -> None:
    net, generator = network(), torch.Generator().manual_seed(0)
    tokens = torch.randint(4, 7, (4, 6), generator=generator)
    features = torch.stack([torch.randint(size, (4, 6), generator=generator) for size in SIZES], -1)
    one_hot = torch.cat([torch.nn.functional.one_hot(x, size) for x, size in zip(features.unbind(-1), SIZES, strict=True)], -1)
    expected = net.network(tokens, features=features) + SCALE * (one_hot.double() @ net.weight)
    torch.testing.assert_close(net(tokens, features=features), expected, atol=1e-12, rtol=0)


def test_a_new_network_has_the_logits_of_the_one_inside() -> None:
    net = FeatureLogits(GPT(GPTConfig(7, 6, layers=1, heads=2, width=8, feature_sizes=SIZES)))
    tokens, features = torch.randint(4, 7, (2, 6)), torch.ones(2, 6, 3, dtype=torch.long)
    assert torch.equal(net(tokens, features=features), net.network(tokens, features=features))


def test_steps_with_a_cache_give_what_reading_at_once_gives() -> None:
    net, tokens = network(), torch.randint(4, 7, (5, 6), generator=torch.Generator().manual_seed(1))
    features = torch.randint(2, (5, 6, 3), generator=torch.Generator().manual_seed(2))
    whole, cache = net(tokens, features=features), net.cache(5)
    for t in range(6):
        step = net(tokens[:, t : t + 1], cache=cache, features=features[:, t : t + 1])
        torch.testing.assert_close(step[:, 0], whole[:, t], atol=1e-12, rtol=0)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="network: reads no features, expected at least one"):
        FeatureLogits(GPT(GPTConfig(7, 6, layers=1, heads=2, width=8)))
    with pytest.raises(ValueError, match="features: None, expected 3 beside each token"):
        network()(torch.zeros(1, 1, dtype=torch.long))


def test_a_policy_with_affinities_passes_the_conformance_kit_and_is_saved(tmp_path: Path) -> None:
    policy = graph_sequence_policy(5, 14, layers=1, heads=2, width=8, affinities=2)
    net = policy.policy.network
    assert isinstance(net, FeatureLogits)
    with seeded(1):
        torch.nn.init.normal_(net.weight, std=0.1)
    check_policy(policy, [Context(k // 3) for k in range(6)], samples=400).raise_on_failure()
    save(tmp_path / "policy", policy, metadata={})
    contexts = group_contexts(8, 1)
    drawn = [p.sample(contexts, generator=torch.Generator().manual_seed(0)) for p in (policy, read_policy(tmp_path / "policy"))]
    assert drawn[0].samples == drawn[1].samples
    assert torch.equal(drawn[0].logp, drawn[1].logp)
