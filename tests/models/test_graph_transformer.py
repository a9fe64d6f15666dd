"""The graph transformer: symmetry, padding, features against graph theory, sizes."""

from __future__ import annotations

import math
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor

from discrete_grpo.domains.graphs import GraphBatch, node_mask, num_pairs, pair_mask, permute, symmetrise, upper
from discrete_grpo.models.graph_transformer import (
    BASE,
    SMALL,
    GraphTransformer,
    GraphTransformerConfig,
    NetworkSizes,
    cycle_counts,
)
from discrete_grpo.models.random_walks import random_walks
from discrete_grpo.runs.serialization import build, describe

DTYPES = {torch.float32: 2e-5, torch.float64: 1e-12}
both_precisions = pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
SIZES = (5, 2, 4, 1)


def network(dtype: torch.dtype = torch.float64, seed: int = 0, **options: Any) -> GraphTransformer:
    shape = {"layers": 3, "heads": 2, "width": 16, "edge_width": 6, "global_width": 10, "walk_length": 4} | options
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = GraphTransformer(GraphTransformerConfig(4, 3, 3, 2, **shape))
        for parameter in net.parameters():  # some start at zero, where the parts behind them would go untested
            parameter.data += 0.1 * torch.randn(parameter.shape)
        return net.to(dtype).eval()


def graphs(seed: int = 0, sizes: tuple[int, ...] = SIZES, n: int = 5) -> tuple[GraphBatch, Tensor]:
    """Noisy graphs, mask classes among them, and times."""
    g = torch.Generator().manual_seed(seed)
    mask = node_mask(torch.tensor(sizes), n)
    nodes = torch.where(mask, torch.randint(4, mask.shape, generator=g), 0)
    pairs = torch.where(pair_mask(mask), torch.randint(3, (len(sizes), num_pairs(n)), generator=g), 0)
    return GraphBatch(nodes, symmetrise(pairs, n), mask), torch.rand(len(sizes), generator=g)


def logits(net: GraphTransformer, batch: GraphBatch, time: Tensor) -> tuple[Tensor, Tensor]:
    """Node logits [B, N, C] and edge logits [B, N, N, C] with padding and the diagonal set to zero."""
    nodes, edges = net(batch.nodes, batch.edges, time, batch.mask)
    pairs = torch.where(pair_mask(batch.mask).unsqueeze(-1), upper(edges), 0.0)
    return torch.where(batch.mask.unsqueeze(-1), nodes, 0.0), symmetrise(pairs, batch.num_nodes)


def gradients(net: GraphTransformer, batch: GraphBatch, time: Tensor) -> list[Tensor]:
    nodes, edges = logits(net, batch, time)
    total = (nodes**2).sum() + (edges.sin() * 3).sum() / 2
    return list(torch.autograd.grad(total, list(net.parameters()), materialize_grads=True))


@both_precisions
def test_padding_changes_no_value_and_no_gradient(dtype: torch.dtype) -> None:
    net, tolerance = network(dtype), DTYPES[dtype]
    batch, time = graphs()
    for padded in (batch.pad(6), batch.pad(9)):
        for before, after, axes in zip(logits(net, batch, time), logits(net, padded, time), (1, 2), strict=True):
            after = after[:, :5] if axes == 1 else after[:, :5, :5]
            torch.testing.assert_close(after, before, rtol=0, atol=tolerance)
        for before, after in zip(gradients(net, batch, time), gradients(net, padded, time), strict=True):
            torch.testing.assert_close(after, before, rtol=tolerance * 10, atol=tolerance * 10)


@both_precisions
def test_what_stands_in_the_padding_changes_nothing(dtype: torch.dtype) -> None:
    net = network(dtype)
    batch, time = graphs()
    nodes = torch.where(batch.mask, batch.nodes, 3)
    there = batch.mask[:, :, None] & batch.mask[:, None, :]
    spoilt = GraphBatch(nodes, torch.where(there, batch.edges, 1), batch.mask)
    for a, b in zip(logits(net, batch, time), logits(net, spoilt, time), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=DTYPES[dtype])
    for a, b in zip(gradients(net, batch, time), gradients(net, spoilt, time), strict=True):
        torch.testing.assert_close(a, b, rtol=DTYPES[dtype] * 10, atol=DTYPES[dtype] * 10)


