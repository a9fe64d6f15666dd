"""Sizes of networks must be whole numbers: a fraction is refused by its name before torch sees it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from discrete_grpo.core.seeding import seeded
from discrete_grpo.models.convnet import ConvNetConfig
from discrete_grpo.models.digress_transformer import DigressConfig
from discrete_grpo.models.equivariant import EquivariantConfig
from discrete_grpo.models.midi_transformer import MidiConfig
from discrete_grpo.models.recurrent import RecurrentConfig
from discrete_grpo.models.vq import VQConfig
from discrete_grpo.recipes.pretraining.graph_sequences import graph_sequence_policy

CONFIGS: list[Any] = [
    ConvNetConfig(8, 10),
    DigressConfig(4, 3, 4, 3, 4, 3, 9),
    EquivariantConfig(node_fields={"atom": 5}, edge_fields={"bond": 4}, node_classes={"atom": 5}, edge_classes={"bond": 4}),
    MidiConfig(5, 3, 4),
    RecurrentConfig(5),
    VQConfig(8),
]
SIZES = [(config, field.name) for config in CONFIGS for field in fields(config) if field.type == "int"]


@pytest.mark.parametrize(("config", "size"), SIZES, ids=[f"{type(config).__name__}.{size}" for config, size in SIZES])
def test_a_fraction_is_refused_by_name(config: Any, size: str) -> None:
    for value in (getattr(config, size) + 0.5, float(getattr(config, size)), "4"):
        with pytest.raises(ValueError, match=rf"^{size}: {value!r}, expected a whole number, "):
            replace(config, **{size: value})


def test_classes_of_fields_are_whole() -> None:
    with pytest.raises(ValueError, match=r"^node_classes\['atom'\]: 4\.5, expected a whole number, at least 1"):
        replace(CONFIGS[2], node_classes={"atom": 4.5})


def test_sizes_of_a_policy_of_sequences_are_whole() -> None:
    wrong: list[tuple[str, Any]] = [("max_nodes", 8.5), ("max_length", 40.5), ("layers", 1.5), ("width", 32.0), ("seed", 0.5)]
    for name, value in wrong:
        options: dict[str, Any] = {"max_nodes": 8, "max_length": 40, name: value}
        with pytest.raises(ValueError, match=rf"^{name}: {value}, expected a whole number"):
            graph_sequence_policy(options.pop("max_nodes"), options.pop("max_length"), **options)


def test_a_refused_seed_leaves_the_generator_as_it_was() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match=r"^seed: 1\.0, expected a whole number"), seeded(1.0):  # type: ignore[arg-type]
        pass
    assert torch.equal(torch.get_rng_state(), before)
