"""Policies small enough to write down: every trajectory of a graph of two nodes in two steps, enumerated.

The sampler, the log-probs, the exact KL and the gradient of the GRPO loss are compared with sums over all paths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.loss import grpo_loss, log_ratio
from discrete_grpo.core.rollout import Context, Rollout
from discrete_grpo.diffusion.kernels import D3PM, Kernel
from discrete_grpo.diffusion.noise import absorbing, marginal, uniform
from discrete_grpo.diffusion.schedules import CosineSchedule, LinearSchedule
from discrete_grpo.domains.graphs import GraphBatch, symmetrise
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.trainer import GRPOTrainer
from tests import oracles

State = tuple[int, ...]
Path = tuple[State, ...]
KERNELS: dict[str, tuple[Kernel, Kernel]] = {
    "uniform": (D3PM(uniform(2, CosineSchedule())), D3PM(uniform(2, LinearSchedule()))),
    "marginal": (D3PM(marginal([0.7, 0.3], CosineSchedule())), D3PM(marginal([1.0, 0.0], CosineSchedule()))),
    "absorbing": (D3PM(absorbing(2, LinearSchedule())), D3PM(absorbing(2, CosineSchedule()))),
}
every_kernel = pytest.mark.parametrize("kind", KERNELS)


def make(kind: str, seed: int = 0) -> GraphPolicy:
    x, e = KERNELS[kind]
    network = oracles.LookupNetwork(x.noise.num_states, e.noise.num_states, x.noise.num_clean, e.noise.num_clean, seed)
    return GraphPolicy(network, x, e, [0.0, 0.0, 1.0], num_steps=2, decode=triples)


def triples(graphs: GraphBatch) -> list[State]:
    """A finished graph as (left node, right node, pair)."""
    return [(int(n[0]), int(n[1]), int(e[0, 1])) for n, e in zip(graphs.nodes, graphs.edges, strict=True)]


def states_of(kind: str) -> list[State]:
    return [*oracles.two_node_states(*(k.noise.num_states for k in KERNELS[kind]))]


def paths_by_policy(policy: GraphPolicy, kind: str) -> dict[Path, Tensor]:
    """p(x_1, x_{1/2}, x_0) of every path with mass, differentiable, from ``policy.transition`` one state at a time."""
    states = states_of(kind)
    m_x, m_e = (k.noise.initial().tolist() for k in KERNELS[kind])
    start = {s: m_x[s[0]] * m_x[s[1]] * m_e[s[2]] for s in states}
    initial = {s: torch.tensor(p, dtype=torch.float64) for s, p in start.items() if p > 0}
    steps = []
    for k in range(2):
        table: dict[State, dict[State, Tensor]] = {}
        for s in states:
            graph = GraphBatch(torch.tensor([s[:2]]), symmetrise(torch.tensor([[s[2]]]), 2), torch.ones(1, 2).bool())
            nodes, pairs = policy.transition(graph, torch.tensor([k]))
            row = {a: nodes[0, 0, a[0]] * nodes[0, 1, a[1]] * pairs[0, 0, a[2]] for a in states}
            table[s] = {a: p for a, p in row.items() if float(p.detach()) > 0}
        steps.append(table)
    return oracles.path_probabilities(initial, steps)


def paths_by_oracle(policy: GraphPolicy, kind: str) -> dict[Path, float]:
    """The same numbers without the policy: the network's logits, a softmax, and Bayes by enumeration."""
    states = states_of(kind)
    priors = [k.noise.initial().tolist() for k in KERNELS[kind]]
    bars = {LinearSchedule: oracles.linear_alpha_bar, CosineSchedule: oracles.cosine_alpha_bar}
    answer: dict[Path, float] = {(s,): priors[0][s[0]] * priors[0][s[1]] * priors[1][s[2]] for s in states}
    for t, s in ((1.0, 0.5), (0.5, 0.0)):
        tables = []
        for prior, kernel in zip(priors, KERNELS[kind], strict=True):
            alpha_bar: Any = bars[type(kernel.noise.schedule)]  # type: ignore[attr-defined]
            tables.append(oracles.posterior(prior, 2, alpha_bar(t), alpha_bar(s)))
        grown: dict[Path, float] = {}
        for path, p in answer.items():
            now = path[-1]
            edges = torch.tensor([[[0, now[2]], [now[2], 0]]])
            nodes, pairs = policy.network(torch.tensor([now[:2]]), edges, torch.tensor([t]), torch.ones(1, 2).bool())
            logits = [nodes[0, 0].tolist(), nodes[0, 1].tolist(), pairs[0, 0, 1].tolist()]
            rows = [
                oracles.reverse_step(oracles.softmax(z), tables[u == 2][now[u]], now[u], len(priors[u == 2]))
                for u, z in enumerate(logits)
            ]
            for after in states:
                grown[(*path, after)] = p * rows[0][after[0]] * rows[1][after[1]] * rows[2][after[2]]
        answer = grown
    return {path: p for path, p in answer.items() if p > 0}


