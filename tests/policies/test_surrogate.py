"""Surrogate likelihoods against loops and enumeration: what they score, their gradients, their place in the trainer."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.categorical import Scores, score_sites
from discrete_grpo.core.rollout import Context, Rollout, Scorer, group_contexts
from discrete_grpo.diffusion.flow import FlowEuler, FlowInterpolation
from discrete_grpo.diffusion.kernels import D3PM, Kernel
from discrete_grpo.diffusion.noise import Noise, absorbing, marginal, uniform
from discrete_grpo.diffusion.schedules import CosineSchedule, DigressSchedule, LinearSchedule
from discrete_grpo.domains.graphs import GraphBatch, node_mask, pair_index
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from discrete_grpo.policies.graph import FixedSites, GraphPolicy
from discrete_grpo.policies.node_count import LearnedSizes, SizedPolicy
from discrete_grpo.policies.surrogate import EagerLikelihood, ElboLikelihood, with_likelihood
from discrete_grpo.runs.checkpoint import read_policy, save
from discrete_grpo.testing import check_policy
from tests import oracles, trainer_parts
from tests.toys import node_classes, share_of_class_two, tiny_network, tiny_policy

State = tuple[int, ...]
LINEAR, COSINE = LinearSchedule(), CosineSchedule()
KERNELS: dict[str, tuple[Kernel, Kernel]] = {
    "uniform": (D3PM(uniform(2, COSINE)), D3PM(uniform(2, LINEAR))),
    "marginal": (D3PM(marginal([0.7, 0.3], COSINE)), D3PM(marginal([0.4, 0.6], COSINE))),
    "absorbing": (D3PM(absorbing(2, LINEAR)), D3PM(absorbing(2, COSINE))),
    "interpolation": (FlowInterpolation(Noise((0.6, 0.4), LINEAR, 2)), FlowInterpolation(Noise((0.0, 0.0, 1.0), COSINE, 2))),
    "euler": (FlowEuler(Noise((0.6, 0.4), LINEAR, 2), 3.0, 0.1), FlowEuler(Noise((0.5, 0.5), COSINE, 2))),
    "digress": (D3PM(marginal([0.7, 0.3], DigressSchedule(3))), D3PM(uniform(2, DigressSchedule(6)))),
}
every_kernel = pytest.mark.parametrize("kind", KERNELS)
every_name = pytest.mark.parametrize("name", ["eager", "elbo"])
STEPS = 3


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def triples(graphs: GraphBatch) -> list[State]:
    return [(int(n[0]), int(n[1]), int(e[0, 1])) for n, e in zip(graphs.nodes, graphs.edges, strict=True)]


def two_nodes(kind: str, seed: int = 0) -> GraphPolicy:
    x, e = KERNELS[kind]
    network = oracles.LookupNetwork(x.noise.num_states, e.noise.num_states, x.noise.num_clean, e.noise.num_clean, seed)
    return GraphPolicy(network, x, e, [0.0, 0.0, 1.0], num_steps=STEPS, decode=triples)


def clean_probs(policy: GraphPolicy, now: State, k: int) -> list[Tensor]:
    """p̂ of left node, right node and pair in state ``now`` at grid point k."""
    edges = torch.tensor([[[0, now[2]], [now[2], 0]]])
    time = policy.grid[k : k + 1]
    nodes, pairs = policy.network(torch.tensor([now[:2]]), edges, time, torch.ones(1, 2).bool())
    return [z.softmax(-1) for z in (nodes[0, 0], nodes[0, 1], pairs[0, 0, 1])]


def rows_of(policy: GraphPolicy, kind: str, now: State, clean: State | None, k: int) -> list[Tensor]:
    """Distribution of each site of the next state: of the network's mixture, or given the clean graph; from kernel tables."""
    x, e = KERNELS[kind]
    t, s = (float(policy.grid[k + j]) for j in (0, 1))
    found = []
    for u, (kernel, p) in enumerate(zip((x, x, e), clean_probs(policy, now, k), strict=True)):
        table = kernel.table(t, s)[now[u]]
        if clean is not None:  # the last step gives the clean class, whatever the schedule leaves at t = 0
            found.append(table[clean[u]] if k < STEPS - 1 else torch.eye(table.shape[-1], dtype=table.dtype)[clean[u]])
            continue
        p = p * (table.sum(-1) > 0)
        found.append((p / p.sum()) @ table)
    return found


