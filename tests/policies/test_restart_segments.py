"""Segments of trajectories that start from noised good samples: exact log-probs by enumeration, the laws, training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor, nn

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.loss import grpo_loss
from discrete_grpo.core.rollout import Context, Rollout, group_contexts
from discrete_grpo.diffusion.flow import FlowEuler, FlowInterpolation
from discrete_grpo.diffusion.kernels import D3PM, Kernel
from discrete_grpo.diffusion.noise import Noise, absorbing, marginal, uniform
from discrete_grpo.diffusion.schedules import CosineSchedule, LinearSchedule
from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.policies.graph import FixedSites, GraphPolicy
from discrete_grpo.policies.restart import Restart
from discrete_grpo.testing import check_policy
from tests import oracles
from tests.policies.restart_parts import CLEAN, State, again, seeded
from tests.toys import transformer_policy

LINEAR, COSINE = LinearSchedule(), CosineSchedule()
KERNELS: dict[str, tuple[Kernel, Kernel]] = {
    "uniform": (D3PM(uniform(2, COSINE)), D3PM(uniform(2, LINEAR))),
    "marginal": (D3PM(marginal([0.7, 0.3], COSINE)), D3PM(marginal([1.0, 0.0], COSINE))),
    "absorbing": (D3PM(absorbing(2, LINEAR)), D3PM(absorbing(2, COSINE))),
    "interpolation": (FlowInterpolation(Noise((0.6, 0.4), LINEAR, 2)), FlowInterpolation(Noise((0.0, 0.0, 1.0), COSINE, 2))),
    "euler": (FlowEuler(Noise((0.6, 0.4), LINEAR, 2), 3.0, 0.1), FlowEuler(Noise((0.5, 0.5), COSINE, 2))),
}
every_kernel = pytest.mark.parametrize("kind", KERNELS)
STEPS = 3


def triples(graphs: GraphBatch) -> list[State]:
    return [(int(n[0]), int(n[1]), int(e[0, 1])) for n, e in zip(graphs.nodes, graphs.edges, strict=True)]


def make(kind: str, seed: int = 0, **options: Any) -> GraphPolicy:
    """A policy over graphs of two nodes in three steps, float64, whose network is a table."""
    x, e = KERNELS[kind]
    network = oracles.LookupNetwork(x.noise.num_states, e.noise.num_states, x.noise.num_clean, e.noise.num_clean, seed)
    return GraphPolicy(network, x, e, [0.0, 0.0, 1.0], num_steps=STEPS, decode=triples, **options)


def step_row(policy: GraphPolicy, kind: str, now: State, k: int) -> dict[State, Tensor]:
    """p(x_s | x_t) of every next state with mass: the network's softmax and the kernel's table, summed over classes."""
    x, e = KERNELS[kind]
    t, s = float(policy.grid[k]), float(policy.grid[k + 1])
    edges = torch.tensor([[[0, now[2]], [now[2], 0]]])
    nodes, pairs = policy.network(torch.tensor([now[:2]]), edges, torch.tensor([t]).double(), torch.ones(1, 2).bool())
    rows = []
    for u, (kernel, logits) in enumerate(((x, nodes[0, 0]), (x, nodes[0, 1]), (e, pairs[0, 0, 1]))):
        table = kernel.table(t, s)[now[u]]  # [c, k], rows of zeros for a class that cannot have led here
        p = logits.softmax(-1) * (table.sum(-1) > 0)
        mixed = (p / p.sum() if float(p.detach().sum()) > 0 else p) @ table
        rows.append(
            mixed
            if float(mixed.detach().sum()) > 0
            else nn.functional.one_hot(torch.tensor(now[u]), kernel.noise.num_states).double()
        )
    found = {
        a: rows[0][a[0]] * rows[1][a[1]] * rows[2][a[2]] for a in oracles.two_node_states(x.noise.num_states, e.noise.num_states)
    }
    return {a: p for a, p in found.items() if float(p.detach()) > 0}


def noised(kind: str, time: float) -> dict[State, float]:
    """q(x_t | x_0 = CLEAN) of every state with mass: stay with ᾱ, else a draw of the prior, site by site."""
    x, e = KERNELS[kind]
    bar = {True: oracles.linear_alpha_bar, False: oracles.cosine_alpha_bar}
    rows = []
    for u, kernel in enumerate((x, x, e)):
        keep = bar[isinstance(kernel.noise.schedule, LinearSchedule)](time)  # type: ignore[attr-defined]
        rows.append(oracles.noise_matrix(kernel.noise.initial().tolist(), keep)[CLEAN[u]])
    states = oracles.two_node_states(x.noise.num_states, e.noise.num_states)
    return {a: p for a in states if (p := rows[0][a[0]] * rows[1][a[1]] * rows[2][a[2]]) > 0}


def segments(policy: GraphPolicy, kind: str, start: int) -> dict[tuple[State, ...], tuple[float, Tensor]]:
    """Every path x_{k0}, ..., x_0 -> (q of its start, p of the rest, differentiable)."""
    rows: dict[tuple[State, int], dict[State, Tensor]] = {
        (a, k): step_row(policy, kind, a, k)
        for k in range(start, STEPS)
        for a in oracles.two_node_states(KERNELS[kind][0].noise.num_states, KERNELS[kind][1].noise.num_states)
    }
    found: dict[tuple[State, ...], tuple[float, Tensor]] = {
        (a,): (q, torch.ones((), dtype=torch.float64)) for a, q in noised(kind, float(policy.grid[start])).items()
    }
    for k in range(start, STEPS):
        found = {(*path, a): (q, p * r) for path, (q, p) in found.items() for a, r in rows[path[-1], k].items()}
    return found


def rollout_of(paths: Sequence[tuple[State, ...]], start: int) -> Rollout:
    """Stored as the policy stores them: the state at k0 stands before it too."""
    stored = torch.tensor([[path[0]] * start + list(path) for path in paths], dtype=torch.uint8)
    b = len(paths)
    numbers = {a: k for k, a in enumerate(sorted({path[0] for path in paths}))}
    return Rollout(
        states={"nodes": stored[..., :2], "pairs": stored[..., 2:], "start": torch.full((b,), start)},
        group=torch.tensor([numbers[path[0]] for path in paths]),
        logp=torch.zeros(b, STEPS, dtype=torch.float64),
        units=torch.where(torch.arange(STEPS) >= start, 3, 0).repeat(b, 1),
        size=torch.full((b,), 2),
        max_units=9,
        samples=tuple(path[-1] for path in paths),
    )


@every_kernel
@pytest.mark.parametrize("start", [1, 2])
def test_the_log_prob_of_a_segment_is_that_of_the_enumeration_and_so_is_the_gradient(kind: str, start: int) -> None:
    policy = make(kind)
    paths = segments(policy, kind, start)
    rollout = rollout_of(list(paths), start)
    scores = score_sites(policy.sites(rollout))
    found, wanted = scores.logp.sum((1, 2)), torch.stack([p for _, p in paths.values()])
    assert scores.logp.dtype == torch.float64
    torch.testing.assert_close(found, wanted.log(), rtol=0, atol=1e-10)
    assert (scores.logp[:, :start] == 0).all()
    assert not bool(scores.mask[:, :start].any())
    assert torch.equal(scores.mask.sum(-1), rollout.units)
    mass = torch.zeros(int(rollout.group.max()) + 1, dtype=torch.float64).index_add(0, rollout.group, found.exp().detach())
    torch.testing.assert_close(mass, torch.ones_like(mass), rtol=0, atol=1e-12)  # of every start on its own
    # The gradient of the loss over all segments is that of E[r | x_0 re-noised].
    q = torch.tensor([q for q, _ in paths.values()], dtype=torch.float64)
    reward = torch.tensor([1.3 * s[0] - 0.4 * s[1] + 2.0 * s[0] * s[2] for s in rollout.samples], dtype=torch.float64)
    parameters = list(policy.parameters())
    expected = torch.autograd.grad(-(q * wanted * reward).sum(), parameters, retain_graph=True)
    loss = grpo_loss(scores, None, reward - 0.3, (q * wanted).detach(), epsilon=1e6).loss
    for a, b in zip(torch.autograd.grad(loss, parameters), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert max(float(g.abs().max()) for g in expected) > 1e-3


@every_kernel
def test_segments_are_drawn_with_their_probabilities(kind: str) -> None:
    policy, draws, start = make(kind), 12_000, 1
    paths = segments(policy, kind, start)
    wanted = {path: q * float(p.detach()) for path, (q, p) in paths.items()}
    rollout = policy.sample(again(start, draws), generator=seeded(0))
    rows = torch.cat([rollout.states["nodes"], rollout.states["pairs"]], -1)[:, start:].tolist()
    counts = Counter(tuple(tuple(s) for s in row) for row in rows)
    assert set(counts) <= set(wanted)
    assert sum(wanted.values()) == pytest.approx(1.0, abs=1e-12)
    likely = sorted((p for p in wanted if wanted[p] * draws >= 5), key=lambda p: -wanted[p])
    observed, expected = [float(counts[p]) for p in likely], [wanted[p] * draws for p in likely]
    observed[-1] += draws - sum(observed)
    expected[-1] += draws - sum(expected)
    assert len(likely) > 15
    assert chisquare(observed, expected).pvalue > 1e-3
    torch.testing.assert_close(rollout.logp, score_sites(policy.sites(rollout)).logp.sum(-1).detach(), rtol=0, atol=1e-10)


@every_kernel
def test_the_laws_of_probability_and_replay_hold_on_segments(kind: str) -> None:
    policy = make(kind)
    space = rollout_of(list(segments(policy, kind, 2)), 2)
    skip = {"checkpoint", "learning", "reinforce"}  # the table network is no part of the package; learning is tested below
    check_policy(policy, again(2), space=space, samples=500, skip=skip).raise_on_failure()


def test_the_conformance_kit_passes_on_a_batch_of_everything() -> None:
    tail: tuple[dict[str, Any], ...] = (
        {},
        {"restart": Restart((0, 1, 2), (1, 0, 1), 2)},
        {"restart": Restart((2, 2, 2, 1), (1, 0, 0, 1, 0, 1), 1), "fixed": FixedSites({0: 2}, {(0, 1): 1}), "num_nodes": 4},
        {"num_nodes": 2},
    )
    check_policy(
        transformer_policy(share_initial_noise=True), group_contexts(4, 3, tail), samples=200, seconds=3.0
    ).raise_on_failure()


@pytest.mark.parametrize("kind", ["uniform", "absorbing", "euler"])
def test_training_on_segments_alone_reaches_the_best_graph(kind: str) -> None:
    """After the first batch every group restarts; the exact expected reward of whole trajectories must rise all the same."""
    policy = make(kind).float()

    def reward(samples: Sequence[State], **columns: Any) -> list[float]:
        return [float(s[0] == s[1] == 1) * 0.5 + 0.5 * float(s[2] == 1) for s in samples]

    def expected() -> float:
        drawn = policy.sample([Context(k) for k in range(600)], generator=seeded(5)).samples
        return sum(reward(drawn)) / 600

    before = expected()
    config = GRPOConfig(
        max_steps=25, num_generations=16, generation_batch_size=64, learning_rate=0.1, max_grad_norm=None, seed=1,
        refine_fraction=1.0, refine_time=0.67, refine_memory=8,
    )  # fmt: skip
    GRPOTrainer(policy, reward, config).train()
    assert expected() > before + 0.25