def rollout_of(paths: Sequence[Path]) -> Rollout:
    stored = torch.tensor(paths, dtype=torch.uint8)  # [B, 3, (left, right, pair)]
    b = len(paths)
    return Rollout(
        states={"nodes": stored[..., :2], "pairs": stored[..., 2:]},
        group=torch.zeros(b, dtype=torch.long),
        logp=torch.zeros(b, 2),
        units=torch.full((b, 2), 3),
        size=torch.full((b,), 2),
        max_units=6,
        samples=tuple(p[-1] for p in paths),
    )


def reward_of(path: Path) -> float:
    """Anything that is not symmetric and not linear in the sites."""
    left, right, pair = path[-1]
    return 1.3 * left - 0.4 * right + 2.0 * left * pair + 0.7 * right * (1 - pair) + 0.1


@every_kernel
def test_the_paths_are_those_of_the_oracle_and_sum_to_one(kind: str) -> None:
    policy = make(kind)
    found, wanted = paths_by_policy(policy, kind), paths_by_oracle(policy, kind)
    assert set(found) == set(wanted)
    assert float(sum(found.values()).detach()) == pytest.approx(1.0, abs=1e-12)  # type: ignore[union-attr]
    # uniform: anything goes; marginal: pairs go 000, 001, 011; absorbing: each site stays masked or shows what it is
    assert len(found) == {"uniform": 8**3, "marginal": 4**3 * 3, "absorbing": 4**3}[kind]
    for path, p in found.items():
        assert float(p.detach()) == pytest.approx(wanted[path], abs=1e-12)


@every_kernel
def test_the_log_probs_of_all_trajectories_are_those_of_the_enumeration(kind: str) -> None:
    policy = make(kind)
    paths = paths_by_policy(policy, kind)
    prior = [k.noise.initial() for k in KERNELS[kind]]
    start = [float(prior[0][p[0][0]] * prior[0][p[0][1]] * prior[1][p[0][2]]) for p in paths]
    logp = score_sites(policy.sites(rollout_of(list(paths)))).logp.sum((1, 2))
    assert logp.dtype == torch.float64
    wanted = torch.stack(list(paths.values())).log()
    torch.testing.assert_close(logp + torch.tensor(start, dtype=torch.float64).log(), wanted, rtol=0, atol=1e-10)
    assert float((logp.exp() * torch.tensor(start)).sum().detach()) == pytest.approx(1.0, abs=1e-7)


@every_kernel
def test_the_sampler_draws_paths_with_their_probabilities(kind: str) -> None:
    policy, draws = make(kind), 30_000
    wanted = paths_by_oracle(policy, kind)
    rollout = policy.sample([Context(0)] * draws, generator=torch.Generator().manual_seed(0))
    rows = torch.cat([rollout.states["nodes"], rollout.states["pairs"]], -1).tolist()
    counts = Counter(tuple(tuple(s) for s in row) for row in rows)
    assert set(counts) <= set(wanted)  # nothing of no mass was drawn
    likely = [p for p, q in wanted.items() if q * draws >= 5]
    rest = draws - sum(counts[p] for p in likely)
    expected = [wanted[p] * draws for p in likely]
    observed = [float(counts[p]) for p in likely]
    left = draws - sum(expected)
    observed, expected = [*observed, float(rest)], [*expected, left]
    if left < 5:  # too little for a cell of its own
        observed, expected = [*observed[:-2], observed[-2] + rest], [*expected[:-2], expected[-2] + left]
    assert len(observed) > 20
    assert chisquare(observed, expected).pvalue > 1e-3
    drawn = rollout.logp.sum(1).double().exp()  # the log-probs that came along, start excluded
    prior = [k.noise.initial() for k in KERNELS[kind]]
    for b in range(0, draws, 1000):
        path = tuple(tuple(s) for s in rows[b])
        first = float(prior[0][path[0][0]] * prior[0][path[0][1]] * prior[1][path[0][2]])
        assert float(drawn[b]) * first == pytest.approx(wanted[path], rel=1e-5)