def noised(policy: GraphPolicy, kind: str, clean: State, k: int) -> dict[State, float]:
    """The law of the chain of steps given x_0 = clean at grid point k: every state with mass, by summing over paths."""
    x, e = KERNELS[kind]
    rows = []
    for u, kernel in enumerate((x, x, e)):
        law = kernel.noise.initial()
        for i in range(k):
            law = law @ kernel.table(float(policy.grid[i]), float(policy.grid[i + 1]))[:, clean[u]]
        if kind != "euler":  # no clamp and no guidance: it is the noise
            keep = float(kernel.noise.schedule.alpha_bar(policy.grid[k]))  # type: ignore[attr-defined]
            noise = oracles.noise_matrix(kernel.noise.initial().tolist(), keep)[clean[u]]
            torch.testing.assert_close(law, torch.tensor(noise, dtype=torch.float64), rtol=0, atol=1e-12)
        rows.append(law.tolist())
    states = oracles.two_node_states(x.noise.num_states, e.noise.num_states)
    return {a: p for a in states if (p := rows[0][a[0]] * rows[1][a[1]] * rows[2][a[2]]) > 0}


def cross(q: Tensor, p: Tensor) -> Tensor:
    """Σ_k q_k log p_k over the classes of mass."""
    on = q > 0
    return (q[on] * p[on].log()).sum()


def finished(graphs: list[State]) -> Rollout:
    """A rollout with these finished graphs and nothing else worth knowing."""
    stored = torch.tensor(graphs, dtype=torch.uint8)[:, None].expand(-1, STEPS + 1, -1)
    b = len(graphs)
    return Rollout(
        states={"nodes": stored[..., :2], "pairs": stored[..., 2:]},
        group=torch.zeros(b, dtype=torch.long),
        logp=torch.zeros(b, STEPS, dtype=torch.float64),
        units=torch.full((b, STEPS), 3),
        size=torch.full((b,), 2),
        max_units=3 * STEPS,
        samples=tuple(graphs),
    )


def at_states(policy: ElboLikelihood, clean: State, states: list[list[State]], points: list[list[int]]) -> Rollout:
    """A rollout of one finished graph a row whose noisy states are given."""
    made = policy.noised(finished([clean] * len(states)), torch.tensor(points))
    stored = torch.tensor([[*row, clean] for row in states], dtype=torch.uint8)
    return Rollout(**{**vars(made), "states": {**made.states, "nodes": stored[..., :2], "pairs": stored[..., 2:]}})


# ---------------------------------------------------------------- eager


@every_kernel
def test_eager_is_the_loop_of_clean_log_probs_with_its_entropy_and_kl(kind: str) -> None:
    inner, other = two_nodes(kind), two_nodes(kind, seed=1)
    policy, reference = EagerLikelihood(inner), EagerLikelihood(other)
    rollout = policy.sample([Context(k) for k in range(9)], generator=seeded(0))
    found = policy.score(rollout, None, reference)
    assert found.kl is not None
    assert found.kl_forward is not None
    for b, k in itertools.product(range(9), range(STEPS)):
        now = (*rollout.states["nodes"][b, k].tolist(), *rollout.states["pairs"][b, k].tolist())
        own, ref = ([p.detach().tolist() for p in clean_probs(x, now, k)] for x in (inner, other))
        for u, c in enumerate(rollout.samples[b]):
            assert float(found.logp[b, k, u].detach()) == pytest.approx(math.log(own[u][c]), abs=1e-12)
            assert float(found.entropy[b, k, u]) == pytest.approx(oracles.entropy(own[u]), abs=1e-12)
            assert float(found.kl[b, k, u].detach()) == pytest.approx(oracles.kl(own[u], ref[u]), abs=1e-12)
            assert float(found.kl_forward[b, k, u].detach()) == pytest.approx(oracles.kl(ref[u], own[u]), abs=1e-12)
    same = policy.score(rollout, None, EagerLikelihood(inner))
    assert same.kl is not None
    assert float(same.kl.detach().abs().max()) == 0.0
    assert torch.equal(policy.score(rollout).logp, found.logp)


