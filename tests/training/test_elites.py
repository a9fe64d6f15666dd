"""The memory of good samples to start again from: what it keeps, and how groups mix it with conditions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from discrete_grpo.core.rollout import Context, group_contexts
from discrete_grpo.policies.restart import Restart
from discrete_grpo.training.elites import Elite, EliteBuffer
from discrete_grpo.training.group_starts import GroupStart, group_starts, seen_columns
from tests.policies.restart_parts import seeded
from tests.toys import tiny_policy


def test_the_memory_keeps_the_best_unique_samples() -> None:
    policy = tiny_policy(sizes=(0.0, 0.0, 1.0))
    rollout = policy.sample([Context(k) for k in range(8)], generator=seeded(0))
    memory = EliteBuffer(policy, 3, 0.5)
    named = replace(rollout, samples=("a", "b", "a", None, "c", "d", "e", "b"))
    rewards = torch.tensor([0.5, 0.7, 0.6, 9.0, 0.7, torch.nan, 0.1, 0.2])
    assert memory.add(named, rewards, [None] * 8) == 3
    assert [(g.key, round(g.reward, 6)) for g in memory.kept] == [("b", 0.7), ("c", 0.7), ("a", 0.6)]
    assert memory.kept[2].restart == policy.restarts(rollout, torch.tensor([2]), 0.5)[0]
    assert memory.add(replace(named, samples=("x",) * 8), torch.full((8,), 0.6), [None] * 8) == 0  # no better than the last
    assert memory.add(replace(named, samples=("c",) * 8), torch.full((8,), 0.9), [None] * 8) == 0  # the same, drawn better
    assert [g.key for g in memory.kept] == ["c", "b", "a"]
    assert memory.add(named, torch.full((8,), 0.8), [5] * 8) == 2  # under another condition it is another sample
    assert [g.key for g in memory.kept] == ["c", "5 a", "5 b"]
    other = EliteBuffer(policy, 3, 0.5)
    other.load(memory.state())
    assert [(g.key, g.reward, g.restart, g.origin) for g in other.kept] == [
        (g.key, g.reward, g.restart, g.origin) for g in memory.kept
    ]
    drawn = [g.key for g in memory.draw(7, seeded(0))]
    assert Counter(Counter(drawn).values()) == Counter({2: 2, 3: 1})
    assert Counter(drawn[:3]) == Counter(drawn[3:6])
    assert EliteBuffer(policy, 3, 0.5).draw(4) == []


def test_samples_that_are_no_text_are_told_apart_by_their_graph() -> None:
    policy = tiny_policy()
    policy.decode = None
    contexts = [Context(0, {"restart": Restart((0, 1), (1,), 3)})] * 40
    memory = EliteBuffer(policy, 40, 0.25)
    rollout = policy.sample(contexts, generator=seeded(0))
    memory.add(rollout, torch.zeros(40), [None] * 40)
    graphs = {
        (*a, *b) for a, b in zip(rollout.states["nodes"][:, -1].tolist(), rollout.states["pairs"][:, -1].tolist(), strict=True)
    }
    assert 1 < len(memory.kept) == len(graphs) < 19


def test_starts_mix_conditions_and_good_samples() -> None:
    conditions = [{"num_nodes": 2}, {"num_nodes": 3}, {"num_nodes": 4}]
    memory = EliteBuffer(tiny_policy(), 3, 0.5)
    assert [s.refined for s in group_starts(4, conditions, memory, 0.5, seeded(0))] == [False] * 4
    memory.kept = [Elite("a", 1.0, {"restart": "R"}, 2)]
    starts = group_starts(4, conditions, memory, 0.5, seeded(0))
    assert [s.refined for s in starts] == [False, False, True, True]
    assert sum(s.refined for s in group_starts(4, conditions, memory, 0.7, seeded(0))) == 3  # the nearest whole number
    assert starts[3].columns == {"num_nodes": 4, "restart": "R"}
    rollout = tiny_policy().sample(group_contexts(2, 1, [{"num_nodes": 2}, {"num_nodes": 3, "restart": None}]))
    assert set(seen_columns(rollout, starts)) == {"num_nodes"}
    assert set(seen_columns(rollout, starts[:2])) == {"num_nodes", "restart"}
    assert len({int(s.columns["num_nodes"]) for s in group_starts(3, conditions, memory, 0.0, seeded(0))}) == 3
    memory.kept = [Elite("a", 1.0, {"restart": "R"})]
    assert group_starts(2, None, memory, 1.0, seeded(0))[0].columns == {"restart": "R"}


def test_conditions_are_shuffled_anew_where_they_are_fewer_than_groups() -> None:
    conditions = [{"num_nodes": 2}, {"num_nodes": 3}, {"num_nodes": 4}]
    orders = [[s.origin for s in group_starts(6, conditions, generator=seeded(k))] for k in range(20)]
    assert all({*order[:3]} == {*order[3:]} == {0, 1, 2} for order in orders)
    assert any(order[:3] != order[3:] for order in orders)


def test_rewards_receive_the_columns_of_all_conditions() -> None:
    starts = group_starts(1, [{"colour": "red", "weight": None}, {"size": 3}], generator=seeded(0))
    rollout = tiny_policy().sample(group_contexts(1, 2, [starts[0].columns]))
    wanted = {name: (starts[0].columns.get(name),) * 2 for name in ("colour", "weight", "size")}
    assert dict(seen_columns(rollout, starts)) == wanted
    given = GroupStart({"restart": "R"}, 0, asked=("restart",))  # also where another group starts from an elite
    both = [given, GroupStart({"restart": "S"}, 0, frozenset({"restart"}), refined=True, asked=("restart",))]
    assert dict(seen_columns(replace(rollout, columns={"restart": ("R", "S")}), both)) == {"restart": ("R", "S")}
