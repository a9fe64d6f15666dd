"""The memory of scored samples: order, identity, and draws with the probabilities of their ranks."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from discrete_grpo.training.memory import Remembered, ScoredMemory, rank_weights


def entries(text: str) -> list[tuple[str, str, float]]:
    """Samples ``a1 b3``: a letter and tenths of its score."""
    return [(word[0], word[0].upper(), int(word[1:]) / 10) for word in text.split()]


def keys(memory: ScoredMemory) -> str:
    return "".join(str(entry.key) for entry in memory.kept)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_rank_weights_are_the_published_ones() -> None:
    assert rank_weights(4, 0.25).tolist() == [1 / 1, 1 / 2, 1 / 3, 1 / 4]
    assert rank_weights(100, 0.01).tolist() == pytest.approx([1 / (1 + k) for k in range(100)], abs=1e-15)
    assert rank_weights(0, 1.0).tolist() == []
    assert rank_weights(3, 1.0).dtype == torch.float64
    with pytest.raises(ValueError, match="rank_coefficient: 0"):
        rank_weights(3, 0)


def test_the_best_come_first_and_of_equals_the_older() -> None:
    memory = ScoredMemory(size=None)
    assert memory.add(entries("a2 b5 c2 d9"), "policy") == 4
    assert memory.add(entries("e5 f1"), "file") == 2
    assert keys(memory) == "dbeacf"
    assert memory.kept[2] == Remembered("e", "E", 0.5, "file")
    assert [entry.source for entry in memory.kept] == ["policy", "policy", "file", "policy", "policy", "file"]
    assert len(memory) == 6


def test_a_key_is_kept_once_with_its_first_score() -> None:
    memory = ScoredMemory()
    assert memory.add(entries("a2 a7 b1")) == 2
    assert memory.add(entries("b9 a9")) == 0
    assert [(entry.key, entry.score) for entry in memory.kept] == [("a", 0.2), ("b", 0.1)]
    assert "a" in memory
    assert "c" not in memory


def test_the_worst_leaves_a_full_memory_and_an_equal_one_does_not_enter() -> None:
    memory = ScoredMemory(size=3)
    memory.add(entries("a5 b2 c2"))
    assert memory.add(entries("d2 e1")) == 0
    assert keys(memory) == "abc"
    assert memory.add(entries("d3")) == 1
    assert keys(memory) == "adb"  # of the two worst the newer left
    assert "c" not in memory
    assert memory.add(entries("c9")) == 1  # what left may come again
    assert keys(memory) == "cad"


def test_unknown_scores_are_skipped() -> None:
    memory = ScoredMemory()
    assert memory.add([("a", "A", math.nan), ("b", "B", 0.0), ("a", "A", 0.5)]) == 2
    assert keys(memory) == "ab"


def test_what_it_is_given_is_known() -> None:
    memory = ScoredMemory(kept=[Remembered("a", "A", 0.3)])
    assert memory.add(entries("a9")) == 0


def test_a_draw_has_no_repeats_and_ends_with_the_memory() -> None:
    memory = ScoredMemory()
    assert memory.draw(3, generator()) == []
    memory.add(entries("a1 b2 c3 d4"))
    drawn = memory.draw(3, generator())
    assert len({entry.key for entry in drawn}) == 3
    assert sorted(str(entry.key) for entry in memory.draw(9, generator())) == ["a", "b", "c", "d"]
    assert memory.draw(0, generator()) == memory.parents(0, generator()) == []


def chi_square(counts: list[int], odds: list[float]) -> float:
    total = sum(counts)
    return sum((n - total * p) ** 2 / (total * p) for n, p in zip(counts, odds, strict=True))


def test_draws_have_the_odds_of_their_ranks_one_after_the_other() -> None:
    memory = ScoredMemory(rank_coefficient=0.1)
    memory.add(entries("a1 b2 c3 d4"))
    weights = [1 / (0.4 + rank) for rank in range(4)]
    odds = [w / sum(weights) for w in weights]
    random, n = generator(1), 6000
    single = [str(memory.draw(1, random)[0].key) for _ in range(n)]
    assert chi_square([single.count(k) for k in "dcba"], odds) < 16.27  # 0.1 % of χ² with 3 degrees of freedom
    pairs = ["".join(str(entry.key) for entry in memory.draw(2, random)) for _ in range(n)]
    ordered = list(itertools.permutations(range(4), 2))
    expected = [odds[i] * odds[j] / (1 - odds[i]) for i, j in ordered]
    assert sum(expected) == pytest.approx(1)
    assert chi_square([pairs.count("dcba"[i] + "dcba"[j]) for i, j in ordered], expected) < 31.26  # 11 degrees


def test_parents_have_the_same_odds_and_may_repeat() -> None:
    memory = ScoredMemory(rank_coefficient=0.1)
    assert memory.parents(2, generator()) == []
    memory.add(entries("a1 b2 c3"))
    drawn = [str(entry.key) for entry in memory.parents(6000, generator(2))]
    weights = [1 / (0.3 + rank) for rank in range(3)]
    assert chi_square([drawn.count(k) for k in "cba"], [w / sum(weights) for w in weights]) < 13.82  # 2 degrees


def test_the_generator_decides() -> None:
    memory = ScoredMemory()
    memory.add([(str(k), k, k / 50) for k in range(50)])
    state = torch.random.get_rng_state()
    assert memory.draw(10, generator(3)) == memory.draw(10, generator(3))
    assert memory.draw(10, generator(3)) != memory.draw(10, generator(4))
    assert memory.parents(10, generator(3)) == memory.parents(10, generator(3))
    assert torch.equal(state, torch.random.get_rng_state())  # not the global one


@pytest.mark.parametrize(
    ("given", "said"), [({"size": 0}, "size: 0, expected at least 1 or None"), ({"rank_coefficient": 0.0}, "rank_coefficient: 0")]
)
def test_settings_are_refused(given: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ScoredMemory(**given)  # type: ignore[arg-type]


def test_after_a_replacement_the_new_entries_are_known_and_the_old_are_not() -> None:
    memory, other = ScoredMemory(size=3), ScoredMemory()
    memory.add(entries("a2 b5"))
    other.add(entries("c3 d4"))
    memory.replace(other.kept)
    assert ("c" in memory, "d" in memory, "a" in memory, "b" in memory) == (True, True, False, False)
    assert memory.add(entries("c9 a1")) == 1
    assert keys(memory) == "dca"