def test_the_eager_gradient_is_that_of_the_cross_entropy_on_the_states_of_the_trajectory() -> None:
    inner = tiny_policy()
    policy = EagerLikelihood(inner.double())
    rollout = policy.sample([Context(k) for k in range(5)], generator=seeded(0))
    steps = torch.tensor([[0, 3], [1, 2], [3, 0], [2, 2], [0, 1]])
    parameters = list(policy.parameters())
    scores = policy.score(rollout, steps)
    found = torch.autograd.grad(-scores.logp.sum(), parameters, materialize_grads=True)
    loss = torch.zeros((), dtype=torch.float64)
    for b, n in enumerate(rollout.size.tolist()):
        for k in steps[b].tolist():
            i, j = pair_index(n)
            nodes = rollout.states["nodes"][b, [k, -1], :n].long()
            pairs = rollout.states["pairs"][b, [k, -1], : len(i)].long()
            edges = torch.zeros(n, n, dtype=torch.long)
            edges[i, j] = edges[j, i] = pairs[0]
            z_x, z_e = inner.network(nodes[:1], edges[None], inner.grid[k : k + 1], node_mask(torch.tensor([n]), n))
            loss = loss + torch.nn.functional.cross_entropy(z_x[0], nodes[1], reduction="sum")
            loss = loss + torch.nn.functional.cross_entropy(z_e[0][i, j], pairs[1], reduction="sum")
    wanted = torch.autograd.grad(loss, parameters, materialize_grads=True)
    for a, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, w, rtol=1e-8, atol=1e-9)
    assert torch.equal(scores.mask.sum(-1), rollout.units.gather(1, steps))


def test_an_eager_policy_passes_the_kit_with_the_steps_of_its_sampler() -> None:
    policy = EagerLikelihood(tiny_policy())
    check_policy(policy, group_contexts(3, 3), samples=150, skip={"learning"}).raise_on_failure()


# ---------------------------------------------------------------- the lower bound


@every_kernel
def test_the_elbo_score_is_the_exact_sum_over_next_classes(kind: str) -> None:
    """Σ_k q(k | x_t, x_0) log p(k | x_t) of every site, from kernel tables; entropy and KL are those of p."""
    inner, other = two_nodes(kind), two_nodes(kind, seed=1)
    policy, reference = ElboLikelihood(inner, 4), ElboLikelihood(other, 4)
    rollout = policy.sample([Context(k) for k in range(12)], generator=seeded(0))
    assert rollout.logp.shape == rollout.units.shape == (12, 4)
    assert rollout.max_units == 12
    found = policy.score(rollout, None, reference)
    assert found.kl is not None
    torch.testing.assert_close(found.logp.sum(-1).detach(), rollout.logp, rtol=0, atol=1e-12)
    for b, j in itertools.product(range(12), range(4)):
        k = int(rollout.states["time"][b, j])
        now = (*rollout.states["nodes"][b, j].tolist(), *rollout.states["pairs"][b, j].tolist())
        q = rows_of(inner, kind, now, rollout.samples[b], k)
        own, ref = (rows_of(x, kind, now, None, k) for x in (inner, other))
        for u in range(3):
            assert float(found.logp[b, j, u].detach()) == pytest.approx(float(cross(q[u], own[u]).detach()), abs=1e-9)
            kl = float((cross(own[u], own[u]) - cross(own[u], ref[u])).detach())
            assert float(found.kl[b, j, u].detach()) == pytest.approx(kl, abs=1e-9)
            assert float(found.entropy[b, j, u]) == pytest.approx(-float(cross(own[u], own[u]).detach()), abs=1e-9)
    steps = torch.tensor([[2, 0]] * 12)
    torch.testing.assert_close(policy.score(rollout, steps).logp, found.logp[:, steps[0]], rtol=0, atol=1e-12)


