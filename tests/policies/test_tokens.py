"""The token policy: exact probabilities over an enumerable space, conditions, truncation, batches."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo import Context, GRPOConfig, GRPOTrainer, Rollout, group_contexts, score_sites
from discrete_grpo.core.batch_share import WHOLE
from discrete_grpo.domains.tokenizer import BOS, EOS, MASK, NUM_SPECIAL, PAD, Property, TokenBatch, Tokenizer
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.policies.truncation import Truncation
from discrete_grpo.runs.checkpoint import read_policy, save

LETTERS = Tokenizer(("a", "b", "c"))


def token_policy(
    max_length: int = 4, *, seed: int = 0, spread: float = 0.6, dtype: torch.dtype = torch.float64, **options: Any
) -> TokenPolicy:
    """A policy of a few thousand weights over three letters, conditioned on two properties and a prompt."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = GPT(GPTConfig(len(LETTERS), max_length, 2, layers=2, heads=2, width=16)).to(dtype)
        for parameter in net.parameters():
            nn.init.normal_(parameter, std=spread if parameter.ndim > 1 else 0.1)
    scales = [Property("p", 1.0, 2.0), Property("q")]
    return TokenPolicy(net, LETTERS, max_length=max_length, prompt="core", properties=scales, **options).eval()


CONDITIONS: list[dict[str, Any]] = [{}, {"core": "abc"}, {"core": "b", "p": 3.0}, {"q": -1.0}]


def every_text(policy: TokenPolicy, columns: dict[str, Any] | None = None) -> Rollout:
    """All texts of the space as one rollout, as if they had been drawn."""
    low, high = policy.min_length, policy.max_length
    texts = [list(t) for n in range(low, high + 1) for t in itertools.product(range(NUM_SPECIAL, len(LETTERS)), repeat=n)]
    rows = [[*t, EOS] if len(t) < high else t for t in texts]
    tokens = torch.tensor([r + [PAD] * (high - len(r)) for r in rows], dtype=torch.uint8)
    prompt, values = policy._conditions([Context(0, columns or {})] * len(rows))
    states = {"tokens": tokens}
    if prompt is not None:
        states["prompt"] = prompt.to(torch.uint8)
    if values is not None:
        states["properties"] = values
    length = torch.tensor([len(r) for r in rows])
    units = (torch.arange(high) < length[:, None]).long()
    samples = tuple(LETTERS.decode(t) for t in texts)
    given = {k: (v,) * len(rows) for k, v in (columns or {}).items()}
    group = torch.zeros(len(rows), dtype=torch.long)
    return Rollout(states, group, torch.zeros(units.shape).double(), units, length, high, samples, given)


def total_log_probs(policy: TokenPolicy, rollout: Rollout) -> Tensor:
    return score_sites(policy.sites(rollout)).logp.sum((1, 2))


TRUNCATIONS = [None, Truncation(0.6), Truncation(top_k=2), Truncation(1.4, top_p=0.8), Truncation(0.8, 3, 0.9)]


@pytest.mark.parametrize("truncation", TRUNCATIONS)
@pytest.mark.parametrize("columns", CONDITIONS)
@pytest.mark.parametrize("min_length", [0, 2, 4])
def test_probabilities_of_every_text_sum_to_one(truncation: Truncation | None, columns: dict[str, Any], min_length: int) -> None:
    policy = token_policy(min_length=min_length, truncation=truncation)
    space = every_text(policy, columns)
    with torch.no_grad():
        assert float(total_log_probs(policy, space).exp().sum()) == pytest.approx(1.0, abs=1e-10)


@pytest.mark.parametrize("truncation", TRUNCATIONS)
def test_a_replay_gives_the_log_probs_of_drawing(truncation: Truncation | None) -> None:
    policy = token_policy(9, truncation=truncation)
    contexts = group_contexts(4, 5, CONDITIONS)
    rollout = policy.sample(contexts, generator=torch.Generator().manual_seed(1))
    scores = score_sites(policy.sites(rollout))
    torch.testing.assert_close(scores.logp.sum(-1), rollout.logp, rtol=0, atol=1e-10)
    assert torch.equal(scores.mask.sum(-1), rollout.units)
    assert bool((rollout.units.sum(1) <= 9).all())
    assert len({len(s) for s in rollout.samples}) > 1  # rows left the batch at different times
    for k, text in enumerate(rollout.samples):
        ids = rollout.states["tokens"][k, : int(rollout.units[k].sum())].tolist()
        assert ids == LETTERS.encode(text) + ([EOS] if len(text) < 9 else [])
        assert rollout.states["tokens"][k, len(ids) :].tolist() == [PAD] * (rollout.num_steps - len(ids))


