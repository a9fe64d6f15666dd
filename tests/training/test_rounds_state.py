"""A loop over rounds that goes on from a checkpoint draws, scores and learns what the undisturbed one does, to the bit."""

from __future__ import annotations

import copy
import functools
import io
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.training.gaussian_process import Features, GaussianProcessScreen
from discrete_grpo.training.memory import ScoredMemory
from discrete_grpo.training.objectives import GroupBalance, Objective, SelfImitation, TrajectoryBalance
from discrete_grpo.training.rounds import Rounds
from discrete_grpo.training.rounds_config import RoundsConfig
from tests.letters import Worth, letters_policy, not_empty

SETTINGS: dict[str, dict[str, Any]] = {
    "islands": {"when_stale": "islands", "plateau": 25, "patience": 2, "take": 6, "unscreened": 2},
    "restart": {"when_stale": "restart", "patience": 2},
    "stop": {"explore": 2, "max_grad_norm": 0.5},
}
OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "islands": lambda: SelfImitation(0.02, new_share=0.5),
    "restart": lambda: TrajectoryBalance(20.0),
    "stop": lambda: GroupBalance(5.0),
}


def letters(text: str) -> Features:
    pairs = {int.from_bytes(text[k : k + 2].encode(), "big"): 1 for k in range(len(text))}
    return Features((pairs,), (float(len(text)),))


def screen() -> GaussianProcessScreen:
    return GaussianProcessScreen(letters, start=12, size=24, generator=torch.Generator().manual_seed(5))


def made(kind: str, budget: int = 150) -> Rounds:
    config = RoundsConfig(draws=12, passes=3, batch_size=6, children=0, learning_rate=0.02, bf16=False, **SETTINGS[kind])
    return Rounds(
        letters_policy(5),
        Worth(),
        Ledger(key=not_empty, max_oracle_calls=budget),
        not_empty,
        OBJECTIVES[kind](),
        config,
        memory=ScoredMemory(size=20),
        screen=screen() if kind == "islands" else None,
        generator=torch.Generator().manual_seed(0),
    )


def saved(loop: Rounds) -> dict[str, Any]:
    """The state of a loop and its ledger, through a file as a checkpoint writes it."""
    file = io.BytesIO()
    torch.save({"rounds": loop.state_dict(), "ledger": loop.ledger.state_dict()}, file)
    file.seek(0)
    found: dict[str, Any] = torch.load(file, weights_only=True)
    return found


def facts(loop: Rounds) -> dict[str, Any]:
    return {
        "scored": list(loop.entry_of.values()),
        "everything": loop.everything.kept,
        "memory": loop.memory.kept,
        "progress": loop.progress,
        "unknown": list(loop.unknown),
        "weights": [p.tolist() for p in loop.policy.parameters()],  # type: ignore[attr-defined]
        "metrics": loop.metrics(),
        "generator": loop.generator.get_state().tolist(),
        "ledger": loop.ledger.history().keys,  # type: ignore[attr-defined]
        "turn": loop.ledger.turn,
    }


@functools.cache
def undisturbed(kind: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The state after each round of a loop that is not stopped, and what it ends with."""
    loop, states = made(kind), []
    loop.run(lambda: states.append(saved(loop)))
    return states, facts(loop)


@pytest.mark.parametrize("stop_at", [4, 20, 36])
@pytest.mark.parametrize("kind", sorted(SETTINGS))
def test_a_loop_goes_on_to_the_same_bits(kind: str, stop_at: int) -> None:
    states, ended = undisturbed(kind)
    stop_at = min(stop_at, len(states) - 1)
    if kind != "stop" and stop_at >= 20:
        assert states[stop_at - 1]["rounds"]["progress"]["restarts"] >= 1
    other = made(kind)
    state = copy.deepcopy(states[stop_at - 1])
    other.ledger.load_state_dict(state["ledger"])
    other.load_state_dict(state["rounds"])
    assert other.progress.rounds == stop_at
    assert other.ref_logp == state["rounds"]["ref_logp"]
    other.run()
    assert facts(other) == ended


def test_a_loop_that_goes_on_does_not_ask_again_for_what_is_unknown() -> None:
    def reward(samples: Sequence[str], **_: Any) -> list[float | None]:
        return [None if "a" in text else 0.5 for text in samples]

    whole, other = made("stop"), made("stop")
    whole.reward = other.reward = reward
    whole.round()
    assert whole.unknown
    state = saved(whole)
    other.load_state_dict(state["rounds"])
    assert list(other.unknown) == list(whole.unknown)
    del state["rounds"]["unknown"]  # as earlier versions wrote it
    other.load_state_dict(state["rounds"])
    assert not other.unknown


def test_a_loop_that_has_ended_stays_so() -> None:
    loop = made("restart", budget=10**6)
    loop.config = RoundsConfig(draws=12, passes=0, patience=1, bf16=False)
    loop.run()
    assert loop.progress.ended
    other = made("restart", budget=10**6)
    other.load_state_dict(saved(loop)["rounds"])
    rounds = other.progress.rounds
    other.run()
    assert other.progress.rounds == rounds


@pytest.mark.parametrize("count", [13, 30])
def test_a_screen_goes_on_to_the_same_merits(count: int) -> None:
    texts = [f"{k:b}".replace("0", "a").replace("1", "b") for k in range(1, 60)]
    scores = torch.tensor([text.count("ab") / len(text) for text in texts], dtype=torch.float64)
    first = screen()
    first.observe(texts[:count], scores[:count])
    assert first.merit(texts[count:]) is not None
    state = first.state_dict()
    second = screen()
    second.load_state_dict(state)
    for loop in (first, second):
        loop.observe(texts[count : count + 5], scores[count : count + 5])
    ours, theirs = first.merit(texts[40:]), second.merit(texts[40:])
    assert ours is not None
    assert theirs is not None
    assert torch.equal(ours, theirs)


def test_a_screen_without_a_state_is_refused_where_it_would_be_saved() -> None:
    class Plain:
        def observe(self, samples: Any, scores: Any) -> None: ...

        def forget(self) -> None: ...

        def merit(self, samples: Any) -> None: ...

    loop = made("stop")
    loop.screen = Plain()
    loop.round()
    with pytest.raises(TypeError, match="screen: Plain has no state_dict and load_state_dict, expected both"):
        loop.state_dict()
