"""Drawing from the graph policy: generators, sizes, shared noise, batches of like size, trajectories and decoding."""

from __future__ import annotations

import itertools

import pytest
import torch
from scipy.stats import chisquare

from discrete_grpo.core.rollout import Context, group_contexts
from discrete_grpo.domains.graphs import node_mask, num_pairs, pair_mask, upper
from discrete_grpo.policies.graph import size_buckets
from tests.policies.graph_policy_parts import COUNTS, KERNELS, draw, every_kernel, make, replayed, same_rollout, scores, seeded


@every_kernel
def test_the_generator_decides_every_bit_and_nothing_else_is_touched(kind: str) -> None:
    policy, contexts = make(kind), group_contexts(5, 3)
    before = torch.random.get_rng_state()
    one, same, other = (policy.sample(contexts, generator=seeded(k)) for k in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert same_rollout(one, same)
    assert one.size.tolist() != other.size.tolist() or not same_rollout(one, other)
    assert not same_rollout(draw(policy, seed=1), draw(policy, seed=2))
    assert not one.logp.requires_grad


def test_a_group_shares_its_size_and_sizes_follow_the_prior() -> None:
    policy = make("uniform", num_steps=1, decode=lambda graphs: [None] * len(graphs))
    rollout = policy.sample(group_contexts(1500, 2), generator=seeded(0))
    sizes = rollout.size.reshape(1500, 2)
    assert torch.equal(sizes[:, 0], sizes[:, 1])
    counts = torch.bincount(sizes[:, 0], minlength=6).double()
    allowed = torch.tensor(COUNTS) > 0
    assert counts[~allowed].sum() == 0
    assert chisquare(counts[allowed].numpy(), 1500 * torch.tensor(COUNTS, dtype=torch.float64)[allowed].numpy()).pvalue > 1e-3


def test_interleaved_groups_are_one_group() -> None:
    groups = [7, -2, 7, 100, -2, 7]
    for seed in range(5):
        rollout = make().sample([Context(g) for g in groups], generator=seeded(seed))
        sizes = dict(zip(groups, rollout.size.tolist(), strict=True))
        assert rollout.size.tolist() == [sizes[g] for g in groups]
        assert rollout.group.tolist() == groups


@pytest.mark.parametrize("kind", ["uniform", "marginal"])
def test_groups_share_the_initial_noise_when_asked_to(kind: str) -> None:
    contexts = [Context(g, {"num_nodes": 5 - g % 2}) for g in (4, 1, 4, 2, 1, 4)]
    for share in (True, False):
        rollout = make(kind, share_initial_noise=share).sample(contexts, generator=seeded(0))
        start = [
            (*n, *p) for n, p in zip(rollout.states["nodes"][:, 0].tolist(), rollout.states["pairs"][:, 0].tolist(), strict=True)
        ]
        assert (start[0] == start[2] == start[5]) == share
        assert (start[1] == start[4]) == share
        assert start[0] != start[3]
        assert rollout.states["pairs"][0].tolist() != rollout.states["pairs"][2].tolist()  # they part ways afterwards


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("waste", [0.0, 0.1, 0.25, 0.9])
def test_buckets_are_a_partition_by_size_with_little_padding(seed: int, waste: float) -> None:
    sizes = torch.randint(1, 30, (60,), generator=seeded(seed))
    buckets = list(size_buckets(sizes, waste))
    assert sorted(torch.cat(buckets).tolist()) == list(range(60))
    ordered = sizes[torch.cat(buckets)].tolist()
    assert ordered == sorted(ordered, reverse=True)
    for rows in buckets:
        cost = [n + n * (n - 1) // 2 for n in sizes[rows].tolist()]
        assert min(cost) >= (1 - waste) * max(cost) - 1e-9
    for a, b in itertools.pairwise(buckets):
        assert sizes[a].min() > sizes[b].max()  # equal sizes, and so groups, are never parted
    assert list(size_buckets(torch.tensor([], dtype=torch.long))) == []


@every_kernel
def test_trajectories_are_bytes_that_start_from_noise_and_end_clean(kind: str) -> None:
    policy = make(kind)
    rollout = draw(policy)
    assert {x.dtype for x in rollout.states.values()} == {torch.uint8}
    assert rollout.nbytes() == 6 * (4 + 1) * (5 + 10)
    assert (rollout.num_steps, rollout.max_units) == (4, 4 * (5 + 10))
    mask = node_mask(rollout.size, 5)
    for name, exists, kernel in zip(("nodes", "pairs"), (mask, pair_mask(mask)), KERNELS[kind], strict=True):
        states = rollout.states[name]
        assert (states[~exists.unsqueeze(1).expand_as(states)] == 0).all()
        assert int(states[:, -1].max()) < kernel.noise.num_clean
        start = states[:, 0][exists].long()
        assert (kernel.noise.initial()[start] > 0).all()
    units = [n + num_pairs(n) for n in rollout.size.tolist()]
    assert rollout.units.tolist() == [[u] * 4 for u in units]
    assert scores(policy, rollout).mask.sum(-1).tolist() == rollout.units.tolist()
    assert [int(s.sizes) for s in rollout.samples] == rollout.size.tolist()
    for b, sample in enumerate(rollout.samples):
        n = sample.num_nodes  # no padding comes along
        assert n == int(rollout.size[b])
        assert torch.equal(sample.nodes[0], rollout.states["nodes"][b, -1, :n].long())
        assert torch.equal(upper(sample.edges)[0], rollout.states["pairs"][b, -1, : num_pairs(n)].long())
        assert torch.equal(sample.edges, sample.edges.transpose(1, 2))


def test_decoding_sees_the_final_graphs_in_the_order_of_the_contexts() -> None:
    sizes = [2, 5, 1, 4]
    rollout = draw(make(decode=lambda graphs: [f"graph of {n}" for n in graphs.sizes.tolist()]), sizes)
    assert rollout.samples == tuple(f"graph of {n}" for n in sizes)
    assert rollout.columns == {"num_nodes": tuple(sizes)}
    mixed = make().sample([Context(0, {"a": 1}), Context(1, {"b": 2})], generator=seeded(0))
    assert mixed.columns == {"a": (1, None), "b": (None, 2)}


@every_kernel
def test_one_step_samplers_and_single_nodes_work(kind: str) -> None:
    policy = make(kind, num_steps=1)
    rollout = draw(policy, [1, 1])
    assert torch.equal(replayed(policy, rollout), rollout.logp)
    assert rollout.units.tolist() == [[1], [1]]
    assert rollout.states["pairs"].shape == (2, 2, 0)
