"""The graph policy: what is scored is what was drawn, for every kernel; constraints, sharing, padding, training loss."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor, nn

from discrete_grpo.core.categorical import Scores, score_sites
from discrete_grpo.core.rollout import Context, Rollout, group_contexts
from discrete_grpo.diffusion.kernels import D3PM, Kernel
from discrete_grpo.diffusion.noise import absorbing, marginal, uniform
from discrete_grpo.diffusion.schedules import CosineSchedule, LinearSchedule
from discrete_grpo.domains.graphs import GraphBatch, node_mask, num_pairs, pack, pair_mask, permute, symmetrise, unpack, upper
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from discrete_grpo.policies.graph import FixedSites, GraphPolicy, size_buckets
from tests import oracles

KERNELS: dict[str, tuple[Kernel, Kernel]] = {
    "uniform": (D3PM(uniform(3, CosineSchedule())), D3PM(uniform(2, CosineSchedule()))),
    "marginal": (D3PM(marginal([0.5, 0.3, 0.0, 0.2], CosineSchedule())), D3PM(marginal([0.7, 0.2, 0.1], LinearSchedule()))),
    "absorbing": (D3PM(absorbing(3, LinearSchedule())), D3PM(absorbing(2, CosineSchedule()))),
}
COUNTS = (0.0, 0.1, 0.2, 0.3, 0.0, 0.4)
every_kernel = pytest.mark.parametrize("kind", KERNELS)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(kind: str = "marginal", seed: int = 0, dtype: torch.dtype = torch.float32, **options: Any) -> GraphPolicy:
    """A policy with a small random network whose logits are spread well apart."""
    x, e = KERNELS[kind]
    shape: dict[str, Any] = {"layers": 2, "heads": 2, "width": 16, "edge_width": 8, "global_width": 8, "walk_length": 3}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = GraphTransformer(
            GraphTransformerConfig(x.noise.num_states, e.noise.num_states, x.noise.num_clean, e.noise.num_clean, **shape)
        )
        with torch.no_grad():
            for parameter in network.parameters():  # some start at zero, where the parts behind them would go untested
                parameter.add_(0.05 * torch.randn(parameter.shape))
            for head in (network.node_out[-1], network.edge_out[-1]):
                assert isinstance(head, nn.Linear)
                head.weight.mul_(4)
    settings: dict[str, Any] = {"num_steps": 4, "node_counts": COUNTS} | options
    return GraphPolicy(network.to(dtype), x, e, **settings).eval()


def draw(policy: GraphPolicy, sizes: Sequence[int] = (5, 3, 1, 5, 4, 2), seed: int = 1) -> Rollout:
    return policy.sample([Context(k, {"num_nodes": n}) for k, n in enumerate(sizes)], generator=seeded(seed))


def scores(policy: GraphPolicy, rollout: Rollout, reference: GraphPolicy | None = None, steps: Tensor | None = None) -> Scores:
    return score_sites(policy.sites(rollout, steps), None if reference is None else reference.sites(rollout, steps))


def replayed(policy: GraphPolicy, rollout: Rollout) -> Tensor:
    """Log-probs of each step, one step a forward pass, summed in the sampler's order: nodes, pairs, then both."""
    columns = []
    for k in range(policy.num_steps):
        nodes, pairs = (score_sites([s]).logp for s in policy.sites(rollout, torch.full((len(rollout), 1), k)))
        columns.append(nodes.sum(-1) + pairs.sum(-1))
    return torch.cat(columns, 1)


def gradient(policy: GraphPolicy, value: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(value, list(policy.parameters()), materialize_grads=True))


def same_rollout(a: Rollout, b: Rollout) -> bool:
    states = all(torch.equal(a.states[name], b.states[name]) for name in a.states)
    return states and torch.equal(a.logp, b.logp) and torch.equal(a.size, b.size)


# ---------------------------------------------------------------- scoring is drawing


@every_kernel
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_replay_gives_the_very_bits_the_sampler_had(kind: str, temperature: float) -> None:
    policy = make(kind, temperature=temperature)
    for sizes in ([5] * 6, [3] * 2, [1] * 3):
        rollout = draw(policy, sizes)
        assert torch.equal(replayed(policy, rollout), rollout.logp)
        with torch.no_grad():
            assert torch.equal(replayed(policy, rollout), rollout.logp)
    mixed = draw(policy)
    for rows in size_buckets(mixed.size):  # the sampler's own batches
        assert torch.equal(replayed(policy, mixed.index(rows)), mixed.logp[rows])