def test_a_kept_set_is_the_rollouts_and_not_the_new_weights() -> None:
    policy, other = token_policy(6, truncation=Truncation(top_k=2)), token_policy(6, seed=5, truncation=Truncation(top_k=2))
    rollout = policy.sample(group_contexts(3, 6), generator=torch.Generator().manual_seed(0))
    scores = score_sites(policy.sites(rollout), other.sites(rollout))
    assert bool(scores.logp.isfinite().all())
    assert scores.kl is not None
    assert bool(scores.kl.isfinite().all())
    assert float(scores.kl.detach().max()) > 0.01
    finite = [sites.log_probs.isfinite().sum(-1)[sites.mask] for sites in other.sites(rollout)]
    assert bool((finite[0] == 2).all())


def test_a_prompt_and_a_property_change_the_tables_and_a_missing_one_does_not() -> None:
    policy = token_policy()
    plain, same = every_text(policy), every_text(policy, {"core": None, "p": None})
    assert torch.equal(total_log_probs(policy, plain), total_log_probs(policy, same))
    for columns in CONDITIONS[1:]:
        assert not torch.allclose(total_log_probs(policy, plain), total_log_probs(policy, every_text(policy, columns)))
    assert policy._conditions([Context(0, {"p": 3.0})])[1].tolist()[0][0] == 1.0  # type: ignore[union-attr]


def test_columns_and_groups_reach_the_rewards() -> None:
    rollout = token_policy(decode=lambda texts: [t.upper() for t in texts]).sample(group_contexts(2, 2, CONDITIONS[1:3]))
    assert rollout.group.tolist() == [0, 0, 1, 1]
    assert rollout.columns == {"core": ("abc", "abc", "b", "b"), "p": (None, None, 3.0, 3.0)}
    assert all(s == s.upper() for s in rollout.samples)


def test_likelihood_is_minus_the_log_probability_a_token() -> None:
    policy = token_policy(condition_dropout=0.0)
    space = every_text(policy, {"core": "abc", "p": 3.0}).index(torch.tensor([0, 2, 7, 40]))
    batch = TokenBatch(space.states["tokens"].long(), space.states["prompt"].long(), space.states["properties"])
    loss = policy.likelihood_loss(batch)["loss"]
    exact = -score_sites(policy.sites(space)).logp[..., 0][space.units.bool()].mean()
    torch.testing.assert_close(loss, exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "options", [{"only": ("b", "c")}, {"min_length": 2}, {"min_length": 4}, {"only": ("a", "b", "c"), "min_length": 3}]
)
def test_the_likelihood_is_that_of_the_tokens_that_are_drawn(options: dict[str, Any]) -> None:
    policy = token_policy(**options)
    drawn = policy.rollout_of(["bccb", "cbc" if options.get("min_length") != 4 else "cbcc"])
    loss = policy.likelihood_loss(TokenBatch(drawn.states["tokens"].long()))["loss"]
    exact = -score_sites(policy.sites(drawn)).logp[..., 0][drawn.units.bool()].mean()
    torch.testing.assert_close(loss, exact, rtol=0, atol=1e-12)


def test_texts_that_are_never_drawn_are_refused_in_training() -> None:
    with pytest.raises(ValueError, match=r"^tokens of a text: 'a', expected tokens that the policy draws \(only\)$"):
        token_policy(only=("b", "c")).likelihood_loss(TokenBatch(torch.tensor([[5, 4, EOS]])))
    with pytest.raises(ValueError, match=r"^tokens of a text: 1, expected at least 2 \(min_length\)$"):
        token_policy(min_length=2).likelihood_loss(TokenBatch(torch.tensor([[5, 4, EOS], [5, EOS, PAD]])))


def test_logits_of_special_tokens_do_not_count_in_the_likelihood() -> None:
    policy = token_policy()
    batch = TokenBatch(torch.tensor([[4, 5, EOS], [6, EOS, PAD]]))
    loss = policy.likelihood_loss(batch)["loss"]
    special, high = torch.tensor([PAD, BOS, MASK]), torch.full((2, 3, 3), 9.0).double()
    policy.network.register_forward_hook(lambda module, given, logits: logits.index_copy(-1, special, high))
    assert torch.equal(policy.likelihood_loss(batch)["loss"], loss)


def test_conditions_are_hidden_in_training_at_the_rate_asked_for() -> None:
    policy = token_policy(condition_dropout=0.25)
    batch = TokenBatch(torch.tensor([[4, EOS]] * 64), torch.tensor([[5]] * 64), torch.zeros(64, 2))
    generator = torch.Generator().manual_seed(0)
    drawn = [policy._hide(batch, generator) for _ in range(200)]
    assert sum(p is None for p, _ in drawn) / 200 == pytest.approx(0.25, abs=0.1)
    hidden = torch.stack([v.isnan() for _, v in drawn if v is not None]).double().mean()
    assert float(hidden) == pytest.approx(0.25, abs=0.02)


