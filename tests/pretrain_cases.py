"""A small policy of every family with data for likelihood training, for tests of one and of several processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from discrete_grpo.core.seeding import seeded
from discrete_grpo.datasets.digits import DigitImages
from discrete_grpo.datasets.smiles import token_dataset
from discrete_grpo.datasets.text import LabelledTextDataset, text_dataset
from discrete_grpo.diffusion.gaussian import GaussianDiffusion
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import absorbing, marginal
from discrete_grpo.diffusion.schedules import CosineSchedule, LinearSchedule
from discrete_grpo.domains.fields import FieldBatch, centred, matrix_of, pairs_mask
from discrete_grpo.domains.graphs import ConditionedGraphs, GraphBatch, node_mask, num_pairs, pair_mask, symmetrise
from discrete_grpo.domains.tokenizer import Property, Tokenizer
from discrete_grpo.models.convnet import ConvNet, ConvNetConfig
from discrete_grpo.models.encoder import Encoder, EncoderConfig, PooledEncoder
from discrete_grpo.models.equivariant import EquivariantConfig, EquivariantTransformer
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.models.vq import VQAutoencoder, VQConfig
from discrete_grpo.policies.fields import Field, FieldPolicy, Positions
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.masked_text import MaskedTextPolicy
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.rewards.judge import TextScorer
from discrete_grpo.training.config import PretrainConfig
from discrete_grpo.training.pretrain import Pretrainer
from tests.toys import tiny_network, transformer_policy

ROWS = 37
CONFIG = PretrainConfig(max_steps=6, batch_size=8, learning_rate=1e-2, warmup_steps=2, log_steps=2, save_steps=3, ema_decay=0.9)
"""Five batches in an epoch, of which the last has five rows."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """Data whose batches are made by ``take`` from row numbers."""

    sizes: Tensor
    take: Callable[[Tensor], Any]

    def __len__(self) -> int:
        return len(self.sizes)

    def batch(self, rows: Tensor) -> Any:
        return self.take(rows)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def _graph_data(least: int = 1) -> tuple[Tensor, GraphBatch]:
    sizes = torch.randint(least, 5, (ROWS,), generator=_generator())
    mask = node_mask(sizes, 4)
    nodes = torch.where(mask, torch.randint(3, mask.shape, generator=_generator()), 0)
    pairs = torch.where(pair_mask(mask), torch.randint(2, (ROWS, num_pairs(4)), generator=_generator()), 0)
    return sizes, GraphBatch(nodes, symmetrise(pairs, 4), mask)


def graphs(dtype: torch.dtype) -> tuple[Any, Any]:
    """Graphs of one to four nodes; those of one node have no pair."""
    sizes, data = _graph_data()
    return transformer_policy(sizes=(0.0, 0.25, 0.25, 0.25, 0.25)).to(dtype), Rows(sizes, data.index)


def conditioned(dtype: torch.dtype) -> tuple[Any, Any]:
    """Graphs with properties, which are hidden at random."""
    sizes, data = _graph_data(2)
    scales = [Property("p", 1.0, 2.0), Property("q")]
    values = torch.randn(ROWS, 2, generator=_generator()).to(dtype)
    args = transformer_policy().init_args() | {
        "network": tiny_network(num_properties=2),
        "properties": scales,
        "condition_dropout": 0.4,
    }
    return GraphPolicy(**args).to(dtype), Rows(sizes, lambda rows: ConditionedGraphs(data.index(rows), values[rows]))


def tokens(dtype: torch.dtype) -> tuple[Any, Any]:
    """Texts with prompts and properties, which are hidden at random."""
    letters = Tokenizer(("a", "b", "c"))
    words = [("abc" * 3)[k % 3 : k % 3 + 1 + k % 6] for k in range(ROWS)]
    scales = [Property("p", 1.0, 2.0), Property("q")]
    values = torch.randn(ROWS, 2, generator=_generator())
    data = token_dataset(words, letters, prompts=[w[:2] for w in words], values=values, properties=scales)
    with seeded(0):
        network = GPT(GPTConfig(len(letters), 6, 2, layers=2, heads=2, width=16))
    policy = TokenPolicy(network, letters, max_length=6, prompt="core", properties=scales, condition_dropout=0.4)

    def take(rows: Tensor) -> Any:
        batch = data.batch(rows)
        return dataclasses.replace(batch, properties=None if batch.properties is None else batch.properties.to(dtype))

    return policy.to(dtype), Rows(data.sizes, take)


def _texts() -> list[str]:
    return [("abc" * 3)[k % 3 : k % 3 + 1 + k % 6] for k in range(ROWS)]


def masked_text(dtype: torch.dtype) -> tuple[Any, Any]:
    """Texts of which a random part is hidden."""
    data = text_dataset(_texts())
    with seeded(0):
        network = Encoder(EncoderConfig(len(data.tokenizer), 6, layers=2, heads=2, width=16))
    return MaskedTextPolicy(network, data.tokenizer, 6).to(dtype), data


def judge(dtype: torch.dtype) -> tuple[Any, Any]:
    """Texts of two kinds, which many batches do not have in equal numbers."""
    texts = text_dataset(_texts())
    data = LabelledTextDataset(texts, torch.rand(ROWS, generator=_generator()) < 0.3)
    with seeded(0):
        network = PooledEncoder(EncoderConfig(len(texts.tokenizer), 6, layers=2, heads=2, width=16))

    def take(rows: Tensor) -> Any:
        batch = data.batch(rows)
        return dataclasses.replace(batch, real=batch.real.to(dtype))

    return TextScorer(network, texts.tokenizer, 6).to(dtype), Rows(data.sizes, take)


def _field_policy(nodes: list[Field], edges: list[Field], space: Positions | None, dtype: torch.dtype) -> FieldPolicy:
    noise = [({f.name: f.kernel.noise.num_states for f in part}, {f.name: f.kernel.noise.num_clean for f in part})
             for part in (nodes, edges)]  # fmt: skip
    config = EquivariantConfig(
        node_fields=noise[0][0], edge_fields=noise[1][0], node_classes=noise[0][1], edge_classes=noise[1][1],
        directed=tuple(f.name for f in edges if f.directed), positions=space is not None,
        layers=2, heads=2, width=16, edge_width=8, global_width=8,
    )  # fmt: skip
    with seeded(0):
        network = EquivariantTransformer(config)
    return FieldPolicy(network, nodes, edges, (0.0, 0.2, 0.3, 0.5), positions=space, num_steps=3).to(dtype)


def _field_data(nodes: list[Field], edges: list[Field], space: bool, dtype: torch.dtype) -> Rows:
    random = _generator()
    sizes = torch.randint(1, 4, (ROWS,), generator=random)
    mask = node_mask(sizes, 3)
    classes = {f.name: torch.where(mask, torch.randint(f.kernel.noise.num_clean, mask.shape, generator=random), 0) for f in nodes}
    pairs = {}
    for f in edges:
        there = pairs_mask(mask, directed=f.directed)
        drawn = torch.randint(f.kernel.noise.num_clean, there.shape, generator=random)
        pairs[f.name] = matrix_of(torch.where(there, drawn, 0), 3, directed=f.directed)
    positions = centred(torch.randn(ROWS, 3, 3, generator=random).to(dtype), mask) if space else None
    return Rows(sizes, FieldBatch(classes, pairs, positions, mask).index)


def fields(dtype: torch.dtype) -> tuple[Any, Any]:
    """Atoms, charges, bonds and positions."""
    nodes = [Field("atom", D3PM(marginal((0.5, 0.3, 0.2), CosineSchedule(exponent=1.5)))),
             Field("charge", D3PM(absorbing(2, LinearSchedule())), weight=0.5)]  # fmt: skip
    edges = [Field("bond", D3PM(marginal((0.7, 0.3), CosineSchedule())), weight=2.0)]
    space = Positions(GaussianDiffusion(CosineSchedule(exponent=2.0), min_std=0.1), weight=3.0)
    return _field_policy(nodes, edges, space, dtype), _field_data(nodes, edges, True, dtype)


def digraphs(dtype: torch.dtype) -> tuple[Any, Any]:
    """Directed graphs."""
    nodes = [Field("atom", D3PM(marginal((0.5, 0.3, 0.2), CosineSchedule())))]
    edges = [Field("arc", D3PM(marginal((0.6, 0.4), CosineSchedule())), weight=5.0, directed=True)]
    return _field_policy(nodes, edges, None, dtype), _field_data(nodes, edges, False, dtype)


def _images(dtype: torch.dtype) -> DigitImages:
    pixels = torch.rand(ROWS, 4, 4, generator=_generator()).to(dtype)
    return DigitImages(pixels, torch.randint(3, (ROWS,), generator=_generator()))


def codes(dtype: torch.dtype) -> tuple[Any, Any]:
    """The autoencoder of images."""
    with seeded(0):
        network = VQAutoencoder(VQConfig(4, codes=5, code_width=3, width=8))
    return network.to(dtype), _images(dtype)


def classifier(dtype: torch.dtype) -> tuple[Any, Any]:
    """The classifier of images, without dropout."""
    with seeded(0):
        network = ConvNet(ConvNetConfig(4, 3, width=4, dropout=0.0))
    return network.to(dtype), _images(dtype)


def stirred(made: Callable[[torch.dtype], tuple[Any, Any]]) -> Callable[[torch.dtype], tuple[Any, Any]]:
    """The policy of ``made`` with noise in all weights, as new networks do not yet depend on all of their inputs."""

    def build(dtype: torch.dtype) -> tuple[Any, Any]:
        policy, data = made(dtype)
        random = _generator()
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=random).to(dtype))
        return policy, data

    return build


FAMILIES: dict[str, Callable[[torch.dtype], tuple[Any, Any]]] = {
    made.__name__: stirred(made) for made in (graphs, conditioned, tokens, masked_text, judge, fields, digraphs, codes, classifier)
}


def pretrainer(family: str, run: Path, dtype: torch.dtype = torch.float64, *, resume: bool = False, **changed: Any) -> Pretrainer:
    """The trainer of a family's policy in ``run``, with the settings that ``changed`` changes."""
    policy, data = FAMILIES[family](dtype)
    return Pretrainer(policy, data, dataclasses.replace(CONFIG, **changed), run, resume=resume)