@every_kernel
def test_graphs_of_like_size_are_drawn_in_one_padded_batch(kind: str) -> None:
    policy = make(kind, node_counts=[0.0] + [0.125] * 8)
    rollout = draw(policy, [8, 7, 3, 7, 8])
    buckets = list(size_buckets(rollout.size))
    assert [rows.tolist() for rows in buckets] == [[0, 4, 1, 3], [2]]
    for rows in buckets:
        assert torch.equal(replayed(policy, rollout.index(rows)), rollout.logp[rows])
    for b, n in enumerate(rollout.size.tolist()):
        assert (rollout.states["nodes"][b, :, n:] == 0).all()
        assert (rollout.states["pairs"][b, :, num_pairs(n) :] == 0).all()
        alone = replayed(policy, rollout.index(torch.tensor([b])))  # without the padding it was drawn with
        torch.testing.assert_close(alone[0], rollout.logp[b], rtol=0, atol=2e-5)


@every_kernel
def test_replay_in_any_chunks_is_close(kind: str) -> None:
    policy = make(kind)
    rollout = draw(policy)
    whole = scores(policy, rollout).logp
    assert rollout.logp.dtype == torch.float32
    torch.testing.assert_close(whole.sum(-1), rollout.logp, rtol=0, atol=1e-5)
    steps = torch.tensor([[0, 3], [1, 2], [3, 0], [2, 2], [0, 1], [3, 1]])  # any steps, in any order, other ones a row
    some = scores(policy, rollout, steps=steps).logp
    torch.testing.assert_close(some, whole[torch.arange(6)[:, None], steps], rtol=0, atol=1e-5)


