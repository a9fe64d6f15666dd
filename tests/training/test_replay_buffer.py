"""Replay of good samples: what is kept, what joins which group, the ratio to the log-probs stored, and that nothing is scored."""

from __future__ import annotations

import copy
import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import networkx
import pytest
import torch
from torch import Tensor, nn

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.categorical import Sites, score_sites
from discrete_grpo.core.rollout import Rollout, group_contexts
from discrete_grpo.domains.sample_text import sample_text
from discrete_grpo.policies.node_count import LearnedSizes, SizedPolicy
from discrete_grpo.training.minibatches import Batch, MicroBatch, MiniBatches, choose_steps, groups_of, train_rows
from discrete_grpo.training.replay_buffer import ReplayBuffer
from discrete_grpo.training.sampler import Generation
from discrete_grpo.training.update import UpdatePlan, loss_terms, micro_batch_loss, policy_scores
from tests.policies.test_tokens import token_policy
from tests.toys import share_of_class_two, tiny_policy
from tests.training.trainer_options_parts import moved, seeded

SMALL: dict[str, Any] = {
    "num_generations": 4, "generation_batch_size": 12, "learning_rate": 1e-2, "max_grad_norm": None, "replay_samples": 2,
    "replay_memory": 8,
}  # fmt: skip


def share_of_a(samples: Sequence[str], **columns: Any) -> list[float]:
    return [s.count("a") / 4 - len(s) / 10 for s in samples]


def made(kind: str = "graph", **options: Any) -> GRPOTrainer:
    config = GRPOConfig(**SMALL | options)
    if kind == "text":
        return GRPOTrainer(token_policy(4), share_of_a, config)
    policy = tiny_policy().double()
    sized = SizedPolicy(policy, LearnedSizes(policy.node_counts)).double()
    return GRPOTrainer(policy if kind == "graph" else sized, share_of_class_two, config)


def drawn_after(trainer: GRPOTrainer, size: float = 0.06) -> Generation:
    """A generation that good samples join; the policy has moved since those were drawn."""
    trainer.sampler.remember(trainer.sampler.draw().mine)
    if size:
        moved(trainer.module, size)
    return trainer.sampler.draw()


def cut(trainer: GRPOTrainer, drawn: Generation) -> MiniBatches:
    choices = [choose_steps(draws, trainer.config, trainer.sampler.shards[0].generator) for draws in drawn.rows]
    return trainer._minibatches(drawn.rows, choices, {}, trainer.config)


def memory(trainer: GRPOTrainer) -> ReplayBuffer:
    found = trainer.sampler.shards[0].replay
    assert found is not None
    return found


def log_probs(policy: Any, rollout: Rollout, row: int) -> tuple[Tensor, Tensor]:
    scores = score_sites(policy.sites(rollout.index(torch.tensor([row]))))
    return scores.logp[0], scores.mask[0]


# ---------------------------------------------------------------- the loss


def advantages_by_hand(batches: Sequence[Batch]) -> list[float]:
    groups = defaultdict(list)
    rows = [(int(g), float(r)) for g, r in zip(groups_of(batches), torch.cat([b.rewards for b in batches]), strict=True)]
    for group, reward in rows:
        groups[group].append(reward)
    found = []
    for group, reward in rows:
        own = groups[group]
        mean = sum(own) / len(own)
        found.append((reward - mean) / (math.sqrt(sum((r - mean) ** 2 for r in own) / (len(own) - 1)) + 1e-4))
    return found


def loop(trainer: GRPOTrainer, batches: Sequence[Batch], current: Any) -> Tensor:
    """The loss a row and a site at a time; π_old of what was drawn now is ``current``."""
    advantage, total, sites, k = advantages_by_hand(batches), torch.zeros(()).double(), 0, 0
    rows = sum(len(b.rollout) for b in batches)
    for batch in batches:
        for b in range(len(batch.rollout)):
            logp, mask = log_probs(trainer.policy, batch.rollout, b)
            stored = log_probs(current, batch.rollout, b)[0].detach() if batch.old is None else batch.old[b, :, : logp.shape[1]]
            one = torch.zeros(()).double()
            for s, u in mask.nonzero().tolist():
                ratio = (logp[s, u] - stored[s, u]).exp()
                one = one - torch.minimum(ratio * advantage[k], ratio.clamp(0.8, 1.2) * advantage[k])
            total = total + (one / int(mask.sum()) / rows if trainer.config.loss_type == "grpo" else one)
            sites, k = sites + int(mask.sum()), k + 1
    return total if trainer.config.loss_type == "grpo" else total / sites


