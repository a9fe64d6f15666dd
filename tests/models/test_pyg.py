"""PyG networks as denoisers: the batch they see, renumbering, padding, and a policy that obeys the laws of the kit."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch

from discrete_grpo import group_contexts
from discrete_grpo.domains.graphs import GraphBatch, node_mask, permute, symmetrise
from discrete_grpo.models.pyg import MessagePassing, PyGDenoiser, to_batch
from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions, diffusion_policy
from discrete_grpo.runs import checkpoint
from discrete_grpo.testing import check_policy

Kind = Literal["gine", "gps"]
SIZES = torch.tensor([5, 2, 4])


def graphs(seed: int = 0, width: int = 6) -> GraphBatch:
    generator = torch.Generator().manual_seed(seed)
    mask = node_mask(SIZES, width)
    nodes = torch.randint(3, (3, width), generator=generator) * mask
    edges = symmetrise(torch.randint(4, (3, width * (width - 1) // 2), generator=generator), width)
    return GraphBatch(nodes, edges * (mask[:, None] & mask[:, :, None]), mask)


def denoiser(kind: Kind) -> PyGDenoiser:
    torch.manual_seed(0)
    network = PyGDenoiser(MessagePassing(3, 4, width=8, layers=2, kind=kind, heads=2), 8, 3, 4)
    return network.double().eval()


def test_the_batch_holds_the_existing_nodes_and_edges() -> None:
    dense = graphs()
    batch = to_batch(dense.nodes, dense.edges, torch.rand(3), dense.mask)
    for k, n in enumerate(SIZES.tolist()):
        here = (batch.batch == k).nonzero().flatten()
        assert batch.x[here].tolist() == dense.nodes[k, :n].tolist()
        matrix = torch.zeros(n, n, dtype=torch.long)
        inside = batch.batch[batch.edge_index[0]] == k
        i, j = batch.edge_index[:, inside] - here[0]
        matrix[i, j] = batch.edge_attr[inside]
        assert matrix.tolist() == dense.edges[k, :n, :n].tolist()


@pytest.mark.parametrize("kind", ["gine", "gps"])
def test_renumbering_the_nodes_renumbers_the_logits(kind: Kind) -> None:
    network, batch, time = denoiser(kind), graphs(), torch.rand(3, dtype=torch.float64)
    order = torch.stack([torch.cat([torch.randperm(int(n)), torch.arange(int(n), 6)]) for n in SIZES])
    moved = permute(batch, order)
    nodes, edges = network(batch.nodes, batch.edges, time, batch.mask)
    after_nodes, after_edges = network(moved.nodes, moved.edges, time, moved.mask)
    rows = torch.arange(3)[:, None]
    pairs = batch.mask[:, :, None] & batch.mask[:, None]
    torch.testing.assert_close(after_nodes[batch.mask], nodes[rows, order][batch.mask])
    torch.testing.assert_close(after_edges[pairs], edges[rows[..., None], order[:, :, None], order[:, None, :]][pairs])
    torch.testing.assert_close(edges, edges.transpose(1, 2))
    assert (nodes[0, 0] - nodes[0, 1]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["gine", "gps"])
def test_padding_and_other_graphs_change_nothing(kind: Kind) -> None:
    network, batch, time = denoiser(kind), graphs(), torch.rand(3, dtype=torch.float64)
    nodes, edges = network(batch.nodes, batch.edges, time, batch.mask)
    alone = batch.index(torch.tensor([1])).crop(2)
    few_nodes, few_edges = network(alone.nodes, alone.edges, time[1:2], alone.mask)
    torch.testing.assert_close(few_nodes[0], nodes[1, :2])
    torch.testing.assert_close(few_edges[0], edges[1, :2, :2])


@pytest.mark.parametrize("kind", ["gine", "gps"])
def test_a_policy_of_it_obeys_the_laws_and_is_stored(kind: Kind, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = PyGDenoiser(MessagePassing(2, 3, width=8, layers=1, kind=kind, heads=2), 8, 2, 3)
    options = DiffusionOptions(num_steps=3)
    policy = diffusion_policy(((0.6, 0.4), (0.5, 0.3, 0.2)), (0.0, 0.0, 0.5, 0.5), network, options)
    learned = ["learning", "derivative", "frequencies", "calibration"]  # of every graph policy, tested with other networks
    check_policy(policy, group_contexts(2, 2), samples=64, skip=learned).raise_on_failure()
    checkpoint.save(tmp_path / "policy", policy, metadata={})
    again = checkpoint.read_policy(tmp_path / "policy")
    draw = [p.sample(group_contexts(2, 2), generator=torch.Generator().manual_seed(0)).logp for p in (policy.eval(), again.eval())]
    assert torch.equal(*draw)


def test_arguments_out_of_range_are_named() -> None:
    with pytest.raises(ValueError, match="kind: 'gat', expected gine or gps"):
        MessagePassing(2, 2, kind="gat")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^width: 10, expected a multiple of heads \(4\) with gps$"):
        MessagePassing(2, 2, width=10, kind="gps")
    with pytest.raises(ValueError, match="node_classes: 0"):
        PyGDenoiser(torch.nn.Identity(), 8, 0, 2)


@pytest.mark.parametrize("states", [0, 1])
def test_fewer_states_than_classes_of_an_edge_are_refused(states: int) -> None:
    with pytest.raises(ValueError, match=rf"^edge_states: {states}, expected at least 2 \(edge_classes\)$"):
        PyGDenoiser(torch.nn.Linear(4, 4), 4, 3, 2, edge_states=states)