@both_precisions
def test_graphs_of_a_batch_do_not_see_each_other(dtype: torch.dtype) -> None:
    net = network(dtype)
    batch, time = graphs()
    together = logits(net, batch, time)
    for b, size in enumerate(SIZES):
        alone = logits(net, batch.index(slice(b, b + 1)).crop(size), time[b : b + 1])
        torch.testing.assert_close(alone[0][0], together[0][b, :size], rtol=0, atol=DTYPES[dtype])
        torch.testing.assert_close(alone[1][0], together[1][b, :size, :size], rtol=0, atol=DTYPES[dtype])


@both_precisions
def test_relabelling_the_nodes_relabels_the_logits(dtype: torch.dtype) -> None:
    net = network(dtype)
    batch, time = graphs(sizes=(5, 5, 5))
    order = torch.stack([torch.randperm(5, generator=torch.Generator().manual_seed(k)) for k in range(3)])
    nodes, edges = logits(net, batch, time)
    moved_nodes, moved_edges = logits(net, permute(batch, order), time)
    rows = torch.arange(3)[:, None]
    torch.testing.assert_close(moved_nodes, nodes[rows, order], rtol=0, atol=DTYPES[dtype])
    wanted = edges[rows[..., None], order[:, :, None], order[:, None, :]]
    torch.testing.assert_close(moved_edges, wanted, rtol=0, atol=DTYPES[dtype])
    assert (nodes[0] - nodes[0, :1]).abs().max() > 1e-3  # nodes do differ: the test above can fail


@both_precisions
def test_edge_logits_are_exactly_symmetric_and_nothing_below_the_diagonal_is_read(dtype: torch.dtype) -> None:
    net = network(dtype)
    batch, time = graphs()
    nodes, edges = net(batch.nodes, batch.edges, time, batch.mask)
    assert torch.equal(edges, edges.transpose(1, 2))
    assert nodes.dtype == edges.dtype == dtype
    assert nodes.shape == (4, 5, 3)
    assert edges.shape == (4, 5, 5, 2)
    garbage = batch.edges.triu(1) + torch.full_like(batch.edges, 2).tril()
    again = net(batch.nodes, garbage, time, batch.mask)
    assert torch.equal(again[0], nodes)
    assert torch.equal(again[1], edges)


def test_the_logits_depend_on_everything_they_should() -> None:
    net = network()
    batch, time = graphs(sizes=(5, 5))
    base = logits(net, batch, time)
    flipped = batch.edges.clone()
    flipped[:, 0, 1] = flipped[:, 1, 0] = (batch.edges[:, 0, 1] + 1) % 3
    moved = [
        logits(net, batch, 1 - time),
        logits(net, GraphBatch((batch.nodes + 1) % 4, batch.edges, batch.mask), time),
        logits(net, GraphBatch(batch.nodes, flipped, batch.mask), time),
    ]
    for other in moved:
        assert (other[0] - base[0]).abs().max() > 1e-3
        assert (other[1] - base[1]).abs().max() > 1e-3


def test_every_parameter_gets_a_gradient() -> None:
    net = network()
    silent = [n for (n, _), g in zip(net.named_parameters(), gradients(net, *graphs()), strict=True) if not g.abs().sum() > 0]
    assert [n for n in silent if not n.startswith("blocks.2.pool")] == []  # the last global state is read by nobody


def random_graph(n: int, density: float, seed: int) -> nx.Graph:
    return nx.gnp_random_graph(n, density, seed=seed)