@every_kernel
def test_log_probs_are_the_brute_force_mixture(kind: str) -> None:
    """Σ_c p̂(c) q(k | z, c) by loops over existing nodes and pairs i<j, with Bayes enumerated by the oracle."""
    policy = make(kind, temperature=0.8)
    rollout = draw(policy)
    priors = [k.noise.initial().tolist() for k in KERNELS[kind]]
    for b, n in enumerate(rollout.size.tolist()):
        for step in range(4):
            nodes, pairs = (rollout.states[x][b] for x in ("nodes", "pairs"))
            state = unpack(nodes[step : step + 1], pairs[step : step + 1], node_mask(torch.tensor([n]), 5))
            logits = policy.network(state.nodes, state.edges, policy.grid[step : step + 1].float(), state.mask)
            total = 0.0
            tables = []
            for prior, kernel in zip(priors, KERNELS[kind], strict=True):
                bars = [float(kernel.noise.schedule.alpha_bar(policy.grid[step + k])) for k in (0, 1)]  # type: ignore[attr-defined]
                tables.append(oracles.posterior(prior, kernel.noise.num_clean, *bars))
            sites = [(0, logits[0][0, i], nodes[:, i]) for i in range(n)]
            sites += [(1, logits[1][0, i, j], pairs[:, j * (j - 1) // 2 + i]) for j in range(n) for i in range(j)]
            for which, logit, path in sites:
                z, k = int(path[step]), int(path[step + 1])
                p_clean = oracles.softmax([x / 0.8 for x in logit.tolist()])
                total += math.log(oracles.reverse_step(p_clean, tables[which][z], z, len(priors[which]))[k])
            assert float(rollout.logp[b, step]) == pytest.approx(total, abs=2e-4)


@every_kernel
def test_tables_are_normalised_and_what_was_drawn_has_mass(kind: str) -> None:
    policy = make(kind)
    rollout = draw(policy, [5] * 20)
    for sites in policy.sites(rollout):
        torch.testing.assert_close(sites.log_probs.exp().sum(-1), torch.ones(sites.action.shape), rtol=0, atol=2e-6)
        assert torch.isfinite(score_sites([sites]).logp).all()
    assert sum(p.numel() for p in policy.parameters()) == sum(
        g.isfinite().sum() for g in gradient(policy, scores(policy, rollout).logp.sum())
    )


@every_kernel
def test_bfloat16_networks_give_float32_log_probs_and_a_ratio_of_exactly_one(kind: str) -> None:
    policy = make(kind)
    with torch.autocast("cpu", torch.bfloat16):
        rollout = draw(policy, [5] * 4)
        assert torch.equal(replayed(policy, rollout), rollout.logp)
        with torch.no_grad():
            old = scores(policy, rollout)
        new = scores(policy, rollout)
        assert policy.network(*bf16_input())[0].dtype == torch.bfloat16  # the test would prove nothing otherwise
    assert {s.log_probs.dtype for s in policy.sites(rollout)} == {torch.float32}
    assert new.logp.dtype == old.logp.dtype == torch.float32
    assert torch.equal((new.logp - old.logp).exp(), torch.ones_like(new.logp))
    assert all(g.isfinite().all() for g in gradient(policy, new.logp.sum()))


def bf16_input() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 2, 2, dtype=torch.long), torch.ones(1), torch.ones(1, 2).bool()


def test_temperature_divides_the_logits() -> None:
    warm, cold = make(temperature=1.0), make(temperature=0.25)
    state = GraphBatch(torch.tensor([[0, 1, 3]]), symmetrise(torch.tensor([[0, 1, 2]]), 3), torch.ones(1, 3).bool())
    time = torch.tensor([0.5])
    logits = warm.network(state.nodes, state.edges, time, state.mask)
    wanted = [(logits[0] * 4).softmax(-1), (upper(logits[1]) * 4).softmax(-1)]
    for found, other in zip(cold.clean_probs(state, time), wanted, strict=True):
        torch.testing.assert_close(found, other, rtol=0, atol=1e-6)
    assert not torch.equal(draw(warm).logp, draw(cold).logp)


# ---------------------------------------------------------------- padding, batches, symmetry


@every_kernel
def test_padding_and_company_change_no_log_prob_and_no_gradient(kind: str) -> None:
    policy, reference = make(kind, dtype=torch.float64), make(kind, seed=5, dtype=torch.float64)
    rollout = draw(policy)
    together = scores(policy, rollout, reference)
    assert together.kl is not None
    summed: list[Tensor] | None = None
    for b, n in enumerate(rollout.size.tolist()):
        alone = scores(policy, rollout.index(torch.tensor([b])), reference)
        assert alone.kl is not None
        p = num_pairs(n)
        for a, t in ((alone.logp, together.logp), (alone.kl, together.kl), (alone.entropy, together.entropy)):
            torch.testing.assert_close(a[0, :, :n], t[b, :, :n], rtol=0, atol=1e-11)
            torch.testing.assert_close(a[0, :, n:], t[b, :, 5 : 5 + p], rtol=0, atol=1e-11)
        part = gradient(policy, alone.logp.sum() + 0.3 * alone.kl.sum())
        summed = part if summed is None else [x + y for x, y in zip(summed, part, strict=True)]
    assert summed is not None
    for whole, parts in zip(gradient(policy, together.logp.sum() + 0.3 * together.kl.sum()), summed, strict=True):
        torch.testing.assert_close(whole, parts, rtol=1e-9, atol=1e-9)


@every_kernel
def test_relabelling_leaves_log_prob_and_kl_unchanged(kind: str) -> None:
    policy, reference = make(kind, dtype=torch.float64), make(kind, seed=5, dtype=torch.float64)
    rollout = draw(policy, [5] * 3)
    order = torch.stack([torch.randperm(5, generator=seeded(k)) for k in range(3)])
    mask = torch.ones(3, 5, dtype=torch.bool)
    moved = [pack(permute(unpack(rollout.states["nodes"][:, k], rollout.states["pairs"][:, k], mask), order)) for k in range(5)]
    states = {"nodes": torch.stack([n for n, _ in moved], 1), "pairs": torch.stack([p for _, p in moved], 1)}
    assert not torch.equal(states["nodes"], rollout.states["nodes"])
    one, other = scores(policy, rollout, reference), scores(policy, replace(rollout, states=states), reference)
    assert one.kl is not None
    assert other.kl is not None
    assert float(one.kl.sum().detach()) > 0.1
    for a, b in ((one.logp, other.logp), (one.kl, other.kl), (one.entropy, other.entropy)):
        torch.testing.assert_close(a.sum(-1), b.sum(-1), rtol=0, atol=1e-11)


def test_the_kl_to_oneself_is_exactly_zero() -> None:
    for kind in KERNELS:
        policy = make(kind)
        found = scores(policy, draw(policy), policy)
        assert found.kl is not None
        assert (found.kl == 0).all()


# ---------------------------------------------------------------- drawing


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


# ---------------------------------------------------------------- fixed nodes and edges

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


# ---------------------------------------------------------------- arguments


def test_wrong_arguments_are_named() -> None:
    x, e = KERNELS["uniform"]
    network = make("uniform").network
    for counts in ([1.0], [0.5, 0.5], [0.0, 0.9], [0.0, 1.5, -0.5], [0.0, math.nan]):
        with pytest.raises(ValueError, match=r"^node_counts: .*, expected probabilities"):
            GraphPolicy(network, x, e, counts)
    for temperature in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=r"^temperature: .*, expected more than 0"):
            make(temperature=temperature)
    with pytest.raises(ValueError, match=r"^num_steps: 0, expected at least 1"):
        make(num_steps=0)
    with pytest.raises(ValueError, match=r"^contexts: none given"):
        make().sample([])
    for size in (0, 6):
        with pytest.raises(ValueError, match=rf"^num_nodes: {size}, expected 1 to 5"):
            make().sample([Context(0, {"num_nodes": size})])


def test_settings_build_the_same_policy_again() -> None:
    policy = make(temperature=0.9, share_initial_noise=True, num_steps=3)
    again = GraphPolicy(**policy.init_args())
    assert same_rollout(draw(policy), draw(again))
    assert (again.temperature, again.share_initial_noise, again.num_steps) == (0.9, True, 3)


# ---------------------------------------------------------------- likelihood training


class Listening(nn.Module):
    """A network that remembers what it was given and what it said."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.inputs: tuple[Tensor, ...] = ()
        self.logits: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        self.inputs = inputs
        nodes, edges = self.network(*inputs)
        nodes.retain_grad()
        edges.retain_grad()
        self.logits = (nodes, edges)
        return nodes, edges


def clean_graphs(kind: str, sizes: Sequence[int], n: int = 5) -> GraphBatch:
    x, e = KERNELS[kind]
    mask = node_mask(torch.tensor(sizes), n)
    nodes = torch.where(mask, torch.randint(x.noise.num_clean, mask.shape, generator=seeded(1)), 0)
    pairs = torch.where(pair_mask(mask), torch.randint(e.noise.num_clean, (len(sizes), num_pairs(n)), generator=seeded(2)), 0)
    return GraphBatch(nodes, symmetrise(pairs, n), mask)


@every_kernel
def test_likelihood_loss_is_the_cross_entropy_loop_and_so_is_its_gradient(kind: str) -> None:
    policy = make(kind)
    policy.network = heard = Listening(policy.network)
    sizes = (5, 1, 3, 4)
    graphs = clean_graphs(kind, sizes)
    found = policy.likelihood_loss(graphs, edge_weight=2.5, generator=seeded(0))
    found["loss"].backward()
    sums = [0.0, 0.0]
    wanted = [torch.zeros_like(x) for x in heard.logits]
    sites = [(b, i, i) for b, n in enumerate(sizes) for i in range(n)]
    sites += [(b, i, j) for b, n in enumerate(sizes) for i in range(n) for j in range(i + 1, n)]
    counts = [sum(sizes), sum(num_pairs(n) for n in sizes)]
    for b, i, j in sites:
        which = int(i != j)
        at = (b, i, j) if which else (b, i)
        p = oracles.softmax(heard.logits[which][at].tolist())
        clean = int(graphs.edges[at] if which else graphs.nodes[at])
        sums[which] -= math.log(p[clean]) / counts[which]
        for c, mass in enumerate(p):
            wanted[which][(*at, c)] = (mass - (c == clean)) / counts[which] * (2.5 if which else 1.0)
    assert float(found["loss_nodes"]) == pytest.approx(sums[0], abs=1e-6)
    assert float(found["loss_edges"]) == pytest.approx(sums[1], abs=1e-6)
    assert float(found["loss"].detach()) == pytest.approx(sums[0] + 2.5 * sums[1], abs=1e-5)
    for logits, gradient_wanted in zip(heard.logits, wanted, strict=True):
        torch.testing.assert_close(logits.grad, gradient_wanted, rtol=0, atol=1e-6)


@every_kernel
def test_likelihood_training_noises_as_the_kernel_says_at_stratified_times(kind: str) -> None:
    policy = make(kind)
    policy.network = heard = Listening(policy.network)
    graphs = clean_graphs(kind, [5, 3] * 400)
    policy.likelihood_loss(graphs, generator=seeded(0))
    nodes, edges, time, mask = heard.inputs
    assert sorted((time.double() * 800).floor().int().tolist()) == list(range(800))
    assert time.tolist() != sorted(time.tolist())  # no graph keeps its place in time
    assert torch.equal(mask, graphs.mask)
    assert torch.equal(edges, edges.transpose(1, 2))
    both = graphs.mask[:, :, None] & graphs.mask[:, None, :]
    assert (nodes[~graphs.mask] == 0).all()
    assert (edges[~both] == 0).all()
    kept_pairs = (upper(edges) == upper(graphs.edges))[pair_mask(graphs.mask)].double()
    kept_nodes = (nodes == graphs.nodes)[graphs.mask].double()
    for kernel, kept, clean, exists in (
        (KERNELS[kind][0], kept_nodes, graphs.nodes, graphs.mask),
        (KERNELS[kind][1], kept_pairs, upper(graphs.edges), pair_mask(graphs.mask)),
    ):
        bar = kernel.noise.schedule.alpha_bar(time)[:, None].expand(exists.shape)[exists]  # type: ignore[attr-defined]
        expected = bar + (1 - bar) * kernel.noise.initial()[clean[exists]]
        error = 4 * float((expected * (1 - expected)).sum().sqrt())
        assert abs(float(kept.sum() - expected.sum())) < error
    again = policy.likelihood_loss(graphs, generator=seeded(0))["loss"]
    assert torch.equal(again, policy.likelihood_loss(graphs, generator=seeded(0))["loss"])


def test_graphs_without_pairs_have_no_edge_loss() -> None:
    policy = make()
    found = policy.likelihood_loss(clean_graphs("marginal", [1, 1, 1], 1), generator=seeded(0))
    assert float(found["loss_edges"]) == 0.0
    assert torch.isfinite(found["loss"])
    assert float(found["loss"].detach()) == float(found["loss_nodes"])


def test_a_network_trained_on_one_graph_draws_it() -> None:
    policy = make("absorbing")
    graph = clean_graphs("absorbing", [3], 3)
    order = torch.tensor([[0, 1, 2]])
    graphs = permute(graph.index(torch.zeros(32, dtype=torch.long)), order.expand(32, -1))
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
    generator = seeded(0)
    for _ in range(80):
        optimizer.zero_grad()
        policy.likelihood_loss(graphs, generator=generator)["loss"].backward()
        optimizer.step()
    rollout = policy.sample([Context(0, {"num_nodes": 3})] * 200, generator=generator)
    hist = sorted(graph.nodes[0].tolist()), sorted(upper(graph.edges)[0].tolist())
    found = [(sorted(s.nodes[0].tolist()), sorted(upper(s.edges)[0].tolist())) for s in rollout.samples]
    assert found.count(hist) / 200 > 0.3 > 0.1  # one of 3·3·3·2·2·2 up to order when untrained


@every_kernel
def test_nearly_certain_networks_keep_log_probs_and_kl_finite(kind: str) -> None:
    """Logits hundreds apart underflow a float32 softmax: a class of mass 0 would make the KL inf and its gradient NaN."""
    policy, reference = make(kind), make(kind, seed=3)
    assert isinstance(reference.network, GraphTransformer)
    for head in (reference.network.node_out[-1], reference.network.edge_out[-1]):
        assert isinstance(head, nn.Linear)
        head.weight.data.mul_(1e3)
    rollout = draw(policy)
    for theta, other in ((policy, reference), (reference, policy), (reference, reference)):
        found = scores(theta, rollout, other)
        assert found.kl is not None
        assert torch.isfinite(found.logp).all()
        assert torch.isfinite(found.kl).all()
        assert all(torch.isfinite(g).all() for g in gradient(theta, found.logp.sum() + found.kl.sum()))
