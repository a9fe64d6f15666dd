"""The bidirectional transformer: every position sees every other, padding is seen by none, sizes are checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm

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


def hidden_by_definition(network: Any, text: list[int]) -> Tensor:
    """Hidden states of one text, attention and convolution written as sums."""
    config, trunk = network.config, network.trunk
    d, part = config.width, config.width // config.heads
    embedded = trunk.token.weight[text]
    x = embedded + trunk.position.weight[: len(text)]
    for i in range(len(text)):
        for j in range(len(text)):
            if abs(i - j) <= config.context and trunk.neighbours is not None:
                x[i] = x[i] + trunk.neighbours.weight[:, :, config.context + j - i] @ embedded[j]
        x[i] = x[i] + (0 if trunk.neighbours is None else trunk.neighbours.bias)
    for block in trunk.blocks:
        q, k, v = block.qkv(layer_norm(x, (d,), block.norm1.weight, block.norm1.bias)).split(d, 1)
        heads = []
        for h in range(config.heads):
            own = slice(h * part, (h + 1) * part)
            heads.append((q[:, own] @ k[:, own].T / part**0.5).softmax(1) @ v[:, own])
        x = x + block.out(torch.cat(heads, 1))
        normed = layer_norm(x, (d,), block.norm2.weight, block.norm2.bias)
        x = x + block.feed[2](gelu(block.feed[0](normed)))
    return layer_norm(x, (d,), trunk.norm.weight, trunk.norm.bias)


@pytest.mark.parametrize("context", [0, 2])
def test_logits_and_the_number_of_a_text_are_those_of_the_equations(context: int) -> None:
    encoder, pooled = (make(kind, replace(CONFIG, context=context)) for kind in (Encoder, PooledEncoder))
    x, sizes = tokens(), torch.tensor([5, 2, 3])
    mask = torch.arange(5) < sizes[:, None]
    logits, numbers = encoder(x, mask), pooled(x, mask)
    for b, n in enumerate(sizes.tolist()):
        text = x[b, :n].tolist()
        torch.testing.assert_close(logits[b, :n], encoder.head(hidden_by_definition(encoder, text)), rtol=0, atol=1e-10)
        hidden = hidden_by_definition(pooled, text)
        wanted = pooled.head(torch.cat([hidden.mean(0), hidden.amax(0)]))[0]
        torch.testing.assert_close(numbers[b], wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", [Encoder, PooledEncoder])
def test_layers_have_weights_of_their_own_that_start_small(kind: type[nn.Module]) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = kind(replace(CONFIG, layers=8, width=64))
    assert len([name for name, _ in network.named_parameters() if name.endswith("qkv.weight")]) == 8
    for name, parameter in network.named_parameters():
        if parameter.ndim > 1:
            end = name.endswith(("out.weight", "feed.2.weight"))
            assert float(parameter.detach().std()) == pytest.approx(0.02 / (4 if end else 1), rel=0.2), name
        else:
            assert (parameter == float("norm" in name and name.endswith("weight"))).all(), name


def test_dropout_acts_after_embeddings_attention_and_feed_forward_parts_in_training_only() -> None:
    network, x = make(Encoder, replace(CONFIG, layers=1, dropout=0.5)), tokens()
    mask = torch.ones(3, 5, dtype=torch.bool)
    assert torch.equal(network(x, mask), network(x, mask))
    network.train()
    block = network.trunk.blocks[0]
    kept: list[Tensor] = []
    for module in (network.trunk.dropout, block.dropout):
        module.register_forward_hook(lambda module, args, out: kept.append(out.detach()))
    network(x, mask)
    assert len(kept) == 3
    assert all(float((part == 0).double().mean()) == pytest.approx(0.5, abs=0.15) for part in kept)


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_an_empty_text_is_finite_in_value_and_gradient(dtype: torch.dtype) -> None:
    network = make(PooledEncoder).to(dtype)
    mask = torch.tensor([[True, True], [False, False]])
    found = network(torch.tensor([[1, 2], [0, 0]]), mask)
    found.sum().backward()
    assert torch.isfinite(found).all()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters() if p.grad is not None)
    assert float(found[1].detach()) == pytest.approx(float(network.head(torch.zeros(32, dtype=dtype)).detach()))


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
        ({"layers": 0}, "layers: 0, expected at least 1"),
        ({"heads": 0}, "heads: 0, expected at least 1"),
        ({"width": 0}, "width: 0, expected at least 1"),
        ({"expansion": 0}, "expansion: 0, expected at least 1"),
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