@every_kernel
def test_at_every_step_the_expected_bound_is_the_elbo_and_lies_below_the_log_likelihood(kind: str) -> None:
    """E over x_t ~ q(x_t | x_0) of the bound at J = T, by enumeration; log p(x_0) by summing over all paths."""
    inner = two_nodes(kind)
    policy = ElboLikelihood(inner, STEPS)
    x, e = KERNELS[kind]
    states: list[State] = [*oracles.two_node_states(x.noise.num_states, e.noise.num_states)]
    mass = {a: float(x.noise.initial()[a[0]] * x.noise.initial()[a[1]] * e.noise.initial()[a[2]]) for a in states}
    for k in range(STEPS):
        after = dict.fromkeys(states, 0.0)
        for a in states:
            if mass[a] == 0:
                continue
            rows = [r.detach() for r in rows_of(inner, kind, a, None, k)]
            for b in states:
                after[b] += mass[a] * float(rows[0][b[0]] * rows[1][b[1]] * rows[2][b[2]])
        mass = after
    assert sum(mass.values()) == pytest.approx(1.0, abs=1e-12)
    gaps = []
    for clean in oracles.two_node_states(2, 2):
        wanted, found = 0.0, 0.0
        for k in range(STEPS):
            law = noised(inner, kind, clean, k)
            for a, q in law.items():
                given, mixed = rows_of(inner, kind, a, clean, k), rows_of(inner, kind, a, None, k)
                wanted -= q * sum(float((cross(g, g) - cross(g, m)).detach()) for g, m in zip(given, mixed, strict=True))
            # One draw a rollout: the bound of each state, weighed; T/J = T is taken out again.
            rollout = at_states(policy, clean, [[a] for a in law], [[k]] * len(law))
            bounds = policy.bound(rollout).detach() / STEPS
            found += float((bounds * torch.tensor(list(law.values()), dtype=torch.float64)).sum())
        assert found == pytest.approx(wanted, abs=1e-9)
        gaps.append(math.log(mass[clean]) - found)
    assert min(gaps) > -1e-9
    assert max(gaps) > 1e-3


def test_the_bound_is_tight_where_the_posterior_is_right() -> None:
    """One step: x_1 says nothing of x_0, p(x_0) = p̂(x_0 | x_1), and for one x_1 (all masked) the bound is log p itself."""
    x, e = KERNELS["absorbing"]
    inner = GraphPolicy(oracles.LookupNetwork(3, 3, 2, 2), x, e, [0.0, 0.0, 1.0], num_steps=1, decode=triples)
    policy = ElboLikelihood(inner, 1)
    rollout = policy.sample([Context(k) for k in range(8)], generator=seeded(0))
    p = clean_probs(inner, (2, 2, 2), 0)
    for b, sample in enumerate(rollout.samples):
        wanted = sum(math.log(float(row.detach()[c])) for row, c in zip(p, sample, strict=True))
        assert float(policy.bound(rollout).detach()[b]) == pytest.approx(wanted, abs=1e-9)
        assert float(policy.score(rollout).logp[b].detach().sum()) == pytest.approx(wanted, abs=1e-9)


