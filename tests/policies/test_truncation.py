"""Temperature, top-k and top-p against a loop over sorted classes in float64."""

from __future__ import annotations

import math

import pytest
import torch

from discrete_grpo.policies.truncation import Truncation, pack_bits, unpack_bits


def by_hand(logits: list[float], allowed: list[bool], t: float, k: int | None, p: float) -> list[float]:
    """Sort, cut after k classes, then after the fewest whose renormalised sum reaches p, renormalise."""
    order = sorted((c for c in range(len(logits)) if allowed[c]), key=lambda c: -logits[c])
    order = order[: k or len(order)]
    weight = {c: math.exp(logits[c] / t) for c in order}
    total, kept, mass = sum(weight.values()), [], 0.0
    for c in order:
        kept.append(c)
        mass += weight[c] / total
        if mass >= p:
            break
    whole = sum(weight[c] for c in kept)
    return [weight[c] / whole if c in kept else 0.0 for c in range(len(logits))]


@pytest.mark.parametrize("t", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("k", "p"), [(None, 1.0), (3, 1.0), (None, 0.7), (4, 0.6), (1, 1.0), (None, 0.01)])
def test_tables_equal_a_loop(t: float, k: int | None, p: float) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(5, 7, generator=generator, dtype=torch.float64) * 2
    allowed = torch.rand(5, 7, generator=generator) < 0.8
    allowed[:, 0] = True
    truncation = Truncation(t, k, p)
    table = truncation.log_probs(logits, truncation.keep(logits, allowed)).exp()
    expected = [by_hand(z, a, t, k, p) for z, a in zip(logits.tolist(), allowed.tolist(), strict=True)]
    torch.testing.assert_close(table, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_a_stored_set_is_kept_under_other_logits() -> None:
    kept = torch.tensor([[True, True, False]])
    table = Truncation(top_k=2).log_probs(torch.tensor([[0.0, 0.0, 50.0]]), kept)
    assert table.exp().tolist() == [[0.5, 0.5, 0.0]]


def test_ties_keep_exactly_k() -> None:
    assert Truncation(top_k=2).keep(torch.zeros(1, 5), torch.ones(1, 5, dtype=torch.bool)).tolist() == [
        [True, True, False, False, False]
    ]


def test_half_precision_logits_give_float32_tables() -> None:
    table = Truncation().log_probs(torch.zeros(1, 4, dtype=torch.bfloat16), torch.ones(1, 4, dtype=torch.bool))
    assert table.dtype == torch.float32


@pytest.mark.parametrize("count", [1, 8, 9, 68])
def test_bits_survive_packing(count: int) -> None:
    flags = torch.rand(3, 2, count, generator=torch.Generator().manual_seed(0)) < 0.5
    packed = pack_bits(flags)
    assert packed.shape == (3, 2, -(-count // 8))
    assert torch.equal(unpack_bits(packed, count), flags)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temperature": 0.0}, "temperature: 0.0, expected more than 0"),
        ({"temperature": float("nan")}, "temperature: nan"),
        ({"top_k": 0}, "top_k: 0, expected at least 1 or None"),
        ({"top_k": 2.5}, r"top_k: 2\.5, expected a whole number, at least 1 or None"),
        ({"top_k": 2.0}, r"top_k: 2\.0, expected a whole number"),
        ({"top_k": True}, "top_k: True, expected a whole number, at least 1 or None"),
        ({"top_p": 0.0}, "top_p: 0.0, expected more than 0 and at most 1"),
        ({"top_p": 1.5}, "top_p: 1.5"),
    ],
)
def test_values_out_of_range_are_named(options: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Truncation(**options)  # type: ignore[arg-type]


def test_top_p_stops_where_the_sum_is_reached_exactly() -> None:
    kept = Truncation(top_p=0.5).keep(torch.zeros(1, 4), torch.ones(1, 4, dtype=torch.bool))
    assert kept.tolist() == [[True, True, False, False]]
