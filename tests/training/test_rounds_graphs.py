"""Rounds on graph policies, whose samples have many trajectories: learning from graphs that the policy did not draw."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from discrete_grpo.core.rollout import Context, Rollout
from discrete_grpo.domains import labelled_graphs
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.node_count import LearnedSizes, SizedPolicy
from discrete_grpo.policies.surrogate import with_likelihood
from discrete_grpo.rewards.ledger import Ledger, text_key
from discrete_grpo.training.memory import ScoredMemory
from discrete_grpo.training.objectives import GroupBalance, GroupRelative, MemoryBatch, Objective, SelfImitation
from discrete_grpo.training.proposers import Regeneration
from discrete_grpo.training.rounds import Rounds
from discrete_grpo.training.rounds_config import RoundsConfig
from tests.letters import letters_policy
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


class NoReference:
    """Self-imitation that keeps what it is told about the reference."""

    needs_old, needs_ref = True, False

    def __init__(self) -> None:
        self.seen: list[MemoryBatch] = []

    def __call__(self, batch: MemoryBatch) -> torch.Tensor:
        self.seen.append(batch)
        return SelfImitation(0.0)(batch)


def test_a_policy_that_scores_itself_learns_from_states_of_its_bound() -> None:
    """Two noised states of each graph stand for the four steps of its trajectory, for log-probs old and new and their gradients."""
    objective = NoReference()
    policy = with_likelihood(lines_policy(), "elbo", draws=2)
    loop = loop_of(policy, objective)
    before = copy.deepcopy(policy)
    taken: list[Rollout] = []
    inner = policy.rollout_of

    def rollout_of(samples: Sequence[Any], **given: Any) -> Rollout:
        taken.append(inner(samples, **given))
        return taken[-1]

    policy.rollout_of = rollout_of
    loop.round()
    for batch, rollout in zip(objective.seen, taken, strict=True):
        assert batch.scores.logp.shape[1] == rollout.num_steps == 2
        assert bool(batch.ref_logp.isnan().all())  # which nobody asked for
    first = objective.seen[0].scores.logp.detach()
    assert torch.equal(first, before.score(taken[0]).logp.detach())  # the ratio of the first pass is exactly 1
    assert objective.seen[1].old_logp is not None
    torch.testing.assert_close(objective.seen[1].old_logp, before.score(taken[1]).logp.detach(), rtol=0, atol=0)
    assert any(not torch.equal(a, b) for a, b in zip(policy.parameters(), before.parameters(), strict=True))


def test_regeneration_starts_from_the_best_by_rank_of_those_that_the_policy_can_draw() -> None:
    memory = ScoredMemory()
    lines = ["A_ nodes=0,7 edges=1", "A_ nodes=2,2 edges=1", "BW nodes=1,0,1 edges=1,1", "A? nodes=0,0 edges="]
    memory.add([(line, line, 1.0 - k / 10) for k, line in enumerate(lines)])
    policy = lines_policy()
    contexts: list[Context] = []
    inner = policy.sample

    def sample(given: Sequence[Context], **more: Any) -> Rollout:
        contexts.extend(given)
        return inner(given, **more)

    policy.sample = sample  # type: ignore[assignment, method-assign]
    proposer = Regeneration(policy, 0.5, population=3, rank_coefficient=1.0)
    found = proposer.propose(memory, 400, torch.Generator().manual_seed(0))
    starts = [context.columns["restart"] for context in contexts]
    assert len(found) == len(starts) == 400
    assert len({context.group for context in contexts}) == 400  # so that no two share their noise
    assert {(start.nodes, start.pairs, start.step) for start in starts} == {((2, 2), (1,), 2), ((1, 0, 1), (0, 1, 1), 2)}
    share = sum(start.nodes == (2, 2) for start in starts) / 400
    assert share == pytest.approx(3 / 5, abs=0.08)  # weights 1/2 and 1/3
    sizes = [len(labelled_graphs.from_line(line)) for line in found]
    assert sizes == [start.num_nodes for start in starts]
    again = [proposer.propose(memory, 3, torch.Generator().manual_seed(1)) for _ in range(2)]
    assert again[0] == again[1]
    held = Regeneration(policy, 0.5, population=3, rank_coefficient=1.0, memory=memory)
    assert held.propose(ScoredMemory(), 3, torch.Generator().manual_seed(1)) == again[0]


def test_regeneration_makes_nothing_without_a_parent_and_refuses_what_cannot_go_on() -> None:
    policy, generator = lines_policy(), torch.Generator().manual_seed(0)
    assert Regeneration(policy).propose(ScoredMemory(), 4, generator) == []
    unknown = ScoredMemory()
    unknown.add([("A_ nodes=0,7 edges=1", "A_ nodes=0,7 edges=1", 1.0)])
    assert Regeneration(policy).propose(unknown, 4, generator) == []
    for given, said in (
        ({"time": 1.0}, "time: 1.0, expected more than 0 and less than 1"),
        ({"population": 0}, "population: 0, expected at least 1 or None"),
        ({"rank_coefficient": 0.0}, "rank_coefficient: 0.0, expected more than 0"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
            Regeneration(policy, **given)
    with pytest.raises(ValueError, match=r"^policy: TokenPolicy, expected one with restarts, rollout_of and can_draw"):
        Regeneration(letters_policy())


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
