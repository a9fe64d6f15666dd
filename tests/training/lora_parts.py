"""A small network of every kind that adapters are added to, an answer of each, and the same with adapters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo.domains.graphs import node_mask, num_pairs, pair_mask, symmetrise
from discrete_grpo.models.convnet import ConvNet, ConvNetConfig
from discrete_grpo.models.digress_transformer import DigressConfig, DigressTransformer
from discrete_grpo.models.encoder import Encoder, EncoderConfig
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.models.huggingface import HuggingFaceLM
from discrete_grpo.models.recurrent import Recurrent, RecurrentConfig
from discrete_grpo.training.lora import add_lora
from tests.toys import tiny_network

TOKENS = torch.randint(4, 9, (3, 5), generator=torch.Generator().manual_seed(0))
Answer = Callable[[nn.Module], Tensor]


def graphs(network: nn.Module) -> Tensor:
    g = torch.Generator().manual_seed(0)
    mask = node_mask(torch.tensor([4, 2, 4]), 4)
    nodes = torch.where(mask, torch.randint(3, mask.shape, generator=g), 0)
    pairs = torch.where(pair_mask(mask), torch.randint(2, (3, num_pairs(4)), generator=g), 0)
    x, e = network(nodes, symmetrise(pairs, 4), torch.rand(3, generator=g).double(), mask)
    return torch.cat([x[mask].flatten(), (e * mask[:, :, None, None] * mask[:, None, :, None]).flatten()])


def prompted(network: nn.Module) -> Tensor:
    return network(TOKENS, TOKENS[:, :2], torch.tensor([[0.5], [torch.nan], [-1.0]], dtype=torch.float64))


def masked(network: nn.Module) -> Tensor:
    return network(TOKENS, torch.arange(5) < torch.tensor([[5], [2], [4]]))


def pictures(network: nn.Module) -> Tensor:
    pixels = torch.rand(2, 8, 8, generator=torch.Generator().manual_seed(0))
    return network(pixels.to(next(network.parameters()).dtype))


DIGRESS = DigressConfig(
    *(3, 2, 3, 2, 3, 2, 4), layers=2, heads=2, width=8, edge_width=6, global_width=5, node_hidden=9, edge_hidden=7,
    global_hidden=11, node_mlp=10, edge_mlp=12, global_mlp=13, walk_length=4,
)  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 8, "vocab_size": 9}
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Answer, list[str] | str]] = {
    "graph transformer": (tiny_network, graphs, "all-linear"),
    "digress": (lambda: DigressTransformer(DIGRESS), graphs, "all-linear"),
    "gpt": (
        lambda: GPT(GPTConfig(9, 6, 1, layers=2, heads=2, width=8)),
        prompted,
        ["qkv", "out", "feed.0", "head", "token", "position", "kind", "property"],
    ),
    "encoder": (
        lambda: Encoder(EncoderConfig(9, 5, layers=2, heads=2, width=8, context=1)),
        masked,
        ["qkv", "feed.2", "position", "token", "neighbours"],
    ),
    "recurrent": (lambda: Recurrent(RecurrentConfig(9, layers=1, width=6, embedding=4)), lambda n: n(TOKENS), ["token", "head"]),
    "convnet": (lambda: ConvNet(ConvNetConfig(width=2)), pictures, ["net.0", "net.2", "net.8"]),
    "gpt2 of transformers": (lambda: HuggingFaceLM(GPT2, range(9)), lambda n: n(TOKENS), "all-linear"),
}
every_network = pytest.mark.parametrize("name", NETWORKS)


def made(name: str) -> nn.Module:
    """A network in float64 with no weight at zero, in eval mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        network = NETWORKS[name][0]().double().eval()
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.data.add_(0.2 * torch.randn(parameter.shape))
    return network


def adapted(name: str, seed: int = 0) -> nn.Module:
    """The same with adapters that do something."""
    network = made(name)
    add_lora(network, r=2, lora_alpha=3.0, target_modules=NETWORKS[name][2])
    g = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.data.copy_(0.5 * torch.randn(parameter.shape, generator=g))
    return network


def is_adapted(layer: nn.Module) -> bool:
    return hasattr(layer, "parametrizations")


def stirred(policy: nn.Module) -> None:
    """Give the adapters of a policy numbers that do something."""
    for k, parameter in enumerate(p for p in policy.parameters() if p.requires_grad):
        parameter.data.normal_(std=0.3, generator=torch.Generator().manual_seed(k))
