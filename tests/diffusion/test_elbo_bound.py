"""The ELBO of a finished graph is below log p, by enumeration of every path: each kernel, each schedule, and where it is tight."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo.core.rollout import Context, Rollout
from discrete_grpo.diffusion.flow import FlowEuler, FlowInterpolation
from discrete_grpo.diffusion.kernels import D3PM, Kernel, chain_law
from discrete_grpo.diffusion.noise import Noise
from discrete_grpo.diffusion.schedules import (
    CosDistortion,
    CosineSchedule,
    DigressSchedule,
    LinearSchedule,
    PolydecDistortion,
    PolyincDistortion,
    RevcosDistortion,
    Schedule,
)
from discrete_grpo.policies.graph import FixedSites, GraphPolicy
from discrete_grpo.policies.surrogate import ElboLikelihood
from tests import oracles

STEPS = 3
SCHEDULES: dict[str, Schedule] = {
    "linear": LinearSchedule(),
    "cosine": CosineSchedule(),
    "digress of as many steps": DigressSchedule(STEPS),
    "digress of other steps": DigressSchedule(5),
    "cos": CosDistortion(),
    "revcos": RevcosDistortion(),
    "polyinc": PolyincDistortion(),
    "polydec": PolydecDistortion(),
}
FULL, MASK, RARE, GONE = (0.6, 0.4), (0.0, 0.0, 1.0), (0.03, 0.97), (0.0, 1.0)
HOLES = (0.3, 0.0, 0.1, 0.6)
KERNELS: dict[str, Callable[[Schedule], Kernel]] = {
    "uniform": lambda path: D3PM(Noise((0.5, 0.5), path, 2)),
    "marginal": lambda path: D3PM(Noise((0.8, 0.2), path, 2)),
    "zero mass": lambda path: D3PM(Noise(GONE, path, 2)),
    "absorbing": lambda path: D3PM(Noise(MASK, path, 2)),
    "flow": lambda path: FlowInterpolation(Noise(FULL, path, 2)),
    "flow absorbing": lambda path: FlowInterpolation(Noise(MASK, path, 2)),
    "euler": lambda path: FlowEuler(Noise(FULL, path, 2)),
    "euler rare": lambda path: FlowEuler(Noise(RARE, path, 2)),
    "euler eta": lambda path: FlowEuler(Noise(FULL, path, 2), 20.0),
    "euler omega": lambda path: FlowEuler(Noise(FULL, path, 2), 0.0, 2.0),
    "euler both": lambda path: FlowEuler(Noise(RARE, path, 2), 50.0, 0.7),
    "euler absorbing": lambda path: FlowEuler(Noise(MASK, path, 2), 5.0, 0.3),
}
every_case = pytest.mark.parametrize(("kind", "path"), list(itertools.product(KERNELS, SCHEDULES)))


class OneNode(nn.Module):
    """Logits of a single node by its state and the time."""

    def __init__(self, states: int, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = nn.Parameter(1.5 * torch.randn(STEPS + 1, states, 2, generator=generator, dtype=torch.float64))

    def forward(self, nodes: Tensor, edges: Tensor, time: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        step = (time * STEPS).round().long()
        logits = self.table[step[:, None], nodes]
        return logits, logits.new_zeros(*edges.shape, 2)


def one_node(kernel: Kernel, seed: int = 0) -> GraphPolicy:
    return GraphPolicy(
        OneNode(kernel.noise.num_states, seed), kernel, D3PM(Noise((0.5, 0.5), LinearSchedule(), 2)), [0.0, 1.0], num_steps=STEPS
    )


def finished(count: int, clean: int) -> Rollout:
    return Rollout(
        states={
            "nodes": torch.full((count, STEPS + 1, 1), clean, dtype=torch.uint8),
            "pairs": torch.zeros(count, STEPS + 1, 0).byte(),
        },
        group=torch.zeros(count, dtype=torch.long),
        logp=torch.zeros(count, STEPS, dtype=torch.float64),
        units=torch.ones(count, STEPS, dtype=torch.long),
        size=torch.ones(count, dtype=torch.long),
        max_units=STEPS,
        samples=(None,) * count,
    )


def steps(policy: GraphPolicy) -> Iterator[Tensor]:
    """p_θ(k | z) of each step as a matrix [z, k], from the kernel's table and the network's own softmax."""
    kernel, network = policy.node_kernel, policy.network
    assert isinstance(network, OneNode)
    for t, s in itertools.pairwise(policy.grid.tolist()):
        clean = network.table[round(t * STEPS)].softmax(-1).detach()
        table = kernel.table(t, s)
        possible = table.sum(-1) > 0
        weight = clean * possible
        mixed = torch.einsum("zc,zck->zk", weight / weight.sum(-1, keepdim=True).clamp_min(1e-300), table)
        stuck = ~possible.any(-1)  # no clean class leads here: the state stays
        yield torch.where(stuck[:, None], torch.eye(kernel.noise.num_states, dtype=torch.float64), mixed)


def log_likelihood(policy: GraphPolicy) -> Tensor:
    """log p_θ(x_0) of each state, by summing over all paths."""
    mass = policy.node_kernel.noise.initial()
    for step in steps(policy):
        mass = mass @ step
    return mass.log()


def chain(kernel: Kernel, grid: Tensor, clean: int) -> list[Tensor]:
    """The law of the chain of steps given the clean class at each grid point, path by path."""
    prior = kernel.noise.initial().tolist()
    tables = [kernel.table(t, s)[:, clean].tolist() for t, s in itertools.pairwise(grid.tolist())]
    laws = []
    for k in range(STEPS):
        law = [0.0] * kernel.noise.num_states
        for states in itertools.product(range(kernel.noise.num_states), repeat=k + 1):
            moves = (tables[i][states[i]][states[i + 1]] for i in range(k))
            law[states[-1]] += prior[states[0]] * math.prod(moves)
        laws.append(torch.tensor(law, dtype=torch.float64))
    return laws


def at(policy: ElboLikelihood, clean: int, states: list[int], points: list[int]) -> Rollout:
    """A rollout of one draw a row whose noisy states are given."""
    made = policy.noised(finished(len(states), clean), torch.tensor(points)[:, None])
    stored = torch.tensor([[z, clean] for z in states], dtype=torch.uint8)[..., None]
    return Rollout(**{**vars(made), "states": {**made.states, "nodes": stored}})


def expected_bound(policy: ElboLikelihood, clean: int) -> float:
    """The bound at J = T in the mean over its draws: each state of each step, weighed by the law of the chain."""
    laws = chain(policy.policy.node_kernel, policy.policy.grid, clean)
    where = [(k, z) for k in range(STEPS) for z in range(len(laws[k])) if laws[k][z] > 0]
    rollout = at(policy, clean, [z for _, z in where], [k for k, _ in where])
    found = policy.bound(rollout).detach() / STEPS  # one draw a row: T/J = T is taken out again
    return float(sum(laws[k][z] * b for (k, z), b in zip(where, found, strict=True)))


@every_case
def test_the_bound_is_below_the_log_likelihood(kind: str, path: str) -> None:
    inner = one_node(KERNELS[kind](SCHEDULES[path]))
    policy = ElboLikelihood(inner, STEPS)
    wanted = log_likelihood(inner)
    assert float(wanted.exp().sum()) == pytest.approx(1.0, abs=1e-12)
    for clean in range(2):
        assert expected_bound(policy, clean) <= float(wanted[clean]) + 1e-12


@every_case
def test_states_follow_the_chain_of_the_kernel(kind: str, path: str) -> None:
    """The law of the draws, to 6 standard deviations of 2,000; and the tables it is drawn from to 1e-12."""
    kernel = KERNELS[kind](SCHEDULES[path])
    policy = ElboLikelihood(one_node(kernel), STEPS)
    table = chain_law(kernel, policy.policy.grid)
    for clean in range(2):
        rollout = policy.noised(
            finished(2_000, clean), torch.arange(STEPS).repeat(2_000, 1), generator=torch.Generator().manual_seed(0)
        )
        for k, law in enumerate(chain(kernel, policy.policy.grid, clean)):
            torch.testing.assert_close(table[k, clean], law, rtol=0, atol=1e-12)
            share = torch.bincount(rollout.states["nodes"][:, k, 0].long(), minlength=len(law)).double() / 2_000
            assert ((share - law).abs() <= 6 * (law * (1 - law) / 2_000).sqrt() + 1e-9).all()


@pytest.mark.parametrize("path", SCHEDULES)
@pytest.mark.parametrize("kind", ["uniform", "marginal", "zero mass", "absorbing"])
def test_with_the_right_posterior_d3pm_loses_nothing(kind: str, path: str) -> None:
    """With p̂ = q(x_0 | x_t) of data π the reverse chain is the noising turned round: log p(x_0) = bound, where ᾱ(0) = 1."""
    schedule = SCHEDULES[path]
    kernel = KERNELS[kind](schedule)
    inner, data = one_node(kernel), torch.tensor([0.3, 0.7], dtype=torch.float64)
    network = inner.network
    assert isinstance(network, OneNode)
    forward = kernel.noise.law(inner.grid)  # type: ignore[attr-defined]
    with torch.no_grad():
        for t, law in zip(inner.grid.tolist(), forward, strict=True):
            network.table[round(t * STEPS)] = (law.T * data).clamp_min(1e-300).log()
    found = [expected_bound(ElboLikelihood(inner, STEPS), clean) for clean in range(2)]
    wanted = log_likelihood(inner)
    if "digress" in path:  # a network cannot undo what is left at t = 0: the last step adds noise to x_0
        assert all(f <= float(w) + 1e-12 for f, w in zip(found, wanted, strict=False))
        return
    for clean in range(2):
        assert float(wanted[clean]) == pytest.approx(math.log(float(data[clean])), abs=1e-12)
        assert found[clean] == pytest.approx(float(wanted[clean]), abs=1e-12)


@pytest.mark.parametrize(
    ("prior", "steps_of_it"),
    [*itertools.product((FULL, GONE, MASK, HOLES), (1, 50)), (MASK, 500), (HOLES, 500)],
)
def test_posteriors_and_interpolations_carry_the_noise(prior: tuple[float, ...], steps_of_it: int) -> None:
    """So the states of these kernels are drawn as before, by their own noise."""
    grid = torch.arange(steps_of_it, -1, -1, dtype=torch.float64) / steps_of_it
    for schedule in (CosineSchedule(), LinearSchedule(), DigressSchedule(500)):
        for kind in (D3PM, FlowInterpolation):
            kernel = kind(Noise(prior, schedule, 2))
            torch.testing.assert_close(chain_law(kernel, grid), kernel.noise.law(grid), rtol=0, atol=1e-11)


def test_fixed_sites_are_noised_as_the_sampler_noises_them() -> None:
    """A clamped Euler kernel: the free node follows its chain and the fixed one the noise."""
    kernel = KERNELS["euler both"](LinearSchedule())
    network = oracles.LookupNetwork(2, 2, 2, 2, 0)
    inner = GraphPolicy(network, kernel, D3PM(Noise((0.5, 0.5), LinearSchedule(), 2)), [0.0, 0.0, 1.0], num_steps=STEPS)
    policy = ElboLikelihood(inner, STEPS)
    columns: dict[str, Any] = {"fixed": FixedSites({0: 0})}
    drawn = inner.sample([Context(0, columns)] * 8000, generator=torch.Generator().manual_seed(0))
    drawn = Rollout(**{**vars(drawn), "states": {**drawn.states, "nodes": torch.zeros_like(drawn.states["nodes"])}})
    made = policy.noised(drawn, torch.full((8000, 1), 2), generator=torch.Generator().manual_seed(1))
    share = made.states["nodes"][:, 0].double().mean(0)
    wanted = float(kernel.noise.law(inner.grid)[2, 0, 1]), float(chain(kernel, inner.grid, 0)[2][1])  # type: ignore[attr-defined]
    assert abs(wanted[0] - wanted[1]) > 0.05
    for found, law in zip(share.tolist(), wanted, strict=True):
        assert abs(found - law) < 6 * math.sqrt(law * (1 - law) / 8000) + 1e-9
