"""Rewards of one name in one ledger: the same reward passes however it was made, and another one is refused."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.rewards.cache import ScoreCache
from discrete_grpo.rewards.diversity import DiversityFilter
from discrete_grpo.rewards.ledger import Ledger, molecule_key
from discrete_grpo.rewards.molecules import Target, qed
from discrete_grpo.rewards.pmo import TASKS
from discrete_grpo.rewards.pool import RewardPool
from discrete_grpo.rewards.same_name import check_same_reward


def constant(value: Any) -> Callable[..., list[float]]:
    def score(samples: Sequence[Any], **columns: Any) -> list[float]:
        return [float(value) for _ in samples]

    return score


def plus(samples: Sequence[Any], add: float = 0.0, **columns: Any) -> list[float]:
    return [add for _ in samples]


class Model:
    """A reward whose method is asked, with a part that nobody can look into where ``hidden`` is given."""

    def __init__(self, value: float, hidden: Any = None) -> None:
        self.value, self.hidden = value, hidden

    def score(self, samples: Sequence[Any], **columns: Any) -> list[float]:
        return [self.value for _ in samples]


class OtherModel(Model):
    def score(self, samples: Sequence[Any], **columns: Any) -> list[float]:
        return [-self.value for _ in samples]


def unseen() -> Any:
    """A value without an identity."""
    return iter(())


PART = functools.partial(plus, add=1.0)
LAMBDAS = [lambda samples, **columns: [1.0 for _ in samples], lambda samples, **columns: [2.0 for _ in samples]]
SAME: dict[str, Callable[[], Any]] = {
    "a function": lambda: qed,
    "a closure": lambda: constant(1.0),
    "a closure over what cannot be seen": lambda: functools.partial(plus, add=0.0, unused=unseen()),
    "an object": lambda: Target(qed, 0.5, 1.0),
    "a method": lambda: Model(1.0).score,
    "a method of what cannot be seen": lambda: Model(1.0, unseen()).score,
    "a partial": lambda: functools.partial(plus, add=1.0),
    "a reward that remembers": lambda: DiversityFilter(qed),
}


@pytest.mark.filterwarnings("ignore:reward .* repeats are scored again")
@pytest.mark.parametrize("made", SAME.values(), ids=SAME)
@pytest.mark.parametrize("cached", [False, True])
def test_the_same_reward_is_asked_twice_also_where_it_was_made_anew(made: Callable[[], Any], cached: bool) -> None:
    ledger = Ledger(key=molecule_key, cache=ScoreCache() if cached else None)
    for sample in ("CC", "CCO"):
        ledger.score([made()], [sample])
    assert ledger.calls == 2
    assert len(ledger.history().names) == 1


PAIRS: dict[str, tuple[Any, Any, str]] = {
    "closures": (constant(1.0), constant(2.0), "test_same_name.constant.<locals>.score (line "),
    "lambdas": (LAMBDAS[0], LAMBDAS[1], "test_same_name.<lambda> (line "),
    "a task": (TASKS["qed"], qed, "discrete_grpo.rewards.task.Task and discrete_grpo.rewards.molecules.qed (line "),
    "objects": (Target(qed, 0.5, 1.0), Target(qed, 0.5, 2.0), "discrete_grpo.rewards.molecules.Target with other values"),
    "methods": (Model(1.0).score, Model(2.0).score, "test_same_name.Model.score (line "),
    "methods of what cannot be seen": (Model(1.0, unseen()).score, OtherModel(1.0, unseen()).score, "Model.score (line "),
    "partials": (functools.partial(plus, add=1.0), functools.partial(plus, add=2.0), "test_same_name.plus (line "),
    "rewards that remember": (
        DiversityFilter(constant(1.0)),
        DiversityFilter(constant(2.0)),
        "diversity.DiversityFilter with other values",
    ),
}


@pytest.mark.parametrize(("first", "second", "told"), PAIRS.values(), ids=PAIRS)
def test_another_reward_of_the_same_name_is_refused_before_it_costs_a_call(first: Any, second: Any, told: str) -> None:
    ledger = Ledger(key=molecule_key)
    ledger.score([first], ["CC"])
    name = ledger.history().names[0]
    with pytest.raises(ValueError, match=re.escape(told)) as caught:
        ledger.score([second], ["CCO"])
    assert str(caught.value).startswith(f"rewards: {name!r} is the name of two rewards of this ledger, ")
    assert str(caught.value).endswith("; expected different names: rename one, or give it an attribute name (a text)")
    assert "\n" not in str(caught.value)
    assert (ledger.calls, ledger.asked) == (1, 1)


def test_the_advice_of_the_error_helps() -> None:
    ledger, second = Ledger(), constant(2.0)
    ledger.score([constant(1.0)], ["a"])
    second.name = "second"  # type: ignore[attr-defined]
    ledger.score([second], ["a"])
    assert ledger.history().names == ("score", "second")
    assert ledger.history().scores.tolist() == [[1.0, 2.0]]


def test_rewards_of_one_name_in_one_list_are_numbered_and_keep_their_numbers() -> None:
    ledger, one, two = Ledger(), constant(1.0), constant(2.0)
    ledger.score([one, two], ["a"])
    ledger.score([one, two], ["b"])
    assert ledger.history().names == ("score", "score_2")
    for rewards in ([two], [two, one]):
        with pytest.raises(ValueError, match="rewards: 'score' is the name of two rewards"):
            ledger.score(rewards, ["c"])
    assert ledger.history().scores.tolist() == [[1.0, 2.0]] * 2


def test_a_pool_of_a_reward_is_that_reward() -> None:
    for first, second in ((qed, RewardPool(qed, workers=1)), (PART, RewardPool(PART, workers=1))):
        check_same_reward("qed", first, second)
        check_same_reward("qed", second, first)
    with pytest.raises(ValueError, match="rewards: 'qed' is the name of two rewards of this ledger"):
        check_same_reward("qed", RewardPool(qed, workers=1), PART)


def test_a_resumed_run_goes_on_with_its_rewards_also_after_an_edit(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for value in (1.0, 1.0, 2.0):  # of an edited reward `train` and `optimise` print a line and go on
        ledger.score([constant(value)], ["a", f"b{ledger.calls}"])
        state = ledger.state_dict()
        ledger.close()
        ledger = Ledger(tmp_path / "ledger.sqlite")
        ledger.load_state_dict(state)
    assert ledger.history().scores.flatten().tolist() == [1.0, 1.0, 1.0, 2.0]
    ledger.close()


class Oracle:
    """A reward that is a method."""

    def score(self, samples: Sequence[str], **columns: Any) -> list[float]:
        return [1.0] * len(samples)


def test_a_method_is_the_same_reward_at_every_access_without_a_look_at_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discrete_grpo.rewards.same_name.identify", lambda reward: pytest.fail("looked at"))
    oracle, ledger = Oracle(), Ledger()
    for text in ("C", "CC"):
        ledger.score([oracle.score], [text])
    assert ledger.calls == 2
