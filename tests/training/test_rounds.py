"""Rounds over a memory, on a space of texts that is enumerated: what is scored, what is learned from, when they end."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo import Rollout, score_sites
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.training.memory import Remembered, ScoredMemory
from discrete_grpo.training.objectives import (
    AugmentedLikelihood,
    GroupBalance,
    GroupRelative,
    Likelihood,
    MemoryBatch,
    Objective,
    SelfImitation,
    TrajectoryBalance,
)
from discrete_grpo.training.rounds import Rounds
from discrete_grpo.training.rounds_config import RoundsConfig
from tests.letters import Worth, letters_policy, not_empty, texts, worth

SMALL: dict[str, Any] = {"draws": 12, "passes": 2, "batch_size": 4, "children": 0, "bf16": False}


def rounds(
    policy: TokenPolicy | None = None,
    *,
    budget: int | None = None,
    seed: int = 0,
    objective: Objective | None = None,
    memory: ScoredMemory | None = None,
    proposers: Sequence[Any] = (),
    screen: Any = None,
    rewrite: Callable[[Any, torch.Generator], Any] | None = None,
    **settings: Any,
) -> Rounds:
    return Rounds(
        letters_policy() if policy is None else policy,
        Worth(),
        Ledger(key=not_empty, max_oracle_calls=budget),
        not_empty,
        GroupBalance(5.0) if objective is None else objective,
        RoundsConfig(**SMALL | settings),
        memory=ScoredMemory() if memory is None else memory,
        proposers=proposers,
        screen=screen,
        rewrite=rewrite,
        generator=torch.Generator().manual_seed(seed),
    )


def asked(loop: Rounds) -> list[str]:
    assert isinstance(loop.reward, Worth)
    return loop.reward.asked


def calls(loop: Rounds) -> int:
    assert isinstance(loop.ledger, Ledger)
    return loop.ledger.calls


def sources(loop: Rounds) -> dict[str, int]:
    assert isinstance(loop.ledger, Ledger)
    return loop.ledger.sources()


def weights(loop: Rounds) -> list[Tensor]:
    assert isinstance(loop.policy, nn.Module)
    return [p.detach().clone() for p in loop.policy.parameters()]


def equal(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


class Fixed:
    """A proposer that always makes the same texts."""

    def __init__(self, name: str, *made: str) -> None:
        self.name, self.made = name, list(made)

    def propose(self, memory: ScoredMemory, count: int, generator: torch.Generator) -> list[str]:
        return self.made[:count]


class Spy:
    """An objective that keeps the batches that it is given."""

    def __init__(self, inner: Objective, needs_old: bool = False) -> None:
        self.inner, self.needs_old = inner, needs_old
        self.batches: list[MemoryBatch] = []

    def __call__(self, batch: MemoryBatch) -> Tensor:
        self.batches.append(batch)
        return self.inner(batch)


def spied(policy: TokenPolicy) -> list[list[str]]:
    """The samples of which the policy is asked for trajectories, from now on."""
    seen: list[list[str]] = []
    inner = policy.rollout_of

    def rollout_of(samples: Sequence[str], *, generator: torch.Generator | None = None) -> Rollout:
        seen.append(list(samples))
        return inner(samples, generator=generator)

    policy.rollout_of = rollout_of  # type: ignore[method-assign]
    return seen


# -- what is scored


def test_every_new_sample_is_scored_once_and_counted_once() -> None:
    loop = rounds(patience=4)
    found = loop.run()
    assert len(asked(loop)) == len(set(asked(loop))) == calls(loop) == len(found) > 20
    assert "" not in asked(loop)  # an invalid one costs nothing
    assert {entry.key: entry.score for entry in found.kept} == {text: pytest.approx(worth(text)) for text in asked(loop)}
    assert [entry.score for entry in found.kept] == sorted((worth(text) for text in asked(loop)), reverse=True)
    assert sources(loop) == {"policy": len(found)}


@pytest.mark.parametrize("budget", [1, 5, 8, 13])
def test_the_budget_is_never_exceeded_and_nothing_is_learned_after_it(budget: int) -> None:
    loop = rounds(budget=budget, draws=8)
    before: list[Tensor] = []
    while not loop.ledger.exhausted:
        before = weights(loop)
        loop.round()
    assert calls(loop) == len(loop.everything) == len(asked(loop)) == budget
    assert equal(before, weights(loop))
    assert loop.round() == 0  # one round too many
    assert calls(loop) == budget
    assert rounds(budget=budget, draws=8).run().kept == loop.everything.kept


def rollout(*samples: str) -> Rollout:
    """Draws whose log-probs do not matter."""
    group, one = torch.arange(len(samples)), torch.ones(len(samples), 1)
    return Rollout({}, group, 0 * one, one.long(), torch.ones_like(group), 1, samples)


def test_proposals_are_filtered_counted_and_remembered_by_source() -> None:
    first, second = Fixed("first", "", "aa", "bb", "aa"), Fixed("second", "bb", "cc", "ab", "ba", "bc")
    loop = rounds(proposers=[first, second], draws=4, children=4, memory=ScoredMemory(kept=[Remembered("cc", "cc", 0.1)]))
    drawn = rollout("a", "c", "", "a")
    loop.policy.sample = lambda *_, **__: drawn  # type: ignore
    assert loop.round() == 6
    assert sources(loop) == {"policy": 2, "first": 2, "second": 2}  # bb is first's, cc is known, bc is one too many
    assert asked(loop) == ["a", "c", "aa", "bb", "ab", "ba"]
    assert {str(entry.key): entry.source for entry in loop.memory.kept} == {
        **dict.fromkeys(("a", "c"), "policy"),
        **dict.fromkeys(("aa", "bb"), "first"),
        **dict.fromkeys(("ab", "ba"), "second"),
        "cc": "",
    }
    assert loop.round() == 0


class Growing:
    """A proposer that adds letters to the longest text that it is shown."""

    name = "growing"

    def propose(self, memory: ScoredMemory, count: int, generator: torch.Generator) -> list[str]:
        longest = max((str(entry.sample) for entry in memory.kept), key=lambda text: (len(text), text))
        return [longest + letter for letter in "abc"][:count]


@pytest.mark.parametrize("generations", [1, 2])
@pytest.mark.parametrize("budget", [None, 5])
def test_children_of_a_later_generation_have_parents_among_those_of_the_earlier_ones(budget: int | None, generations: int) -> None:
    policy = letters_policy()
    learned = spied(policy)
    settings: dict[str, Any] = {"draws": 2, "children": 2, "batch_size": 0, "passes": 1, "fresh_passes": 1}
    memory = ScoredMemory(kept=[Remembered("bb", "bb", 0.1)])
    loop = rounds(policy, proposers=[Growing()], generations=generations, budget=budget, memory=memory, **settings)
    drawn = rollout("a", "c")
    loop.policy.sample = lambda *_, **__: drawn  # type: ignore
    expected = ["a", "c", "bba", "bbb", "bbba", "bbbb"][: 2 + 2 * generations][:budget]
    assert loop.round() == len(expected) == len(loop.latest)
    assert asked(loop) == expected
    assert sources(loop) == {"policy": 2, "growing": len(expected) - 2}
    assert learned == ([] if len(expected) == budget else [[text for text in expected if len(text) < 4]])


def test_the_memory_has_the_best_of_everything_and_a_warm_start_takes_part() -> None:
    known = [Remembered("cab", "cab", 9.0, "file"), Remembered("ccc", "ccc", -1.0, "file")]
    policy = letters_policy()
    learned = spied(policy)
    loop = rounds(policy, memory=ScoredMemory(size=5, kept=list(known)), batch_size=5)
    loop.round()
    assert any("cab" in batch for batch in learned)
    for _ in range(5):
        loop.round()
    assert loop.memory.kept == loop.everything.kept[:5]
    assert loop.memory.kept[0] == known[0]
    assert loop.everything.kept[-1] == known[1]
    assert not {"cab", "ccc"} & set(asked(loop))
    assert len(loop.everything) == len(asked(loop)) + 2 == calls(loop) + 2  # what the memory lost is known all the same


def test_unknown_scores_are_not_remembered() -> None:
    loop = rounds()
    loop.reward = lambda samples, **_: [math.nan if "a" in text else 0.5 for text in samples]
    new = loop.round()
    assert new == len(loop.everything) < calls(loop)
    assert not any("a" in str(entry.key) for entry in loop.everything.kept)


def test_samples_of_unknown_score_are_asked_for_once() -> None:
    asked_for: list[str] = []

    def reward(samples: Sequence[str], **_: Any) -> list[float]:
        asked_for.extend(samples)
        return [math.nan if "a" in text else 0.5 for text in samples]

    loop = rounds(patience=3)
    loop.reward = reward
    loop.run()
    assert any("a" in text for text in asked_for)
    assert len(asked_for) == len(set(asked_for))
    assert loop.progress.idle == 3  # what is unknown is not new either


def test_what_the_budget_left_unscored_is_not_taken_for_unknown() -> None:
    loop = rounds(budget=5)
    loop.run()
    assert not loop.unknown


def test_the_policy_draws_and_is_scored_in_one_mode() -> None:
    policy = letters_policy().train()
    rounds(policy)
    assert not policy.training


# -- a screen


class Ranking:
    """A screen that prefers texts late in the alphabet, and is ready after some observations."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.offered: list[list[str]] = []
        self.observed: dict[str, float] = {}

    def observe(self, samples: Sequence[str], scores: Tensor) -> None:
        self.observed |= dict(zip(samples, scores.tolist(), strict=True))

    def forget(self) -> None:
        self.observed.clear()

    def merit(self, samples: Sequence[str]) -> Tensor | None:
        self.offered.append(list(samples))
        ready = len(self.observed) >= self.start
        return torch.tensor([float(sorted(samples).index(text)) for text in samples]) if ready else None