@pytest.mark.parametrize("density", [0.2, 0.4, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_cycle_counts_are_those_of_an_enumeration(density: float, seed: int) -> None:
    graph = random_graph(8, density, seed)
    wanted = np.zeros((8, 3))
    for cycle in nx.simple_cycles(graph, length_bound=5):
        if len(cycle) >= 3:
            wanted[cycle, len(cycle) - 3] += 1
    adjacency = torch.tensor(nx.to_numpy_array(graph))
    for dtype in DTYPES:
        assert cycle_counts(adjacency[None].to(dtype))[0].tolist() == wanted.tolist()
    padded = torch.nn.functional.pad(adjacency, (0, 3, 0, 3))[None]
    assert cycle_counts(padded)[0].tolist() == [*wanted.tolist(), *np.zeros((3, 3)).tolist()]


@pytest.mark.parametrize("density", [0.0, 0.3, 0.8])
def test_random_walks_are_matrix_powers(density: float) -> None:
    adjacency = nx.to_numpy_array(random_graph(7, density, 1))
    adjacency[2] = adjacency[:, 2] = 0  # one node stands alone
    scale = np.diag([1 / math.sqrt(d) if d else 0.0 for d in adjacency.sum(1)])
    found = random_walks(torch.tensor(adjacency)[None], 6)
    assert found.shape == (6, 1, 7, 7)
    for k in range(6):
        np.testing.assert_allclose(found[k, 0].numpy(), np.linalg.matrix_power(scale @ adjacency @ scale, k + 1), atol=1e-14)


def test_bfloat16_autocast_leaves_the_counts_exact() -> None:
    """Complete graphs of 12 nodes: A^5 has entries near 15,000, and bfloat16 holds integers up to 256."""
    batch = GraphBatch(
        torch.zeros(1, 12, dtype=torch.long), torch.ones(1, 12, 12, dtype=torch.long), torch.ones(1, 12, dtype=torch.bool)
    )
    net = network(torch.float32)
    seen: list[Tensor] = []
    net.node_in.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    net(batch.nodes, batch.edges, torch.rand(1), batch.mask)
    with torch.autocast("cpu", torch.bfloat16):
        nodes, edges = net(batch.nodes, batch.edges, torch.rand(1), batch.mask)
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(edges, edges.transpose(1, 2))
    assert torch.isfinite(nodes).all()


def test_a_mask_class_is_no_bond_and_a_bond_is() -> None:
    """Inputs with 3 edge states, 2 of them clean: state 2 is the mask, so it makes neither walks nor cycles."""
    net = network()
    seen: list[Tensor] = []
    net.node_in.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0][..., 4:]))
    mask = torch.ones(1, 4, dtype=torch.bool)
    for state in (0, 1, 2):
        net(torch.zeros(1, 4, dtype=torch.long), torch.full((1, 4, 4), state), torch.rand(1), mask)
    assert (seen[0] == 0).all()
    assert (seen[2] == 0).all()
    assert (seen[1][..., -3:-1] > 0).all()


@pytest.mark.parametrize(("name", "shape", "low", "high"), [("SMALL", SMALL, 0.3e6, 1.5e6), ("BASE", BASE, 8e6, 16e6)])
def test_named_sizes(name: str, shape: dict[str, Any], low: float, high: float) -> None:
    with torch.device("meta"):
        net = GraphTransformer(GraphTransformerConfig(5, 5, 4, 4, **shape))
    assert low < sum(p.numel() for p in net.parameters()) < high, name


def test_dropout_only_acts_in_training() -> None:
    net = network(dropout=0.5)
    batch, time = graphs()
    assert torch.equal(net(batch.nodes, batch.edges, time, batch.mask)[0], net(batch.nodes, batch.edges, time, batch.mask)[0])
    net.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, second = (net(batch.nodes, batch.edges, time, batch.mask)[0] for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("layers", 0, "layers: 0, expected at least 1"),
        ("edge_width", -1, "edge_width: -1, expected at least 1"),
        ("heads", 3, r"width: 16, expected a multiple of heads \(3\)"),
        ("walk_length", 1, "walk_length: 1, expected at least 2"),
        ("dropout", 1.0, "dropout: 1.0, expected at least 0 and less than 1"),
        ("global_width", 0, "global_width: 0, expected at least 1"),
        ("expansion", 0, "expansion: 0, expected at least 1"),
    ],
)
def test_bad_settings_are_named(option: str, value: Any, text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}"):
        network(**{option: value})
    with pytest.raises(ValueError, match=f"^{text}"):
        NetworkSizes(**{"width": 16, option: value})


def test_a_configuration_is_flat_in_a_checkpoint() -> None:
    config = GraphTransformerConfig(4, 3, 3, 2, width=32, log_time=True)
    stored = describe(config)
    assert {"node_states": 4, "edge_classes": 2, "width": 32, "log_time": True}.items() <= stored["init_args"].items()
    assert build(stored) == config


def test_settings_build_the_same_network_again() -> None:
    net = network()
    again = GraphTransformer(**net.init_args()).double()
    again.load_state_dict(net.state_dict())
    batch, time = graphs()
    assert torch.equal(logits(again.eval(), batch, time)[1], logits(net, batch, time)[1])
