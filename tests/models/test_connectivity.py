"""Components, resistances and bridges against networkx; the network that reads them keeps its invariants."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
import torch

from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.models.connectivity import components, connectivity_features, effective_resistance
from tests.models.test_graph_transformer import DTYPES, both_precisions, graphs, logits, network

RANDOM = [nx.gnm_random_graph(n, m, seed=n + m) for n, m in ((2, 0), (2, 1), (6, 4), (7, 9), (12, 10), (12, 30), (30, 32))]
GRAPHS = [*RANDOM, nx.path_graph(40), nx.cycle_graph(40), nx.random_labeled_tree(25, seed=3), nx.empty_graph(3)]
every_graph = pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: f"{g.number_of_nodes()}-{g.number_of_edges()}")


def adjacency(graph: nx.Graph, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(nx.to_numpy_array(graph), dtype=dtype)[None]


@every_graph
def test_components_are_those_of_networkx(graph: nx.Graph) -> None:
    found = components(adjacency(graph))[0]
    for i in graph:
        assert set(found[i].nonzero()[:, 0].tolist()) == nx.node_connected_component(graph, i)


@every_graph
def test_resistance_is_that_of_networkx_inside_a_component_and_zero_between(graph: nx.Graph) -> None:
    a = adjacency(graph)
    found = effective_resistance(a, components(a))[0]
    for part in nx.connected_components(graph):
        inside = nx.resistance_distance(graph.subgraph(part)) if len(part) > 1 else {}
        for i in part:
            for j in graph:
                expected = inside.get(i, {}).get(j, 0.0)
                assert float(found[i, j]) == pytest.approx(expected, abs=1e-9)


def test_resistance_in_a_tree_is_the_distance() -> None:
    tree = nx.random_labeled_tree(64, seed=1)
    a = adjacency(tree, torch.float32)
    distance = dict(nx.all_pairs_shortest_path_length(tree))
    expected = np.array([[distance[i][j] for j in range(64)] for i in range(64)], dtype=np.float32)
    np.testing.assert_allclose(effective_resistance(a, components(a))[0].numpy(), expected, atol=1e-5)


@every_graph
def test_bridges_and_counts_are_those_of_networkx(graph: nx.Graph) -> None:
    a = adjacency(graph)
    nodes, pairs, whole = connectivity_features(a, torch.ones(1, len(graph), dtype=torch.bool))
    found = {tuple(p) for p in pairs[0, :, :, 2].triu().nonzero().tolist()}
    assert found == {tuple(sorted(edge)) for edge in nx.bridges(graph)}
    parts = list(nx.connected_components(graph))
    rank = graph.number_of_edges() - len(graph) + len(parts)
    assert whole[0].tolist() == pytest.approx([math.log(len(parts)), math.log1p(rank)], abs=1e-12)
    sizes = [len(nx.node_connected_component(graph, i)) for i in graph]
    assert nodes[0, :, 0].exp().tolist() == pytest.approx(sizes)


def test_one_less_the_resistance_is_the_share_of_spanning_trees_without_the_edge() -> None:
    graph = nx.gnm_random_graph(6, 9, seed=2)
    trees = list(nx.SpanningTreeIterator(graph))
    _, pairs, _ = connectivity_features(adjacency(graph), torch.ones(1, 6, dtype=torch.bool))
    for i, j in graph.edges:
        share = sum(not tree.has_edge(i, j) for tree in trees) / len(trees)
        assert float((pairs[0, i, j, 3] * 4).exp()) == pytest.approx(max(share, 1e-3), abs=1e-9)
    assert (pairs[0, :, :, 3][adjacency(graph)[0] == 0] == 0).all()


@every_graph
def test_features_of_pairs_are_the_component_the_resistance_and_bounded_shares(graph: nx.Graph) -> None:
    a = adjacency(graph)
    same = components(a)
    resistance = effective_resistance(a, same)
    _, pairs, _ = connectivity_features(a, torch.ones(1, len(graph), dtype=torch.bool))
    assert torch.equal(pairs[..., 0], same.double())
    torch.testing.assert_close(pairs[..., 1], torch.log1p(resistance))
    for edge in nx.bridges(graph):
        assert float(pairs[0, edge[0], edge[1], 3]) == pytest.approx(math.log(1e-3) / 4)


def test_padding_is_no_component() -> None:
    a = torch.nn.functional.pad(adjacency(nx.path_graph(3)), (0, 2, 0, 2))
    mask = torch.tensor([[True, True, True, False, False]])
    assert connectivity_features(a, mask)[2][0].tolist() == pytest.approx([0.0, 0.0], abs=1e-12)
    a = torch.nn.functional.pad(adjacency(nx.complete_graph(4)), (0, 3, 0, 3))  # 6 - 4 + 1 cycles
    mask = torch.tensor([[True] * 4 + [False] * 3])
    assert connectivity_features(a, mask)[2][0].tolist() == pytest.approx([0.0, math.log1p(3)], abs=1e-12)


@both_precisions
def test_a_network_that_reads_them_is_equivariant_and_blind_to_padding_and_batch(dtype: torch.dtype) -> None:
    net, tolerance = network(dtype, connectivity=True), DTYPES[dtype]
    batch, time = graphs()
    whole = logits(net, batch, time)
    padded = logits(net, batch.pad(8), time)
    torch.testing.assert_close(padded[0][:, :5], whole[0], rtol=0, atol=tolerance)
    torch.testing.assert_close(padded[1][:, :5, :5], whole[1], rtol=0, atol=tolerance)
    order = torch.tensor([3, 0, 4, 1, 2])
    moved = GraphBatch(batch.nodes[:, order], batch.edges[:, order][:, :, order], batch.mask[:, order])
    turned = logits(net, moved, time)
    torch.testing.assert_close(turned[0], whole[0][:, order], rtol=0, atol=tolerance)
    torch.testing.assert_close(turned[1], whole[1][:, order][:, :, order], rtol=0, atol=tolerance)


def test_they_change_what_the_network_says() -> None:
    net = network(connectivity=True)
    batch, time = graphs()
    before = logits(net, batch, time)[1]
    with torch.no_grad():
        net.get_parameter("edge_in.0.weight")[:, -4:] = 0.0
    assert not torch.allclose(logits(net, batch, time)[1], before)


def test_log_time_is_log_time() -> None:
    """With all other weights of time at zero, equal ratios of times (but for 1e-4) are equal steps of what enters the network."""
    net = network(log_time=True)
    with torch.no_grad():
        net.get_parameter("global_in.0.weight")[:, :-1] = 0.0
    entered: list[torch.Tensor] = []
    net.global_in[0].register_forward_hook(lambda module, args, out: entered.append(out.detach()))
    batch, _ = graphs()
    for t in (0.0, 0.0099, 0.9999):  # 1e-4, 1e-2, 1
        assert logits(net, batch, torch.full((4,), t, dtype=torch.float64))[1].isfinite().all()
    torch.testing.assert_close(entered[1] - entered[0], entered[2] - entered[1], rtol=0, atol=1e-12)
    assert (entered[1] - entered[0]).abs().max() > 1e-3
