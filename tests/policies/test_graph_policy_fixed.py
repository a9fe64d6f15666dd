"""Fixed nodes and edges of the graph policy: they stand in every sample and count for nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from discrete_grpo.core.rollout import Context
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import uniform
from discrete_grpo.diffusion.schedules import DigressSchedule
from discrete_grpo.domains.graphs import node_mask, num_pairs, pair_mask, unpack
from discrete_grpo.policies.graph import FixedSites, size_buckets
from discrete_grpo.policies.node_count import draw_sizes
from tests.policies.graph_policy_parts import every_kernel, make, replayed, same_rollout, scores, seeded

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


@every_kernel
def test_a_closed_node_has_no_other_edges_and_they_count_for_nothing(kind: str) -> None:
    """Closed nodes give the same draws as the pairs that they forbid, for every size of a batch."""
    policy, sizes = make(kind), [5, 3, 5, 4, 5, 3, 2, 1]
    closed = FixedSites({0: 1, 2: 0}, {(0, 1): 1}, closed=(0, 2))
    contexts: list[dict[str, Any]] = [{"fixed": closed, "num_nodes": n} for n in sizes[:6]] + [{"num_nodes": n} for n in sizes[6:]]
    rollout = policy.sample([Context(g, c) for g, c in enumerate(contexts)], generator=seeded(0))
    exists = node_mask(rollout.size, rollout.max_size)
    assert (rollout.states["nodes"][~exists[:, None].expand(-1, 5, -1)] == 0).all()
    assert (rollout.states["pairs"][~pair_mask(exists)[:, None].expand(-1, 5, -1)] == 0).all()
    for b, n in enumerate(sizes[:6]):
        edges = rollout.samples[b].edges[0]
        assert edges[[0, 2]].nonzero().tolist() == [[0, 1]]
        assert rollout.units[b].tolist() == [n + num_pairs(n) - 2 - (2 * n - 3)] * 4
        touched = [(i, j) for j in range(n) for i in range(j) if {i, j} & {0, 2}]
        contexts[b]["fixed"] = FixedSites({0: 1, 2: 0}, {pair: int(pair == (0, 1)) for pair in touched})
    assert same_rollout(rollout, policy.sample([Context(g, c) for g, c in enumerate(contexts)], generator=seeded(0)))
    torch.testing.assert_close(scores(policy, rollout).logp.sum(-1), rollout.logp, rtol=0, atol=1e-5)


def test_the_log_prob_beside_a_closed_node_is_that_of_the_free_sites_one_by_one() -> None:
    policy = make("uniform")
    rollout = policy.sample([Context(0, {"fixed": FixedSites({}, {(0, 1): 1}, closed=(1,)), "num_nodes": 3})], generator=seeded(2))
    now, exists = rollout.states, node_mask(rollout.size, 3)
    for k in range(4):
        state = unpack(now["nodes"][:, k], now["pairs"][:, k], exists)
        of_nodes, of_pairs = (table.detach() for table in policy.transition(state, torch.tensor([k])))
        chosen = [of_nodes[0, i, now["nodes"][0, k + 1, i].long()] for i in range(3)]
        chosen.append(of_pairs[0, 1, now["pairs"][0, k + 1, 1].long()])  # pair (0, 2); (0, 1) is given and (1, 2) closed
        assert float(rollout.logp[0, k]) == pytest.approx(float(torch.stack(chosen).log().sum()), abs=1e-5)


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
    wrong("^fixed: needs 6 nodes, expected at most 5", FixedSites({0: 0}, closed=(5,)))
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
