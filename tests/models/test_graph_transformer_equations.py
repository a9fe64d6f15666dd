"""The graph transformer against its equations, written out node by node and pair by pair."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, one_hot

from discrete_grpo.models.graph_transformer import GraphTransformer
from tests.models.test_graph_transformer import graphs, logits, network

SIZES = (9, 5, 2, 1)


def bonds(net: GraphTransformer, edges: Tensor) -> nx.Graph:
    """The graph of the pairs with a class that is neither "no bond" nor a mask."""
    n = len(edges)
    found = nx.empty_graph(n)
    found.add_edges_from((i, j) for i, j in combinations(range(n), 2) if 0 < int(edges[i, j]) < net.config.edge_classes)
    return found


def features(net: GraphTransformer, nodes: Tensor, edges: Tensor, time: float) -> tuple[Tensor, dict[Any, Tensor], Tensor]:
    """Inputs of the nodes, of the pairs and of the graph."""
    config, n, graph = net.config, len(nodes), bonds(net, edges)
    ends = [max(1, graph.degree(i)) ** 0.5 for i in range(n)]
    step = torch.tensor([[graph.has_edge(i, j) / (ends[i] * ends[j]) for j in range(n)] for i in range(n)])
    walks = [torch.linalg.matrix_power(step, k) for k in range(1, config.walk_length + 1)]
    rings = [set(ring) for ring in nx.simple_cycles(graph, length_bound=5)]
    cycles = torch.tensor([[math.log(1 + sum(i in r and len(r) == k for r in rings)) for k in (3, 4, 5)] for i in range(n)])
    of_nodes = torch.cat([one_hot(nodes, config.node_states), torch.stack([w.diagonal() for w in walks], -1), cycles], -1)
    of_pairs = {
        (i, j): torch.cat([one_hot(edges[i, j], config.edge_states), torch.stack([w[i, j] for w in walks])])
        for i, j in combinations(range(n), 2)
    }
    angles = [200 ** (k / 15) * time for k in range(16)]
    waves = [*map(math.sin, angles), *map(math.cos, angles), math.log(n)]
    late = [math.log(time + 1e-4) / 4] if config.log_time else []
    return of_nodes, of_pairs, torch.cat([torch.tensor(waves), cycles.mean(0), torch.tensor(late)])


def by_definition(net: GraphTransformer, nodes: Tensor, edges: Tensor, time: float) -> tuple[Tensor, dict[Any, Tensor]]:
    """Logits of the nodes and of the pairs of one graph."""
    n, heads = len(nodes), net.config.heads
    of_nodes, of_pairs, of_graph = features(net, nodes, edges, time)
    x, y = net.node_in(of_nodes), net.global_in(of_graph)
    e = {pair: net.edge_in(value) for pair, value in of_pairs.items()}
    blocks: list[Any] = list(net.blocks)
    for block in blocks:

        def normed(norm: Any, value: Tensor, y: Tensor = y) -> Tensor:
            scale, shift = norm.film(y).chunk(2)
            return (1 + scale) * layer_norm(value, value.shape[-1:]) + shift

        x_n, e_n = normed(block.node_norm, x), {pair: normed(block.edge_norm, value) for pair, value in e.items()}
        q, k, v = (part.view(n, heads, -1) for part in block.qkv(x_n).chunk(3, -1))
        logit = torch.einsum("ihd,jhd->ijh", q, k) / q.shape[-1] ** 0.5
        for (i, j), value in e_n.items():
            logit[i, j] += block.bias(value)
            logit[j, i] += block.bias(value)
        x = x + block.attended(torch.einsum("ijh,jhd->ihd", logit.softmax(1), v).flatten(1))
        incident = [sum((value for pair, value in e_n.items() if i in pair), torch.zeros(net.config.edge_width)) for i in range(n)]
        x = x + block.incident(torch.stack(incident)) / max(1, n - 1) ** 0.5
        a = block.edge_nodes(x_n)
        e = {
            (i, j): value
            + block.edge_out(gelu(block.edge_in(e_n[i, j]) + block.edge_logits(logit[i, j] + logit[j, i]) + a[i] * a[j]))
            for (i, j), value in e.items()
        }
        x = x + block.mlp(normed(block.mlp_norm, x))
        mean = torch.stack([*e.values()]).mean(0) if e else torch.zeros(net.config.edge_width)
        y = y + block.pool(torch.cat([x.mean(0), x.amax(0), mean]))
    return net.node_out(x), {pair: net.edge_out(value) for pair, value in e.items()}


@pytest.mark.parametrize("log_time", [False, True])
def test_the_logits_are_those_of_the_equations(log_time: bool) -> None:
    net, (batch, time) = network(log_time=log_time), graphs(sizes=SIZES, n=9)
    assert {len(ring) for ring in nx.simple_cycles(bonds(net, batch.edges[0]), length_bound=5)} == {3, 4, 5}
    time = time.double()
    node_logits, edge_logits = logits(net, batch, time)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        for k, n in enumerate(SIZES):
            nodes, pairs = by_definition(net, batch.nodes[k, :n], batch.edges[k, :n, :n], float(time[k]))
            torch.testing.assert_close(node_logits[k, :n], nodes, rtol=0, atol=1e-12)
            for (i, j), value in pairs.items():
                torch.testing.assert_close(edge_logits[k, i, j], value, rtol=0, atol=1e-12)
    finally:
        torch.set_default_dtype(before)
