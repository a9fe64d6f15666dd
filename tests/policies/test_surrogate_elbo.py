"""The lower bound as a likelihood: its score against sums over classes, the ELBO by enumeration, its noised states."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from discrete_grpo.core.rollout import Context, Rollout
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.surrogate import ElboLikelihood
from tests import oracles
from tests.policies.surrogate_parts import KERNELS, STEPS, State, clean_probs, every_kernel, rows_of, seeded, triples, two_nodes
from tests.toys import tiny_policy


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
    mixture = functools.cache(lambda a, k: rows_of(inner, kind, a, None, k))
    mass = {a: float(x.noise.initial()[a[0]] * x.noise.initial()[a[1]] * e.noise.initial()[a[2]]) for a in states}
    for k in range(STEPS):
        after = dict.fromkeys(states, 0.0)
        for a in states:
            if mass[a] == 0:
                continue
            rows = [r.tolist() for r in mixture(a, k)]
            for b in states:
                after[b] += mass[a] * rows[0][b[0]] * rows[1][b[1]] * rows[2][b[2]]
        mass = after
    assert sum(mass.values()) == pytest.approx(1.0, abs=1e-12)
    gaps = []
    for clean in oracles.two_node_states(2, 2):
        wanted, found = 0.0, 0.0
        for k in range(STEPS):
            law = noised(inner, kind, clean, k)
            for a, q in law.items():
                given, mixed = rows_of(inner, kind, a, clean, k), mixture(a, k)
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
