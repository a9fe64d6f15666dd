"""Parts of the tests of options of a run: small settings, a policy that has moved, the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from discrete_grpo import GRPOTrainer

SMALL: dict[str, Any] = {"num_generations": 4, "generation_batch_size": 12, "learning_rate": 1e-2, "max_grad_norm": None}
FEW: dict[str, Any] = SMALL | {"num_generations": 3, "generation_batch_size": 6}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def moved(module: torch.nn.Module, size: float = 0.02) -> None:
    """Away from where it was, by the same steps every time."""
    with torch.no_grad():
        for k, parameter in enumerate(module.parameters()):
            parameter.add_(size * torch.randn(parameter.shape, generator=seeded(k), dtype=parameter.dtype))


def reference(trainer: GRPOTrainer) -> Any:
    assert trainer.reference is not None
    return trainer.reference


def two_values(samples: Sequence[Any], **columns: Any) -> list[float]:
    """Few groups have a signal: most samples score 0."""
    return [float(s.count(2) == len(s)) for s in samples]
