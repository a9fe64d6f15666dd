"""The policy that fills blanks: what is scored is what was drawn, at once and in rounds; sums to one; prompts."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor, nn

from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.rollout import Rollout
from discrete_grpo.domains.tokenizer import EOS, MASK, NUM_SPECIAL, PAD, SMILES, Tokenizer
from discrete_grpo.policies.masked_text import MaskedTextPolicy, reveal_order
from discrete_grpo.policies.truncation import Truncation
from discrete_grpo.runs.checkpoint import build, describe
from tests import oracles
from tests.policies.masked_text_parts import PROMPTS, draw, kinds, make, scores, seeded


def gradient(policy: nn.Module, value: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(value, list(policy.parameters()), materialize_grads=True))


# ---------------------------------------------------------------- scoring is drawing


@kinds
def test_replay_gives_the_very_bits_the_sampler_had(options: dict[str, Any]) -> None:
    policy = make(**options)
    rollout = draw(policy)
    for k in range(policy.rounds):
        part = score_sites(policy.sites(rollout, torch.full((len(rollout), 1), k))).logp
        assert torch.equal(part[:, 0].sum(-1), rollout.logp[:, k])
    whole = scores(policy, rollout)
    torch.testing.assert_close(whole.logp.sum(-1), rollout.logp, rtol=0, atol=1e-5)
    assert torch.equal(scores(policy, rollout).logp.detach() - whole.logp.detach(), torch.zeros_like(whole.logp))
    steps = torch.tensor([[0], [policy.rounds - 1]]).expand(2, 2).clone()
    few = rollout.index(torch.tensor([3, 0]))
    picked = score_sites(policy.sites(few, steps)).logp.sum(-1)
    torch.testing.assert_close(picked, few.logp.gather(1, steps), rtol=0, atol=1e-5)


@kinds
def test_log_probs_are_the_loop_over_rounds_and_blanks(options: dict[str, Any]) -> None:
    """Each blank by itself: what is visible in its round goes in, log-softmax over letters by loops comes out."""
    policy = make(dtype=torch.float64, **options)
    rollout = draw(policy)
    t, order, tokens = policy.truncation.temperature, rollout.states["order"].tolist(), rollout.states["tokens"].tolist()
    for b, prompt in enumerate(PROMPTS):
        wanted = [0.0] * policy.rounds
        for k in range(policy.rounds):
            seen = [x if o <= k else MASK for x, o in zip(tokens[b], order[b], strict=True)][: len(prompt)]
            logits = policy.network(torch.tensor([seen]), torch.ones(1, len(prompt), dtype=torch.bool))[0].tolist()
            for i in range(len(prompt)):
                if order[b][i] == k + 1:
                    p = oracles.softmax([z / t for z in logits[i][NUM_SPECIAL:]])
                    kept = _kept(p, policy.truncation)
                    wanted[k] += math.log(p[tokens[b][i] - NUM_SPECIAL] / sum(p[c] for c in kept))
        assert rollout.logp[b].tolist() == pytest.approx(wanted, abs=1e-9)


def _kept(p: list[float], truncation: Truncation) -> list[int]:
    ranked = sorted(range(len(p)), key=lambda c: -p[c])[: truncation.top_k]
    total, kept, mass = sum(p[c] for c in ranked), [], 0.0
    for c in ranked:
        if mass >= truncation.top_p:
            break
        kept.append(c)
        mass += p[c] / total
    return kept


@kinds
def test_the_fills_of_a_fixed_order_sum_to_one(options: dict[str, Any]) -> None:
    """Σ over all 3^4 fills of Π_k p(round k) = 1; with a cut-off, the kept set is the one each fill's own path would store."""
    policy = make(dtype=torch.float64, **options)
    rollout = draw(policy, ["_b__a_"])
    places = [1 - 1, 2, 3, 5]
    fills = list(itertools.product(range(NUM_SPECIAL, NUM_SPECIAL + 3), repeat=4))
    rows = rollout.index(torch.zeros(len(fills), dtype=torch.long))
    rows.states["tokens"][:, places] = torch.tensor(fills, dtype=torch.uint8)
    if policy.truncation.restricts:
        plain = MaskedTextPolicy(**(policy.init_args() | {"truncation": Truncation(policy.truncation.temperature)}))
        without = {name: value for name, value in rows.states.items() if name != "kept"}
        sites = plain.sites(Rollout(**(vars(rows) | {"states": without})))[0]
        logits = sites.log_probs * policy.truncation.temperature
        kept = policy.truncation.keep(logits, sites.log_probs > -torch.inf)
        found = score_sites([type(sites)(policy.truncation.log_probs(logits, kept), sites.action, sites.mask)]).logp
    else:
        found = scores(policy, rows).logp
    assert float(found.sum((-2, -1)).exp().sum().detach()) == pytest.approx(1.0, abs=1e-12)