@pytest.mark.parametrize("unscreened", [0, 2, 3])
def test_the_screen_chooses_and_some_of_the_policy_pass(unscreened: int) -> None:
    screen = Ranking(start=1)
    made = Fixed("made", "caa", "acc", "cba", "aba", "bbb", "abb")
    loop = rounds(screen=screen, proposers=[made], children=6, take=3, unscreened=unscreened)
    assert loop.round() == 3
    assert asked(loop) == screen.offered[0][:3]  # it was not ready: the first, which are the policy's
    assert screen.observed == {text: pytest.approx(worth(text)) for text in asked(loop)}
    assert loop.round() == 3
    offered = screen.offered[1]
    assert not set(offered) & set(asked(loop)[:3])
    own = [text for text in offered if text not in made.made][:unscreened]
    others = sorted((text for text in offered if text not in own), reverse=True)
    assert len(own) == unscreened
    assert asked(loop)[3:] == others[: 3 - unscreened] + own


@pytest.mark.parametrize("most", [0, 1, 3, None])
def test_the_screen_takes_no_more_children_than_allowed(most: int | None) -> None:
    screen = Ranking(start=1)
    made = Fixed("made", *("cab" * n for n in range(5, 11)))  # too long for the policy to draw
    loop = rounds(screen=screen, proposers=[made], children=6, take=5, take_children=most, draws=24)
    first = loop.round()
    loop.round()
    ranked = sorted(screen.offered[1], reverse=True)
    children = [text for text in ranked if text in made.made]
    allowed = set(children[:most]) | {text for text in ranked if text not in made.made}
    assert len(children) > 3
    assert asked(loop)[first:] == [text for text in ranked if text in allowed][:5]


