"""Token policies with a grammar, by enumeration of all texts and against the grammar's own rules."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor

from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.rollout import Context
from discrete_grpo.datasets.synthetic_graphs import planar, tree
from discrete_grpo.domains.graph6 import from_graph6, graph6
from discrete_grpo.domains.graph_sequence_grammar import GraphSequenceGrammar
from discrete_grpo.domains.graph_sequences import PATTERN, listed, text_of, vocabulary
from discrete_grpo.domains.named_graphs import Labels
from discrete_grpo.domains.tokenizer import BOS, EOS, NUM_SPECIAL, PAD, TokenBatch, Tokenizer
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.policies.decoded import DecodedPolicy
from discrete_grpo.policies.grammar import State, legal_along
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.policies.truncation import Truncation, unpack_bits
from discrete_grpo.recipes.pretraining.graph_sequences import graph_sequence_policy
from discrete_grpo.testing import check_policy


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def graph_policy(max_nodes: int, max_length: int, labels: Labels | None = None, *, spread: float = 1.0) -> DecodedPolicy:
    """An untrained policy in float64 whose logits differ by about ``spread``."""
    policy = graph_sequence_policy(max_nodes, max_length, labels, layers=1, heads=2, width=16).double()
    with torch.no_grad():
        for parameter in policy.policy.network.parameters():
            parameter.add_(spread * torch.randn(parameter.shape, generator=seeded(0), dtype=torch.float64) / 4)
    return policy


def log_probs(policy: TokenPolicy, rollout: Any) -> Tensor:
    with torch.no_grad():
        return score_sites(policy.sites(rollout)).logp.flatten(1).sum(1)


def all_texts(policy: TokenPolicy) -> list[list[int]]:
    """Every sequence of legal tokens, to EOS or ``max_length``."""
    assert policy.grammar is not None

    def onward(ids: list[int], state: State) -> list[list[int]]:
        if ids[-1:] == [EOS] or len(ids) == policy.max_length:
            return [ids]
        following = policy.grammar.legal(state)[0].nonzero().flatten().tolist()  # type: ignore[union-attr]
        return [text for k in following for text in onward([*ids, k], policy.grammar.advance(state, torch.tensor([k])))]  # type: ignore[union-attr]

    return onward([], policy.grammar.start(1, torch.device("cpu")))


@pytest.mark.parametrize("truncation", [Truncation(), Truncation(0.7)], ids=str)
def test_log_probs_sum_to_one_over_all_texts(truncation: Truncation) -> None:
    decoded = graph_policy(3, 4)
    policy = decoded.policy
    policy.truncation = truncation
    texts = all_texts(policy)
    assert len(texts) > 40
    drawable = [row[:-1] if row[-1] == EOS else row for row in texts]
    names = [policy.tokenizer.decode(row) for row in drawable]
    assert all(line is not None for line in decoded.decoder(names))
    spelled = [k for k, row in enumerate(drawable) if policy.tokenizer.encode(names[k]) == row]  # not "+", "." for "+."
    found = torch.stack([log_prob_of(policy, row) for row in texts])
    assert float(found.exp().sum()) == pytest.approx(1, abs=1e-12)
    again = log_probs(policy, policy.rollout_of([names[k] for k in spelled]))
    assert torch.allclose(again, found[spelled], atol=1e-10)


def described(policy: TokenPolicy, ids: list[int]) -> Tensor:
    """The features after some tokens."""
    grammar: Any = policy.grammar
    state = grammar.start(1, torch.device("cpu"))
    for token in ids:
        state = grammar.advance(state, torch.tensor([token]))
    return grammar.features(state)[0]


def log_prob_of(policy: TokenPolicy, ids: list[int]) -> Tensor:
    """log π of a text from one forward pass per token, with the state of the grammar made anew for each."""
    total, grammar = torch.zeros((), dtype=torch.float64), cast(Any, policy.grammar)
    for k, token in enumerate(ids):
        state = grammar.start(1, torch.device("cpu"))
        for past in ids[:k]:
            state = grammar.advance(state, torch.tensor([past]))
        features = torch.stack([described(policy, ids[:j]) for j in range(k + 1)]).unsqueeze(0)
        with torch.no_grad():
            logits = policy.network(torch.tensor([[BOS, *ids[:k]]]), features=features)[0, -1] / policy.truncation.temperature
        total += logits[token] - logits[grammar.legal(state)[0]].logsumexp(0)
    return total


@pytest.mark.parametrize("labels", [None, Labels(("a", "b"), ("no edge", "x", "y"))], ids=["plain", "classes"])
def test_every_sample_of_an_untrained_policy_is_a_graph(labels: Labels | None) -> None:
    policy = graph_policy(7, 200, labels)
    rollout = policy.sample([Context(0)] * 64, generator=seeded(1))
    assert all(sample is not None for sample in rollout.samples)
    lines = [line.split()[0] for line in rollout.samples]
    assert all(1 <= len(from_graph6(line)) <= 7 for line in lines)
    assert len(set(lines)) > 12
    assert torch.allclose(log_probs(policy.policy, rollout), rollout.logp.sum(1), atol=1e-10)
    kept = unpack_bits(rollout.states["kept"], len(policy.policy.tokenizer))
    tokens = rollout.states["tokens"].long()
    legal = legal_along(policy.policy.grammar, tokens)
    inside = tokens != PAD
    assert torch.equal(kept[inside], legal[inside])


def test_top_p_takes_from_what_is_legal() -> None:
    policy = graph_policy(6, 60, spread=4)
    policy.policy.truncation = Truncation(top_p=0.6)
    rollout = policy.sample([Context(0)] * 32, generator=seeded(2))
    kept = unpack_bits(rollout.states["kept"], len(policy.policy.tokenizer))
    tokens = rollout.states["tokens"].long()
    inside, legal = tokens != PAD, legal_along(policy.policy.grammar, tokens)
    assert not (kept & ~legal)[inside].any()
    assert (kept[inside].sum(-1) < legal[inside].sum(-1)).any()
    assert all(sample is not None for sample in rollout.samples)
    assert torch.allclose(log_probs(policy.policy, rollout), rollout.logp.sum(1), atol=1e-10)


def test_the_loss_is_the_mean_log_prob_per_token() -> None:
    decoded = graph_policy(6, 40)
    policy = decoded.policy
    rows = [text_of(listed(graph)) for graph in (nx.cycle_graph(5), nx.path_graph(2), nx.complete_graph(5))]
    ids = [[*policy.tokenizer.encode(row), EOS] for row in rows]
    batch = TokenBatch(torch.tensor([row + [PAD] * (max(map(len, ids)) - len(row)) for row in ids]))
    loss = policy.likelihood_loss(batch)["loss"].detach()
    assert float(loss) == pytest.approx(-float(log_probs(policy, policy.rollout_of(rows)).sum()) / sum(map(len, ids)), abs=1e-12)


def test_texts_that_break_the_rules_cannot_be_drawn() -> None:
    policy = graph_policy(4, 12).policy
    assert policy.can_draw("*++.>.")
    for text in ("*++.>.<.", "*++.2>.", "+.", "*****", "*+++.+.", "*.+."):
        assert not policy.can_draw(text), text
        with pytest.raises(ValueError, match="expected a text that the policy can draw"):
            policy.rollout_of([text])


def test_a_graph_that_it_did_not_draw_is_written_in_a_random_order() -> None:
    policy = graph_policy(9, 40)
    sample = graph6(tree(9, np.random.default_rng(0)))
    made = [policy.rollout_of([sample] * 6, generator=seeded(seed)) for seed in (0, 0, 1)]
    assert torch.equal(made[0].states["tokens"], made[1].states["tokens"])
    rows = {tuple(row) for rollout in made for row in rollout.states["tokens"].tolist()}
    assert len(rows) > 3
    tokenizer = policy.policy.tokenizer
    for line in policy.decoder([tokenizer.decode(row) for row in rows]):
        assert nx.is_isomorphic(from_graph6(line), from_graph6(sample))
    plain = policy.rollout_of([sample])
    assert tokenizer.decode(plain.states["tokens"][0].tolist()) == policy.decoder.encode([sample])[0]


def test_an_order_too_long_for_the_policy_is_replaced() -> None:
    graph = planar(9, np.random.default_rng(0))
    encode = graph_policy(9, 4).policy.tokenizer.encode
    lengths = [len(encode(text_of(listed(graph), np.random.default_rng(seed)))) for seed in range(40)]
    length = len(encode(text_of(listed(graph))))
    assert max(lengths) > length
    rollout = graph_policy(9, length).rollout_of([graph6(graph)] * 20, generator=seeded(3))
    assert len({tuple(row) for row in rollout.states["tokens"].tolist()}) > 1
    assert rollout.num_steps <= length


def test_the_network_reads_the_features() -> None:
    policy = graph_policy(6, 40).policy
    rollout = policy.sample([Context(0)] * 4, generator=seeded(4))
    other = dataclasses.replace(rollout, states=rollout.states | {"features": rollout.states["features"].flip(0)})
    assert torch.allclose(log_probs(policy, rollout), rollout.logp.sum(1), atol=1e-10)
    assert (log_probs(policy, other) - rollout.logp.sum(1)).abs().max() > 1e-3


class Alternating:
    """Letters a and b in turn, and an end after an even number of them: a grammar of one's own, without weights."""

    num_tokens = NUM_SPECIAL + 2

    def start(self, rows: int, device: torch.device) -> State:
        return {"count": torch.zeros(rows, dtype=torch.long, device=device)}

    def legal(self, state: State) -> Tensor:
        even = state["count"] % 2 == 0
        found = torch.zeros(len(even), self.num_tokens, dtype=torch.bool, device=even.device)
        found[:, EOS], found[:, NUM_SPECIAL], found[:, NUM_SPECIAL + 1] = even, even, ~even
        return found

    def advance(self, state: State, tokens: Tensor) -> State:
        return {"count": state["count"] + (tokens >= NUM_SPECIAL)}

    def init_args(self) -> dict[str, Any]:
        return {}


