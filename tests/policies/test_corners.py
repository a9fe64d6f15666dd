"""Corners of policies: wrappers that pass on what the inner policy has, sizes of networks, sizes without mass, empty input."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from discrete_grpo import load_policy
from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.rollout import Context, is_observer, is_refinable, is_replayable, is_scorer, is_size_drawer
from discrete_grpo.diffusion.noise import Noise
from discrete_grpo.diffusion.schedules import LinearSchedule, time_grid
from discrete_grpo.domains.tokenizer import Property, Tokenizer
from discrete_grpo.models.encoder import Encoder, EncoderConfig
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.policies.conditions import property_table
from discrete_grpo.policies.decoded import DecodedPolicy
from discrete_grpo.policies.masked_text import MaskedTextPolicy
from discrete_grpo.policies.node_count import LearnedSizes, RunningSizes, SizedPolicy
from discrete_grpo.policies.restart import asked_nodes
from discrete_grpo.policies.surrogate import EagerLikelihood, ElboLikelihood
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.policies.truncation import Truncation
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.recipes.loading import load_policy as load_with
from tests.toys import tiny_policy

FOUR = [Context(k // 2) for k in range(4)]
TOKENS = Tokenizer(("a", "b", "ab"), r"ab|a|b")


def doubled(samples: Any) -> list[Any]:
    return list(samples)


# -- wrappers


def test_a_decoded_policy_has_what_the_inner_one_has_and_no_more() -> None:
    plain = tiny_policy()
    inner: list[Any] = [plain, EagerLikelihood(plain), SizedPolicy(plain, RunningSizes(plain.node_counts, rate=0.5))]
    for policy in inner:
        wrapped = DecodedPolicy(policy, doubled)
        for test in (is_scorer, is_observer, is_refinable, is_size_drawer):
            assert test(wrapped) == test(policy), (test, policy)
    assert not is_replayable(DecodedPolicy(plain, doubled))  # the decoder has no encode


def test_a_decoded_surrogate_scores_as_the_surrogate() -> None:
    policy = EagerLikelihood(tiny_policy())
    wrapped = DecodedPolicy(policy, doubled)
    rollout = wrapped.sample(FOUR, generator=torch.Generator().manual_seed(0))
    assert torch.equal(wrapped.score(rollout).logp, policy.score(rollout).logp)
    kl, wanted = (one.score(rollout, None, copy.deepcopy(one)).kl for one in (wrapped, policy))
    assert kl is not None and wanted is not None  # noqa: PT018
    assert torch.equal(kl, wanted)
    assert wrapped.forward_kl_gradient


def test_a_decoded_policy_observes_its_generations() -> None:
    plain = tiny_policy()
    policy = SizedPolicy(plain, RunningSizes(plain.node_counts, rate=0.5))
    wrapped = DecodedPolicy(policy, doubled)
    before = policy.head.log_probs().clone()
    rollout = wrapped.sample([Context(k) for k in range(8)], generator=torch.Generator().manual_seed(0))
    wrapped.observe(rollout, rollout.size.double() - rollout.size.double().mean())
    assert not torch.equal(policy.head.log_probs(), before)


# -- networks that do not fit


def gpt(**changes: Any) -> GPT:
    return GPT(replace(GPTConfig(num_tokens=len(TOKENS), block_size=8, layers=1, heads=1, width=8), **changes))


@pytest.mark.parametrize(
    ("network", "options", "said"),
    [
        ({"num_properties": 0}, {"properties": [Property("logp", 0.0, 1.0)]}, "network: of 0 properties, expected 1"),
        ({"num_properties": 2}, {"properties": [Property("logp", 0.0, 1.0)]}, "network: of 2 properties, expected 1"),
        ({}, {"max_length": 20}, "network: of block_size 8, expected at least 20"),
        ({"num_tokens": 9}, {}, "network: of 9 tokens, expected 7 as the tokenizer has"),
    ],
)
def test_networks_of_other_sizes_are_refused(network: dict[str, Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        TokenPolicy(gpt(**network), TOKENS, **({"max_length": 8} | options))


def test_a_masked_text_network_of_another_alphabet_is_refused() -> None:
    network = Encoder(EncoderConfig(num_tokens=16, block_size=8, layers=1, heads=1, width=8))
    with pytest.raises(ValueError, match=r"^network: of 16 tokens, expected 7"):
        MaskedTextPolicy(network, TOKENS, 8)


# -- samples that nobody drew


def test_texts_are_checked_together(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load_policy("tree-64-sequences")
    inner = policy.policy
    texts = [str(x) for x in inner.sample(FOUR, generator=torch.Generator().manual_seed(1)).samples]
    calls: list[int] = []
    along = type(inner)._along

    def counted(self: Any, tokens: Any) -> Any:
        calls.append(len(tokens))
        return along(self, tokens)

    monkeypatch.setattr(type(inner), "_along", counted)
    monkeypatch.setattr(type(inner), "can_draw", lambda *_: pytest.fail("one by one"))
    rollout = inner.rollout_of(texts)
    assert calls == [4]
    assert list(rollout.samples) == texts
    wrong = texts[2][::-1]
    with pytest.raises(ValueError, match="expected a text that the policy can draw") as caught:
        inner.rollout_of([*texts[:2], wrong])
    assert repr(wrong) in str(caught.value)


# -- sizes


def test_sizes_of_hardly_any_mass_are_shared_out_exactly() -> None:
    plain = tiny_policy()
    policy = SizedPolicy(plain, LearnedSizes(plain.node_counts))
    table = torch.tensor([-torch.inf, 0.0, -150.0, -151.0])
    found = policy._table(table, torch.tensor([1, 2, 3, 4]))
    assert found[1].exp().tolist() == pytest.approx([0.0, 0.0, 0.7310586, 0.2689414], abs=1e-6)
    assert found[2].exp().tolist() == [0.0, 0.0, 0.0, 1.0]
    assert bool(found[3].isneginf().all())
    assert float(found[0].exp().sum()) == pytest.approx(1.0)


def test_no_contexts_and_no_samples_are_named() -> None:
    plain = tiny_policy()
    with pytest.raises(ValueError, match="contexts: none given"):
        SizedPolicy(plain, RunningSizes(plain.node_counts)).sample([])
    space = load_policy("qm9-3d")
    for call in (space.graphs_of, space.rollout_of):
        with pytest.raises(ValueError, match="samples: none given"):
            call([])


def test_where_a_molecule_stands_makes_no_difference() -> None:
    policy = load_with("qm9-3d", SamplerOptions(num_steps=4))
    batch = policy.graphs_of(policy.sample(FOUR[:1], generator=torch.Generator().manual_seed(0)).samples)
    moved = replace(batch, positions=batch.positions + 5.0)
    drawn = [policy.rollout_of([one], generator=torch.Generator().manual_seed(2)) for one in (batch, moved)]
    logp = [score_sites(policy.sites(rollout)).logp for rollout in drawn]
    torch.testing.assert_close(*logp, rtol=1e-3, atol=1e-2)


# -- values


def test_numbers_of_numpy_are_conditions() -> None:
    table = property_table([Context(0, {"logp": np.float32(1.5)})], [Property("logp", 0.5, 2.0)], torch.float64)
    assert table is not None
    assert table.tolist() == [[0.5]]
    assert asked_nodes(Context(0, {"num_nodes": np.int64(2)})) == 2


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: time_grid(2.5), "num_steps: 2.5, expected a whole number"),  # type: ignore[arg-type]
        (lambda: ElboLikelihood(tiny_policy(), 2.5), "draws: 2.5, expected a whole number"),  # type: ignore[arg-type]
        (lambda: Truncation(1e-40), "temperature: 1e-40, expected at least 1e-30"),
    ],
)
def test_values_out_of_range_are_named(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        make()


@pytest.mark.parametrize("prior", [[0.5, 0.5], np.array([0.5, 0.5]), torch.tensor([0.5, 0.5])])
def test_a_prior_may_be_a_list_or_an_array(prior: Any) -> None:
    noise = Noise(prior, LinearSchedule(), 2)
    assert noise.prior == (0.5, 0.5)
    assert hash(noise) == hash(Noise((0.5, 0.5), LinearSchedule(), 2))
