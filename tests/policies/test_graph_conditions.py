"""Properties and guidance of the graph policy: both branches, their mixture, and what is trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from discrete_grpo import group_contexts, score_sites
from discrete_grpo.datasets.enumeration import load_enumerated
from discrete_grpo.datasets.molecules import conditioned
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import uniform
from discrete_grpo.diffusion.schedules import CosineSchedule
from discrete_grpo.domains.graphs import ConditionedGraphs, GraphBatch
from discrete_grpo.domains.tokenizer import Property
from discrete_grpo.policies.conditions import hide_properties, shown_properties
from discrete_grpo.policies.graph import FixedSites, GraphPolicy
from discrete_grpo.runs.checkpoint import read_policy, save
from tests.toys import node_classes, tiny_network

SCALES = [Property("p", 1.0, 2.0), Property("q")]
COLUMNS: list[dict[str, Any]] = [{"p": 3.0, "q": -1.0}, {"p": -2.0}, {}]


def conditional(guidance: float = 1.0, **options: Any) -> GraphPolicy:
    network = tiny_network(num_properties=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for name, parameter in network.named_parameters():
            if "film" in name:  # zero at the start, when no condition reaches the logits
                nn.init.normal_(parameter, std=0.5)
    kernels = D3PM(uniform(3, CosineSchedule())), D3PM(uniform(2, CosineSchedule()))
    return GraphPolicy(
        network, *kernels, (0.0, 0.0, 0.5, 0.5), num_steps=4, properties=SCALES, guidance=guidance, decode=node_classes, **options
    ).eval()


def state_of(policy: GraphPolicy, count: int = 3) -> tuple[GraphBatch, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    nodes = torch.randint(0, 3, (count, 3), generator=generator)
    edges = torch.zeros(count, 3, 3, dtype=torch.long)
    edges[:, 0, 1] = edges[:, 1, 0] = 1
    return GraphBatch(nodes, edges, torch.ones(count, 3, dtype=torch.bool)), torch.full((count,), 0.5)


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0, 2.5])
def test_guidance_is_a_geometric_mixture_of_both_branches(weight: float) -> None:
    policy = conditional(weight)
    state, time = state_of(policy)
    given = torch.tensor([[1.0, -1.0], [-1.5, torch.nan], [torch.nan, torch.nan]])
    with torch.no_grad():
        nodes, pairs = policy.clean_probs(state, time, given)
        plain = conditional(1.0)
        with_c, without = plain.clean_probs(state, time, given), plain.clean_probs(state, time, None)
    for found, c, u in zip((nodes, pairs), with_c, without, strict=True):
        mixture = u ** (1 - weight) * c**weight
        torch.testing.assert_close(found, mixture / mixture.sum(-1, keepdim=True), rtol=0, atol=1e-5)
        torch.testing.assert_close(found[2], u[2], rtol=0, atol=1e-6)  # nothing given: no guidance
    assert not torch.allclose(with_c[0][0], without[0][0], atol=1e-3)


@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_drawing_and_scoring_see_the_same_condition(weight: float) -> None:
    policy = conditional(weight)
    rollout = policy.sample(group_contexts(3, 4, COLUMNS), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(score_sites(policy.sites(rollout)).logp.sum(-1), rollout.logp, rtol=0, atol=1e-4)
    bare = policy.sites(rollout.__class__(**{**vars(rollout), "states": {k: rollout.states[k] for k in ("nodes", "pairs")}}))
    assert not torch.allclose(score_sites(bare).logp.sum(-1)[:8], rollout.logp[:8], atol=1e-3)
    torch.testing.assert_close(score_sites(bare).logp.sum(-1)[8:], rollout.logp[8:], rtol=0, atol=1e-4)


def test_likelihood_trains_the_property_weights_and_hides_some() -> None:
    policy = conditional(condition_dropout=0.5)
    state, _ = state_of(policy)
    batch = ConditionedGraphs(state, torch.randn(3, 2, generator=torch.Generator().manual_seed(0)))
    policy.likelihood_loss(batch.to("cpu"), generator=torch.Generator().manual_seed(1))["loss"].backward()
    weight = policy.network.get_parameter("property_in.weight")
    assert weight.grad is not None
    assert float(weight.grad.abs().sum()) > 0
    hidden = hide_properties(torch.zeros(20_000, 2), 0.3, torch.Generator().manual_seed(0)).isnan()
    assert float(hidden.all(1).double().mean()) == pytest.approx(0.3 + 0.7 * 0.09, abs=0.02)
    assert float((~hidden).all(1).double().mean()) == pytest.approx(0.7**3, abs=0.02)
    assert not bool(hide_properties(torch.zeros(50, 2), 0.0).isnan().any())


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_hidden_properties_do_not_reach_the_network_in_training(share: float) -> None:
    policy = conditional(condition_dropout=share)
    batch = ConditionedGraphs(state_of(policy)[0], torch.ones(3, 2))
    policy.likelihood_loss(batch, generator=torch.Generator().manual_seed(1))["loss"].backward()
    gradient = policy.network.get_parameter("property_in.weight").grad
    assert gradient is not None
    assert bool(gradient.any()) is (share == 0.0)


def test_the_generator_decides_what_a_training_batch_hides() -> None:
    state, _ = state_of(conditional(), 200)
    made = [
        shown_properties(ConditionedGraphs(state, torch.ones(200, 2)), 0.5, torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    ]
    assert all(graphs is state for graphs, _ in made)
    first, again, other = (properties.isnan() for _, (properties,) in made)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert shown_properties(state, 0.5)[1] == ()


def test_molecules_come_with_standardised_properties() -> None:
    data = conditioned(load_enumerated(4), ["MolWt"])
    assert len(data) == len(data.data) == len(data.sizes)
    assert float(data.values.mean()) == pytest.approx(0, abs=1e-5)
    batch = data.batch(torch.tensor([3, 1]))
    assert torch.equal(batch.properties, data.values[[3, 1]])
    assert len(batch) == 2
    raw = data.values * data.properties[0].std + data.properties[0].mean
    assert float(raw[0, 0]) == pytest.approx(16.043, abs=1e-2)  # methane is the first


def test_a_checkpoint_keeps_conditions_and_guidance(tmp_path: Any) -> None:
    policy = conditional(1.5)
    again = read_policy(save(tmp_path / "p", policy, metadata={}))
    assert (again.properties, again.guidance) == (policy.properties, 1.5)
    drawn = [p.sample(group_contexts(3, 2, COLUMNS), generator=torch.Generator().manual_seed(0)).logp for p in (policy, again)]
    assert torch.equal(*drawn)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"guidance": -1.0}, "guidance: -1.0, expected at least 0"),
        ({"guidance": 2.0, "properties": ()}, "guidance: 2.0, expected 1 without properties"),
        ({"condition_dropout": 1.5}, "condition_dropout: 1.5, expected 0 to 1"),
    ],
)
def test_arguments_out_of_range_are_named(options: dict[str, Any], said: str) -> None:
    args = conditional().init_args() | options
    with pytest.raises(ValueError, match=said):
        GraphPolicy(**args)


def test_fixed_sites_are_clean_at_the_end_of_a_schedule_that_is_not() -> None:
    class Leaky:
        def alpha_bar(self, t: torch.Tensor) -> torch.Tensor:
            return 0.5 - 0.5 * t.double()

    kernels = D3PM(uniform(3, Leaky())), D3PM(uniform(2, Leaky()))
    policy = GraphPolicy(tiny_network(), *kernels, (0.0, 0.0, 0.0, 1.0), num_steps=2, decode=node_classes)
    contexts = group_contexts(1, 40, [{"fixed": FixedSites({0: 2, 1: 1})}])
    rollout = policy.sample(contexts, generator=torch.Generator().manual_seed(0))
    assert all(sample[:2] == (2, 1) for sample in rollout.samples)
