"""Likelihood training of the graph policy: its loss against a loop, and its noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo.domains.graphs import GraphBatch, node_mask, num_pairs, pair_mask, symmetrise, upper
from discrete_grpo.policies.noising import stratified_times
from tests import oracles
from tests.policies.graph_policy_parts import KERNELS, every_kernel, make, seeded


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


def test_the_times_of_a_batch_have_one_offset() -> None:
    """t_i = (i + u) / count: the gaps between neighbours in time are all the same."""
    times = stratified_times(50, torch.device("cpu"), generator=seeded(0))
    torch.testing.assert_close(times.sort().values.diff(), torch.full((49,), 0.02, dtype=torch.float64), rtol=0, atol=1e-12)
