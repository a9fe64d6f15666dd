"""Trajectories of texts that the token policy did not draw: their log-probs are those of an enumeration."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from discrete_grpo import Context, score_sites
from discrete_grpo.core.rollout import is_replayable
from discrete_grpo.domains.tokenizer import BOS, EOS
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.policies.truncation import Truncation
from tests.letters import LETTERS, letters_policy, texts


def by_hand(policy: TokenPolicy, text: str, temperature: float) -> float:
    """log π of a text, one softmax over the letters and EOS at a time, each from the network's last output for its prefix."""
    ids = LETTERS.encode(text)
    choices = [*ids, EOS][: policy.max_length]
    total = 0.0
    for step, chosen in enumerate(choices):
        logits = policy.network(torch.tensor([[BOS, *ids[:step]]]), None, None)[0, -1].tolist()
        allowed = [*LETTERS.encode("abc"), *([EOS] if step >= policy.min_length else [])]
        weights = {k: math.exp(logits[k] / temperature) for k in allowed}
        total += math.log(weights[chosen] / sum(weights.values()))
    return total


@pytest.mark.parametrize(("temperature", "min_length"), [(1.0, 0), (0.6, 0), (1.0, 2)])
def test_log_probs_are_those_of_the_enumeration_and_sum_to_one(temperature: float, min_length: int) -> None:
    policy = letters_policy(truncation=Truncation(temperature), min_length=min_length)
    space = [text for text in texts() if len(text) >= min_length]
    with torch.no_grad():
        rollout = policy.rollout_of(space)
        scores = score_sites(policy.sites(rollout))
        logp = scores.logp.sum((1, 2))
        assert logp.tolist() == pytest.approx([by_hand(policy, text, temperature) for text in space], abs=1e-12)
    assert float(logp.exp().sum()) == pytest.approx(1.0, abs=1e-12)
    assert torch.equal(scores.mask.sum(-1), rollout.units)
    assert rollout.samples == tuple(space)
    assert rollout.max_units == 3


def test_it_is_the_trajectory_that_the_policy_would_have_drawn() -> None:
    policy = letters_policy()
    drawn = policy.sample([Context(k) for k in range(40)], generator=torch.Generator().manual_seed(0))
    made = policy.rollout_of(drawn.samples)
    assert torch.equal(made.states["tokens"], drawn.states["tokens"].long())
    assert torch.equal(made.units, drawn.units)
    assert torch.equal(made.size, drawn.size)
    assert torch.equal(made.group, drawn.group)
    assert bool(made.logp.isnan().all())
    assert is_replayable(policy)


@pytest.mark.parametrize(
    ("sample", "options", "drawable"),
    [
        ("", {}, True),
        ("", {"min_length": 1}, False),
        ("cab", {}, True),
        ("caba", {}, False),
        ("ax", {}, False),
        ("c", {"only": ["a", "b"]}, False),
        ("ab", {"only": ["a", "b"]}, True),
        (None, {}, False),
        (3, {}, False),
    ],
)
def test_what_it_can_draw(sample: Any, options: dict[str, Any], drawable: bool) -> None:
    policy = letters_policy(**options)
    assert policy.can_draw(sample) is drawable
    if not drawable:
        with pytest.raises(ValueError, match="expected a text that the policy can draw"):
            policy.rollout_of(["ab", sample])


def test_errors() -> None:
    with pytest.raises(ValueError, match="samples: none given"):
        letters_policy().rollout_of([])
    for restricting in (Truncation(top_k=2), Truncation(top_p=0.9)):
        with pytest.raises(ValueError, match="expected top_k None and top_p 1"):
            letters_policy(truncation=restricting).rollout_of(["a"])