def test_under_masks_the_gradient_is_weighted_cross_entropy_on_what_is_masked() -> None:
    """z = M: Σ q log p = r log p̂(c) + const with r = (ᾱ_s - ᾱ_t)/(1 - ᾱ_t); what shows adds nothing."""
    inner = two_nodes("absorbing")
    policy = ElboLikelihood(inner, 5)
    rollout = policy.sample([Context(k) for k in range(20)], generator=seeded(0))
    advantage = torch.randn(20, generator=seeded(1), dtype=torch.float64)
    parameters = list(policy.parameters())
    found = torch.autograd.grad((advantage[:, None, None] * policy.score(rollout).logp).sum(), parameters)
    loss = torch.zeros((), dtype=torch.float64)
    bars = {0: oracles.linear_alpha_bar, 1: oracles.linear_alpha_bar, 2: oracles.cosine_alpha_bar}
    for b, j in itertools.product(range(20), range(5)):
        k = int(rollout.states["time"][b, j])
        t, s = (float(inner.grid[k + i]) for i in (0, 1))
        now = (*rollout.states["nodes"][b, j].tolist(), *rollout.states["pairs"][b, j].tolist())
        for u, p in enumerate(clean_probs(inner, now, k)):
            if now[u] == 2:
                r = (bars[u](s) - bars[u](t)) / (1 - bars[u](t))
                loss = loss + advantage[b] * r * p[rollout.samples[b][u]].log()
    for a, w in zip(found, torch.autograd.grad(loss, parameters), strict=True):
        torch.testing.assert_close(a, w, rtol=0, atol=1e-9)
        assert a.abs().max() > 1e-2


@every_kernel
def test_states_are_noised_as_the_kernel_says_at_stratified_steps(kind: str) -> None:
    inner = two_nodes(kind)
    policy = ElboLikelihood(inner, STEPS)
    rollout = policy.noised(finished([(1, 0, 1)] * 4000), torch.arange(STEPS).repeat(4000, 1), generator=seeded(0))
    for k in range(STEPS):
        law = noised(inner, kind, (1, 0, 1), k)
        rows = torch.cat([rollout.states["nodes"][:, k], rollout.states["pairs"][:, k]], -1).tolist()
        counts = Counter(tuple(r) for r in rows)
        assert set(counts) <= set(law)
        cells = [(float(counts[a]), p * 4000) for a, p in law.items() if p * 4000 >= 5]
        if len(cells) > 1:
            observed, expected = zip(*cells, strict=True)
            scale = sum(observed) / sum(expected)
            assert chisquare(observed, [x * scale for x in expected]).pvalue > 1e-4
    drawn = policy.sample([Context(k) for k in range(50)], generator=seeded(0)).states["time"]
    assert drawn.tolist() == [[0, 1, 2]] * 50  # J = T: every step once
    few = ElboLikelihood(inner, 2).sample([Context(k) for k in range(3000)], generator=seeded(0)).states["time"]
    assert (few[:, 0] <= few[:, 1]).all()
    shares = torch.bincount(few.flatten(), minlength=STEPS) / 3000
    assert (shares - 2 / 3).abs().max() < 0.05


def test_new_old_and_reference_see_the_same_states() -> None:
    policy = ElboLikelihood(tiny_policy(), 6)
    contexts = [Context(k) for k in range(6)]
    one, two = (policy.sample(contexts, generator=seeded(0)) for _ in range(2))
    assert all(torch.equal(one.states[name], two.states[name]) for name in one.states)
    assert torch.equal(policy.score(one).logp, policy.score(one).logp)
    with torch.no_grad():
        assert torch.equal(policy.score(one).logp, policy.score(two).logp)
    rows = torch.tensor([4, 1])
    parted = policy.score(one.index(rows)).logp.sum(-1)
    torch.testing.assert_close(parted, policy.score(one).logp.sum(-1)[rows], rtol=0, atol=1e-4)
    assert set(one.states) == {"nodes", "pairs", "time"}
    assert one.states["nodes"].dtype == torch.uint8
    with pytest.raises(TypeError, match="sites: ElboLikelihood keeps no steps"):
        policy.sites(one)


