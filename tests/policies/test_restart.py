"""What a restart is: where a trajectory starts again, what a group shares, fixed sites, wrong restarts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.rollout import Context, group_contexts
from discrete_grpo.policies.graph import FixedSites
from discrete_grpo.policies.restart import Restart, grid_point, restart_graphs
from tests.policies.restart_parts import again, seeded
from tests.toys import tiny_policy


def test_a_trajectory_stands_still_until_its_first_step() -> None:
    policy = tiny_policy(share_initial_noise=False)
    restart = Restart((0, 1, 2), (1, 0, 1), 2)
    contexts = [*group_contexts(1, 3, [{"restart": restart}]), Context(1), Context(2, {"restart": replace(restart, step=0)})]
    rollout = policy.sample(contexts, generator=seeded(0))
    assert rollout.states["start"].tolist() == [2, 2, 2, 0, 0]
    assert rollout.size.tolist()[:3] == [3, 3, 3]
    assert rollout.size.tolist()[4] == 3
    assert rollout.units[:3].tolist() == [[0, 0, 6, 6]] * 3
    assert (rollout.units[3:] > 0).all()
    assert (rollout.logp[:3, :2] == 0).all()
    assert (rollout.logp[:, 2:] < 0).all()
    for states in (rollout.states["nodes"][:3], rollout.states["pairs"][:3]):
        assert (states[:, 0] == states[:, 2]).all()
        assert (states[:, 1] == states[:, 2]).all()
    kept = rollout.states["nodes"][:3, 2] == torch.tensor([0, 1, 2, 0])[: rollout.states["nodes"].shape[2]]
    assert not bool(kept.all())  # noise was added
    assert torch.equal(rollout.states["nodes"], policy.sample(contexts, generator=seeded(0)).states["nodes"])


@pytest.mark.parametrize("shared", [False, True])
def test_a_group_shares_the_noise_where_it_shares_noise(shared: bool) -> None:
    policy = tiny_policy(share_initial_noise=shared)
    restart = {"restart": Restart((0, 1, 2, 0), (1, 0, 1, 0, 0, 1), 1)}
    rollout = policy.sample(group_contexts(2, 20, [restart, restart]), generator=seeded(0))
    starts = torch.cat([rollout.states["nodes"][:, 1], rollout.states["pairs"][:, 1]], -1).unflatten(0, (2, 20))
    assert len({tuple(r.tolist()) for r in starts[0]}) == (1 if shared else 20)
    assert not torch.equal(starts[0], starts[1])
    ends = rollout.states["nodes"][:20, -1]
    assert len({tuple(r.tolist()) for r in ends}) > 3


def test_fixed_sites_stay_fixed_in_a_segment() -> None:
    policy = tiny_policy()
    columns = {"restart": Restart((0, 1, 2), (1, 0, 1), 2), "fixed": FixedSites({1: 1}, {(1, 2): 1})}
    rollout = policy.sample(group_contexts(1, 16, [columns]), generator=seeded(1))
    assert (rollout.states["nodes"][:, -1, 1] == 1).all()
    assert (rollout.states["pairs"][:, -1, 2] == 1).all()
    assert rollout.units.tolist() == [[0, 0, 4, 4]] * 16
    scores = score_sites(policy.sites(rollout))
    assert torch.equal(scores.mask.sum(-1), rollout.units)
    torch.testing.assert_close(scores.logp.sum(-1), rollout.logp, rtol=0, atol=1e-5)


def test_restarts_of_several_sizes_are_padded_behind_their_nodes() -> None:
    contexts = [*again(1), Context(1), Context(2, {"restart": Restart((2, 0, 1), (1, 0, 1), 3)})]
    found = restart_graphs(contexts, 4, 3, 2, 4)
    assert found is not None
    assert found.step.tolist() == [1, 0, 3]
    assert found.graphs.nodes.tolist() == [[1, 0, 0, 0], [0] * 4, [2, 0, 1, 0]]
    assert found.graphs.mask.sum(-1).tolist() == [2, 0, 3]
    bonds = [{(0, 1), (1, 0)}, set(), {(0, 1), (1, 0), (1, 2), (2, 1)}]
    assert [set(map(tuple, edges.nonzero().tolist())) for edges in found.graphs.edges] == bonds
    assert restart_graphs([Context(0)], 4, 3, 2, 4) is None


def test_restarts_are_the_finished_graphs_at_the_nearest_grid_point() -> None:
    policy = tiny_policy()
    rollout = policy.sample([Context(k) for k in range(6)], generator=seeded(0))
    columns = policy.restarts(rollout, torch.tensor([4, 1]), 0.3)
    for b, column in zip((4, 1), columns, strict=True):
        n, restart = int(rollout.size[b]), column["restart"]
        assert restart.step == 3  # times 1, 3/4, 1/2, 1/4, 0
        assert restart.nodes == rollout.samples[b]
        assert list(restart.pairs) == rollout.states["pairs"][b, -1, : n * (n - 1) // 2].tolist()
    assert [grid_point(policy.grid, t) for t in (1.0, 0.7, 0.01)] == [0, 1, 3]
    assert [grid_point(policy.grid, t) for t in (0.875, 0.625)] == [0, 1]  # the noisier of two that are as near
    done = policy.sample([Context(0, columns[0])] * 3, generator=seeded(1))
    assert done.samples[0].__class__ is tuple


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"restart": 3}, "restart: 3, expected a Restart"),
        ({"restart": Restart((0, 1), (0,), 4)}, "step of restart: 4, expected 0 to 3"),
        ({"restart": Restart((0, 3), (0,), 1)}, "node class in restart: 3, expected 0 to 2"),
        ({"restart": Restart((0, 1.5), (0,), 1)}, "node class in restart: 1.5, expected a whole number"),  # type: ignore[arg-type]
        ({"restart": Restart((0, 1), (2,), 1)}, "edge class in restart: 2, expected 0 to 1"),
        ({"restart": Restart((0, 1), (1,), 1), "num_nodes": 3}, "num_nodes: 3, expected 2 as in restart"),
        ({"restart": Restart((0,) * 5, (1,) * 10, 1)}, "num_nodes: 5, expected 1 to 4"),
    ],
)
def test_a_wrong_restart_is_named(columns: dict[str, Any], said: str) -> None:
    for call in (lambda: tiny_policy().check_condition(columns), lambda: tiny_policy().sample([Context(0, columns)])):
        with pytest.raises(ValueError, match=said):
            call()


def test_wrong_restarts_are_refused_when_made() -> None:
    with pytest.raises(ValueError, match="restart: 2 nodes and 2 pairs, expected at least 1 node and 1 pairs"):
        Restart((0, 1), (0, 0), 1)
    with pytest.raises(ValueError, match="restart: 0 nodes and 0 pairs, expected at least 1 node and 0 pairs"):
        Restart((), (), 0)
    with pytest.raises(ValueError, match="step of restart: -1, expected at least 0"):
        Restart((0,), (), -1)
    with pytest.raises(ValueError, match="restart: differs within group 0, expected one per group"):
        tiny_policy().sample([*again(1), Context(0)])
    with pytest.raises(ValueError, match=r"time: 0\.0, expected more than 0 and at most 1"):
        grid_point(torch.tensor([1.0, 0.0]), 0.0)


def test_an_array_or_a_tensor_is_a_restart_too() -> None:
    wanted = Restart((0, 1), (1,), 2)
    assert Restart(np.array([0, 1]), torch.tensor([1]), 2) == wanted  # type: ignore[arg-type]
    assert hash(Restart(torch.tensor([0, 1]), np.array([1]), 2)) == hash(wanted)  # type: ignore[arg-type]
