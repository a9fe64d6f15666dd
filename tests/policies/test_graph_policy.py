"""The graph policy: what is scored is what was drawn, for every kernel; padding, symmetry, wrong arguments."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.rollout import Context
from discrete_grpo.domains.graphs import GraphBatch, node_mask, num_pairs, pack, permute, symmetrise, unpack, upper
from discrete_grpo.models.graph_transformer import GraphTransformer
from discrete_grpo.policies.graph import GraphPolicy, size_buckets
from tests import oracles
from tests.policies.graph_policy_parts import KERNELS, draw, every_kernel, gradient, make, replayed, same_rollout, scores, seeded

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
    with pytest.raises(ValueError, match=r"^num_steps: 0, expected 1 to 10000"):
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