# ---------------------------------------------------------------- both


def built(name: str, **options: Any) -> Any:
    return with_likelihood(tiny_policy(**options), name, draws=3)  # type: ignore[arg-type]


@every_name
def test_fixed_sites_and_padding_are_not_scored(name: str) -> None:
    policy = built(name)
    columns: list[dict[str, Any]] = [{"num_nodes": 2}, {"num_nodes": 4, "fixed": FixedSites({1: 1}, {(1, 2): 1})}]
    rollout = policy.sample(group_contexts(2, 3, columns), generator=seeded(0))
    scores: Scores = policy.score(rollout, None, policy)
    assert torch.equal(scores.mask.sum(-1), rollout.units)
    assert rollout.units.tolist() == [[3] * rollout.num_steps] * 3 + [[8] * rollout.num_steps] * 3
    assert (scores.logp[~scores.mask] == 0).all()
    assert scores.kl is not None
    assert float(scores.kl.detach().abs().max()) == 0.0
    loose = policy.score(rollout.index(torch.arange(3)))
    torch.testing.assert_close(loose.logp.sum(-1), scores.logp[:3].sum(-1), rtol=0, atol=1e-5)


@every_name
@pytest.mark.parametrize("bf16", [False, True])
def test_the_first_ratio_is_exactly_one(name: str, bf16: bool) -> None:
    config = GRPOConfig(
        max_steps=2, num_generations=4, generation_batch_size=8, num_iterations=2, per_device_batch_size=3, timestep_chunk=2,
        timestep_fraction=0.7, bf16=bf16, beta=0.1,
    )  # fmt: skip
    trainer = GRPOTrainer(built(name), share_of_class_two, config)
    assert isinstance(trainer.policy, Scorer)
    rollout = trainer_parts.sample(trainer)
    total = torch.tensor(share_of_class_two(rollout.samples), dtype=torch.float64)
    chunks = trainer_parts.chunks(trainer, rollout, trainer_parts.advantages(trainer, total[:, None], rollout.group), total)
    for chunk, before in zip(chunks, trainer.learner.old_log_probs(chunks), strict=True):
        scores = trainer_parts.scores(trainer, chunk)
        assert torch.equal(scores.logp, before)  # type: ignore[arg-type]
        assert scores.kl is not None
        assert float(scores.kl.detach().abs().max()) == 0.0
        assert scores.logp.dtype == torch.float32


@every_name
def test_the_trainer_uses_the_score_of_a_policy_that_has_one(name: str) -> None:
    """The gradient of an update is that of -Σ w A score, with β 0 and one iteration."""
    policy = built(name).double()
    config = GRPOConfig(num_generations=3, generation_batch_size=6, max_grad_norm=None, learning_rate=1e-15, loss_type="dapo")
    trainer = GRPOTrainer(policy, share_of_class_two, config)
    rollout = trainer_parts.sample(trainer)
    advantage = torch.arange(6).double() - 2.5
    trainer.learner.update(trainer.step, trainer_parts.chunks(trainer, rollout, advantage, torch.zeros(6).double()), [None])
    found = [p.grad.clone() for p in policy.parameters() if p.grad is not None]
    policy.zero_grad()
    loss = -(advantage[:, None, None] * policy.score(rollout).logp).sum() / float(rollout.units.sum())
    loss.backward()
    wanted = [p.grad for p in policy.parameters() if p.grad is not None]
    assert len(found) == len(wanted) > 5
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    if name == "eager":
        exact = score_sites(policy.sites(rollout)).logp
        assert not torch.allclose(exact, policy.score(rollout).logp, atol=1e-2)


FAMILIES: dict[str, tuple[Kernel, Kernel]] = {
    "uniform": (D3PM(uniform(3, COSINE)), D3PM(uniform(2, COSINE))),
    "absorbing": (D3PM(absorbing(3, LINEAR)), D3PM(absorbing(2, LINEAR))),
    "euler": (FlowEuler(Noise((0.4, 0.3, 0.3), LINEAR, 3)), FlowEuler(Noise((0.7, 0.3), LINEAR, 2))),
}