def test_the_screen_learns_from_a_warm_start() -> None:
    screen = Ranking(start=1)
    loop = rounds(screen=screen, memory=ScoredMemory(kept=[Remembered("cab", "cab", 9.0, "file")]), take=3)
    assert screen.observed == {"cab": 9.0}
    loop.round()
    assert asked(loop) == sorted(screen.offered[0], reverse=True)[:3]


def test_the_screen_is_told_that_the_budget_ended() -> None:
    screen = Ranking(start=99)
    loop = rounds(screen=screen, budget=2)
    loop.round()
    assert len(screen.observed) > 2
    assert sum(not math.isnan(value) for value in screen.observed.values()) == 2


# -- what is learned from


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


# -- the end


def test_a_stale_run_ends_after_its_patience() -> None:
    loop = rounds(patience=3)
    last = 0
    inner = loop.reward

    def noted(samples: Sequence[str], **columns: Any) -> list[float]:
        nonlocal last
        last = loop.progress.rounds + 1
        return inner(samples, **columns)  # type: ignore[return-value]

    loop.reward = noted
    loop.run()
    assert loop.progress.rounds == last + 3
    assert loop.progress.restarts == 0


def test_a_run_ends_when_its_ten_best_have_the_goal() -> None:
    goal = sorted((worth(text) for text in texts(5) if text), reverse=True)[29]  # thirty texts have it
    loop = rounds(letters_policy(5), goal=goal + 5e-10, patience=50, passes=0)
    loop.run()
    scores = [worth(text) for text in asked(loop)]
    assert 10 <= sum(score >= goal for score in scores) < 30
    last = len(scores) - loop.config.draws
    assert sum(score >= goal for score in scores[: max(last, 0)]) < 10  # a round earlier it went on


