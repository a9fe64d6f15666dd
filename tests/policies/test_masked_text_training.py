"""Training of the policy that fills blanks: the likelihood loss, what it learns, and batches that are refused."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.domains.tokenizer import MASK, NUM_SPECIAL, PAD
from discrete_grpo.policies.truncation import Truncation
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.trainer import GRPOTrainer
from tests import oracles
from tests.policies.masked_text_parts import ABC, draw, make, seeded


def test_the_likelihood_loss_is_the_mean_over_orders_of_the_log_probability() -> None:
    """E[loss] over rates and places = mean over all 3! orders of -log p/3, each blank in a round of its own."""
    policy = make(dtype=torch.float64)
    batch = torch.tensor([policy.tokenizer.encode("acb")])
    wanted, together = 0.0, {}
    for size in (1, 2, 3):
        for hidden in itertools.combinations(range(3), size):
            seen = batch.clone()
            seen[0, list(hidden)] = MASK
            logits = policy.network(seen, torch.ones(1, 3, dtype=torch.bool))[0].tolist()
            p = [oracles.softmax(row[NUM_SPECIAL:]) for row in logits]
            together[hidden] = {i: -math.log(p[i][int(batch[0, i]) - NUM_SPECIAL]) for i in hidden}
    for path in itertools.permutations(range(3)):
        wanted += sum(together[tuple(sorted(path[k:]))][path[k]] for k in range(3)) / 3 / 6
    with torch.no_grad():
        found = torch.stack([policy.likelihood_loss(batch.expand(500, -1), generator=seeded(k))["loss"] for k in range(20)])
    assert float(found.mean()) == pytest.approx(wanted, abs=4 * float(found.std()) / math.sqrt(20))
    assert float(found.std()) / math.sqrt(20) < 0.01 < wanted


def test_likelihood_training_hides_at_least_one_character_and_no_padding() -> None:
    seen: list[Tensor] = []
    policy = make()
    forward = policy.network.forward

    def listening(tokens: Tensor, mask: Tensor) -> Tensor:
        seen.append(tokens)
        return forward(tokens, mask)

    policy.network.forward = listening
    batch = torch.tensor([[4, 5, 6, 4, 5, 6], [5, PAD, PAD, PAD, PAD, PAD], [4, 5, PAD, PAD, PAD, PAD]] * 200)
    found = policy.likelihood_loss(batch, generator=seeded(0))
    assert torch.equal(seen[0] == PAD, batch == PAD)
    hidden = seen[0] == MASK
    log_probs = forward(seen[0], batch != PAD)[..., NUM_SPECIAL:].detach().double().log_softmax(-1)
    rows = [
        sum(-float(log_probs[b, i, int(batch[b, i]) - NUM_SPECIAL]) for i in places) / len(places)
        for b, places in enumerate(row.nonzero().flatten().tolist() for row in hidden)
    ]
    assert float(found["loss"].detach()) == pytest.approx(sum(rows) / 600, abs=1e-5)  # each text weighs the same
    assert torch.equal(torch.where(hidden, 0, seen[0]), torch.where(hidden, 0, batch))
    counts = hidden[::3].sum(-1)
    assert hidden.sum(-1).min() == 1
    assert torch.bincount(counts, minlength=7)[1:].tolist() == pytest.approx([200 / 6] * 6, abs=15)
    assert torch.equal(found["loss"], policy.likelihood_loss(batch, generator=seeded(0))["loss"])
    found["loss"].backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in policy.parameters())


def test_a_network_trained_on_two_words_fills_in_the_right_one() -> None:
    policy = make(rounds=3)
    words = torch.tensor([policy.tokenizer.encode(w) for w in ("aabbcc", "cabcab")] * 32)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
    generator = seeded(0)
    for _ in range(150):
        optimizer.zero_grad()
        policy.likelihood_loss(words, generator=generator)["loss"].backward()
        optimizer.step()
    samples = draw(policy, ["______", "a_____", "____a_"] * 50).samples
    assert sum(s in ("aabbcc", "cabcab") for s in samples) > 120
    assert set(samples) >= {"aabbcc", "cabcab"}


@pytest.mark.parametrize("rounds", [1, 2])
def test_grpo_learns_to_fill_in_what_the_reward_wants(rounds: int) -> None:
    policy = make(rounds=rounds)

    def share_of_c(samples: list[str], masked: list[str], **_: Any) -> list[float]:
        return [s.count("c") / len(s) for s in samples]

    config = GRPOConfig(
        max_steps=25, num_generations=8, generation_batch_size=64, learning_rate=1e-2, num_iterations=2, save_steps=100
    )
    trainer = GRPOTrainer(policy, share_of_c, config, columns=[{"masked": p} for p in ("a____", "___", "__b_")])
    history = trainer.train()
    assert [line["clip_ratio/region_mean"] for line in history[::2]] == [0.0] * 13  # the first ratio is exactly 1
    assert history[-1]["reward"] > history[0]["reward"] + 0.2
    assert policy.sample(group_contexts(1, 4, [{"masked": "a____"}]), generator=seeded(0)).samples.count("acccc") >= 2


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ([[4, 99, 5]], "id 99, expected ids of letters"),
        ([[4, MASK, 5]], f"id {MASK}, expected ids of letters"),
        ([[4, PAD, 5]], "PAD at or before the start of a text"),
        ([[PAD, PAD, PAD]], "PAD at or before the start of a text"),
        ([[4.0, 5.0, 6.0]], "Tensor, expected token ids"),
        ([[4] * 99], "texts of 99 tokens, expected at most block_size"),
    ],
)
def test_a_batch_that_cannot_be_trained_on_is_named(batch: list[list[float]], said: str) -> None:
    make().check_batch(torch.tensor([[4, 5, PAD], [6, PAD, PAD]]))
    with pytest.raises(ValueError, match=f"^batch: {said}"):
        make().check_batch(torch.tensor(batch))


def test_likelihood_training_is_at_temperature_one_and_cuts_nothing_off() -> None:
    batch = torch.tensor([ABC.encode(word) for word in ("abcabc", "ccbaab")])
    plain, other = make(), make(truncation=Truncation(temperature=0.5, top_k=1))
    losses = [policy.likelihood_loss(batch, generator=seeded(0))["loss"] for policy in (plain, other)]
    assert torch.equal(*losses)