@every_kernel
@pytest.mark.parametrize("level", ["token", "step", "step_mean", "sequence"])
def test_the_gradient_of_the_loss_is_that_of_the_expected_reward(kind: str, level: Any) -> None:
    """Each path weighs its probability."""
    policy = make(kind)
    paths = paths_by_policy(policy, kind)
    reward = torch.tensor([reward_of(p) for p in paths], dtype=torch.float64)
    p = torch.stack(list(paths.values()))
    parameters = list(policy.parameters())
    wanted = torch.autograd.grad(-(p * reward).sum(), parameters)
    scores = score_sites(policy.sites(rollout_of(list(paths))))
    for baseline in (0.0, 0.8):  # a constant baseline changes nothing in expectation
        loss = grpo_loss(scores, None, reward - baseline, p.detach(), level=level, epsilon=1e6).loss
        found = torch.autograd.grad(loss, parameters, retain_graph=True)
        for a, b in zip(found, wanted, strict=True):
            assert b.abs().max() > 1e-3
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@every_kernel
def test_off_policy_the_step_ratios_reweigh_the_old_paths(kind: str) -> None:
    """Σ p_old · Π_steps r = Σ p_new = 1, and the same for expected rewards: the ratios are true likelihood ratios."""
    old, new = make(kind, seed=0), make(kind, seed=1)
    paths, others = paths_by_policy(old, kind), paths_by_policy(new, kind)
    rollout = rollout_of(list(paths))
    before, after = (score_sites(p.sites(rollout)) for p in (old, new))
    ratio = log_ratio(after.logp, before.logp, after.mask, "step").sum((1, 2)).exp()
    p_old = torch.stack(list(paths.values()))
    assert float((p_old * ratio).sum().detach()) == pytest.approx(1.0, abs=1e-10)
    reward = torch.tensor([reward_of(p) for p in paths], dtype=torch.float64)
    wanted = sum(float(p.detach()) * reward_of(path) for path, p in others.items())
    assert float((p_old * ratio * reward).sum().detach()) == pytest.approx(wanted, abs=1e-10)


@every_kernel
def test_the_expected_sum_of_kls_is_the_kl_of_the_paths(kind: str) -> None:
    """The chain rule: KL of whole trajectories = Σ_steps E[KL of the step], both directions."""
    policy, reference = make(kind, seed=0), make(kind, seed=1)
    p, q = paths_by_policy(policy, kind), paths_by_policy(reference, kind)
    rollout = rollout_of(list(p))
    scores = score_sites(policy.sites(rollout), reference.sites(rollout))
    assert scores.kl is not None
    assert scores.kl_forward is not None
    a, b = ([float(x[path].detach()) for path in p] for x in (p, q))
    for masses, values, wanted in ((a, scores.kl, oracles.kl(a, b)), (b, scores.kl_forward, oracles.kl(b, a))):
        found = (torch.tensor(masses, dtype=torch.float64) * values.sum((1, 2))).sum()
        assert float(found.detach()) == pytest.approx(wanted, abs=1e-10)
        assert wanted > 0.1


@pytest.mark.parametrize(
    ("level", "kind", "updates"), [("token", "uniform", 60), ("step", "marginal", 60), ("step", "absorbing", 120)]
)
@pytest.mark.slow
def test_training_reaches_the_best_graph(level: Any, kind: str, updates: int) -> None:
    """Start: the reward of a random policy; end: the exact expected reward, enumerated, is near its optimum of 1."""
    policy = make(kind).float()

    def reward(samples: Sequence[State], **columns: Any) -> list[float]:
        return [float(s[0] == s[1] == 1) * 0.5 + 0.5 * float(s[2] == 1) for s in samples]

    def expected() -> float:
        with torch.no_grad():
            paths = paths_by_policy(policy, kind)
        return sum(float(p) * reward([path[-1]])[0] for path, p in paths.items())

    before = expected()
    config = GRPOConfig(
        max_steps=updates,
        num_generations=16,
        generation_batch_size=64,
        learning_rate=0.1,
        importance_sampling_level=level,
        max_grad_norm=None,
        seed=1,
    )
    history = GRPOTrainer(policy, reward, config).train()
    assert before < 0.7
    assert expected() > 0.95
    assert history[-1]["reward"] > 0.9
