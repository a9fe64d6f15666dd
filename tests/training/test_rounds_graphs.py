"""Rounds on graph policies, whose samples have many trajectories: learning from graphs that the policy did not draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from discrete_grpo.core.rollout import Context
from discrete_grpo.domains import labelled_graphs
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.node_count import LearnedSizes, SizedPolicy
from discrete_grpo.rewards.ledger import Ledger, text_key
from discrete_grpo.training.memory import ScoredMemory
from discrete_grpo.training.objectives import GroupBalance, GroupRelative, Objective
from discrete_grpo.training.rounds import Rounds
from discrete_grpo.training.rounds_config import RoundsConfig
from tests.toys import tiny_policy

SIZES = (0.0, 0.0, 0.5, 0.5)


class Mutants:
    """A proposer of all graphs of two nodes, and of some that the policy cannot draw."""

    name = "mutants"

    def propose(self, memory: ScoredMemory, count: int, generator: torch.Generator) -> list[str]:
        drawable = [f"{g} nodes={i},{j} edges={'1' * (g == 'A_')}" for g in ("A?", "A_") for i in range(3) for j in range(3)]
        return [*drawable[:count], "A_ nodes=0,7 edges=1", "? nodes= edges="]


def share_of_class_two(samples: Sequence[str], **columns: Any) -> list[float]:
    classes = [labelled_graphs.from_line(s).nodes(data="label") for s in samples]
    return [sum(c == 2 for _, c in row) / max(1, len(row)) for row in classes]


def lines_policy() -> GraphPolicy:
    """The tiny graph policy whose samples are lines."""
    plain = tiny_policy()
    forms: dict[str, Any] = {"decode": labelled_graphs.batch_to_lines, "encode": labelled_graphs.graphs_to_batch}
    return GraphPolicy(plain.network, plain.node_kernel, plain.edge_kernel, SIZES, num_steps=4, **forms)


def loop_of(policy: nn.Module, objective: Objective, passes: int = 3) -> Rounds:
    config = RoundsConfig(draws=12, children=18, passes=passes, batch_size=12, learning_rate=3e-3, bf16=False)
    return Rounds(
        policy,  # type: ignore[arg-type]
        share_of_class_two,
        Ledger(key=text_key, max_oracle_calls=500),
        text_key,
        objective,
        config,
        proposers=[Mutants()],
        generator=torch.Generator().manual_seed(0),
    )


@pytest.mark.parametrize("objective", [GroupRelative(), GroupBalance()], ids=["relative", "balance"])
@pytest.mark.parametrize("sized", [False, True], ids=["graphs", "sized"])
def test_two_rounds_of_a_graph_policy(objective: Objective, sized: bool) -> None:
    policy = SizedPolicy(lines_policy(), LearnedSizes(SIZES)) if sized else lines_policy()
    before = {name: weight.clone() for name, weight in policy.named_parameters()}
    loop = loop_of(policy, objective)
    new = [loop.round() for _ in range(2)]
    assert loop.progress.rounds == 2
    assert new[0] > 12
    assert {entry.source for entry in loop.everything.kept} == {"policy", "mutants"}
    assert "A_ nodes=0,7 edges=1" in loop.everything  # scored and remembered, but not learned from
    changed = [name for name, weight in policy.named_parameters() if not torch.equal(weight, before[name])]
    assert changed
    assert all(bool(weight.isfinite().all()) for weight in policy.parameters())


def test_a_graph_policy_learns_from_graphs_that_others_proposed() -> None:
    """After some rounds the share of nodes of class 2 in fresh samples has risen by at least a fifth."""
    policy = lines_policy()

    def mean() -> float:
        drawn = policy.sample([Context(k) for k in range(200)], generator=torch.Generator().manual_seed(1)).samples
        return sum(share_of_class_two(drawn)) / 200

    start, loop = mean(), loop_of(policy, GroupRelative(), passes=12)
    for _ in range(3):
        loop.round()
    assert mean() > start + 0.2