SPLIT = {"per_device_batch_size": 2, "timestep_chunk": 2}


@pytest.mark.parametrize(
    ("kind", "loss_type", "split"),
    [("graph", "grpo", {}), ("graph", "dapo", SPLIT), ("text", "grpo", SPLIT), ("text", "dapo", {})],
)
def test_the_loss_and_its_gradient_are_those_of_a_loop(kind: str, loss_type: str, split: dict[str, int]) -> None:
    trainer = made(kind, loss_type=loss_type, **split)
    drawn = drawn_after(trainer, size=0.15)
    assert len(drawn.replayed) > 1  # several sizes
    pending = cut(trainer, drawn)
    loss = loop(trainer, drawn.mine[0], trainer.policy)
    wanted = torch.autograd.grad(loss, trainer.state.parameters, allow_unused=True)
    line = trainer.learner.update(trainer.step, pending.parts[0], pending.old[0])
    assert line["loss"] == pytest.approx(float(loss.detach()), abs=1e-10)
    assert line["clip_ratio/region_mean"] > 0
    for parameter, gradient in zip(trainer.state.parameters, wanted, strict=True):
        zero = torch.zeros_like(parameter)  # a last layer that no output reads
        found = zero if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found, zero if gradient is None else gradient, rtol=0, atol=1e-10)


def test_a_second_update_has_both_ratios() -> None:
    trainer = made(num_iterations=2)
    drawn = drawn_after(trainer)
    pending = cut(trainer, drawn)
    pending.old = [trainer.learner.old_log_probs(part) for part in pending.parts]
    before = copy.deepcopy(trainer.policy)
    trainer.learner.update(trainer.step, pending.parts[0], pending.old[0])
    moved(trainer.module, 0.03)
    wanted = loop(trainer, drawn.mine[0], before)
    line = trainer.learner.update(trainer.step, pending.parts[0], pending.old[0])
    assert line["loss"] == pytest.approx(float(wanted.detach()), abs=1e-10)


