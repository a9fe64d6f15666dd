"""Pairs of a batch and their geometry, against loops over nodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from discrete_grpo.domains.fields import centred
from discrete_grpo.domains.graphs import node_mask
from discrete_grpo.models.pair_geometry import Pairs, lengths, moved, pair_invariants, radial_features

SIZES, N = (4, 2, 1), 4
ways = pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])


def example(ordered: bool) -> tuple[Pairs, Tensor, Tensor]:
    """Pairs, zero-mean positions, and a number for each pair."""
    mask = node_mask(torch.tensor(SIZES), N)
    pairs = Pairs.of(mask, torch.float64, ordered)
    g = torch.Generator().manual_seed(0)
    positions = centred(torch.randn(3, N, 3, generator=g, dtype=torch.float64), mask)
    return pairs, positions, torch.randn(3, len(pairs.left), 1, generator=g, dtype=torch.float64)


@ways
def test_square_and_around_put_each_pair_in_its_place(ordered: bool) -> None:
    pairs, _, values = example(ordered)
    square, around = pairs.square(values)[..., 0], pairs.around(values)
    ends = list(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True))
    assert len(set(ends)) == len(ends) == (12 if ordered else 6)
    assert (square.diagonal(dim1=1, dim2=2) == 0).all()
    for p, (i, j) in enumerate(ends):
        assert torch.equal(square[:, i, j], values[:, p, 0])
        back = values[:, ends.index((j, i)), 0] if ordered else square[:, i, j]
        assert torch.equal(square[:, j, i], back)
        assert torch.equal(around[:, p], torch.stack([values[:, p, 0], back], -1) if ordered else values[:, p])


@ways
def test_entries_ends_and_incidence_read_matrices_and_nodes(ordered: bool) -> None:
    pairs, _, values = example(ordered)
    matrix = torch.arange(3 * 2 * N * N, dtype=torch.float64).view(3, 2, N, N)
    nodes = torch.arange(3 * N * 2, dtype=torch.float64).view(3, N, 2)
    entries, (at_left, at_right), summed = pairs.entries(matrix), pairs.ends(nodes), pairs.incidence @ values
    for p, (i, j) in enumerate(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)):
        both = torch.cat([matrix[:, :, i, j], matrix[:, :, j, i]], -1) if ordered else matrix[:, :, i, j] + matrix[:, :, j, i]
        assert torch.equal(entries[:, p], both)
        assert torch.equal(at_left[:, p], nodes[:, i, :1] if ordered else nodes[:, i])
        assert torch.equal(at_right[:, p], nodes[:, j, 1:] if ordered else nodes[:, j])
    torch.testing.assert_close(summed[..., 0], pairs.square(values)[..., 0].sum(-1))


def test_weights_count_existing_neighbours() -> None:
    weight = Pairs.of(node_mask(torch.tensor(SIZES), N), torch.float64, False).weight[..., 0]
    torch.testing.assert_close(weight[0], torch.full((6,), 3**-0.5, dtype=torch.float64))
    assert weight[1].tolist() == [1, 0, 0, 0, 0, 0]
    assert weight[2].tolist() == [0] * 6


def test_radial_features_are_normal_densities_of_the_logarithm() -> None:
    distances = np.array([0.0, 0.96, 1.54, 7.0, 30.0])
    found = radial_features(torch.tensor(distances)[:, None], 9).numpy()
    step = np.log(21) / 8
    density = norm.pdf(np.log1p(distances)[:, None], loc=step * np.arange(9), scale=step)
    np.testing.assert_allclose(found[:, 0], np.log(1 + distances))
    np.testing.assert_allclose(found[:, 1:], density * step * np.sqrt(2 * np.pi))


@ways
def test_invariants_are_distances_and_scaled_inner_products(ordered: bool) -> None:
    pairs, positions, _ = example(ordered)
    distances, features = pair_invariants(positions, pairs, 3)
    for p, (i, j) in enumerate(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)):
        p_i, p_j = positions[0, i].numpy(), positions[0, j].numpy()
        norms = (1 + np.linalg.norm(p_i)) * (1 + np.linalg.norm(p_j))
        assert distances[0, p, 0].item() == pytest.approx(np.linalg.norm(p_i - p_j), rel=1e-6)
        assert features[0, p, 0].item() == pytest.approx(p_i @ p_j / norms, rel=1e-6)
    assert torch.equal(features[..., 1:], radial_features(distances, 3))


@ways
def test_nodes_move_along_relative_vectors(ordered: bool) -> None:
    pairs, positions, values = example(ordered)
    steps = torch.randn(3, N, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights = values * pairs.weight
    found, square = moved(positions, weights, steps, pairs), pairs.square(weights)[..., 0]
    for b, size in enumerate(SIZES):
        wanted = np.zeros((N, 3))
        for i in range(size):
            p_i, (alpha, beta) = positions[b, i].numpy(), steps[b, i].tolist()
            push = sum(square[b, i, j].item() * (p_i - positions[b, j].numpy()) for j in range(size))
            wanted[i] = p_i + (1 + alpha) * push + beta * p_i / (np.linalg.norm(p_i) + 1)
        wanted[:size] -= wanted[:size].mean(0)
        np.testing.assert_allclose(found[b].numpy(), wanted, atol=1e-7)


def test_moves_keep_their_precision_under_autocast() -> None:
    mask = node_mask(torch.tensor(SIZES), N)
    pairs, positions = Pairs.of(mask, torch.float32, False), centred(torch.randn(3, N, 3), mask)
    arguments = positions, torch.randn(3, 6, 1) * pairs.weight, torch.randn(3, N, 2), pairs
    with torch.autocast("cpu", torch.bfloat16):
        found = moved(*arguments)
    assert torch.equal(found, moved(*arguments))


def test_lengths_have_a_gradient_at_zero() -> None:
    vectors = torch.zeros(2, 3, requires_grad=True)
    lengths(vectors).sum().backward()
    assert vectors.grad is not None
    assert (vectors.grad == 0).all()
    assert lengths(torch.tensor([[3.0, 0.0, 4.0]])).item() == pytest.approx(5.0)
