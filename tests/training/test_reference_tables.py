"""Tables of the reference kept over the passes of a generation: the same bits, fewer passes, and when they are forgotten."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.training.reference_tables import ReferenceTables
from tests import trainer_parts
from tests.toys import share_of_class_two, tiny_policy

SMALL: dict[str, Any] = {"num_generations": 4, "generation_batch_size": 12, "per_device_batch_size": 4, "learning_rate": 1e-2}
SEVERAL: dict[str, Any] = SMALL | {"beta": 0.1, "num_iterations": 3, "max_steps": 9}


def trained(monkeypatch: pytest.MonkeyPatch, *, keep: bool, **settings: Any) -> tuple[list[dict[str, float]], list[Tensor], int]:
    """Metrics, weights, and the number of passes of the reference."""
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, GRPOConfig(**SEVERAL | settings))
    assert trainer.reference is not None
    assert trainer.learner.tables is not None
    if not keep:
        monkeypatch.setattr(trainer.learner.tables, "max_bytes", 0)
    passes, sites = [], trainer.reference.sites

    def counted(*args: Any) -> Any:
        passes.append(1)
        return sites(*args)

    monkeypatch.setattr(trainer.reference, "sites", counted)
    lines = [{k: v for k, v in line.items() if k != "step_time"} for line in trainer.train()]
    assert trainer.learner.tables.bytes == 0, "forgotten with the generation"
    return lines, [p.detach() for p in trainer.module.parameters()], len(passes)


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({}, 3),
        ({"kl_estimator": "k3"}, 3),
        ({"timestep_chunk": 2}, 3),
        ({"generation_shards": 3}, 3),
        ({"bf16": True}, 3),
        ({"steps_per_generation": 2, "max_steps": 12}, 3),
        ({"sync_ref_model": True, "ref_model_sync_steps": 1}, 1),
    ],
)
def test_kept_tables_change_no_bit_and_save_passes(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], share: int) -> None:
    lines, weights, few = trained(monkeypatch, keep=True, **settings)
    others, again, many = trained(monkeypatch, keep=False, **settings)
    assert lines == others
    assert lines[-1]["kl"] > 0
    assert all(torch.equal(a, b) for a, b in zip(weights, again, strict=True))
    assert many == share * few


def test_tables_are_kept_up_to_a_number_of_bytes_and_for_the_same_objects_only() -> None:
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, GRPOConfig(**SMALL | {"max_steps": 1}))
    rollout = trainer_parts.sample(trainer)
    steps = torch.arange(rollout.num_steps).expand(len(rollout), -1).contiguous()
    tables = ReferenceTables(trainer.policy)
    with torch.no_grad():
        first = tables.sites(rollout, steps)
        size = sum(t.nbytes for part in first for t in vars(part).values() if isinstance(t, Tensor))
        assert tables.bytes == size > 0
        assert tables.sites(rollout, steps) is first
        other = tables.sites(rollout, steps.clone())
        assert other is not first
        assert tables.bytes == 2 * size
        tables.clear()
        assert tables.bytes == 0
        assert tables.sites(rollout, steps) is not first
        full = ReferenceTables(trainer.policy, max_bytes=size - 1)
        assert full.sites(rollout, steps) is not full.sites(rollout, steps)
        assert full.bytes == 0


@pytest.mark.parametrize("settings", [{"beta": 0.0}, {"num_iterations": 1}])
def test_nothing_is_kept_where_tables_are_needed_once(settings: dict[str, Any]) -> None:
    assert GRPOTrainer(tiny_policy(), share_of_class_two, GRPOConfig(**SEVERAL | settings)).learner.tables is None


def test_nothing_is_kept_after_a_run_that_ends_in_the_middle_of_a_generation() -> None:
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, GRPOConfig(**SEVERAL | {"max_steps": 2}))
    trainer.train()
    assert trainer.pending is not None
    assert trainer.learner.tables is not None
    assert trainer.learner.tables.bytes == 0
