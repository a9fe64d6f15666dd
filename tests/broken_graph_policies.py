"""Twins of the graph policy, each with one mistake, and what a caller of the conformance kit knows of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from discrete_grpo.core.categorical import Sites, gather, score_sites
from discrete_grpo.core.rollout import Context, Rollout
from discrete_grpo.domains.graphs import node_mask, num_pairs, pack, pair_mask, permute, unpack
from discrete_grpo.policies.graph import GraphPolicy


class OneNumberPerStep(GraphPolicy):
    """Draws all nodes and edges of a step by inversion of the same uniform number."""

    @torch.no_grad()
    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        made = super().sample(contexts, generator=generator)
        nodes, pairs = made.states["nodes"].clone(), made.states["pairs"].clone()
        logps = []
        for step in range(self.num_steps):
            rollout = replace(made, states={**made.states, "nodes": nodes, "pairs": pairs})
            sites = self.sites(rollout, torch.full((len(made), 1), step))
            uniform = torch.rand(len(made), 1, 1, generator=generator)
            total = torch.zeros(len(made))
            for kind, state in zip(sites, (nodes, pairs), strict=True):
                table = kind.log_probs
                drawn = (table.exp().cumsum(-1) < uniform[..., None]).sum(-1).clamp(max=table.shape[-1] - 1)
                drawn = torch.where(kind.mask, drawn, 0)
                state[:, step + 1] = drawn[:, 0].to(state.dtype)
                total += torch.where(kind.mask, gather(table, drawn), 0.0).sum((1, 2))
            logps.append(total)
        return replace(made, states={**made.states, "nodes": nodes, "pairs": pairs}, logp=torch.stack(logps, 1))


class EdgesTwice(GraphPolicy):
    """Counts (i, j) and (j, i), in drawing and in scoring alike."""

    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        drawn = super().sample(contexts, generator=generator)
        with torch.no_grad():
            scores = score_sites(self.sites(drawn))
        return replace(drawn, logp=scores.logp.sum(-1), units=scores.mask.sum(-1), max_units=2 * drawn.max_units)

    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Sequence[Sites]:
        nodes, pairs = super().sites(rollout, steps)
        return [nodes, pairs, pairs]


class PaddedNodes(GraphPolicy):
    """Scores nodes that do not exist."""

    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Sequence[Sites]:
        nodes, pairs = super().sites(rollout, steps)
        return [replace(nodes, mask=torch.ones_like(nodes.mask)), pairs]


class NumbersNodes(GraphPolicy):
    """Knows its nodes by number."""

    def clean_probs(self, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        nodes, pairs = super().clean_probs(*args, **options)
        tilt = torch.arange(nodes.shape[1], device=nodes.device)[:, None] * torch.arange(nodes.shape[2], device=nodes.device)
        return (nodes.log() + 0.1 * tilt).softmax(-1), pairs


# ---------------------------------------------------------------- what a caller of the kit knows of graphs


def relabelled(rollout: Rollout, generator: torch.Generator) -> Rollout:
    """Every graph of a trajectory under one and the same new numbering of its existing nodes."""
    nodes, pairs, size = rollout.states["nodes"], rollout.states["pairs"], rollout.size
    n, steps = nodes.shape[2], nodes.shape[1]
    mask = node_mask(size, n)
    order = torch.where(mask, torch.rand(mask.shape, generator=generator), 2.0 + torch.arange(n)).argsort(-1)
    moved = [pack(permute(unpack(nodes[:, k], pairs[:, k], mask), order)) for k in range(steps)]
    states = {"nodes": torch.stack([m for m, _ in moved], 1), "pairs": torch.stack([p for _, p in moved], 1)}
    return replace(rollout, states={**rollout.states, **states})


def more_padding(rollout: Rollout, generator: torch.Generator) -> Rollout:
    """Two more places for nodes, and junk classes at every place where no node is."""
    nodes, pairs = rollout.states["nodes"], rollout.states["pairs"]
    n = nodes.shape[2] + 2
    mask = node_mask(rollout.size, n)
    exists, both = mask[:, None], pair_mask(mask)[:, None]
    junk_nodes = torch.randint(2, (*nodes.shape[:2], n), generator=generator, dtype=torch.uint8)
    junk_pairs = torch.randint(2, (*pairs.shape[:2], num_pairs(n)), generator=generator, dtype=torch.uint8)
    nodes, pairs = (nn.functional.pad(x, (0, y.shape[2] - x.shape[2])) for x, y in ((nodes, junk_nodes), (pairs, junk_pairs)))
    states = {"nodes": torch.where(exists, nodes, junk_nodes), "pairs": torch.where(both, pairs, junk_pairs)}
    return replace(rollout, states={**rollout.states, **states})


def graph_space(policy: GraphPolicy, size: int = 2) -> Rollout:
    """Every trajectory of graphs of ``size`` nodes; the first graph is the start."""
    classes = [range(policy.node_kernel.noise.num_states)] * size + [range(policy.edge_kernel.noise.num_states)] * num_pairs(size)
    graphs = torch.tensor(list(product(*classes)), dtype=torch.uint8)
    paths = torch.tensor(list(product(range(len(graphs)), repeat=policy.num_steps + 1)))
    states = graphs[paths]
    length = paths.shape[0]
    return Rollout(
        states={"nodes": states[:, :, :size], "pairs": states[:, :, size:]},
        group=paths[:, 0],
        logp=torch.zeros(length, policy.num_steps),
        units=torch.full((length, policy.num_steps), size + num_pairs(size)),
        size=torch.full((length,), size),
        max_units=policy.num_steps * (size + num_pairs(size)),
        samples=(None,) * length,
    )