@pytest.mark.parametrize("when_stale", ["stop", "restart"])
def test_a_run_without_better_samples_ends_too(when_stale: Any) -> None:
    loop = rounds(letters_policy(5), plateau=30, when_stale=when_stale, patience=50, passes=0)
    loop.run()
    scores = [worth(text) for text in asked(loop)]
    tops = [sorted(scores[: n + 1], reverse=True)[:10] for n in range(len(scores))]
    since = len(tops) - 1 - tops.index(tops[-1])  # calls since the ten best changed
    assert loop.progress.restarts >= (when_stale == "restart")
    least = 60 if when_stale == "restart" else 30  # the last restart brought nothing better
    assert least <= since < least + 3 * 12  # rounds are whole
    assert len(scores) < 300  # of 363


def test_a_restart_puts_the_first_weights_back_and_keeps_the_memory() -> None:
    loop = rounds(learning_rate=0.1)
    first = weights(loop)
    for _ in range(3):
        loop.round()
    kept = list(loop.memory.kept)
    assert not equal(first, weights(loop))
    loop._restart()
    assert equal(first, weights(loop))
    assert loop.memory.kept == kept
    assert not loop.optimizer.state
    loop.round()
    assert not equal(first, weights(loop))
    assert equal(first, [p.detach() for p in loop.reference.parameters()])  # type: ignore[attr-defined]


def test_restarts_find_more_than_a_stop_and_end_when_nothing_is_left() -> None:
    options: dict[str, Any] = {"objective": Likelihood(), "learning_rate": 0.1, "passes": 8, "patience": 4}
    stopped, restarted = (rounds(letters_policy(4), **options, when_stale=way, budget=80) for way in ("stop", "restart"))
    assert len(stopped.run()) < 80
    assert len(restarted.run()) == 80
    assert restarted.progress.restarts >= 1
    small = rounds(letters_policy(1), **options, when_stale="restart", budget=80)  # of only three texts
    assert {str(entry.key) for entry in small.run().kept} <= {"a", "b", "c"}
    assert 1 <= small.progress.restarts <= 3


def test_an_island_begins_anew_and_every_second_one_knows_everything() -> None:
    screen, objective = Ranking(start=50), SelfImitation(0.02, new_share=1.0)
    loop = rounds(letters_policy(4), objective=objective, screen=screen, learning_rate=0.1, when_stale="islands")
    first = weights(loop)
    for _ in range(3):
        loop.round()
    assert not equal(first, weights(loop))
    assert loop.objective.temperature > 0.02  # type: ignore[attr-defined]
    scored = asked(loop)[:]
    loop._restart()
    assert equal(first, weights(loop))
    assert loop.objective.temperature == 0.02  # type: ignore[attr-defined]
    assert not loop.memory.kept
    assert not screen.observed
    assert {entry.key for entry in loop.everything.kept} == set(scored)
    loop.round()  # what it draws again is known: it enters without a call
    again = {text for text, _ in loop._draws if text in scored}
    assert again
    assert len(asked(loop)) == len(set(asked(loop)))
    new = set(asked(loop)[len(scored) :])
    assert {entry.key for entry in loop.memory.kept} == again | new == set(screen.observed)
    assert all(entry.score == worth(str(entry.key)) for entry in loop.memory.kept)
    loop._restart()
    assert {entry.key for entry in loop.memory.kept} == set(asked(loop)) == set(screen.observed)


