"""Layers computed again for gradients: the same numbers to the bit, less memory, nothing of it in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.common import peak_allocated
from discrete_grpo.domains.graphs import node_mask, num_pairs, pair_mask, symmetrise
from discrete_grpo.models.digress_transformer import DigressConfig, DigressTransformer
from discrete_grpo.models.encoder import Encoder, EncoderConfig, PooledEncoder
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from discrete_grpo.models.recurrent import Recurrent, RecurrentConfig
from discrete_grpo.policies.node_count import LearnedSizes, SizedPolicy
from discrete_grpo.runs.checkpoint import describe
from discrete_grpo.training.network import checkpoint_layers, network_of
from tests.toys import transformer_policy

SIZES: dict[str, Any] = {"layers": 4, "heads": 2, "width": 16, "dropout": 0.3}


def graphs(network: nn.Module, rows: int = 8) -> Tensor:
    g, n = torch.Generator().manual_seed(0), 9
    mask = node_mask(torch.arange(rows) % 4 + n - 3, n)
    nodes = torch.where(mask, torch.randint(3, mask.shape, generator=g), 0)
    pairs = torch.where(pair_mask(mask), torch.randint(2, (rows, num_pairs(n)), generator=g), 0)
    x, e = network(nodes, symmetrise(pairs, n), torch.rand(rows, generator=g), mask)
    return x[mask].sin().sum() + e.cos().mean()


def tokens(rows: int = 8) -> Tensor:
    return torch.randint(3, 11, (rows, 12), generator=torch.Generator().manual_seed(0))


def prompted(network: nn.Module) -> Tensor:
    x = tokens()
    x[2, 7:] = 2
    properties = torch.linspace(-1, 1, 4).repeat(2)[:, None]
    return network(x, torch.where(torch.arange(3) < 1, 0, x[:, :3] % 3 + 3), properties).sin().sum()


def masked(network: nn.Module) -> Tensor:
    return network(tokens(), torch.arange(12) < torch.arange(5, 13)[:, None]).sin().sum()


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor]]] = {
    "graph transformer": (lambda: GraphTransformer(GraphTransformerConfig(3, 2, 3, 2, **SIZES)), graphs),
    "gpt": (lambda: GPT(GPTConfig(11, 14, 1, **SIZES)), prompted),
    "encoder": (lambda: Encoder(EncoderConfig(11, 14, **SIZES)), masked),
    "pooled encoder": (lambda: PooledEncoder(EncoderConfig(11, 14, context=1, **SIZES)), masked),
}
every_network = pytest.mark.parametrize("name", NETWORKS)


def made(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = NETWORKS[name][0]().eval()
        for parameter in network.parameters():
            parameter.data.add_(0.1 * torch.randn(parameter.shape))
    return network


def gradients(network: nn.Module, answer: Callable[[nn.Module], Tensor]) -> list[Tensor]:
    """The answer, its gradients, and a number drawn afterwards."""
    network.zero_grad(set_to_none=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        total = answer(network)
        total.backward()
        after = torch.rand(())
    return [total.detach(), after, *(p.grad.clone() for p in network.parameters() if p.grad is not None)]


@every_network
@pytest.mark.parametrize("training", [False, True])
def test_answers_and_gradients_are_the_same_to_the_bit(name: str, training: bool) -> None:
    network, answer = made(name).train(training), NETWORKS[name][1]
    kept = gradients(network, answer)
    checkpoint_layers(network)
    again = gradients(network, answer)
    assert len(kept) == len(again) > 10
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))
    if training:  # the test would prove nothing without dropout
        assert not torch.equal(gradients(network.eval(), answer)[0], kept[0])


@every_network
def test_memory_is_saved(name: str) -> None:
    network, answer = made(name), NETWORKS[name][1]
    gradients(network, answer)
    kept = peak_allocated(lambda: answer(network).backward())
    checkpoint_layers(network)
    again = peak_allocated(lambda: answer(network).backward())
    assert again < 0.75 * kept
    checkpoint_layers(network, False)
    assert peak_allocated(lambda: answer(network).backward()) == kept


@every_network
def test_nothing_of_it_is_in_a_checkpoint(name: str) -> None:
    network = made(name)
    before, names = describe(network), list(network.state_dict())
    checkpoint_layers(network)
    assert describe(network) == before
    assert list(network.state_dict()) == names


def test_a_cache_is_filled_once() -> None:
    network: Any = made("gpt")
    prompt, properties = tokens()[:, :2], torch.zeros(8, 1)

    def read() -> Tensor:
        cache = network.cache(8, 2)
        first = network(tokens()[:, :1], prompt, properties, cache)
        return torch.cat([first, network(tokens()[:, 1:2], cache=cache)], 1)

    with torch.no_grad():
        wanted = read()
        checkpoint_layers(network)
        assert torch.equal(read(), wanted)
    found = []
    for on in (False, True):
        checkpoint_layers(network, on)
        first = gradients(network, lambda n: network(tokens()[:, :1], prompt, properties, network.cache(8, 2)).sin().sum())
        found.append(first)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_network_is_found_inside_wrappers() -> None:
    inner = transformer_policy()
    policy = SizedPolicy(inner, LearnedSizes((0.0, 0.5, 0.5)))
    assert network_of(policy) is inner.network
    checkpoint_layers(policy)
    assert inner.network.checkpoint_layers
    config = DigressConfig(3, 2, 3, 2, 3, 2, 4, layers=1, heads=1, width=4, edge_width=4, global_width=4)
    digress = DigressTransformer(config, checkpoint_layers=True)
    checkpoint_layers(digress, False)
    assert not digress.checkpoint_layers


def test_a_network_without_such_layers_is_named() -> None:
    network = Recurrent(RecurrentConfig(9, layers=1, width=4, embedding=4))
    with pytest.raises(ValueError, match="checkpoint_layers: True, expected none: Recurrent has no layers to compute again"):
        checkpoint_layers(network)