def test_a_checkpoint_holds_everything(tmp_path: Path) -> None:
    policy = token_policy(min_length=1, truncation=Truncation(0.9, 3, 0.95), dtype=torch.float32)
    again = read_policy(save(tmp_path / "policy", policy, metadata={}))
    assert again.init_args().keys() == policy.init_args().keys()
    assert (again.tokenizer, again.truncation, again.properties) == (policy.tokenizer, policy.truncation, policy.properties)
    a, b = (p.sample(group_contexts(4, 2, CONDITIONS), generator=torch.Generator().manual_seed(3)) for p in (policy, again))
    assert a.samples == b.samples
    assert torch.equal(a.logp, b.logp)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"core": "abx"}, "core: 'abx' has the token 'x', expected one of the alphabet's 3"),
        ({"core": "abcab"}, "core: 'abcab' has 5 tokens, expected at most 4"),
        ({"p": "high"}, "p: 'high', expected a finite number"),
        ({"p": float("inf")}, "p: inf, expected a finite number"),
    ],
)
def test_a_condition_the_policy_cannot_follow_is_named(columns: dict[str, Any], said: str) -> None:
    for call in (lambda p: p.sample([Context(0, columns)]), lambda p: p.check_condition(columns)):
        with pytest.raises(ValueError, match=said):
            call(token_policy())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_length": 0}, "max_length: 0, expected at least 1"),
        ({"min_length": 9}, r"min_length: 9, expected 0 to 4 \(max_length\)"),
        ({"condition_dropout": 2.0}, "condition_dropout: 2.0, expected 0 to 1"),
    ],
)
def test_arguments_out_of_range_are_named(options: dict[str, Any], said: str) -> None:
    args = token_policy().init_args() | options
    with pytest.raises(ValueError, match=said):
        TokenPolicy(**args)


def test_a_text_longer_than_the_block_is_named() -> None:
    with pytest.raises(ValueError, match=r"tokens of a text: 6, expected at most 4 \(max_length\)"):
        token_policy().likelihood_loss(TokenBatch(torch.tensor([[4, 4, 4, 4, 4, 4, EOS]])))
    with pytest.raises(ValueError, match="contexts: none given"):
        token_policy().sample([])


def test_only_some_tokens_may_be_drawn_though_prompts_have_others() -> None:
    policy = token_policy(only=("a", "c"))
    rollout = policy.sample(group_contexts(2, 20, [{"core": "bb"}, {}]), generator=torch.Generator().manual_seed(0))
    assert set("".join(rollout.samples)) == {"a", "c"}
    space = every_text(policy)
    inside = torch.tensor(["b" not in text for text in space.samples])
    with torch.no_grad():
        mass = total_log_probs(policy, space).exp()
    assert float(mass[inside].sum()) == pytest.approx(1.0, abs=1e-10)
    assert float(mass[~inside].sum()) == 0
    for wrong, said in [(("a", "z"), "token 'z'"), ((), "only: no tokens"), (("",), "only: no tokens")]:
        with pytest.raises(ValueError, match=said):
            token_policy(only=wrong)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (None, "columns: None: core: None, expected one, as the policy was trained with one always"),
        (
            [{"core": "b", "p": 1.0, "q": 0.0}, {"core": "b", "p": 1.0}],
            "columns: entry 1: q: None, expected a number, as the policy",
        ),
        ([{"core": "b", "p": "x", "q": 0.0}], "columns: entry 0: p: 'x', expected"),
    ],
)
def test_a_trainer_refuses_conditions_that_the_policy_was_never_trained_without(columns: Any, said: str) -> None:
    config = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=4)

    def length(samples: Sequence[str]) -> list[float]:
        return [float(len(sample)) for sample in samples]

    with pytest.raises(ValueError, match=re.escape(said)):
        GRPOTrainer(token_policy(condition_dropout=0.0), length, config, columns=columns)
    GRPOTrainer(token_policy(condition_dropout=0.1), length, config)


def test_the_number_of_tokens_is_that_of_the_whole_batch_in_every_process() -> None:
    class Second:
        own = slice(1, 2)
        means = WHOLE.means

    policy = token_policy()
    batch = TokenBatch(torch.tensor([[4, 5, EOS], [6, EOS, PAD]]))
    assert float(policy.likelihood_loss(batch, share=Second())["tokens"]) == 5.0


def test_each_property_is_hidden_by_a_draw_of_its_own() -> None:
    batch = TokenBatch(torch.tensor([[4, EOS]] * 400), None, torch.zeros(400, 2))
    _, shown = token_policy(condition_dropout=0.5)._hide(batch, torch.Generator().manual_seed(0))
    assert shown is not None
    pairs = shown.isnan().long() @ torch.tensor([1, 2])
    assert torch.bincount(pairs, minlength=4).tolist() == pytest.approx([100] * 4, abs=35)


def test_the_size_of_a_row_counts_its_prompt() -> None:
    rollout = token_policy(min_length=4).sample([Context(k, columns) for k, columns in enumerate(CONDITIONS)])
    assert rollout.size.tolist() == [4, 4 + 3, 4 + 1, 4]
