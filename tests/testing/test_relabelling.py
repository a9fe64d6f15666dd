"""The conformance kit relabels nodes by itself: every state moves with its graph, and what cannot be moved is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from discrete_grpo.core.rollout import Context, group_contexts
from discrete_grpo.domains.graphs import node_mask, permute, symmetrise, unpack, upper
from discrete_grpo.policies.graph import FixedSites, GraphPolicy
from discrete_grpo.testing import check_policy, relabelling
from tests.testing.parts import SIZES, row, small_graphs
from tests.toys import node_classes, tiny_policy


class NumberedNetwork(nn.Module):
    """A network that adds an embedding of the node's number, as an encoder of sequences does."""

    def __init__(self, inner: nn.Module, most: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.inner = inner
        self.place = nn.Parameter(torch.randn(most, classes, generator=torch.Generator().manual_seed(0)))

    def init_args(self) -> dict[str, Any]:
        return {"inner": self.inner}

    def forward(self, nodes: Any, edges: Any, time: Any, mask: Any) -> Any:
        of_nodes, of_edges = self.inner(nodes, edges, time, mask)
        return of_nodes + self.place[: nodes.shape[1]], of_edges


@pytest.mark.parametrize("decode", [None, node_classes], ids=["graphs", "decoded"])
@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.slow
def test_the_kit_relabels_graphs_by_itself(decode: Any, numbered: bool) -> None:
    plain = tiny_policy()
    network = NumberedNetwork(plain.network) if numbered else plain.network
    policy = GraphPolicy(network, plain.node_kernel, plain.edge_kernel, plain.node_counts, num_steps=4, decode=decode)
    contexts = [Context(k // 2, {"num_nodes": [4, 2, 3][k // 2]}) for k in range(6)]
    columns: dict[str, Any] = {"num_nodes": 4, "fixed": FixedSites({1: 1}, {(1, 2): 1}, closed=(1,))}
    report = check_policy(
        policy, [*contexts, Context(9, columns)], samples=50, trusted=["discrete_grpo", "tests"], skip=["learning"]
    )
    assert report.failed == (("permutation",) if numbered else ()), str(report)
    assert row(report, "permutation").note == "nodes relabelled by the kit"


def test_relabelling_moves_every_state_of_nodes_and_pairs_as_the_graphs_do() -> None:
    policy = tiny_policy()
    columns: list[dict[str, Any]] = [{"num_nodes": 4, "fixed": FixedSites({1: 1}, {(1, 2): 1})}, {"num_nodes": 3}, {"num_nodes": 2}]
    drawn = policy.sample(group_contexts(3, 3, columns), generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    moved = relabelling.relabelled(drawn, generator)
    exists = node_mask(drawn.size, 4)
    order = torch.where(exists, torch.rand(9, 4, generator=torch.Generator().manual_seed(1)), 2.0 + torch.arange(4)).argsort(-1)
    assert not torch.equal(order, torch.arange(4).expand(9, -1))
    for k in range(drawn.num_steps + 1):
        before = unpack(drawn.states["nodes"][:, k], drawn.states["pairs"][:, k], exists)
        wanted = permute(before, order)
        found = unpack(moved.states["nodes"][:, k], moved.states["pairs"][:, k], exists)
        assert torch.equal(found.nodes, wanted.nodes)
        assert torch.equal(found.edges, wanted.edges)
    free = permute(unpack(drawn.states["free_nodes"].byte(), drawn.states["free_pairs"].byte(), exists), order)
    assert torch.equal(moved.states["free_nodes"].long(), free.nodes)
    assert torch.equal(moved.states["free_pairs"].long(), upper(free.edges))
    full = replace(drawn, states={"nodes": drawn.states["nodes"], "edges": symmetrise(drawn.states["pairs"].flatten(0, 1), 4)})
    full = replace(full, states={**full.states, "edges": full.states["edges"].unflatten(0, drawn.states["nodes"].shape[:2])})
    again = relabelling.relabelled(full, torch.Generator().manual_seed(1))
    assert torch.equal(upper(again.states["edges"].flatten(0, 1)), moved.states["pairs"].flatten(0, 1))


def test_states_that_cannot_be_relabelled_are_named() -> None:
    drawn = small_graphs().sample(SIZES, generator=torch.Generator().manual_seed(0))
    assert relabelling.obstacle(drawn) == ""
    assert "no states named nodes with pairs or edges" in relabelling.obstacle(replace(drawn, states={"x": drawn.states["nodes"]}))
    odd = replace(drawn, states={**drawn.states, "pairs": drawn.states["pairs"][..., :2]})
    assert "states['pairs'] is (6, 3, 2), expected (3,)" in relabelling.obstacle(odd)
    texts = replace(drawn, samples=("a",) * 6, size=drawn.size + 9)
    assert "size is no number of nodes" in relabelling.obstacle(texts)
