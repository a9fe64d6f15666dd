"""The conformance kit on families whose other tests run with annotations checked (``TYPED`` in the Makefile)."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from discrete_grpo.core.rollout import Context, Rollout, group_contexts
from discrete_grpo.domains.tokenizer import NUM_SPECIAL
from discrete_grpo.policies.masked_text import MaskedTextPolicy
from discrete_grpo.policies.truncation import Truncation, pack_bits
from discrete_grpo.testing import check_policy
from tests.policies import test_fields as fields
from tests.policies.masked_text_parts import kinds, make, seeded
from tests.policies.test_graph_conditions import COLUMNS, conditional
from tests.policies.test_tokens import CONDITIONS, every_text, token_policy


@pytest.mark.parametrize(
    "kind", ["plain", pytest.param("molecule", marks=pytest.mark.slow), pytest.param("directed", marks=pytest.mark.slow)]
)
def test_fields(kind: str) -> None:
    report = check_policy(
        fields.policy(kind), fields.contexts(), permute=fields.permuted, samples=600, trusted=("discrete_grpo", "tests")
    )
    assert report.passed, str(report)


@pytest.mark.parametrize("truncation", [None, Truncation(0.7, top_p=0.8)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_tokens(truncation: Truncation | None, dtype: torch.dtype) -> None:
    policy = token_policy(3, dtype=dtype, truncation=truncation)
    report = check_policy(policy, group_contexts(4, 2, CONDITIONS), space=every_text(policy), samples=1500)
    report.raise_on_failure()
    assert {"total mass", "frequencies", "ratio train", "ratio bf16", "learning"}.isdisjoint(report.skipped)


def test_graphs_under_guidance() -> None:
    check_policy(conditional(2.0), group_contexts(3, 3, COLUMNS), samples=600).raise_on_failure()


def every_rollout(policy: MaskedTextPolicy, prompt: str) -> Rollout:
    """Every order and fill of a prompt with mass, built without the sampler's draws; a group is an order."""
    places = [k for k, c in enumerate(prompt) if c == "_"]
    like = policy.sample([Context(0, {"masked": prompt})], generator=seeded(0))
    shares = [int(n) for n in like.units[0]]
    rounds = [k + 1 for k, n in enumerate(shares) for _ in range(n)]
    rows: list[tuple[list[int], list[int], int]] = []
    for group, path in enumerate(sorted(set(itertools.permutations(rounds)))):
        for fill in itertools.product(range(NUM_SPECIAL, len(policy.tokenizer)), repeat=len(places)):
            when, filled = [0] * len(prompt), policy.encode(prompt)
            for place, k, letter in zip(places, path, fill, strict=True):
                when[place], filled[place] = k, letter
            rows.append((filled, when, group))
    tokens, order, groups = (torch.tensor([row[k] for row in rows]) for k in range(3))
    states = {"tokens": tokens.to(torch.uint8), "order": order.to(torch.uint8)}
    if policy.truncation.restricts:
        kept = torch.zeros(*tokens.shape, len(policy.tokenizer), dtype=torch.bool)
        for k in range(policy.rounds):
            logits = policy.logits(tokens, order <= k).detach()
            letters = (torch.arange(logits.shape[-1]) >= NUM_SPECIAL).expand_as(logits)
            kept = torch.where((order == k + 1).unsqueeze(-1), policy.truncation.keep(logits, letters), kept)
        states["kept"] = pack_bits(kept)
        inside = (kept.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) | (order == 0)).all(-1)
        states, groups = {name: value[inside] for name, value in states.items()}, groups[inside]
    n = len(groups)
    return replace(like.index(torch.zeros(n, dtype=torch.long)), states=states, group=groups, logp=torch.zeros(n, policy.rounds))


def wider(rollout: Rollout, generator: torch.Generator) -> Rollout:
    """Two more columns of padding."""
    pads = {"tokens": (0, 2), "order": (0, 2), "kept": (0, 0, 0, 2)}
    return replace(rollout, states={name: nn.functional.pad(value, pads[name]) for name, value in rollout.states.items()})


@kinds
def test_masked_text(options: dict[str, Any]) -> None:
    policy = make(**options)
    contexts = [Context(k // 2, {"masked": p}) for k, p in enumerate(["_b__", "_b__", "a__", "a__", "____ab", "____ab"])]
    report = check_policy(policy, contexts, space=every_rollout(policy, "_b__"), pad=wider)
    assert (report.failed, report.skipped) == ((), ("permutation", "replayable")), str(report)
