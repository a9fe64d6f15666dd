"""Edges of the equivariant transformer: undirected ones are symmetric, directed ones tell source from target."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from discrete_grpo.domains.fields import FieldLogits
from discrete_grpo.models.equivariant import EquivariantTransformer
from tests.models.equivariant_parts import assert_same, each_kind, flat, graphs, network, run


@each_kind
def test_undirected_logits_are_exactly_symmetric_and_shapes_are_those_of_the_fields(kind: str) -> None:
    net = network(kind)
    batch, time = graphs(kind)
    found = run(net, batch, time)
    assert {name: tuple(value.shape) for name, value in found.nodes.items()} == {"atom": (4, 6, 4), "charge": (4, 6, 3)}
    assert {name: tuple(value.shape) for name, value in found.edges.items()} == {"bond": (4, 6, 6, 4), "arrow": (4, 6, 6, 2)}
    for name, value in found.edges.items():
        assert torch.equal(value, value.transpose(1, 2)) == (name not in net.config.directed), name
        assert (value.diagonal(dim1=1, dim2=2) == 0).all()
    spoilt = {name: value if name in net.config.directed else value.triu(1) for name, value in batch.edges.items()}
    spoilt = {name: value + torch.eye(6, dtype=torch.long) for name, value in spoilt.items()}
    assert_same(flat(run(net, replace(batch, edges=spoilt), time), batch.mask), flat(found, batch.mask), 0)


def arrow(net: EquivariantTransformer, i: int, j: int, atoms: tuple[int, int, int] = (0, 0, 0)) -> FieldLogits:
    """The network's view of three nodes with one edge from i to j; the diagonal is no edge."""
    edges = {name: torch.zeros(1, 3, 3, dtype=torch.long) for name in net.config.edge_fields}
    edges["arrow"][0, i, j] = 1
    if not net.config.directed:
        edges["arrow"][0, j, i] = 1
    nodes = {"atom": torch.tensor([atoms]), "charge": torch.zeros(1, 3, dtype=torch.long)}
    return net(nodes, edges, None, torch.full((1,), 0.5), torch.ones(1, 3, dtype=torch.bool))


def test_a_directed_network_tells_source_from_target() -> None:
    net = network("directed")
    there, back = arrow(net, 0, 1), arrow(net, 1, 0)
    assert (there.nodes["atom"][0, 0] - there.nodes["atom"][0, 1]).abs().max() > 1e-3
    swap = torch.tensor([1, 0, 2])  # the reversed arrow is the relabelled arrow
    torch.testing.assert_close(back.nodes["atom"], there.nodes["atom"][:, swap])
    torch.testing.assert_close(back.edges["arrow"], there.edges["arrow"][:, swap][:, :, swap])
    plain = arrow(network("plain"), 0, 1)
    torch.testing.assert_close(plain.nodes["atom"][0, 0], plain.nodes["atom"][0, 1])


@pytest.mark.parametrize("kind", ["directed", "both"])
def test_reversing_every_edge_is_no_transposition_of_the_result(kind: str) -> None:
    net = network(kind)
    batch, time = graphs(kind, sizes=(6, 6))
    turned = {**batch.edges, "arrow": batch.edges["arrow"].transpose(1, 2)}
    found, back = run(net, batch, time), run(net, replace(batch, edges=turned), time)
    assert (found.nodes["atom"] - back.nodes["atom"]).abs().max() > 1e-2
    assert (found.edges["bond"] - back.edges["bond"]).abs().max() > 1e-2
    assert (found.edges["arrow"] - back.edges["arrow"].transpose(1, 2)).abs().max() > 1e-2
    assert (found.edges["arrow"] - back.edges["arrow"]).abs().max() > 1e-2


@pytest.mark.parametrize(("part", "silent"), [("bias", ["incident"]), ("incident", ["bias"]), ("edge_in", ["bias", "incident"])])
def test_each_part_of_a_layer_reads_both_directions(part: str, silent: list[str]) -> None:
    """With the other readers of pair states silent, what belongs to (0, 1) depends on the arrow from 0 to 1 and on that back."""
    net = network("directed", layers=1)
    for name in [*silent, "pool"]:  # nodes also hear of each other by the state of the graph
        getattr(net.blocks[0], name).weight.data.zero_()
    empty, there, back = (arrow(net, i, j, (0, 1, 2)) for i, j in ((2, 2), (0, 1), (1, 0)))
    for found in (there, back):
        changed = found.edges["arrow"] - empty.edges["arrow"] if part == "edge_in" else found.nodes["atom"] - empty.nodes["atom"]
        assert (changed[0, 0, 1] if part == "edge_in" else changed[0, 0]).abs().max() > 1e-5
