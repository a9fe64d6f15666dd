"""Small graph policies of every kernel, and short names for drawing from them and scoring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo.core.categorical import Scores, score_sites
from discrete_grpo.core.rollout import Context, Rollout
from discrete_grpo.diffusion.kernels import D3PM, Kernel
from discrete_grpo.diffusion.noise import absorbing, marginal, uniform
from discrete_grpo.diffusion.schedules import CosineSchedule, LinearSchedule
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from discrete_grpo.policies.graph import GraphPolicy

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
