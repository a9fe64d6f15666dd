"""Fixed nodes and edges of the graph policy: they stand in every sample and count for nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from discrete_grpo.core.rollout import Context
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import uniform
from discrete_grpo.diffusion.schedules import DigressSchedule
from discrete_grpo.domains.graphs import num_pairs
from discrete_grpo.policies.graph import FixedSites, size_buckets
from discrete_grpo.policies.node_count import draw_sizes
from tests.policies.graph_policy_parts import every_kernel, make, replayed, scores, seeded

FIXED = FixedSites({0: 1, 2: 0}, {(0, 2): 1, (1, 3): 0, (0, 1): 1})


@every_kernel
def test_fixed_sites_stand_in_every_sample_and_count_for_nothing(kind: str) -> None:
    policy, reference = make(kind), make(kind, seed=9)
    contexts = [Context(g // 4, {"fixed": FIXED} if g < 12 else {}) for g in range(20)]
    rollout = policy.sample(contexts, generator=seeded(0))
    found = scores(policy, rollout, reference)
    assert found.kl is not None
    tables = policy.sites(rollout)
    for b in range(20):
        n = int(rollout.size[b])
        graph = rollout.samples[b]
        if b >= 12:
            assert int(rollout.units[b, 0]) == n + num_pairs(n)
            continue
        assert n >= FIXED.min_nodes == 4
        assert all(int(graph.nodes[0, i]) == c for i, c in FIXED.nodes.items())
        assert all(int(graph.edges[0, i, j]) == int(graph.edges[0, j, i]) == c for (i, j), c in FIXED.edges.items())
        assert rollout.units[b].tolist() == [n + num_pairs(n) - 5] * 4
        places = [*FIXED.nodes, *(rollout.states["nodes"].shape[2] + j * (j - 1) // 2 + i for i, j in FIXED.edges)]
        assert not found.mask[b, :, places].any()
        assert (found.logp[b, :, places] == 0).all()
        assert (found.kl[b, :, places] == 0).all()
    assert found.mask.sum(-1).tolist() == rollout.units.tolist()
    torch.testing.assert_close(found.logp.sum(-1), rollout.logp, rtol=0, atol=1e-5)
    assert {int(x) for x in tables[0].mask[:12, 0].sum(-1)} <= {2, 3}
    for rows in size_buckets(rollout.size):
        assert torch.equal(replayed(policy, rollout.index(rows)), rollout.logp[rows])


def test_fixed_sites_follow_the_noise_of_their_clean_class_along_the_way() -> None:
    """With linear absorbing noise a fixed node shows at time t with probability 1 - t, whatever the network says."""
    policy = make("absorbing")
    rollout = policy.sample([Context(0, {"fixed": FIXED, "num_nodes": 4})] * 3000, generator=seeded(0))
    for k in range(5):
        at = rollout.states["nodes"][:, k, 0]
        assert set(at.tolist()) <= {1, 3}
        assert float((at == 1).double().mean()) == pytest.approx(k / 4, abs=0.03)


def test_fixing_everything_leaves_nothing_to_choose() -> None:
    policy = make()
    whole = FixedSites({0: 1, 1: 3}, {(0, 1): 2})
    rollout = policy.sample([Context(0, {"fixed": whole, "num_nodes": 2})] * 3, generator=seeded(0))
    assert rollout.units.sum() == 0
    assert (rollout.logp == 0).all()
    assert rollout.samples[0].nodes.tolist() == [[1, 3]]
    assert (scores(policy, rollout).logp == 0).all()


def test_wrong_fixed_sites_are_named() -> None:
    def wrong(text: str, fixed: FixedSites, **columns: Any) -> None:
        with pytest.raises(ValueError, match=text):
            make().sample([Context(0, {"fixed": fixed, **columns})], generator=seeded(0))

    wrong("^node class in fixed: 4, expected 0 to 3", FixedSites({0: 4}))
    wrong("^node class in fixed: -1, expected 0 to 3", FixedSites({0: -1}))
    wrong("^edge class in fixed: 3, expected 0 to 2", FixedSites({}, {(0, 1): 3}))
    wrong("^fixed: needs 6 nodes, expected at most 5", FixedSites({5: 0}))
    wrong("^num_nodes: 2, expected 3 to 5", FixedSites({2: 0}), num_nodes=2)
    with pytest.raises(ValueError, match=r"^fixed: needs 3 nodes, expected at most 2"):
        draw_sizes([Context(0, {"fixed": FixedSites({2: 0})})], torch.tensor([0.0, 0.5, 0.5, 0.0]), None)
    with pytest.raises(ValueError, match=r"^fixed: no node and no edge"):
        FixedSites({})
    with pytest.raises(ValueError, match=r"^node in fixed: -1, expected at least 0"):
        FixedSites({-1: 0})
    for pair in ((1, 0), (1, 1), (-1, 1)):
        with pytest.raises(ValueError, match=r"^fixed: edge \(.*\), expected 0 <= i < j"):
            FixedSites({}, {pair: 0})


def test_a_group_has_room_for_what_any_of_its_contexts_fixes() -> None:
    contexts = [Context(0), Context(0, {"fixed": FixedSites({4: 1})}), Context(0, {"fixed": FixedSites({0: 1})})]
    for seed in range(6):
        rollout = make().sample(contexts, generator=seeded(seed))
        assert rollout.size.tolist() == [5, 5, 5]
        assert int(rollout.samples[1].nodes[0, 4]) == 1


def test_fixed_sites_come_out_clean_where_the_schedule_leaves_noise_at_the_end() -> None:
    """DiGress's schedule of 3 steps keeps 0.85 of the signal at t = 0."""
    kernels = [D3PM(uniform(3, DigressSchedule(3))), D3PM(uniform(2, DigressSchedule(3)))]
    policy = make("uniform")
    policy.node_kernel, policy.edge_kernel = kernels
    fixed = FixedSites({0: 1, 2: 0}, {(0, 2): 1, (0, 1): 1})
    rollout = policy.sample([Context(0, {"fixed": fixed, "num_nodes": 3})] * 60, generator=seeded(0))
    for graph in rollout.samples:
        assert graph.nodes[0, [0, 2]].tolist() == [1, 0]
        assert graph.edges[0, 0, [1, 2]].tolist() == [1, 1]
