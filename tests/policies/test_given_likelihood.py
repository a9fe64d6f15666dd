"""Log-probabilities of given samples: texts against an enumeration and against draws, bounds of graphs against all paths."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo.core.rollout import Context
from discrete_grpo.domains.graphs import GraphBatch, node_mask
from discrete_grpo.domains.tokenizer import SMILES, Property, Tokenizer
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from discrete_grpo.policies.decoded import DecodedPolicy
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.likelihood import GraphBound, log_size_probs, text_log_probs, text_part, why_not_drawn
from discrete_grpo.policies.node_count import LearnedSizes, RunningSizes, SizedPolicy
from discrete_grpo.policies.surrogate import ElboLikelihood
from discrete_grpo.policies.truncation import Truncation
from discrete_grpo.recipes.pretraining.smiles import smiles_policy
from tests import oracles
from tests.letters import letters_policy, texts
from tests.policies.surrogate_parts import KERNELS, STEPS, State, clean_probs, every_kernel, rows_of, seeded, two_nodes
from tests.toys import tiny_policy

CLEAN: list[State] = [*oracles.two_node_states(2, 2)]
MASS = Property("mass", 40.0, 10.0)


def graph_of(state: State) -> GraphBatch:
    edges = torch.tensor([[[0, state[2]], [state[2], 0]]])
    return GraphBatch(torch.tensor([state[:2]]), edges, torch.ones(1, 2, dtype=torch.bool))


def log_probs(policy: GraphPolicy, kind: str) -> dict[State, float]:
    """log p(x_0) of a graph of two nodes, by summing over all paths."""
    x, e = KERNELS[kind]
    states: list[State] = [*oracles.two_node_states(x.noise.num_states, e.noise.num_states)]
    mass = {a: float(x.noise.initial()[a[0]] * x.noise.initial()[a[1]] * e.noise.initial()[a[2]]) for a in states}
    for k in range(STEPS):
        after = dict.fromkeys(states, 0.0)
        for a in (a for a in states if mass[a] > 0):
            rows = [row.tolist() for row in rows_of(policy, kind, a, None, k)]
            for b in states:
                after[b] += mass[a] * rows[0][b[0]] * rows[1][b[1]] * rows[2][b[2]]
        mass = after
    assert sum(mass[a] for a in CLEAN) == pytest.approx(1.0, abs=1e-12)
    return {a: math.log(mass[a]) for a in CLEAN}


# -- texts


@pytest.mark.parametrize("options", [{}, {"truncation": Truncation(0.6)}, {"min_length": 2}])
def test_log_probs_of_all_texts_sum_to_one_and_are_those_of_the_draws(options: dict[str, Any]) -> None:
    policy = letters_policy(**options)
    space = [text for text in texts() if len(text) >= policy.min_length]
    logp, tokens = text_log_probs(policy, space)
    assert logp.dtype == torch.float64
    assert float(logp.exp().sum()) == pytest.approx(1.0, abs=1e-12)
    assert tokens.tolist() == [min(len(text) + 1, 3) for text in space]
    drawn = policy.sample([Context(k) for k in range(60)], generator=seeded(0))
    found = text_log_probs(policy, drawn.samples)[0]
    torch.testing.assert_close(found, drawn.logp.sum(1), rtol=0, atol=1e-12)


def test_conditions_are_those_of_the_draws() -> None:
    policy = smiles_policy(
        Tokenizer.of(["c1ccccc1CO"], SMILES), max_length=9, layers=1, heads=2, width=16, properties=(MASS,), scaffold=True
    )
    policy = policy.double().eval()
    policy.decode = None  # what is drawn and not its canonical form
    given: list[dict[str, Any]] = [{"scaffold": "c1ccccc1", "mass": 60.0}, {"scaffold": "CC"}, {"mass": 20.0}, {}]
    contexts = [Context(k, given[k % 4]) for k in range(24)]
    drawn = policy.sample(contexts, generator=seeded(0))
    found = text_log_probs(policy, drawn.samples, contexts)[0]
    torch.testing.assert_close(found, drawn.logp.sum(1).double(), rtol=0, atol=1e-6)
    assert (found - text_log_probs(policy, drawn.samples)[0]).abs()[:3].min() > 1e-5
    parts = [text_log_probs(policy, [text], [context])[0] for text, context in zip(drawn.samples, contexts, strict=True)]
    torch.testing.assert_close(torch.cat(parts), found, rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match=r"scaffold: .* has 10 tokens, expected at most 9"):
        text_log_probs(policy, ["CC"], [Context(0, {"scaffold": "C" * 10})])


@pytest.mark.parametrize(
    ("text", "options", "word"),
    [
        ("ax", {}, "vocabulary"),
        ("c", {"only": ["a", "b"]}, "vocabulary"),
        ("abca", {}, "length"),
        ("a", {"min_length": 2}, "length"),
    ],
)
def test_why_a_text_is_not_drawn(text: str, options: dict[str, Any], word: str) -> None:
    policy = letters_policy(**options)
    found = why_not_drawn(policy, text)
    assert found is not None
    assert found[0] == word
    assert not policy.can_draw(text)
    assert why_not_drawn(policy, "ab") is None


def test_a_decoder_without_an_inverse_gives_no_text() -> None:
    policy = letters_policy()
    assert text_part(DecodedPolicy(policy, lambda found: list(found))) is None
    assert text_part(tiny_policy()) is None


# -- graphs


def bounds(policy: GraphPolicy, clean: State, draws: int, seeds: range) -> Tensor:
    bound = GraphBound(policy, draws)
    return torch.tensor([bound.of_graph(graph_of(clean), seed=seed) for seed in seeds], dtype=torch.float64)


@every_kernel
def test_the_mean_of_the_bounds_lies_below_log_p_and_is_that_of_the_elbo(kind: str) -> None:
    policy = two_nodes(kind)
    wanted = log_probs(policy, kind)
    elbo = ElboLikelihood(two_nodes(kind), STEPS)
    for clean in (CLEAN[0], CLEAN[5]):
        found = bounds(policy, clean, 2, range(150))
        error = float(found.std()) / math.sqrt(len(found))
        assert float(found.mean()) < wanted[clean] + 4 * error
        other = elbo.bound(elbo.rollout_of([graph_of(clean)] * 2000, generator=seeded(0))).detach()
        error = math.hypot(error, float(other.std()) / math.sqrt(len(other)))
        assert abs(float(found.mean()) - float(other.mean())) < 4 * error


@pytest.mark.parametrize("clean", CLEAN)
def test_every_bound_is_log_p_where_it_is_tight(clean: State) -> None:
    """One step from a masked graph: p(x_0) = p̂(x_0 | masked)."""
    x, e = KERNELS["absorbing"]
    policy = GraphPolicy(oracles.LookupNetwork(3, 3, 2, 2), x, e, [0.0, 0.0, 1.0], num_steps=1)
    wanted = sum(math.log(float(row.detach()[c])) for row, c in zip(clean_probs(policy, (2, 2, 2), 0), clean, strict=True))
    assert bounds(policy, clean, 1, range(3)).tolist() == pytest.approx([wanted] * 3, abs=1e-9)


def test_a_bound_depends_on_the_graph_and_the_seed_alone() -> None:
    policy = two_nodes("uniform")
    one, again, other = (GraphBound(policy, 4) for _ in range(3))
    assert one.of_graph(graph_of(CLEAN[3]), seed=1) == again.of_graph(graph_of(CLEAN[3]), seed=1)
    assert other.of_graph(graph_of(CLEAN[5]), seed=1) != one.of_graph(graph_of(CLEAN[5]), seed=2)
    assert other.of_graph(graph_of(CLEAN[3]), seed=1) == one.of_graph(graph_of(CLEAN[3]), seed=1)


def test_a_bound_is_of_the_network_with_its_properties() -> None:
    config = GraphTransformerConfig(3, 2, 3, 2, layers=1, heads=2, width=16, edge_width=8, global_width=8, num_properties=1)
    policy = tiny_policy(properties=(MASS,))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policy.network = GraphTransformer(config).eval()
        for parameter in policy.network.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    graph = GraphBatch(torch.tensor([[0, 2]]), torch.zeros(1, 2, 2, dtype=torch.long), node_mask(torch.tensor([2]), 2))
    bound = GraphBound(policy, 4)
    given = torch.tensor([[1.5]])
    free, hidden = bound.of_graph(graph), bound.of_graph(graph, properties=torch.full((1, 1), torch.nan))
    assert free == pytest.approx(hidden, abs=1e-5)
    assert abs(bound.of_graph(graph, properties=given) - free) > 1e-3


def test_log_probs_of_the_node_count() -> None:
    counts = (0.0, 0.25, 0.0, 0.75)
    scaled = tuple(0.99995 * p for p in counts)
    policy = tiny_policy(sizes=scaled)
    wanted = [-math.inf, math.log(0.25), -math.inf, math.log(0.75)]
    assert log_size_probs(policy).tolist() == pytest.approx(wanted, abs=1e-12)
    head = LearnedSizes(counts)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([0.1, 0.0]))
    odds = 0.25 * math.e / (0.25 * math.e + 0.75)
    assert log_size_probs(SizedPolicy(policy, head)).exp().tolist() == pytest.approx([0, odds, 0, 1 - odds], abs=1e-6)
    assert log_size_probs(SizedPolicy(policy, RunningSizes(counts))).tolist() == pytest.approx(wanted, abs=1e-6)