def test_islands_go_on_until_the_budget_is_used_up() -> None:
    loop = rounds(letters_policy(5), plateau=20, when_stale="islands", patience=50, passes=0, budget=300)
    assert len(loop.run()) == 300
    assert loop.progress.restarts >= 3
    small = rounds(letters_policy(1), patience=4, when_stale="islands", budget=80)  # of only three texts
    assert len(small.run()) <= 3
    assert small.progress.restarts <= 3


# -- as a whole


@pytest.mark.parametrize(
    "objective",
    [
        TrajectoryBalance(30.0, 0.0),
        GroupBalance(30.0),
        AugmentedLikelihood(60.0),
        Likelihood(),
        GroupRelative(),
        SelfImitation(0.02),
    ],
    ids=lambda objective: type(objective).__name__,
)
def test_the_policy_reaches_the_best_text_of_the_space(objective: Objective) -> None:
    policy = letters_policy(5)
    space = texts(5)
    best = max(space[1:], key=worth)
    objective = copy.deepcopy(objective)
    loop = rounds(policy, objective=objective, draws=16, passes=6, batch_size=16, learning_rate=0.01, budget=200, patience=15)
    found = loop.run()
    with torch.no_grad():
        logp = score_sites(policy.sites(policy.rollout_of(space))).logp.sum((1, 2))
    assert len(space) == 364
    assert len(found) <= 200
    assert found.kept[0].key == best
    assert space[int(logp.argmax())] == best
    assert float(logp.max().exp()) > 0.05  # 1/364 before


def run_of(seed: int) -> tuple[list[str], list[Tensor]]:
    loop = rounds(
        letters_policy(4),
        seed=seed,
        objective=TrajectoryBalance(5.0),
        proposers=[Fixed("made", "cabc")],
        children=2,
        explore=1,
        fresh_passes=1,
        max_grad_norm=1.0,
        budget=30,
    )
    loop.run()
    return asked(loop), weights(loop)


def test_the_generator_decides_everything() -> None:
    (first, one), (again, same), (other, _) = run_of(0), run_of(0), run_of(1)
    assert first == again
    assert equal(one, same)
    assert first != other


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"draws": 0}, "draws: 0, expected at least 1"),
        ({"children": -1}, "children: -1"),
        ({"passes": -1}, "passes: -1"),
        ({"batch_size": -1}, "batch_size: -1, expected at least 0"),
        ({"explore": 65}, "explore: 65"),
        ({"fresh_passes": 9}, "fresh_passes: 9"),
        ({"learning_rate": 0.0}, "learning_rate: 0"),
        ({"objective_learning_rate": 0.0}, "objective_learning_rate: 0"),
        ({"max_grad_norm": 0.0}, "max_grad_norm: 0"),
        ({"generations": 0}, "generations: 0, expected at least 1"),
        ({"take": 0}, "take: 0"),
        ({"bf16": 0}, "bf16: 0, expected True, False or 'auto'"),
        ({"unscreened": -1}, "unscreened: -1"),
        ({"take": 4, "take_children": 5}, r"take_children: 5, expected .* 4 \(take\)"),
        ({"take": 4, "unscreened": 5}, r"unscreened: 5, expected .* 4 \(take\)"),
        ({"patience": 0}, "patience: 0"),
        ({"plateau": 0}, "plateau: 0, expected at least 1 or None"),
        ({"when_stale": "wait"}, "when_stale: 'wait', expected stop, restart or islands"),
    ],
)
def test_settings_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RoundsConfig(**given)


def test_a_screen_allows_one_generation() -> None:
    with pytest.raises(ValueError, match="generations: 2, expected 1 with a screen"):
        rounds(screen=object(), generations=2)


def test_a_policy_that_cannot_learn_from_others_is_refused_unless_it_need_not() -> None:
    class DrawsOnly(nn.Linear):
        def sample(self, contexts: Any, *, generator: Any = None) -> Any: ...

        def sites(self, rollout: Any, steps: Any = None) -> Any: ...

    def loop(passes: int) -> Rounds:
        return Rounds(DrawsOnly(1, 1), Worth(), Ledger(), str, Likelihood(), RoundsConfig(passes=passes))

    with pytest.raises(ValueError, match="policy: DrawsOnly has no method rollout_of"):
        loop(1)
    assert loop(0).progress.rounds == 0
