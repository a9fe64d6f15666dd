"""Sizes of groups that are drawn together and dealt to the shards of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.policies.conditions import FixedSites
from discrete_grpo.policies.node_count import RunningSizes, SizedPolicy
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.size_dealing import dealt, sizes_are_dealt
from discrete_grpo.training.trainer import GRPOTrainer
from tests.letters import letters_policy
from tests.pretrain_cases import digraphs
from tests.toys import share_of_class_two, tiny_policy


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


CONFIG: dict[str, Any] = {"num_generations": 3, "generation_batch_size": 36, "generation_shards": 4, "max_steps": 1, "beta": 0.0}


@pytest.mark.parametrize(("shards", "count"), [(2, 2), (3, 12), (8, 64), (64, 128)])
def test_shards_have_the_same_sizes_in_all_and_about_equal_work(shards: int, count: int) -> None:
    random = np.random.default_rng(shards)
    loads, others = [], []
    for _ in range(50):
        sizes = random.integers(5, 39, count).tolist()
        own = dealt(sizes, shards)
        assert {len(part) for part in own} == {count // shards}
        assert sorted(n for part in own for n in part) == sorted(sizes)
        work = [sum(n * n for n in part) for part in own]
        assert max(work) - min(work) <= max(sizes) ** 2
        loads.append(max(work) / np.mean(work))
        others.append((np.array(sizes).reshape(shards, -1) ** 2).sum(1).max() / np.mean(work))
    if count > shards:
        assert np.mean(loads) - 1 < 0.5 * (np.mean(others) - 1)


def test_a_shard_with_less_work_so_far_has_the_larger_size() -> None:
    """9 and 8, then 6 and 7, have the squares 117 and 113 in all, so that 5 goes to the second shard."""
    assert dealt([7, 5, 8, 6, 4, 9], 2) == [[6, 4, 9], [7, 5, 8]]


def test_the_place_of_a_group_says_nothing_of_its_size() -> None:
    random = np.random.default_rng(0)
    sums = np.zeros(4)
    for _ in range(4000):
        for part in dealt(random.integers(5, 39, 12).tolist(), 3):
            sums += part
    assert sums / 12000 == pytest.approx([21.5] * 4, abs=0.45)  # five standard errors


def test_as_many_groups_for_each_shard() -> None:
    with pytest.raises(ValueError, match=r"^sizes: 5, expected a multiple of the number of shards \(2\)$"):
        dealt([1, 2, 3, 4, 5], 2)


@pytest.mark.parametrize("policy", [tiny_policy(), digraphs(torch.float32)[0]])
def test_sizes_are_those_that_the_policy_draws(policy: Any) -> None:
    drawn = policy.sample(group_contexts(7, 1), generator=seeded(0)).size
    assert policy.draw_sizes(7, generator=seeded(0)) == drawn.tolist()


def test_a_generation_has_the_sizes_that_were_dealt_and_rewards_do_not_see_them() -> None:
    seen = []

    def reward(samples: Sequence[Any], **columns: Any) -> list[float]:
        seen.append(set(columns))
        return share_of_class_two(samples)

    trainer = GRPOTrainer(tiny_policy(), reward, GRPOConfig(**CONFIG))
    wanted = dealt(tiny_policy().draw_sizes(12, generator=seeded(trainer.config.seed)), 4)
    found = trainer.sampler.draw()
    assert [batch.rollout.size[::3].tolist() for (batch,) in found.mine] == wanted
    assert [batch.rollout.columns["num_nodes"][::3] for (batch,) in found.mine] == [tuple(sizes) for sizes in wanted]
    assert not any(batch.refined.any() for (batch,) in found.mine)
    assert seen == [set()] * 4


@pytest.mark.parametrize(
    ("policy", "conditions", "changed", "expected"),
    [
        (tiny_policy(), None, {}, True),
        (tiny_policy(), [{"colour": "red"}], {}, True),
        (tiny_policy(), [{}, {"num_nodes": 3}], {}, False),
        (tiny_policy(), [{"fixed": FixedSites({0: 1})}], {}, False),
        (tiny_policy(), [{"restart": None}], {}, False),
        (tiny_policy(), None, {"shards": 1}, False),
        (tiny_policy(), None, {"refines": True}, False),
        (letters_policy(), None, {}, False),
        (SizedPolicy(tiny_policy(), RunningSizes([0.0, 0.3, 0.4, 0.3])), None, {}, False),
    ],
)
def test_where_sizes_are_dealt(
    policy: Any, conditions: list[Mapping[str, Any]] | None, changed: dict[str, Any], expected: bool
) -> None:
    assert sizes_are_dealt(policy, conditions, **{"shards": 2, "refines": False} | changed) is expected


def test_conditions_that_give_the_size_keep_it() -> None:
    columns = [{"num_nodes": 2}, {"num_nodes": 4}]
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, GRPOConfig(**CONFIG), columns=columns)
    assert {n for (batch,) in trainer.sampler.draw().mine for n in batch.rollout.size.tolist()} == {2, 4}


def test_with_one_shard_the_policy_draws_the_sizes_itself() -> None:
    config = GRPOConfig(**CONFIG | {"generation_shards": None})
    (batch,) = GRPOTrainer(tiny_policy(), share_of_class_two, config).sampler.draw().batches
    alone = tiny_policy().sample(group_contexts(12, 3), generator=seeded(config.seed))
    assert torch.equal(batch.rollout.states["nodes"], alone.states["nodes"])
    assert "num_nodes" not in batch.rollout.columns
