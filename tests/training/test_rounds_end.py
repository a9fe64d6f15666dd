"""When rounds over a memory end: patience, goals, plateaus, restarts and islands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from torch import Tensor

from discrete_grpo.training.objectives import Likelihood, SelfImitation
from tests.letters import letters_policy, texts, worth
from tests.training.rounds_parts import Ranking, asked, equal, rounds, weights


def test_a_stale_run_ends_after_its_patience() -> None:
    loop = rounds(patience=3)
    last = 0
    (inner,) = loop.rewards

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


def test_the_goal_is_reached_by_the_ten_best_of_all_islands() -> None:
    goal = sorted((worth(text) for text in texts(5) if text), reverse=True)[29]
    loop = rounds(letters_policy(5), goal=goal, plateau=20, when_stale="islands", patience=50, passes=0)
    while not (loop.progress.ended or loop.ledger.exhausted):
        loop._advance()
        if loop.progress.rounds % 2 == 0:
            loop._leave_island()  # which never has ten of the best
    scores = [worth(text) for text in asked(loop)]
    assert loop.progress.ended
    assert 10 <= sum(score >= goal for score in scores) < 30


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


@pytest.mark.slow
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
    again = {text for text, _ in loop.draws if text in scored}
    assert again
    assert len(asked(loop)) == len(set(asked(loop)))
    new = set(asked(loop)[len(scored) :])
    assert {entry.key for entry in loop.memory.kept} == again | new == set(screen.observed)
    assert loop.objective.temperature > 0.02  # type: ignore[attr-defined]
    assert all(entry.score == worth(str(entry.key)) for entry in loop.memory.kept)
    loop._restart()
    assert {entry.key for entry in loop.memory.kept} == set(asked(loop)) == set(screen.observed)
    assert loop.objective.temperature == 0.02  # type: ignore[attr-defined]


@pytest.mark.slow
def test_islands_go_on_until_the_budget_is_used_up() -> None:
    loop = rounds(letters_policy(5), plateau=20, when_stale="islands", patience=50, passes=0, budget=300)
    assert len(loop.run()) == 300
    assert loop.progress.restarts >= 3
    small = rounds(letters_policy(1), patience=4, when_stale="islands", budget=80)  # of only three texts
    assert len(small.run()) <= 3
    assert small.progress.restarts <= 3


def test_a_plateau_is_as_long_as_the_setting_says() -> None:
    loop = rounds(letters_policy(5), draws=1, plateau=30, patience=500, passes=0)
    loop.run()
    tops = [sorted(map(worth, asked(loop)[: n + 1]), reverse=True)[:10] for n in range(len(asked(loop)))]
    assert len(tops) - 1 - tops.index(tops[-1]) == 30


def test_a_screen_is_told_each_sample_once_an_island() -> None:
    class Counting(Ranking):
        times: ClassVar[list[str]] = []

        def observe(self, samples: Sequence[str], scores: Tensor) -> None:
            self.times.extend(samples)

    loop = rounds(screen=Counting(start=1), when_stale="islands", passes=0)
    for restart in (False, False, True, False, False, True, False):
        if restart:
            loop._restart()
            Counting.times[:] = map(str, loop.met)
        loop.round()
        assert len(Counting.times) == len(set(Counting.times)) == len(loop.met)


def test_what_an_island_was_given_is_not_told_to_the_screen_again() -> None:
    class Counting(Ranking):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.told: list[str] = []

        def observe(self, samples: Sequence[Any], scores: Tensor) -> None:
            super().observe(samples, scores)
            self.told.extend(samples)

        def forget(self) -> None:
            super().forget()
            self.told.clear()

    screen = Counting(start=1)
    loop = rounds(screen=screen, when_stale="islands", passes=0, draws=24)
    for restart in (False, False, True, False, True):  # the last island knows everything
        if restart:
            loop._restart()
        loop.round()
    assert any(key in loop.entry_of for key, _ in loop.draws)  # it draws some of that again
    assert len(screen.told) == len(set(screen.told))
