"""Rollouts: slicing, bytes, groups of contexts, protocols."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from discrete_grpo.core.rollout import Context, Policy, Rollout, as_module, group_contexts
from discrete_grpo.policies.surrogate import EagerLikelihood
from tests.toys import tiny_policy


def rollout() -> Rollout:
    return Rollout(
        states={"x": torch.arange(24, dtype=torch.uint8).reshape(4, 3, 2), "y": torch.arange(4)},
        group=torch.tensor([5, 5, -1, 9]),
        logp=torch.arange(8.0).reshape(4, 2),
        units=torch.arange(8).reshape(4, 2),
        size=torch.tensor([2, 1, 2, 2]),
        max_units=7,
        samples=("a", "b", "c", "d"),
        columns={"prompt": ("p", "q", "r", "s")},
        max_steps=5,
    )


def test_rows_are_picked_together_in_the_order_asked_for() -> None:
    picked = rollout().index(torch.tensor([3, 0, 3]))
    assert (len(picked), picked.num_steps, picked.max_units, picked.max_steps) == (3, 2, 7, 5)
    assert picked.samples == ("d", "a", "d")
    assert picked.columns == {"prompt": ("s", "p", "s")}
    assert picked.group.tolist() == [9, 5, 9]
    assert picked.states["y"].tolist() == [3, 0, 3]
    assert picked.states["x"][1].tolist() == rollout().states["x"][0].tolist()
    assert picked.logp.tolist() == [[6.0, 7.0], [0.0, 1.0], [6.0, 7.0]]
    assert picked.units.tolist() == [[6, 7], [0, 1], [6, 7]]
    assert picked.size.tolist() == [2, 2, 2]


def test_repr_is_one_short_line() -> None:
    assert repr(rollout()) == "Rollout(4 trajectories, 3 groups, 2 steps, cpu)"


def test_moving_moves_every_tensor_and_keeps_the_rest() -> None:
    moved = rollout().to("meta")
    assert {t.device.type for t in (*moved.states.values(), moved.group, moved.logp, moved.units, moved.size)} == {"meta"}
    assert (moved.samples, moved.columns, moved.max_units) == (("a", "b", "c", "d"), rollout().columns, 7)
    assert moved.max_steps == 5


def test_bytes_are_those_of_the_states() -> None:
    assert rollout().nbytes() == 24 * 1 + 4 * 8


def test_groups_of_contexts() -> None:
    contexts = group_contexts(2, 3, [{"n": 1}, {"n": 2}])
    assert contexts == [Context(0, {"n": 1})] * 3 + [Context(1, {"n": 2})] * 3
    assert [c.columns for c in group_contexts(2, 1)] == [{}, {}]
    with pytest.raises(ValueError, match=r"^columns: 1 entries, expected one per group \(2\)"):
        group_contexts(2, 3, [{}])


def test_the_graph_policy_obeys_the_protocol_and_a_stranger_is_refused() -> None:
    policy = tiny_policy()
    assert isinstance(policy, Policy)
    assert as_module(policy) is policy
    assert not isinstance(nn.Linear(1, 1), Policy)

    class NoModule:
        sample, sites = policy.sample, policy.sites

    with pytest.raises(TypeError, match=r"^policy: NoModule is no torch.nn.Module"):
        as_module(NoModule())


@pytest.mark.parametrize("name", ["decode", "encode"])
def test_a_network_as_decoder_is_refused_where_checkpoints_leave_it_out(name: str) -> None:
    policy = tiny_policy()
    setattr(policy, name, nn.Identity())
    for whole in (policy, EagerLikelihood(policy)):
        with pytest.raises(ValueError, match=f"^{name}: Identity is a network, expected a function"):
            as_module(whole)


def test_a_policy_may_have_networks_of_these_names_that_it_makes_itself() -> None:
    class Own(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.decode: nn.Module = nn.Linear(width, 1)

    class Described(Own):
        def __init__(self, decode: nn.Module) -> None:
            super().__init__(1)
            self.decode = decode

        def init_args(self) -> dict[str, Any]:
            return {"decode": self.decode}

    class Without(nn.Module):
        """It has no checkpoints that could lack it."""

        def __init__(self, decode: nn.Module) -> None:
            super().__init__()
            self.decode = decode

    for policy in (Own(1), Described(nn.Identity()), Without(nn.Linear(2, 2))):
        assert as_module(policy) is policy  # type: ignore[arg-type]