class Dice(nn.Module):
    """Three dice of three sides, thrown in one step."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.randn(3, 3, generator=seeded(seed), dtype=torch.float64))

    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> list[Sites]:
        thrown = rollout.states["thrown"][:, None]
        tables = self.logits.log_softmax(-1).expand(len(rollout), 1, -1, -1)
        return [Sites(tables, thrown, torch.ones_like(thrown, dtype=torch.bool))]


def test_stored_samples_have_the_gradient_of_fresh_ones_in_expectation() -> None:
    """E over x ~ π_stored of r A ∇ log π = ∇ Σ_x π_θ(x) A(x), by enumeration, where nothing is clipped."""
    policy, older = Dice(0), Dice(1)
    thrown = torch.tensor(list(itertools.product(range(3), repeat=3)))
    one, whole = torch.ones(27, 1), torch.zeros(27, dtype=torch.long)
    space = Rollout({"thrown": thrown}, whole, one, 3 * one.long(), whole + 1, 3, (None,) * 27)
    advantage = torch.randn(27, generator=seeded(2), dtype=torch.float64)
    with torch.no_grad():
        stored = score_sites(older.sites(space)).logp
    chance = stored.sum((1, 2)).exp()  # each sample as often as it was drawn
    chunk = MicroBatch(space, whole[:, None], advantage, chance, chance, whole, stored=stored)
    config = GRPOConfig(epsilon=1e9, importance_sampling_level="step")
    terms = loss_terms(policy, chunk, None, config, old_logp=stored)  # type: ignore[arg-type]  # it draws nothing here
    (found,) = torch.autograd.grad(micro_batch_loss(terms, chunk, stored, UpdatePlan(), config).loss, [policy.logits])
    expected = (score_sites(policy.sites(space)).logp.sum((1, 2)).exp() * advantage).sum()
    (wanted,) = torch.autograd.grad(expected, [policy.logits])
    assert float(wanted.abs().max()) > 1e-2
    torch.testing.assert_close(-found, wanted, rtol=0, atol=1e-12)


# ---------------------------------------------------------------- ratios and what is stored


@pytest.mark.parametrize("kind", ["graph", "text"])
def test_what_is_stored_is_what_the_sampler_had(kind: str) -> None:
    trainer = made(kind)
    drawn_after(trainer)  # the policy has moved
    kept = memory(trainer).kept
    assert len(kept) > 4
    for one in kept:
        torch.testing.assert_close(one.old.sum(-1), one.rollout.logp.to(one.old.dtype), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["graph", "text"])
def test_ratios_are_one_to_the_bit_while_the_weights_stay(kind: str) -> None:
    trainer = made(kind, per_device_batch_size=1)
    drawn = drawn_after(trainer, size=0)
    pending = cut(trainer, drawn)
    chunks = [c for c in pending.parts[0] if c.stored is not None]
    assert chunks
    for chunk in chunks:
        with torch.no_grad():
            scores = policy_scores(trainer.policy, chunk)
        assert chunk.stored is not None
        assert torch.equal(scores.logp[scores.mask], chunk.stored[scores.mask])
    line = trainer.learner.update(trainer.step, pending.parts[0], pending.old[0])
    assert line["replay/ratio"] == 1.0
    assert line["clip_ratio/region_mean"] == 0.0


@pytest.mark.parametrize(("kind", "fraction"), [("graph", 0.5), ("sized", 1.0)])
def test_rows_in_one_pass_have_ratio_one_too_and_then_that_of_the_weights(kind: str, fraction: float) -> None:
    trainer = made(kind, num_iterations=2, timestep_fraction=fraction)
    pending = cut(trainer, drawn_after(trainer, size=0))
    old = trainer.learner.old_log_probs(pending.parts[0])
    with torch.no_grad():
        now = [policy_scores(trainer.policy, chunk) for chunk in pending.parts[0]]
    for chunk, before, scores in zip(pending.parts[0], old, now, strict=True):
        assert before is not None
        near = 0.0 if chunk.stored is None else 1e-12
        torch.testing.assert_close(before[scores.mask], scores.logp[scores.mask], rtol=0, atol=near)
    moved(trainer.module, 0.1)
    ratios = []
    for chunk in pending.parts[0]:
        if chunk.stored is not None:
            scores = policy_scores(trainer.policy, chunk)
            ratios += (scores.logp - chunk.stored)[scores.mask].exp().tolist()
    line = trainer.learner.update(trainer.step, pending.parts[0][::-1], old[::-1])  # the last pass may be one of what was drawn
    assert abs(line["replay/ratio"] - 1) > 1e-3
    assert line["replay/ratio"] == pytest.approx(sum(ratios) / len(ratios), rel=1e-10)


# ---------------------------------------------------------------- what is kept, and what joins


def batch(texts: Sequence[Any], rewards: Sequence[float], origins: Sequence[int | None] | None = None) -> Batch:
    rollout = tiny_policy().sample(group_contexts(1, len(texts)), generator=seeded(len(texts)))
    no = torch.zeros(len(texts), dtype=torch.bool)
    table = torch.tensor(rewards, dtype=torch.float64)[:, None]
    return Batch(replace(rollout, samples=tuple(texts)), table, no, origins or [None] * len(texts))


def kept_by(size: int, *batches: Batch) -> ReplayBuffer:
    replay = ReplayBuffer(tiny_policy(), GRPOConfig(replay_samples=2, replay_memory=size))
    for one in batches:
        replay.add(one, one.rewards[:, 0])
    return replay


def test_the_best_unique_are_kept_best_first_and_of_equals_the_older() -> None:
    first = batch(["a", "b", None, "c", "a"], [0.5, 0.5, 9.0, math.nan, 0.7])
    second = batch(["d", "b", "e", "a"], [0.5, 0.5, 0.9, 0.6])
    replay = kept_by(4, first, second)
    assert [(k.text, k.reward) for k in replay.kept] == [("e", 0.9), ("a", 0.7), ("b", 0.5), ("d", 0.5)]
    assert torch.equal(replay.kept[1].rollout.logp[0], first.rollout.logp[4])
    assert torch.equal(replay.kept[2].rollout.logp[0], first.rollout.logp[1])
    assert [k.text for k in kept_by(3, first, second).kept] == ["e", "a", "b"]


def test_conditions_are_kept_apart() -> None:
    replay = kept_by(9, batch(["a", "a", "b", "c"], [1.0, 2.0, 3.0, 4.0], [0, 1, 1, 1]))
    assert sorted((k.origin, k.text) for k in replay.kept) == [(0, "a"), (1, "a"), (1, "b"), (1, "c")]
    fresh = batch(["x"] * 6, [0.0] * 6, [0, 0, 1, 1, 2, 2])
    fresh = replace(fresh, rollout=replace(fresh.rollout, group=torch.tensor([7, 7, 3, 3, 5, 5])))
    joined = replay.join(fresh, seeded(0))
    found = [(g, r) for b in joined for g, r in zip(b.rollout.group.tolist(), b.rewards[:, 0].tolist(), strict=True)]
    assert [g for g, _ in sorted(found)] == [3, 3, 7]
    assert len(set(found)) == 3  # none twice in a group
    assert {r for g, r in found if g == 7} == {1.0}
    assert {r for g, r in found if g == 3} <= {2.0, 3.0, 4.0}


def test_groups_of_several_shards_each_get_their_own() -> None:
    config = GRPOConfig(**SMALL, generation_shards=3)
    trainer = GRPOTrainer(tiny_policy().double(), share_of_class_two, config)
    drawn = drawn_after(trainer)
    batches = [b for own in drawn.every for b in own]
    group = groups_of(batches)
    assert group.bincount().tolist() == [6, 6, 6]
    for number, own in enumerate(drawn.every):
        assert sum(len(b.rollout) for b in own if b.replayed) == 2
        told = {(r, number) for b in own if b.replayed for r in b.rewards[:, 0].tolist()}
        mine = trainer.sampler.shards[number].replay
        assert mine is not None
        assert told <= {(k.reward, number) for k in mine.kept}
    place = torch.cat([torch.full((len(b.rollout),), n) for n, own in enumerate(drawn.every) for b in own])
    assert torch.equal(group, place)


def test_a_group_has_a_signal_if_its_replayed_rows_bring_one() -> None:
    config = GRPOConfig(num_generations=2, generation_batch_size=4, zero_std_groups="mask")
    fresh = batch(["a"] * 4, [0.5] * 4)
    fresh = replace(fresh, rollout=replace(fresh.rollout, group=torch.tensor([0, 0, 1, 1])))
    other = batch(["b"], [0.9])
    joined = replace(other, rollout=replace(other.rollout, group=torch.tensor([1])), old=torch.zeros(1, 4, 10))
    first, second = train_rows([fresh, joined], config)
    assert first.counted.tolist() == first.needed.tolist() == [False, False, True, True]
    assert second.counted.tolist() == [True]
    assert second.advantage[0] > 0 > first.advantage[2]


def test_samples_whose_text_leaves_something_out_are_told_apart() -> None:
    graphs = [networkx.star_graph(3), networkx.path_graph(4), networkx.star_graph(3)]
    assert len({str(graph) for graph in graphs}) == 1
    buffer = kept_by(8, batch(graphs, [0.5, 0.6, 0.7]))
    assert [(sample.text, sample.reward) for sample in buffer.kept] == [
        (sample_text(graphs[2]), 0.7),
        (sample_text(graphs[1]), 0.6),
    ]
