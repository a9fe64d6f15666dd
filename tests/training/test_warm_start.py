"""The warm start: every new sample is a call with its source, the best of the file are in the memory, the budget is a bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from discrete_grpo.core.scoring import BudgetExhausted
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.training.memory import ScoredMemory
from discrete_grpo.training.warm_start import WarmStart, warm_start


def length(samples: Sequence[str | None], **columns: Any) -> list[float | None]:
    """The length of a text; unknown for "?"."""
    return [None if s == "?" else float(len(s or "")) for s in samples]


def twos(samples: Sequence[str | None], **columns: Any) -> list[float]:
    return [2.0] * len(samples)


def valid_text(sample: str | None) -> str | None:
    """Canonical text: lower case; texts with an exclamation mark are invalid."""
    return None if sample is None or "!" in sample else sample.lower()


def kept(memory: ScoredMemory) -> list[tuple[str, float]]:
    """Samples and scores, best first."""
    return [(entry.sample, entry.score) for entry in memory.kept]


TEXTS = ["aaa", "bb", "no!", "AAA", "?", "cccc", "d", "eeeee"]


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_every_new_sample_is_a_call_from_the_file(batch_size: int) -> None:
    ledger, memory = Ledger(key=valid_text), ScoredMemory()
    ledger.score([length], ["bb"], source="policy")  # known before: free of charge now
    done = warm_start(TEXTS, [length], ledger, memory, batch_size=batch_size)
    assert done == WarmStart(read=8, invalid=1, unknown=1, added=5, calls=5)  # "AAA" is "aaa" again
    assert kept(memory) == [("eeeee", 5.0), ("cccc", 4.0), ("aaa", 3.0), ("bb", 2.0), ("d", 1.0)]
    assert {entry.source for entry in memory.kept} == {"file"}
    assert ledger.sources() == {"file": 5, "policy": 1}
    assert ledger.history().keys == ("bb", "aaa", "?", "cccc", "d", "eeeee")


@pytest.mark.parametrize("batch_size", [1, 2, 3, 64])
def test_the_budget_is_a_bound_and_its_end_no_error(batch_size: int) -> None:
    ledger, memory = Ledger(key=valid_text, max_oracle_calls=3), ScoredMemory()
    done = warm_start(TEXTS, [length], ledger, memory, batch_size=batch_size)
    assert ledger.calls == done.calls == 3
    assert kept(memory) == [("aaa", 3.0), ("bb", 2.0)]  # "?" was paid for, and is unknown
    with pytest.raises(BudgetExhausted):
        ledger.score([length], ["new"])


def test_known_samples_of_the_last_batch_are_kept() -> None:
    ledger, memory = Ledger(key=valid_text, max_oracle_calls=2), ScoredMemory()
    ledger.score([length], ["aaa", "bb"])
    assert warm_start(["zz", "bb"], [length], ledger, memory) == WarmStart(read=2, unknown=1, added=1)
    assert kept(memory) == [("bb", 2.0)]


def test_the_limit_counts_samples_and_an_iterator_is_not_read_beyond_it() -> None:
    def lines() -> Iterator[str]:
        yield from ("a", "b", "c")
        raise AssertionError("read too far")

    memory = ScoredMemory()
    assert warm_start(lines(), [length], Ledger(key=valid_text), memory, 3).read == 3
    assert len(memory) == 3


def test_several_rewards_are_weighed() -> None:
    memory = ScoredMemory()
    warm_start(["aaa", "?"], [length, twos], Ledger(key=valid_text), memory, weights=(1.0, -0.5))
    assert kept(memory) == [("aaa", 2.0), ("?", -1.0)]  # an unknown reward beside a known one counts as 0, as in training


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit": 0}, "limit: 0, expected at least 1 or None"),
        ({"batch_size": 0}, "batch_size: 0, expected at least 1"),
        ({"weights": (1.0, 2.0)}, r"weights: 2 given, expected one per reward \(1\)"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        warm_start(["a"], [length], Ledger(key=valid_text), ScoredMemory(), **options)
