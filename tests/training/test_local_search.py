"""Local search around good samples: it climbs, counts what it draws and names bad arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.training.local_search import SearchResult, local_search
from tests.policies.restart_parts import Plain, seeded
from tests.toys import share_of_class_two, tiny_policy


class Believer(nn.Module):
    """A network that takes most of what it sees for clean, so that what is regenerated is like what was there."""

    def __init__(self) -> None:
        super().__init__()
        self.faith = nn.Parameter(torch.tensor(3.0))

    def forward(self, nodes: Tensor, edges: Tensor, time: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        one_hot = nn.functional.one_hot
        return self.faith * one_hot(nodes, 3), self.faith * one_hot(edges, 2)


def test_local_search_climbs_and_counts() -> None:
    policy = tiny_policy(sizes=(0.0, 0.0, 0.0, 0.0, 1.0))
    policy.network = Believer()
    asked: list[int] = []

    def reward(samples: Sequence[Any], **columns: Any) -> list[float | None]:
        asked.append(len(samples))
        assert set(columns) == {"num_nodes"}
        return [None if s.count(1) == 4 else r for s, r in zip(samples, share_of_class_two(samples), strict=True)]

    options: dict[str, Any] = {"population": 4, "children": 5, "time": 0.3, "columns": {"num_nodes": 4}}
    found = local_search(policy, reward, rounds=5, keep=6, batch_size=16, generator=seeded(0), **options)
    assert found.drawn == sum(asked) == 6 * 20
    assert asked[:2] == [16, 4]
    assert list(found.rewards) == sorted(found.rewards, reverse=True)
    assert list(found.rewards) == share_of_class_two(found.samples)
    assert len(found.samples) == 6
    best, mean = ([line[name] for line in found.history] for name in ("best", "mean"))
    assert best == sorted(best)
    assert mean == sorted(mean)
    assert found.rewards[0] == best[-1] == 1.0
    assert found.history[-1]["reward"] > found.history[0]["reward"] + 0.2  # children of the good are good
    repeat = local_search(policy, reward, rounds=5, keep=6, batch_size=16, generator=seeded(0), **options)
    assert repeat.samples == found.samples
    assert local_search(policy, reward, rounds=0, **options).drawn == 20


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rounds": -1}, "rounds: -1, expected at least 0"),
        ({"population": 0}, "population: 0, expected at least 1"),
        ({"children": 0}, "children: 0, expected at least 1"),
        ({"keep": 1}, "keep: 1, expected at least 2"),
        ({"time": 1.0}, "time: 1.0, expected more than 0 and less than 1"),
        ({"policy": Plain()}, "policy: Plain has no method restarts"),
        ({"rewards": None}, "reward_funcs: None, expected a function"),
        ({"reward_weights": [math.nan]}, "reward_weights: nan, expected a finite number"),
    ],
)
def test_local_search_names_bad_arguments(options: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"policy": tiny_policy(), "rewards": share_of_class_two, "rounds": 1, "population": 2, "children": 2}
    given |= options
    with pytest.raises(ValueError, match=said):
        local_search(given.pop("policy"), given.pop("rewards"), **given)


def test_weights_of_a_search_are_one_per_reward() -> None:
    with pytest.raises(ValueError, match=r"reward_weights: 2 weights, expected one per reward \(1\)"):
        local_search(tiny_policy(), share_of_class_two, rounds=1, population=2, children=2, time=0.5, reward_weights=[1.0, 2.0])


def test_rewards_are_weighed() -> None:
    def size(samples: Sequence[Any], **columns: Any) -> list[float]:
        return [float(len(sample)) for sample in samples]

    options: dict[str, Any] = {"rounds": 1, "population": 3, "children": 4, "generator": seeded(0)}
    found = local_search(tiny_policy(), [share_of_class_two, size], reward_weights=[2.0, -0.5], **options)
    parts = list(zip(share_of_class_two(found.samples), size(found.samples), strict=True))
    assert list(found.scores) == parts
    assert list(found.rewards) == pytest.approx([2 * share - 0.5 * count for share, count in parts])


def test_a_round_is_described_by_its_population_and_the_known_rewards() -> None:
    def known(samples: Sequence[Any], **columns: Any) -> list[float | None]:
        return [None if k % 2 else r for k, r in enumerate(share_of_class_two(samples))]

    lines: list[SearchResult] = []
    options: dict[str, Any] = {"population": 2, "children": 6, "keep": 8, "generator": seeded(0), "on_round": lines.append}
    local_search(tiny_policy(), known, rounds=2, **options)
    for line in lines:
        assert line.history[-1]["mean"] == sum(line.rewards[:2]) / 2 != sum(line.rewards) / len(line.rewards)
        assert math.isfinite(line.history[-1]["reward"])


def test_a_search_that_has_found_nothing_draws_again_from_noise() -> None:
    rounds = iter([False, True, True])

    def later(samples: Sequence[Any], **columns: Any) -> list[float | None]:
        return [*share_of_class_two(samples)] if next(rounds) else [None] * len(samples)

    found = local_search(tiny_policy(), later, rounds=2, population=2, children=3, generator=seeded(0))
    assert [line["drawn"] for line in found.history] == [6, 12, 18]
    assert math.isnan(found.history[0]["best"])
    assert len(found.samples) == 2


def test_a_budget_that_ends_within_a_round_ends_the_search_with_what_was_scored() -> None:
    ledger = Ledger(key=str, max_oracle_calls=5)
    options: dict[str, Any] = {"population": 4, "children": 5, "batch_size": 5, "generator": seeded(0)}
    found = local_search(tiny_policy(sizes=(0.0, 0.0, 0.0, 0.0, 1.0)), share_of_class_two, rounds=3, ledger=ledger, **options)
    assert ledger.calls == 5
    assert len(found.history) == 1
    assert list(found.rewards) == share_of_class_two(found.samples)
