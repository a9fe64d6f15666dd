"""The bidirectional transformer: every position sees every other, padding is seen by none, sizes are checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo.models.encoder import Encoder, EncoderConfig, PooledEncoder
from discrete_grpo.runs.checkpoint import build, describe

CONFIG = EncoderConfig(num_tokens=7, block_size=6, layers=2, heads=2, width=16)


def make(kind: type[nn.Module], config: EncoderConfig = CONFIG) -> Any:
    """Random weights of unit size in float64, so that every path matters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = kind(config).double().eval()
        for parameter in network.parameters():
            parameter.data.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64))
    return network


def tokens(rows: int = 3, length: int = 5) -> Tensor:
    return torch.randint(1, 7, (rows, length), generator=torch.Generator().manual_seed(1))


def test_shapes_and_that_every_position_sees_every_other() -> None:
    network, x = make(Encoder), tokens()
    mask = torch.ones(3, 5, dtype=torch.bool)
    logits = network(x, mask)
    assert logits.shape == (3, 5, 7)
    for place in range(5):
        changed = x.clone()
        changed[:, place] = changed[:, place] % 6 + 1
        moved = (network(changed, mask) - logits).abs().amax(-1)
        assert (moved > 1e-6).all()
    assert make(PooledEncoder)(x, mask).shape == (3,)


def test_the_order_of_tokens_matters_to_both() -> None:
    x, mask = torch.tensor([[1, 2, 3]]), torch.ones(1, 3, dtype=torch.bool)
    for kind in (Encoder, PooledEncoder):
        network = make(kind)
        a, b = network(x, mask), network(x.flip(1), mask)
        assert (a - (b.flip(1) if kind is Encoder else b)).abs().max() > 1e-6


@pytest.mark.parametrize("context", [0, 2])
@pytest.mark.parametrize("kind", [Encoder, PooledEncoder])
def test_padding_and_company_change_nothing(kind: type[nn.Module], context: int) -> None:
    network, x = make(kind, replace(CONFIG, context=context)), tokens()
    sizes = torch.tensor([5, 2, 3])
    mask = torch.arange(5) < sizes[:, None]
    together = network(x, mask)
    garbage = network(torch.where(mask, x, 6), mask)
    for b, n in enumerate(sizes.tolist()):
        alone = network(x[b : b + 1, :n], mask[b : b + 1, :n])[0]
        for found in (together[b], garbage[b]):
            torch.testing.assert_close(found[:n] if kind is Encoder else found, alone, rtol=0, atol=1e-12)


def test_an_empty_text_is_finite_in_value_and_gradient() -> None:
    network = make(PooledEncoder)
    mask = torch.tensor([[True, True], [False, False]])
    found = network(torch.tensor([[1, 2], [0, 0]]), mask)
    found.sum().backward()
    assert torch.isfinite(found).all()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters() if p.grad is not None)
    assert float(found[1].detach()) == pytest.approx(float(network.head(torch.zeros(32, dtype=torch.float64)).detach()))


@pytest.mark.parametrize("kind", [Encoder, PooledEncoder])
def test_a_checkpoint_builds_it_again(kind: type[nn.Module]) -> None:
    again = build(describe(make(kind)))
    assert type(again) is kind
    assert again.config == CONFIG


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_tokens": 1}, "num_tokens: 1, expected at least 2"),
        ({"block_size": 0}, "block_size: 0, expected at least 1"),
        ({"context": -1}, "context: -1, expected at least 0"),
        ({"width": 15}, "width: 15, expected a multiple of heads (2)"),
        ({"dropout": 1.0}, "dropout: 1.0, expected at least 0 and less than 1"),
    ],
)
def test_sizes_out_of_range_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="expected") as error:
        EncoderConfig(**(vars(CONFIG) | changed))
    assert str(error.value) == said


def test_a_text_longer_than_the_block_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tokens: 7 columns, expected at most block_size \(6\)"):
        make(Encoder)(tokens(1, 7), torch.ones(1, 7, dtype=torch.bool))


def test_a_configuration_is_flat_in_a_checkpoint() -> None:
    config = EncoderConfig(7, 6, layers=2, context=1)
    stored = describe(config)
    assert {"num_tokens": 7, "block_size": 6, "layers": 2, "context": 1}.items() <= stored["init_args"].items()
    assert build(stored) == config
