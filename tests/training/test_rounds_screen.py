"""A screen in rounds over a memory: it chooses what is scored, and learns from every score."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from discrete_grpo.training.memory import Remembered, ScoredMemory
from tests.letters import worth
from tests.training.rounds_parts import Fixed, Ranking, asked, rounds


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


@pytest.mark.parametrize("most", [0, 1, 3, 9, None])
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


@pytest.mark.parametrize(
    ("merit", "told"),
    [
        (lambda count: torch.zeros(1), r"a tensor of shape \(1,\)"),
        (lambda count: torch.zeros(count + 3), r"a tensor of shape \(\d+,\)"),
        (lambda count: torch.full((count,), torch.nan), r"a tensor of shape \(\d+,\)"),
        (lambda count: [0.5] * count, "a list"),
    ],
)
def test_merits_that_are_not_one_number_per_candidate_are_refused(merit: Callable[[int], Any], told: str) -> None:
    class Wrong(Ranking):
        def merit(self, samples: Sequence[Any]) -> Any:
            return merit(len(samples))

    wanted = r"expected a tensor of \d+ numbers, one per candidate, none of them NaN$"
    with pytest.raises(ValueError, match=rf"^screen: Wrong.merit returned {told}, {wanted}"):
        rounds(screen=Wrong(start=1)).round()


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


def test_a_screen_allows_one_generation() -> None:
    with pytest.raises(ValueError, match="generations: 2, expected 1 with a screen"):
        rounds(screen=SimpleNamespace(observe=len, forget=len, merit=len), generations=2)
