"""A memory of what the policy can draw keeps updates and contexts supplied where proposers go beyond its reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from discrete_grpo.core.rollout import Context
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.training.memory import ScoredMemory
from discrete_grpo.training.objectives import GroupBalance
from discrete_grpo.training.rounds import Rounds
from discrete_grpo.training.rounds_config import RoundsConfig
from tests.letters import Worth, letters_policy, not_empty
from tests.training.rounds_parts import Fixed, Spy, calls
from tests.training.test_rounds_state import facts, saved

BEYOND = Fixed("beyond", *("cab" * n for n in range(4, 12)))  # the policy draws 5 letters at most


def length(texts: Sequence[str], **_: Any) -> list[float]:
    """Every text beyond the policy's reach is better than any within."""
    return [float(len(text)) for text in texts]


def made(drawable: ScoredMemory | None, *, contexts: Any = None, budget: int | None = None, **settings: Any) -> Rounds:
    config = {"draws": 12, "passes": 2, "batch_size": 4, "children": 8, "learning_rate": 0.01, "bf16": False} | settings
    return Rounds(
        letters_policy(5),
        length,
        Ledger(key=not_empty, max_oracle_calls=budget),
        not_empty,
        Spy(GroupBalance(5.0)),
        RoundsConfig(**config),
        memory=ScoredMemory(size=6),
        drawable=drawable,
        proposers=[BEYOND],
        contexts=contexts,
        generator=torch.Generator().manual_seed(0),
    )


def test_without_it_nothing_is_left_to_learn_from_and_with_it_batches_are_full() -> None:
    without, loop = made(None), made(ScoredMemory(size=6))
    for one in (without, loop):
        one.round()
        assert {entry.source for entry in one.memory.kept} == {"beyond"}
    assert without.metrics()["learned"] == 0
    assert loop.metrics()["learned"] == 2 * 4
    assert isinstance(loop.objective, Spy)
    assert [len(batch.reward) for batch in loop.objective.batches] == [4, 4]
    assert all(float(batch.reward.max()) <= 5 for batch in loop.objective.batches)


def test_it_holds_the_best_that_the_policy_can_draw() -> None:
    drawable = ScoredMemory(size=6)
    loop = made(drawable)
    for _ in range(4):
        loop.round()
    within = [entry for entry in loop.everything.kept if len(entry.sample) <= 5]
    assert len(within) > 6
    assert drawable.kept == within[:6]
    assert loop.metrics()["memory"] == 6


def test_contexts_are_made_from_it() -> None:
    seen: list[list[str]] = []

    def contexts(memory: ScoredMemory, count: int, generator: torch.Generator) -> list[Context]:
        seen.append([entry.sample for entry in memory.kept])
        return [Context(k) for k in range(count)]

    drawable = ScoredMemory(size=6)
    loop = made(drawable, contexts=contexts)
    loop.round()
    held = [entry.sample for entry in drawable.kept]
    loop.round()
    assert seen == [[], held]
    assert held


def test_a_warm_start_is_in_it() -> None:
    memory, drawable = ScoredMemory(), ScoredMemory()
    memory.add([("cab", "cab", 3.0), ("cab" * 9, "cab" * 9, 27.0)], "file")
    Rounds(letters_policy(5), Worth(), Ledger(key=not_empty), not_empty, GroupBalance(5.0), memory=memory, drawable=drawable)
    assert [entry.sample for entry in drawable.kept] == ["cab"]


def test_an_island_begins_with_an_empty_one_and_every_second_with_all_that_was_scored() -> None:
    drawable = ScoredMemory(size=6)
    loop = made(drawable, when_stale="islands")
    loop.round()
    best = list(drawable.kept)
    loop._leave_island()
    assert not drawable.kept
    loop.progress.restarts = 1
    loop._leave_island()
    assert drawable.kept == best


@pytest.mark.parametrize("stop_at", [1, 4])
def test_a_loop_goes_on_to_the_same_bits(stop_at: int) -> None:
    whole, other = made(ScoredMemory(size=6), budget=60), made(ScoredMemory(size=6), budget=60)
    states: list[dict[str, Any]] = []
    whole.run(lambda: states.append(saved(whole)))
    assert len(states) > 5
    other.ledger.load_state_dict(states[stop_at]["ledger"])
    other.load_state_dict(states[stop_at]["rounds"])
    other.run()
    assert calls(whole) == 60
    assert facts(other) == facts(whole)
    assert other.drawable is not None
    assert whole.drawable is not None
    assert other.drawable.kept == whole.drawable.kept


def test_a_checkpoint_of_an_earlier_version_fills_it_from_the_memory() -> None:
    loop, other = made(ScoredMemory(size=6)), made(ScoredMemory(size=6))
    loop.round()
    state = saved(loop)["rounds"]
    del state["drawable"]
    state["memory"] = [entry.key for entry in loop.everything.kept]
    other.load_state_dict(state)
    assert other.drawable is not None
    assert other.drawable.kept == [entry for entry in loop.everything.kept if len(entry.sample) <= 5][:6]


def test_a_policy_that_knows_no_samples_but_its_own_is_refused() -> None:
    class Draws(torch.nn.Linear):
        sample = sites = None

    with pytest.raises(ValueError, match=r"^policy: Draws has no method rollout_of, expected one that can learn from any sample$"):
        Rounds(
            Draws(1, 1),  # type: ignore[arg-type]
            length,
            Ledger(key=not_empty),
            not_empty,
            GroupBalance(5.0),
            RoundsConfig(passes=0),
            drawable=ScoredMemory(),
        )
