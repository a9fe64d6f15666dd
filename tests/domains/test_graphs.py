"""Graph batches: the pair order, packing, padding and relabelling."""

from __future__ import annotations

import pytest
import torch

from discrete_grpo.domains.graphs import (
    GraphBatch,
    node_mask,
    num_pairs,
    pack,
    pair_index,
    pair_mask,
    permute,
    symmetrise,
    unpack,
    upper,
)


def batch(seed: int = 0, sizes: tuple[int, ...] = (5, 2, 4), n: int = 6) -> GraphBatch:
    g = torch.Generator().manual_seed(seed)
    mask = node_mask(torch.tensor(sizes), n)
    nodes = torch.where(mask, torch.randint(9, (len(sizes), n), generator=g), 0)
    pairs = torch.where(pair_mask(mask), torch.randint(5, (len(sizes), num_pairs(n)), generator=g), 0)
    return GraphBatch(nodes, symmetrise(pairs, n), mask)


def same(a: GraphBatch, b: GraphBatch) -> bool:
    return torch.equal(a.nodes, b.nodes) and torch.equal(a.edges, b.edges) and torch.equal(a.mask, b.mask)


@pytest.mark.parametrize("n", [1, 2, 3, 6, 11])
def test_the_pair_order_is_the_stated_one_and_does_not_depend_on_the_padding(n: int) -> None:
    wanted = [(i, j) for j in range(n) for i in range(j)]
    i, j = pair_index(n)
    assert list(zip(i.tolist(), j.tolist(), strict=True)) == wanted
    assert len(wanted) == num_pairs(n)
    assert all(j * (j - 1) // 2 + i == k for k, (i, j) in enumerate(wanted))
    bigger = pair_index(n + 3)
    assert torch.equal(bigger[0][: num_pairs(n)], i)
    assert torch.equal(bigger[1][: num_pairs(n)], j)


def test_padding_appends_pairs() -> None:
    graphs = batch()
    before = upper(graphs.edges)
    after = upper(graphs.pad(9).edges)
    assert torch.equal(after[:, : before.shape[1]], before)
    assert (after[:, before.shape[1] :] == 0).all()


@pytest.mark.parametrize("rest", [(), (3,), (2, 2)])
def test_symmetrise_and_upper_are_inverse(rest: tuple[int, ...]) -> None:
    for n in (1, 2, 5):
        pairs = torch.randn(2, num_pairs(n), *rest, generator=torch.Generator().manual_seed(0))
        full = symmetrise(pairs, n)
        assert full.shape == (2, n, n, *rest)
        assert torch.equal(upper(full), pairs)
        assert torch.equal(full, full.transpose(1, 2))
        assert (full[:, range(n), range(n)] == 0).all()
    full = symmetrise(torch.arange(1, 7)[None], 4)[0]
    assert full.tolist() == [[0, 1, 2, 4], [1, 0, 3, 5], [2, 3, 0, 6], [4, 5, 6, 0]]


def test_the_lower_triangle_and_the_diagonal_are_never_read() -> None:
    edges = batch().edges.float()
    spoilt = edges + torch.full_like(edges, torch.nan).tril()
    assert torch.equal(upper(spoilt), upper(edges))
    spoilt.requires_grad_()
    (gradient,) = torch.autograd.grad(upper(spoilt).sum(), spoilt)
    assert torch.equal(gradient, torch.ones_like(gradient).triu(1))


def test_packing_is_one_byte_a_site_and_loses_nothing() -> None:
    graphs = batch()
    nodes, pairs = pack(graphs)
    assert (nodes.dtype, pairs.dtype) == (torch.uint8, torch.uint8)
    assert (nodes.shape, pairs.shape) == ((3, 6), (3, 15))
    back = unpack(nodes, pairs, graphs.mask)
    assert same(back, graphs)
    assert (back.nodes.dtype, back.edges.dtype) == (torch.int64, torch.int64)
    large = GraphBatch(torch.full((1, 2), 255), torch.tensor([[[0, 254], [254, 0]]]), torch.ones(1, 2, dtype=torch.bool))
    assert same(unpack(*pack(large), large.mask), large)


def test_masks() -> None:
    assert node_mask(torch.tensor([0, 2]), 3).tolist() == [[False] * 3, [True, True, False]]
    mask = node_mask(torch.tensor([3, 1]), 4)
    full = mask[:, :, None] & mask[:, None, :]
    assert torch.equal(pair_mask(mask), upper(full))
    assert pair_mask(mask).sum(-1).tolist() == [3, 0]


def test_relabelling_moves_nodes_and_their_edges() -> None:
    graphs = batch()
    order = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(k)) for k in range(3)])
    moved = permute(graphs, order)
    for b in range(3):
        for k in range(6):
            assert moved.nodes[b, k] == graphs.nodes[b, order[b, k]]
            assert moved.mask[b, k] == graphs.mask[b, order[b, k]]
            for l in range(6):
                assert moved.edges[b, k, l] == graphs.edges[b, order[b, k], order[b, l]]
    assert same(permute(moved, order.argsort(-1)), graphs)


def test_cropping_padding_indexing_and_moving() -> None:
    graphs = batch()
    assert same(graphs.crop(5).pad(6), graphs)
    assert graphs.crop(5).num_nodes == 5
    assert graphs.sizes.tolist() == [5, 2, 4]
    assert same(graphs.index(torch.tensor([2, 0])).index(torch.tensor([1])), graphs.index(slice(0, 1)))
    assert len(graphs.index(slice(1, 3))) == 2
    moved = graphs.to("meta")
    assert {t.device.type for t in (moved.nodes, moved.edges, moved.mask)} == {"meta"}
