"""What rounds over a memory learn from: new samples, the memory, old log-probs and those of the reference."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from discrete_grpo import Rollout, score_sites
from discrete_grpo.training.memory import ScoredMemory
from discrete_grpo.training.objectives import GroupBalance, GroupRelative, MemoryBatch, TrajectoryBalance
from tests.letters import letters_policy, worth
from tests.training.rounds_parts import Ranking, Spy, asked, equal, rounds, spied, weights


def test_fresh_passes_learn_from_all_new_samples_and_the_others_from_the_memory() -> None:
    policy = letters_policy()
    learned = spied(policy)
    loop = rounds(policy, draws=12, passes=3, fresh_passes=1, batch_size=2)
    loop.round()
    loop.round()
    new = [asked(loop)[:-1], asked(loop)]
    assert [len(batch) for batch in learned[1:3] + learned[4:]] == [2] * 4
    first, second = learned[0], learned[3]
    assert set(first) == set(new[0][: len(set(first))])
    assert set(asked(loop)[len(first) :]) <= set(second)
    assert all(len(set(batch)) == len(batch) for batch in learned)


def test_explored_samples_come_from_everything_that_was_scored() -> None:
    policy = letters_policy()
    learned = spied(policy)
    loop = rounds(policy, draws=12, passes=8, batch_size=5, explore=3, memory=ScoredMemory(size=2))
    for _ in range(3):
        loop.round()
        best = {entry.sample for entry in loop.memory.kept}
        for batch in learned[-8:]:
            assert best <= set(batch)
            assert 3 <= len(batch) == len(set(batch)) <= 5  # the best may be among the three
    assert len({text for batch in learned for text in batch}) > 0.8 * len(loop.everything)


def test_samples_are_rewritten_for_learning_only_and_left_out_where_the_policy_cannot_draw_them() -> None:
    policy = letters_policy()
    learned = spied(policy)
    loop = rounds(policy, draws=12, rewrite=lambda text, _: "x" if text == text[::-1] else text[::-1])
    loop.round()
    loop.round()
    assert learned
    assert all(text != text[::-1] and text[::-1] in asked(loop) for batch in learned for text in batch)
    assert {str(entry.sample) for entry in loop.memory.kept} == set(asked(loop))


def test_old_log_probs_are_those_of_the_beginning_of_the_round() -> None:
    spy = Spy(GroupRelative(epsilon=0.5), needs_old=True)
    loop = rounds(objective=spy, passes=3, learning_rate=0.01, draws=12)
    for _ in range(2):
        spy.batches.clear()
        start = copy.deepcopy(loop.policy)
        seen = spied(loop.policy)  # type: ignore[arg-type]
        loop.round()
        assert spy.batches[0].old_logp is None  # ratio 1
        for batch, samples in list(zip(spy.batches, seen, strict=True))[1:]:
            with torch.no_grad():
                old = score_sites(start.sites(start.rollout_of(samples))).logp  # type: ignore[attr-defined]
            assert batch.old_logp is not None
            torch.testing.assert_close(batch.old_logp, old, rtol=0, atol=1e-12)
            assert float((batch.scores.logp.detach() - old).abs().max()) > 1e-3
    plain = Spy(GroupRelative(), needs_old=False)
    rounds(objective=plain, passes=3).round()
    assert [batch.old_logp for batch in plain.batches] == [None] * 3


def test_log_probs_of_the_reference_are_those_of_the_first_weights_in_every_round() -> None:
    spy, policy = Spy(GroupBalance(5.0)), letters_policy()
    start, learned = copy.deepcopy(policy), spied(policy)
    loop = rounds(policy, objective=spy, learning_rate=0.02, draws=8)
    for _ in range(5):
        loop.round()
    assert len(spy.batches) == len(learned) == 10
    for batch, samples in zip(spy.batches, learned, strict=True):
        with torch.no_grad():
            first = score_sites(start.sites(start.rollout_of(samples))).logp.sum((1, 2))
        torch.testing.assert_close(batch.ref_logp, first, rtol=0, atol=1e-6)  # kept in single precision
        assert batch.reward.tolist() == pytest.approx([worth(text) for text in samples])
    assert float((spy.batches[-1].logp.detach() - spy.batches[-1].ref_logp).abs().max()) > 0.1


def test_where_trajectories_are_drawn_all_three_log_probs_are_of_the_same_one() -> None:
    """A text is made forwards or backwards, by chance; with weights that stand still all of them must be equal."""
    policy = letters_policy()
    inner = policy.rollout_of

    def either_way(samples: Sequence[str], *, generator: torch.Generator | None = None) -> Rollout:
        return inner([text[::-1] if float(torch.rand((), generator=generator)) < 0.5 else text for text in samples])

    policy.rollout_of = either_way  # type: ignore[method-assign]
    spy = Spy(GroupRelative(), needs_old=True)
    loop = rounds(policy, objective=spy, passes=4, learning_rate=1e-12, draws=12)
    for _ in range(3):
        loop.round()
    for batch in spy.batches:
        torch.testing.assert_close(batch.ref_logp, batch.logp.detach(), rtol=0, atol=1e-6)
        if batch.old_logp is not None:
            torch.testing.assert_close(batch.old_logp, batch.scores.logp.detach(), rtol=0, atol=1e-9)


def test_an_objective_sees_what_the_policy_drew_as_far_as_it_is_valid_and_its_score_known() -> None:
    spy = Spy(GroupBalance(5.0))
    screen = Ranking(start=0)
    loop = rounds(objective=spy, screen=screen, take=4, passes=1, draws=20)
    drawn: list[tuple[str, float]] = []
    inner = loop.policy.sample

    def sample(*given: Any, **options: Any) -> Rollout:
        rollout = inner(*given, **options)
        drawn[:] = zip(rollout.samples, rollout.logp.sum(1).tolist(), strict=True)
        return rollout

    loop.policy.sample = sample  # type: ignore[method-assign]
    shares: list[float] = []
    spy.begin_round = lambda draws: shares.append(draws.new_share)  # type: ignore[attr-defined]
    for _ in range(3):
        before = set(asked(loop))
        loop.round()
        assert shares[-1] == len({text for text, _ in drawn if text} - before) / 20
        known = [(worth(text), logp) for text, logp in drawn if text and text in asked(loop)]
        assert 3 < len(known) < 20  # repeats take part, candidates that were not chosen do not
        draws = spy.batches[-1].draws
        assert draws is not None
        assert draws.reward.tolist() == pytest.approx([score for score, _ in known])
        assert draws.logp.tolist() == pytest.approx([logp for _, logp in known])


def test_the_objective_is_trained_with_a_rate_of_its_own() -> None:
    objective = TrajectoryBalance(beta=5.0, log_z=1.0)
    loop = rounds(objective=objective, passes=1, objective_learning_rate=0.25)
    loop.round()
    assert abs(float(objective.log_z.detach()) - 1.0) == pytest.approx(0.25, rel=1e-4)  # Adam's first step is its rate
    still = rounds(objective=objective, passes=0)
    before = weights(still)
    still.round()
    assert equal(before, weights(still))


class Undefined:
    needs_old = False

    def __call__(self, batch: MemoryBatch) -> torch.Tensor:
        return batch.logp.sum() * torch.nan


def test_a_gradient_that_is_no_number_ends_the_loop_and_leaves_the_weights_alone() -> None:
    policy = letters_policy()
    loop = rounds(policy, draws=12, passes=1)
    loop.objective = Undefined()
    before = copy.deepcopy(weights(loop))
    with pytest.raises(FloatingPointError, match=r"^gradient norm is nan after \d+ samples; lower learning_rate$"):
        loop.round()
    assert equal(before, weights(loop))


def test_explored_samples_take_the_places_of_remembered_ones() -> None:
    policy = letters_policy()
    learned = spied(policy)
    loop = rounds(policy, draws=12, passes=8, batch_size=5, explore=3)
    loop.round()
    assert all(3 <= len(batch) <= 5 for batch in learned)


def test_an_update_of_a_single_sample_is_left_out() -> None:
    loop = rounds(batch_size=1, objective=TrajectoryBalance(beta=5.0))
    before = weights(loop)
    loop.round()
    assert equal(before, weights(loop))
    assert loop.metrics()["learned"] == 0


def test_the_gradient_of_the_policy_alone_is_clipped() -> None:
    def norm(part: list[torch.nn.Parameter]) -> float:
        return float(torch.stack([p.grad.norm() for p in part if p.grad is not None]).norm())

    def gradients(bound: float | None) -> tuple[float, float]:
        objective, norms = TrajectoryBalance(beta=5.0, log_z=1.0), list[float]()
        loop = rounds(objective=objective, passes=1, max_grad_norm=bound)
        parts = [group["params"] for group in loop.optimizer.param_groups]
        loop.optimizer.register_step_pre_hook(lambda *_: norms.extend(map(norm, parts)))
        loop.round()
        own, of_objective = norms
        return own, of_objective

    (free, of_objective), (clipped, same) = gradients(None), gradients(0.25)
    assert free > 0.5
    assert clipped == pytest.approx(0.25, rel=1e-4)
    assert same == of_objective


def test_an_objective_is_told_the_most_sites_and_steps() -> None:
    spy = Spy(GroupBalance(5.0))
    loop = rounds(objective=spy, passes=1)
    loop.round()
    one = loop.policy.rollout_of(asked(loop)[:1])  # type: ignore[attr-defined]
    assert one.max_steps is not None
    assert [(batch.max_units, batch.max_steps) for batch in spy.batches] == [(one.max_units, one.max_steps)]
