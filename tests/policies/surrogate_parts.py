"""Graph policies of two nodes for every kernel, with the laws of their steps from kernel tables."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from discrete_grpo.diffusion.flow import FlowEuler, FlowInterpolation
from discrete_grpo.diffusion.kernels import D3PM, Kernel
from discrete_grpo.diffusion.noise import Noise, absorbing, marginal, uniform
from discrete_grpo.diffusion.schedules import CosineSchedule, DigressSchedule, LinearSchedule
from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.policies.graph import GraphPolicy
from tests import oracles

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
