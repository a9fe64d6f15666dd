"""Parts of the loop over rounds that lack what it asks of them are refused in one line when the loop is made."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.training.memory import Remembered, ScoredMemory
from discrete_grpo.training.objectives import Likelihood
from discrete_grpo.training.proposers import Regeneration
from discrete_grpo.training.rounds import Rounds
from discrete_grpo.training.rounds_config import RoundsConfig
from tests.letters import Worth, letters_policy, not_empty

NAMELESS = SimpleNamespace(propose=lambda *_: [])
WRONG: list[tuple[str, Any, str]] = [
    ("proposers", [SimpleNamespace(name="x")], "a SimpleNamespace has no method propose, expected an object with propose"),
    ("proposers", [Regeneration], "the class Regeneration has no method propose, expected an object with propose"),
    ("proposers", [NAMELESS], "a SimpleNamespace has no name, expected a text, by which the ledger counts its samples"),
    ("proposers", NAMELESS, "a SimpleNamespace, expected a list"),
    ("memory", [], "a list, expected a ScoredMemory"),
    ("memory", ScoredMemory, "the class ScoredMemory, expected a ScoredMemory"),
    ("drawable", {}, "a dict, expected a ScoredMemory or None"),
    ("known", [("a", 0.5)], "a tuple, expected a Remembered, as in the list kept of a ScoredMemory"),
    ("screen", NAMELESS, "a SimpleNamespace has no method observe, expected an object with observe, forget, merit"),
    ("ledger", None, "None has no method score, expected an object with score"),
    ("reward", [], "none given, expected at least one"),
    ("objective", Likelihood, "the class Likelihood, expected a function"),
    ("key", "smiles", "a str, expected a function"),
    ("rewrite", 3, "an int, expected a function or None"),
    ("config", {"draws": 3}, "a dict, expected a RoundsConfig"),
]


def made(**parts: Any) -> Rounds:
    given: dict[str, Any] = {"reward": Worth(), "ledger": Ledger(), "key": not_empty, "objective": Likelihood()}
    return Rounds(letters_policy(), **(given | parts))


@pytest.mark.parametrize(("name", "part", "said"), WRONG)
def test_a_wrong_part_is_one_line(name: str, part: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: {re.escape(said)}$"):
        made(**{name: part})


def test_right_parts_pass() -> None:
    entry = Remembered("a", "a", 0.5, "file")
    proposer = SimpleNamespace(name="mine", propose=lambda *_: [])
    screen = SimpleNamespace(observe=lambda *_: None, forget=lambda: None, merit=lambda _: None)
    loop = made(proposers=[proposer], screen=screen, known=(entry,), drawable=ScoredMemory(), config=RoundsConfig(children=1))
    assert [one.key for one in loop.everything.kept] == ["a"]