@every_name
@pytest.mark.parametrize("kind", FAMILIES)
def test_training_raises_the_reward(name: str, kind: str) -> None:
    x, e = FAMILIES[kind]
    inner = GraphPolicy(tiny_network(x.noise.num_states, e.noise.num_states) if kind != "absorbing" else masked_network(), x, e,
                        (0.0, 0.0, 0.3, 0.3, 0.4), num_steps=4, decode=node_classes)  # fmt: skip
    config = GRPOConfig(
        max_steps=15, num_generations=8, generation_batch_size=32, learning_rate=1e-2, beta=0.001, refine_fraction=0.25
    )
    lines = GRPOTrainer(with_likelihood(inner, name, draws=4), share_of_class_two, config).train()  # type: ignore[arg-type]
    first, last = (sum(line["fresh/reward"] for line in part) / 3 for part in (lines[:3], lines[-3:]))
    assert last > first + 0.15
    assert all(math.isfinite(line["kl"]) for line in lines)
    assert lines[-1]["frac_refined"] == 0.25


def masked_network() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GraphTransformer(GraphTransformerConfig(4, 3, 3, 2, layers=2, heads=2, width=16, edge_width=8, global_width=8))


@every_name
def test_resume_and_checkpoints_keep_the_wrapper(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_generations": 4, "generation_batch_size": 8, "save_steps": 2, "num_iterations": 2}
    config = GRPOConfig(**options, max_steps=6, learning_rate=1e-2, beta=0.1)
    whole = GRPOTrainer(built(name), share_of_class_two, config, run=tmp_path / "whole")
    whole.train()
    part = GRPOTrainer(built(name), share_of_class_two, config, run=tmp_path / "part")
    part.generation()
    part.save()
    part.generation()
    resumed = GRPOTrainer(built(name, seed=4), share_of_class_two, config, run=tmp_path / "part", resume=True)
    resumed.train()
    assert all(torch.equal(a, b) for a, b in zip(whole.module.parameters(), resumed.module.parameters(), strict=True))
    again: Any = read_policy(save(tmp_path / "policy", whole.module, metadata={}))
    assert type(again).__qualname__ == type(whole.policy).__qualname__
    assert again.init_args().keys() == built(name).init_args().keys()
    assert isinstance(again.policy, GraphPolicy)
    again.decode = node_classes
    assert again.policy.decode is node_classes
    contexts = [Context(0), Context(1)]
    assert torch.equal(*[p.sample(contexts, generator=seeded(0)).logp for p in (whole.policy, again)])


def test_names_choose_and_bad_arguments_are_named() -> None:
    policy = tiny_policy()
    assert with_likelihood(policy) is policy
    assert isinstance(with_likelihood(policy, "eager"), EagerLikelihood)
    assert with_likelihood(policy, "elbo", draws=7).draws == 7
    with pytest.raises(ValueError, match="likelihood: 'exact', expected transition, eager or elbo"):
        with_likelihood(policy, "exact")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="draws: 0, expected at least 1"):
        with_likelihood(policy, "elbo", draws=0)
    with pytest.raises(TypeError, match="policy: SizedPolicy, expected a GraphPolicy"):
        with_likelihood(SizedPolicy(policy, LearnedSizes(policy.node_counts)), "eager")  # type: ignore[arg-type]
    for name in ("eager", "elbo"):
        with pytest.raises(ValueError, match="num_nodes: 9"):
            built(name).check_condition({"num_nodes": 9})


def test_shared_steps_and_the_elbo_do_not_go_together() -> None:
    with pytest.raises(ValueError, match="shared_steps: 2, expected 0 with likelihood elbo"):
        ElboLikelihood(tiny_policy(shared_steps=2))