def letters(grammar: Any, **options: Any) -> TokenPolicy:
    tokenizer = Tokenizer(("a", "b"))
    return TokenPolicy(GPT(GPTConfig(6, 8, 0, 1, 2, 16)), tokenizer, max_length=8, grammar=grammar, **options)


def test_a_grammar_of_ones_own_passes_the_conformance_kit() -> None:
    policy = letters(Alternating())
    rollout = policy.sample([Context(0)] * 40, generator=seeded(0))
    assert {sample.replace("ab", "") for sample in rollout.samples} == {""}
    check_policy(policy, [Context(k // 3) for k in range(6)], samples=200, trusted=("discrete_grpo", "tests")).raise_on_failure()


def test_a_network_need_not_read_the_features() -> None:
    tokenizer = Tokenizer(vocabulary(4), PATTERN)
    network = GPT(GPTConfig(len(tokenizer), 20, 0, 1, 2, 16))
    policy = TokenPolicy(network, tokenizer, max_length=20, grammar=GraphSequenceGrammar(4)).double()
    assert policy.feature_sizes == ()
    rollout = policy.sample([Context(0)] * 8, generator=seeded(0))
    assert "features" not in rollout.states
    assert torch.allclose(log_probs(policy, rollout), rollout.logp.sum(1), atol=1e-10)


def test_a_grammar_that_does_not_fit_is_refused() -> None:
    network = GPT(GPTConfig(6, 8, 0, 1, 2, 16, feature_sizes=(3, 2)))
    with pytest.raises(ValueError, match=r"network: reads features of sizes \(3, 2\), expected those of the grammar, none"):
        TokenPolicy(network, Tokenizer(("a", "b")), max_length=8, grammar=Alternating())
    with pytest.raises(ValueError, match="feature_sizes: 0, expected at least 1"):
        GPTConfig(6, 8, feature_sizes=(0,))
    with pytest.raises(ValueError, match="grammar: of 58 tokens, expected those of the tokenizer, 6"):
        letters(GraphSequenceGrammar(9))
    with pytest.raises(ValueError, match="min_length: 2, expected 0 with a grammar"):
        letters(Alternating(), min_length=2)
    with pytest.raises(ValueError, match=r"only: \['a'\], expected None with a grammar"):
        letters(Alternating(), only=["a"])