@kinds
def test_tables_hold_letters_only_and_what_was_drawn_has_mass(options: dict[str, Any]) -> None:
    policy = make(**options)
    rollout = draw(policy, ["______"] * 60)
    (sites,) = policy.sites(rollout)
    torch.testing.assert_close(sites.log_probs.exp().sum(-1), torch.ones(sites.action.shape), rtol=0, atol=2e-6)
    assert (sites.log_probs[..., :NUM_SPECIAL] == -torch.inf).all()
    assert torch.isfinite(score_sites([sites]).logp).all()
    assert set("".join(rollout.samples)) <= set("abc")
    assert int(rollout.states["tokens"].min()) >= NUM_SPECIAL > max(PAD, EOS, MASK)


@kinds
def test_padding_and_company_change_no_log_prob_kl_or_gradient(options: dict[str, Any]) -> None:
    policy, reference = make(dtype=torch.float64, **options), make(5, torch.float64, **options)
    rollout = draw(policy)
    together = scores(policy, rollout, reference)
    assert together.kl is not None
    summed: list[Tensor] | None = None
    for b, prompt in enumerate(PROMPTS):
        alone = scores(policy, rollout.index(torch.tensor([b])), reference)
        assert alone.kl is not None
        for a, t in ((alone.logp, together.logp), (alone.kl, together.kl), (alone.entropy, together.entropy)):
            torch.testing.assert_close(a[0], t[b, :, : len(prompt)], rtol=0, atol=1e-11)
        part = gradient(policy, alone.logp.sum() + 0.3 * alone.kl.sum())
        summed = part if summed is None else [x + y for x, y in zip(summed, part, strict=True)]
    assert summed is not None
    assert torch.isfinite(together.kl).all()
    assert float(together.kl.sum().detach()) > 0.01
    for whole, parts in zip(gradient(policy, together.logp.sum() + 0.3 * together.kl.sum()), summed, strict=True):
        torch.testing.assert_close(whole, parts, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("truncation", [Truncation(top_p=0.6), Truncation(top_k=1)])
def test_the_kept_set_is_the_stored_one_under_other_weights(truncation: Truncation) -> None:
    """Updates that move a drawn character out of the cut-off leave its log-prob finite: the set is part of what was drawn."""
    policy, other = make(truncation=truncation, rounds=2), make(7, truncation=truncation, rounds=2)
    rollout = draw(policy, ["______"] * 20)
    found = scores(other, rollout, policy)
    assert found.kl is not None
    assert torch.isfinite(found.logp).all()
    assert torch.isfinite(found.kl).all()
    own, replayed = (p.sites(rollout)[0] for p in (policy, other))
    assert torch.equal(own.log_probs[own.mask] > -torch.inf, replayed.log_probs[own.mask] > -torch.inf)
    assert rollout.states["kept"].dtype == torch.uint8
    assert "kept" not in draw(make()).states
    if truncation.top_k == 1:
        assert float(rollout.logp.abs().max()) < 1e-6


# ---------------------------------------------------------------- drawing


@kinds
def test_visible_characters_are_never_changed(options: dict[str, Any]) -> None:
    policy = make(**options)
    for seed in range(20):
        rollout = draw(policy, seed=seed)
        for prompt, sample in zip(PROMPTS, rollout.samples, strict=True):
            assert len(sample) == len(prompt)
            assert all(c in (s, "_") for c, s in zip(prompt, sample, strict=True))
            assert "_" not in sample
        assert rollout.columns["masked"] == PROMPTS


@kinds
def test_the_generator_decides_every_bit_and_nothing_else_is_touched(options: dict[str, Any]) -> None:
    policy = make(**options)
    before = torch.random.get_rng_state()
    a, b, c = draw(policy, seed=3), draw(policy, seed=3), draw(policy, ["______"] * 5, seed=4)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a.states[name], b.states[name]) for name in a.states)
    assert torch.equal(a.logp, b.logp)
    assert a.samples == b.samples
    assert len(set(c.samples)) > 1 or policy.truncation.top_k == 1


def test_fills_follow_their_probabilities() -> None:
    policy = make(rounds=2)
    prompts = ["a_b_"] * 6000
    rollout = draw(policy, prompts)
    counts: Counter[str] = Counter()
    wanted: dict[str, float] = {}
    order = rollout.states["order"]
    first = rollout.index((order[:, 1] == 1).nonzero().squeeze(1))  # of those that filled the second character first
    assert 2700 < len(first) < 3300
    for sample, logp in zip(first.samples, first.logp.sum(-1).exp().tolist(), strict=True):
        counts[sample] += 1
        wanted[sample] = logp
    seen = sorted(s for s in wanted if wanted[s] * len(first) >= 5)
    found, expected = [float(counts[s]) for s in seen], [len(first) * wanted[s] for s in seen]
    found[-1] += len(first) - sum(found)  # those that are too rare count with another
    expected[-1] += len(first) - sum(expected)
    assert chisquare(found, expected).pvalue > 1e-3


