"""Sums and products over pairs against their plain forms, values and gradients, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo.domains.graphs import node_mask, num_pairs, pair_index, pair_mask, symmetrise
from discrete_grpo.models.pairs import FilmNorm, PairLayout, film_norm, incident_sum, pair_update, square

SIZES = [[4, 4, 4], [5, 2, 1, 4], [1], [2, 2]]


def layout_of(sizes: Sequence[int]) -> tuple[PairLayout, Tensor]:
    mask = node_mask(torch.tensor(sizes), max(sizes))
    return PairLayout.of(mask, bool(mask.all()), torch.float64), mask


def drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]


def same(ours: Callable[..., Tensor], plain: Callable[..., Tensor], inputs: Sequence[Tensor]) -> None:
    """Equal values and equal gradients of a weighted sum."""
    found, expected = ours(*inputs), plain(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weight = torch.linspace(-1, 2, expected.numel(), dtype=torch.float64).view_as(expected)
    gradients = [torch.autograd.grad((x * weight).sum(), inputs, allow_unused=True) for x in (found, expected)]
    for ours_, plain_ in zip(*gradients, strict=True):
        torch.testing.assert_close(ours_, plain_, rtol=1e-11, atol=1e-11)


def updated(inputs: Sequence[Tensor], layout: PairLayout) -> Tensor:
    """:func:`pair_update` of its tensors in order."""
    state, normed, logits, nodes, into, out, bias = inputs
    return pair_update(state, normed, logits, nodes, into, out, bias, layout)


@pytest.mark.parametrize("sizes", SIZES)
def test_square_is_symmetrise(sizes: list[int]) -> None:
    layout, _ = layout_of(sizes)
    n = max(sizes)
    same(lambda x: square(x, layout, n), lambda x: symmetrise(x, n), drawn((len(sizes), num_pairs(n), 3)))


@pytest.mark.parametrize("sizes", SIZES)
def test_places_of_pairs_in_a_square(sizes: list[int]) -> None:
    layout, _ = layout_of(sizes)
    n = max(sizes)
    left, right = pair_index(n)
    number = torch.arange(n * n).view(n, n)
    assert torch.equal(layout.left, left)
    assert torch.equal(layout.right, right)
    assert torch.equal(number.flatten()[layout.flat], number[left, right])
    assert torch.equal(layout.place.view(n, n)[left, right], torch.arange(num_pairs(n)))


@pytest.mark.parametrize("sizes", SIZES)
def test_incident_sum_is_the_product_with_the_incidence_matrix(sizes: list[int]) -> None:
    layout, mask = layout_of(sizes)
    n = max(sizes)
    left, right = pair_index(n)
    number = torch.arange(n)[:, None]
    incidence = ((number == left) | (number == right)).double()

    def plain(x: Tensor) -> Tensor:
        # A bag of a padded node leaves out its pairs too, as one of their ends does not exist.
        return incidence @ (x * pair_mask(mask).unsqueeze(-1))

    same(lambda x: incident_sum(x, layout, n), plain, drawn((len(sizes), num_pairs(n), 3)))


def test_film_norm_is_layer_norm_with_a_scale_and_a_shift_per_graph() -> None:
    def plain(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * (1 + scale) + shift

    same(film_norm, plain, drawn((3, 7, 4), (3, 1, 4), (3, 1, 4)))


def test_the_scale_and_the_shift_of_a_film_norm_are_linear_in_the_state_of_the_graph_and_zero_at_first() -> None:
    norm = FilmNorm(4, 2).double()
    x, y, weight, bias = (value.detach() for value in drawn((3, 7, 4), (3, 2), (8, 2), (8,)))
    plain = nn.functional.layer_norm(x, (4,))
    torch.testing.assert_close(norm(x, y), plain, rtol=1e-12, atol=1e-12)
    norm.load_state_dict({"film.weight": weight, "film.bias": bias})
    scale, shift = (y @ weight[rows].T + bias[rows] for rows in (slice(0, 4), slice(4, 8)))
    torch.testing.assert_close(norm(x, y), plain * (1 + scale[:, None]) + shift[:, None], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sizes", SIZES)
def test_pair_update_is_its_formula(sizes: list[int]) -> None:
    layout, _ = layout_of(sizes)
    b, n = len(sizes), max(sizes)
    p, d, heads, hidden = num_pairs(n), 3, 2, 5

    def plain(e: Tensor, normed: Tensor, logits: Tensor, a: Tensor, into: Tensor, out: Tensor, bias: Tensor) -> Tensor:
        left, right = pair_index(n)
        own = torch.cat([normed, logits], -1) @ into[:, :-1].T + into[:, -1]
        return e + nn.functional.gelu(own + a[:, left] * a[:, right]) @ out.T + bias

    shapes = (b, p, d), (b, p, d), (b, p, heads), (b, n, hidden), (hidden, d + heads + 1), (d, hidden), (d,)
    same(lambda *x: updated(x, layout), plain, drawn(*shapes))


@pytest.mark.slow
def test_compiled_code_computes_the_same() -> None:
    sizes = [4, 3]
    layout, _ = layout_of(sizes)
    inputs = drawn((2, 6, 3), (2, 6, 3), (2, 6, 2), (2, 4, 5), (5, 6), (3, 5), (3,))

    def chain(*x: Tensor) -> Tensor:
        e = updated(x, layout)
        e = film_norm(e, x[1].mean(1, keepdim=True), x[0].mean(1, keepdim=True))
        return incident_sum(e, layout, 4)

    compiled = torch.compile(chain, backend="aot_eager", fullgraph=True)
    same(chain, compiled, inputs)


def test_bfloat16_autocast_runs_the_products_in_bfloat16() -> None:
    layout, _ = layout_of([4, 4])
    inputs = [x.detach().float().requires_grad_() for x in drawn((2, 6, 3), (2, 6, 3), (2, 6, 2), (2, 4, 5), (5, 6), (3, 5), (3,))]
    with torch.autocast("cpu", torch.bfloat16):
        rounded = updated(inputs, layout)
    exact = updated(inputs, layout)
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.1)
    gradients = [torch.autograd.grad(x.sum(), inputs) for x in (rounded, exact)]
    for ours, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0.1, atol=0.2)
