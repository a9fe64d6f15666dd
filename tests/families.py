"""A tiny policy of every family, with conditions, and a batch that its likelihood loss takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from discrete_grpo.core.seeding import seeded
from discrete_grpo.diffusion.flow import FlowEuler
from discrete_grpo.diffusion.gaussian import GaussianDiffusion
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import absorbing, marginal
from discrete_grpo.diffusion.schedules import CosineSchedule, LinearSchedule
from discrete_grpo.domains.fields import FieldBatch, matrix_of
from discrete_grpo.domains.graphs import GraphBatch, node_mask, num_pairs, symmetrise
from discrete_grpo.domains.tokenizer import EOS, PAD, Property, TokenBatch, Tokenizer
from discrete_grpo.models.encoder import Encoder, EncoderConfig
from discrete_grpo.models.equivariant import EquivariantConfig, EquivariantTransformer
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from discrete_grpo.policies.decoded import DecodedPolicy
from discrete_grpo.policies.fields import Field, FieldPolicy, Positions
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.masked_text import MaskedTextPolicy
from discrete_grpo.policies.node_count import LearnedSizes, SizedPolicy
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.recipes.pretraining.graph_sequences import graph_sequence_policy

__all__ = ["FAMILIES", "Case"]

LETTERS = Tokenizer(("a", "b", "c"))
COUNTS = (0.0, 0.0, 0.3, 0.3, 0.4)
SIZES: dict[str, Any] = {"layers": 1, "heads": 2, "width": 8, "edge_width": 4, "global_width": 4, "walk_length": 3}


@dataclass(frozen=True)
class Case:
    """How to make a policy.

    Attributes:
        make: the policy, with samples that are text or tuples.
        batch: training data for its likelihood loss, on the CPU.
        columns: conditions of a group.
    """

    make: Callable[[], Any]
    batch: Callable[[], Any]
    columns: Mapping[str, Any] | None = None


def _as_tuples(graphs: GraphBatch) -> Sequence[Any]:
    return [tuple(row) for row in graphs.nodes.tolist()]


def _graph(kernel: str = "d3pm", num_steps: int = 5, **options: Any) -> GraphPolicy:
    schedule = LinearSchedule()
    noises = (absorbing(3, schedule), absorbing(2, schedule)) if kernel == "absorbing" else (
        marginal([0.5, 0.3, 0.2], CosineSchedule()), marginal([0.7, 0.3], CosineSchedule())
    )  # fmt: skip
    node, edge = (FlowEuler(noise, eta=0.1) if kernel == "euler" else D3PM(noise) for noise in noises)
    states = [noise.num_states for noise in noises]
    config = GraphTransformerConfig(states[0], states[1], 3, 2, **SIZES)
    with seeded(0):
        made = GraphPolicy(GraphTransformer(config), node, edge, COUNTS, num_steps=num_steps, decode=_as_tuples, **options)
    return made.eval()


def _graphs() -> GraphBatch:
    sizes = torch.tensor([4, 3, 2])
    mask = node_mask(sizes, 4)
    pairs = torch.tensor([[1, 0, 1, 0, 0, 1], [1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]])
    return GraphBatch(torch.where(mask, torch.arange(4) % 3, 0), symmetrise(pairs, 4), mask)


def _fields(directed: bool = False, space: bool = False) -> FieldPolicy:
    node = Field("atom", D3PM(marginal([0.5, 0.3, 0.2], CosineSchedule())))
    edge = Field("bond", D3PM(marginal([0.7, 0.3], CosineSchedule())), directed=directed)
    sizes = {"layers": 1, "heads": 2, "width": 8, "edge_width": 4, "global_width": 4}
    config = EquivariantConfig(
        node_fields={"atom": 3}, edge_fields={"bond": 2}, node_classes={"atom": 3}, edge_classes={"bond": 2},
        directed=("bond",) if directed else (), positions=space, **sizes,
    )  # fmt: skip
    positions = Positions(GaussianDiffusion(CosineSchedule(), min_std=0.1), learned_variance=True) if space else None
    with seeded(0):
        network = EquivariantTransformer(config)
        made = FieldPolicy(network, [node], [edge], COUNTS, positions=positions, num_steps=5, decode=_field_tuples)
    return made.eval()


def _field_tuples(graphs: FieldBatch) -> Sequence[Any]:
    return [tuple(row) for row in graphs.nodes["atom"].tolist()]


def _field_graphs(directed: bool = False, space: bool = False) -> FieldBatch:
    mask = node_mask(torch.tensor([4, 3]), 4)
    pairs = torch.zeros(2, num_pairs(4) * (2 if directed else 1), dtype=torch.long)
    positions = (
        torch.tensor([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]]).expand(2, -1, -1) * mask[..., None] if space else None
    )
    return FieldBatch(
        {"atom": torch.zeros(2, 4, dtype=torch.long)}, {"bond": matrix_of(pairs, 4, directed=directed)}, positions, mask
    )


def _tokens(**options: Any) -> TokenPolicy:
    config = GPTConfig(len(LETTERS), 6, 1, layers=1, heads=2, width=8)
    with seeded(0):
        return TokenPolicy(
            GPT(config), LETTERS, max_length=6, prompt="start", properties=[Property("p", 1.0, 2.0)], **options
        ).eval()


def _text() -> torch.Tensor:
    return torch.tensor([LETTERS.encode("abca"), LETTERS.encode("ccab")])


def _sequences() -> DecodedPolicy:
    """A policy with a grammar."""
    return graph_sequence_policy(5, 12, layers=1, heads=2, width=8)


def _sequence_texts() -> TokenBatch:
    tokenizer = _sequences().policy.tokenizer
    rows = [[*tokenizer.encode(text), EOS] for text in ("*++.>.", "*+++.>.", "*.*.", "*+.+.+.", "*++.", "*+.", "*++.", "*+++.")]
    return TokenBatch(torch.tensor([row + [PAD] * (max(map(len, rows)) - len(row)) for row in rows]))


def _masked() -> MaskedTextPolicy:
    with seeded(0):
        return MaskedTextPolicy(Encoder(EncoderConfig(len(LETTERS), 6, layers=1, heads=2, width=8)), LETTERS, 6, rounds=2).eval()


class Upper(nn.Module):
    """A decoder that is a module."""

    def init_args(self) -> dict[str, Any]:
        return {}

    def forward(self, texts: Sequence[str]) -> list[str]:
        return [text.upper() for text in texts]


WORDS = {"start": "ab", "p": 3.0}
FAMILIES: dict[str, Case] = {
    "graph": Case(_graph, _graphs),
    "graph with evidence": Case(lambda: _graph(num_steps=7, precondition=True, shared_steps=2), _graphs),
    "graph by Euler steps": Case(lambda: _graph("euler"), _graphs),
    "graph with a mask class": Case(lambda: _graph("absorbing"), _graphs),
    "graph of a learned size": Case(lambda: SizedPolicy(_graph(num_steps=4), LearnedSizes(COUNTS)), _graphs),
    "fields": Case(_fields, _field_graphs),
    "directed graph": Case(lambda: _fields(directed=True), lambda: _field_graphs(directed=True)),
    "positions": Case(lambda: _fields(space=True), lambda: _field_graphs(space=True)),
    "tokens": Case(_tokens, lambda: TokenBatch(_text()), WORDS),
    "decoded tokens": Case(lambda: DecodedPolicy(_tokens(), Upper()), lambda: TokenBatch(_text()), WORDS),
    "graph sequences": Case(_sequences, _sequence_texts),
    "masked text": Case(_masked, _text, {"masked": "a_b__"}),
}