@pytest.mark.parametrize(("blanks", "rounds"), [(1, 1), (5, 1), (5, 2), (5, 3), (5, 5), (2, 5), (6, 4)])
def test_rounds_take_equal_shares_at_random_places(blanks: int, rounds: int) -> None:
    there = torch.tensor([True] * blanks + [False] * 2).expand(400, -1)
    order = reveal_order(there, rounds, seeded(0))
    assert (order[:, blanks:] == 0).all()
    shares, left = [], blanks
    for k in range(rounds):
        shares.append(math.ceil(left / (rounds - k)))
        left -= shares[-1]
    assert [(order == k + 1).sum(-1).tolist() for k in range(rounds)] == [[n] * 400 for n in shares]
    if rounds > 1 and blanks > 1:
        mean = (order[:, :blanks] == 1).double().mean(0)
        assert float((mean - shares[0] / blanks).abs().max()) < 0.12  # every place is as likely


def test_what_a_rollout_says_of_itself() -> None:
    policy = make(rounds=4)
    rollout = draw(policy)
    assert rollout.size.tolist() == [len(p) for p in PROMPTS]
    assert rollout.units.sum(-1).tolist() == [p.count("_") for p in PROMPTS]
    assert rollout.units[1].tolist() == [1, 1, 0, 0]  # fewer blanks than rounds: later steps are empty
    assert rollout.logp[1, 2:].tolist() == [0.0, 0.0]
    assert scores(policy, rollout).mask.sum(-1).tolist() == rollout.units.tolist()
    assert rollout.max_units == 6
    assert {value.dtype for value in rollout.states.values()} == {torch.uint8}
    assert rollout.nbytes() == 2 * 5 * 6


def test_an_alphabet_of_more_than_256_ids_is_kept_in_16_bits() -> None:
    many = Tokenizer(tuple(chr(0x4E00 + k) for k in range(300)))
    rollout = draw(make(tokenizer=many), [f"{chr(0x4E00 + 299)}_"])
    assert rollout.states["tokens"].dtype == torch.int16
    assert rollout.samples[0][0] == chr(0x4E00 + 299)


def test_smiles_blanks_are_tokens_and_decode_makes_the_samples() -> None:
    tokenizer = Tokenizer.of(["CCl", "C[nH]O"], SMILES)
    policy = make(tokenizer=tokenizer, decode=lambda texts: [len(t) for t in texts])
    rollout = draw(policy, ["Cl_C", "[nH]__"])
    assert rollout.size.tolist() == [3, 3]
    texts = [tokenizer.decode(row) for row in rollout.states["tokens"].tolist()]
    assert texts[0].startswith("Cl")
    assert texts[1].startswith("[nH]")
    assert list(rollout.samples) == [len(t) for t in texts]


# ---------------------------------------------------------------- errors and checkpoints


@pytest.mark.parametrize(
    ("masked", "said"),
    [
        (None, "masked: None, expected a text with at least one blank '_'"),
        ("abc", "masked: 'abc', expected a text with at least one blank '_'"),
        ("", "masked: '', expected a text with at least one blank '_'"),
        ("a_x", "masked: 'a_x', 'x' has the token 'x', expected one of the alphabet's 3"),
        ("a_bcabc", "masked: 'a_bcabc' has 7 tokens, expected at most block_size (6)"),
    ],
)
def test_prompts_that_cannot_be_filled_are_refused_in_one_line(masked: str | None, said: str) -> None:
    with pytest.raises(ValueError, match="masked: ") as error:
        draw(make(), ["a_", masked])
    assert str(error.value) == said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rounds": 0}, "rounds: 0, expected 1 to 255"),
        ({"rounds": 256}, "rounds: 256, expected 1 to 255"),
        ({"blank": "a"}, "blank: 'a', expected one character that no token of the alphabet has"),
        ({"blank": "__"}, "blank: '__', expected one character that no token of the alphabet has"),
    ],
)
def test_arguments_out_of_range_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="expected") as error:
        make(**options)
    assert str(error.value) == said
    with pytest.raises(ValueError, match="contexts: none given"):
        make().sample([])


def test_a_checkpoint_builds_it_again() -> None:
    policy = make(rounds=3, truncation=Truncation(0.7, 2, 0.9), blank="?")
    again = build(describe(policy))
    again.load_state_dict(policy.state_dict())
    assert again.truncation == policy.truncation
    assert draw(again, ["a?b?"]).samples == draw(policy, ["a?b?"]).samples


def test_at_level_step_the_most_units_are_the_rounds() -> None:
    rollout = draw(make(rounds=4))
    assert rollout.max_steps == 4
