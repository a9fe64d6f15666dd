"""What rounds over a memory score and remember: new samples once, within the budget, by their sources."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo.training.memory import Remembered, ScoredMemory
from tests.letters import letters_policy, worth
from tests.training.rounds_parts import Fixed, asked, calls, equal, rollout, rounds, sources, spied, weights


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
